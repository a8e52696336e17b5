"""What a row's bound says of traffic beside chunks, of which the row does not say how many."""

from dataclasses import replace

import numpy as np
import pytest
from simulated_oracle import PINNED, random_question

from meshplan.costmodels.prices.passes import pass_seconds
from meshplan.costmodels.seconds.chunk_traffic import beside_chunks
from meshplan.costmodels.setting import Setting
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.tunings import Tuning
from meshplan.planner.search.rows.priced_space import space_of
from meshplan.planner.search.rows.rows_below import most_passes_beside
from meshplan.planner.space.pins import parse_pins


@pytest.mark.few(2)
@pytest.mark.parametrize(("engine", "several"), [
    ("native", True), ("megatron", True), ("megatron-bridge", True), ("generic", False),
])  # fmt: skip
def test_no_variant_of_a_row_hides_more(engine: str, several: bool) -> None:
    """Traffic has no more passes beside it under any schedule and chunks of the row; without an
    engine that sends it beside chunks it has one.
    """
    more = 0
    for seed in range(8):
        question = replace(
            random_question(seed), engine=load_engine(engine), gpus=8,
            pins=parse_pins({**PINNED, "pipeline_parallel": "2.."}),
        )  # fmt: skip
        space = space_of(question)
        setting = Setting(
            question.model, question.training, question.cluster, question.engine, Tuning()
        )
        found = most_passes_beside(
            space, pass_seconds(space.layouts.take(np.arange(len(space.layouts))), setting)
        )
        for row, passes in enumerate(found.tolist()):
            pp = int(space.layouts.pipeline_parallel[row])
            m = int(space.layouts.num_micro_batches[row])
            for variant in space.variants(row):
                how = several, variant.schedule, pp, variant.virtual_stages, m
                assert beside_chunks(*how).passes <= passes * (1 + 1e-12)
                more += beside_chunks(*how).passes > 1
        assert several or (found == 1).all()
    assert bool(more) == several
