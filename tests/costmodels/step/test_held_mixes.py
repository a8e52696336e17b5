"""What a rank of one chunk needs under every mix, against the memory of each mix alone."""

import math
from dataclasses import replace
from itertools import accumulate

import numpy as np
import pytest

from meshplan.costmodels.layout import Layout, Schedule, Stage
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.step.held_mixes import HeldMixes
from meshplan.costmodels.step.step import StepModel
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.planner.answer.models import read_model
from meshplan.planner.case.predict import stage_memory

COUNTS = 3, 5


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb_h1"])
@pytest.mark.parametrize("waits", [0.0, 0.25, 0.5, 1.0])
def test_what_waits_on_the_host_is_not_held(waits: float, schedule: Schedule) -> None:
    """Nemotron-H's layers keep unequal bytes: a quarter of three layers is less than two of the
    largest on their way to the host, of several micro-batches it is more.
    """
    model = read_model("nemotron-h-8b")[1]
    setting = Setting.fitted(
        replace(model, pattern=model.pattern[:8]),
        Training(seq_len=4096, global_batch_size=4),
        load_cluster("dgx-h100"),
        load_engine("generic"),
    )
    layout = Layout(
        pipeline_parallel=2, stages=tuple(map(Stage, COUNTS)), schedule=schedule,
        activation_offload=waits,
    )  # fmt: skip
    held, starts = HeldMixes(StepModel(setting, layout)), [0, *accumulate(COUNTS)]
    for rank, layers in enumerate(COUNTS):
        mixes = [(full, some) for full in range(layers + 1) for some in range(layers + 1 - full)]
        full, selective = np.array(mixes).T
        span = rank, starts[rank], starts[rank + 1]
        found = held.rank(rank, [span], [(full, selective)])
        needs = found.needed([np.arange(len(mixes))])
        for (all_of, some_of), need in zip(mixes, needs.tolist(), strict=True):
            stages = list(layout.stages)
            stages[rank] = Stage(layers, some_of, all_of)
            alone = stage_memory(StepModel(setting, replace(layout, stages=tuple(stages))))
            assert math.isclose(need, alone[rank].needed, rel_tol=1e-12)
