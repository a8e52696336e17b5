"""The MFU of comparable published runs, by meshplan's own count of model FLOPs.

Comparable: the same GPU, precision and kind of model, on between a quarter and four times the GPUs,
with between a quarter and four times the parameters. Where fewer than `FEWEST` are found the number
of GPUs does not count, then not the parameters, then any GPU of the family does: the answer says.
Where a source measured several layouts of one question only the fastest counts.
"""

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np

from meshplan.costmodels.model.parameters import active_parameters
from meshplan.costmodels.step.step import StepModel
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.tunings import FAMILIES, Tuning, gpu_family
from meshplan.planner.runs.rows import SkippedRow
from meshplan.planner.runs.runs import BUILT_IN, Run, read_runs, run_of
from meshplan.planner.runs.validate import step_model

FEWEST, NEAR = 5, 4.0


@dataclass(frozen=True, slots=True)
class Usual:
    """The distribution of the MFU of comparable runs.

    runs     how many questions' fastest runs
    sources  that published them
    low      10th percentile of their MFU
    median   of their MFU
    high     90th percentile of their MFU
    below    fraction of them that is below this run's
    alike    in what they are like this run
    """

    runs: int
    sources: int
    low: float
    median: float
    high: float
    below: float
    alike: str


def mfu_of(model: StepModel, step_time_s: float) -> float | None:
    """Model FLOPs over what the GPUs could do in the step; None where formats are mixed, whose peak
    is no one number.
    """
    gpu, recipe = model.setting.cluster.gpu, model.pricer.device.recipe
    if recipe.cast_bytes:
        return None
    peak = gpu.peak_flops_per_s[recipe.matmul_dtype(gpu)]
    return float(model.total_cost.model_flops / (step_time_s * model.layout.world_size) / peak)


def usual(run: Run, mfu: float) -> Usual | None:
    """What runs near `run` measured; None where fewer than `FEWEST` are published."""
    gpu = run.cluster.gpu.name
    near = [
        each
        for each in _known(gpu_family(gpu), run.training.precision)
        if each.run.model.kind == run.model.kind
    ]
    same = [each for each in near if each.run.cluster.gpu.name == gpu]
    size = [each for each in same if _within(each.parameters, _parameters(run))]
    both = [each for each in size if _within(each.run.layout.world_size, run.layout.world_size)]
    levels = (
        (both, "same GPU, precision and kind of model; 1/4 to 4 x the parameters and the GPUs"),
        (size, "same GPU, precision and kind of model; 1/4 to 4 x the parameters"),
        (same, "same GPU, precision and kind of model"),
        (near, "same GPU family, precision and kind of model"),
    )
    return next((_spread(f, mfu, alike) for f, alike in levels if len(f) >= FEWEST), None)


@dataclass(frozen=True, slots=True)
class Known:
    """A published run with its MFU."""

    run: Run
    parameters: float
    mfu: float


@cache
def _known(family: str, precision: str) -> tuple[Known, ...]:
    found = []
    for cells in _fastest(family, precision):
        try:
            run = run_of(cells)
        except SkippedRow:
            continue
        assert run.measured.step_time_s is not None
        if mfu := mfu_of(step_model(run, Tuning()), run.measured.step_time_s):
            found.append(Known(run, _parameters(run), mfu))
    return tuple(found)


def _fastest(family: str, precision: str) -> Iterator[dict[str, str]]:
    """Of each question (suite, model, GPUs, batch, framework) the fastest published row."""
    best: dict[tuple[str, ...], tuple[float, dict[str, str]]] = {}
    for cells in read_runs(BUILT_IN):
        named = cells["priced_gpu"] or cells["gpu"]
        known = FAMILIES.get(named.split("-")[0]) == family and cells["grade"] in ("A", "B")
        same = (cells["precision"] or "bf16") == precision and cells["oom"] in ("0", "")
        if not (known and same and cells["step_time_s"]):
            continue
        key, step_s = tuple(cells[name] for name in QUESTION), float(cells["step_time_s"])
        if key not in best or step_s < best[key][0]:
            best[key] = (step_s, cells)
    yield from (cells for _, cells in best.values())


QUESTION = ("suite", "model", "gpu", "gpus", "seq_len", "global_batch", "framework")


def _parameters(run: Run) -> float:
    return float(active_parameters(run.model).without_mtp)


def _within(one: float, other: float) -> bool:
    return other / NEAR <= one <= other * NEAR


def _spread(found: Sequence[Known], mfu: float, alike: str) -> Usual:
    values = np.array([each.mfu for each in found])
    low, middle, high = (float(each) for each in np.percentile(values, [10, 50, 90]))
    sources = len({each.run.suite for each in found})
    return Usual(len(found), sources, low, middle, high, float(np.mean(values < mfu)), alike)
