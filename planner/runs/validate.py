"""How good the cost model is on measured runs: a prediction per row, and the errors by suite.

`planner.runs.accuracy` says what the errors are. Beside each prediction stands that of a simple
model, 6 N D / (peak x 0.42): one constant MFU for everything.
"""

import gc
from collections.abc import Iterable, Iterator
from functools import lru_cache
from operator import itemgetter
from typing import Any

from meshplan.costmodels.model.parameters import active_parameters
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.setting import as_graphed
from meshplan.costmodels.step.step import Setting, StepModel, StepTime
from meshplan.costmodels.units import GIB
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.errors.intervals import (
    Interval,
    reserved_interval,
    reserved_range,
    step_time_interval,
)
from meshplan.hardware_profiles.tunings import Tuning, load_fit
from meshplan.planner.runs.memory import holds, recomputing
from meshplan.planner.runs.rows import Measured, SkippedRow
from meshplan.planner.runs.runs import MODELS_KEPT, Run, run_of

SIMPLE_MFU = 0.42


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What the cost model says of one run."""

    run: Run
    time: StepTime
    allocated_gib: float
    reserved_gib: float
    fits: bool
    simple_step_time_s: float

    @property
    def step_time_interval(self) -> Interval:
        """Factors on the step time that 8 of 10 runs lie between."""
        return step_time_interval(self.run.asked)

    @property
    def reserved_interval(self) -> Interval:
        """The same of the reserved memory."""
        return reserved_interval(self.run.asked)

    @property
    def step_error(self) -> float | None:
        """Predicted over measured step time, minus one."""
        measured = self.run.measured.step_time_s
        return self.time.step_time_s / measured - 1 if measured else None


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row that was not priced, and why."""

    id: str
    reason: str


def predict_rows(rows: Iterable[dict[str, str]]) -> Iterator[Predicted | Skipped]:
    """A prediction, or the reason why there is none, for each row in turn."""
    for row in rows:
        try:
            run = run_of(row)
        except SkippedRow as reason:
            yield Skipped(row.get("id") or "", str(reason))
            continue
        yield predict_run(run, load_fit(run.engine.name, run.cluster.gpu.name).tuning)


def predict_chunk(rows: Iterable[dict[str, str]]) -> list[Predicted | Skipped]:
    """`predict_rows` of some hundred rows, without a search for garbage meanwhile: it looks through
    all that rows share, a tenth of the time, and a row leaves little that it would find.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        return list(predict_rows(rows))
    finally:
        if was_on:
            gc.enable()


def predict_run(run: Run, tuning: Tuning) -> Predicted:
    """Time and memory of one run under `tuning`."""
    model = step_model(run, tuning)
    allocated_gib, reserved_gib = memory_gib(run, model)
    return Predicted(
        run=run, time=model.time(), allocated_gib=allocated_gib, reserved_gib=reserved_gib,
        fits=_fits(run, model), simple_step_time_s=_simple_s(run),
    )  # fmt: skip


def step_model(run: Run, tuning: Tuning) -> StepModel:
    """The cost model of the run's layout under `tuning`, without the host's part under a graph."""
    graphed = as_graphed(tuning, run.engine)
    setting = Setting(run.model, run.training, run.cluster, run.engine, graphed)
    return StepModel(setting, run.layout)


def memory_gib(run: Run, model: StepModel) -> tuple[float, float]:
    """Allocated and reserved peak of the rank that the row speaks of."""
    memory = [(float(m.allocated), model.reserved_bytes(m)) for m in model.memory()]
    allocated, reserved = _spoken_of(memory, run.measured)
    return allocated / GIB, reserved / GIB


def _spoken_of(memory: list[tuple[float, float]], measured: Measured) -> tuple[float, float]:
    if measured.rank_0:
        return memory[0]
    return memory[-1] if measured.last_rank else max(memory, key=itemgetter(1))


def _fits(run: Run, model: StepModel) -> bool:
    """Whether every rank fits; where the row leaves recompute open, with as much of it as there
    is.
    """
    if "recompute" in run.assumed:
        model = StepModel(model.setting, recomputing(run.layout))
    return holds(model)


def _simple_s(run: Run) -> float:
    gpu = run.cluster.gpu
    flops = 6 * _active(run.model) * run.training.global_batch_tokens
    peak = gpu.peak_flops_per_s[gpu.format_16_bit]
    return flops / (peak * SIMPLE_MFU * run.layout.world_size)


@lru_cache(maxsize=MODELS_KEPT)
def _active(model: Model) -> int:
    """Parameters that a token uses: rows of one suite share few models."""
    return active_parameters(model).without_mtp


NUMBERS = (
    "predicted_step_time_s", "predicted_step_time_low_s", "predicted_step_time_high_s",
    "predicted_allocated_gib", "predicted_reserved_gib", "predicted_reserved_low_gib",
    "predicted_reserved_high_gib", "fits",
)  # fmt: skip


def json_row(row: Predicted | Skipped) -> dict[str, Any]:
    """One row of the measured runs.

    id                      the row's
    predicted_step_time_s   of the step
    predicted_step_time_low_s, predicted_step_time_high_s
                            8 of 10 runs lie between
    predicted_allocated_gib, predicted_reserved_gib
                            of the fullest rank
    predicted_reserved_low_gib, predicted_reserved_high_gib
                            8 of 10 runs lie between
    fits                    whether it was predicted to fit
    skipped                 why it could not be priced, and all else is None; None of a priced row
    """
    if isinstance(row, Skipped):
        return {"id": row.id, **dict.fromkeys(NUMBERS), "skipped": row.reason}
    seconds, times = row.time.step_time_s, row.step_time_interval
    device_gib = row.run.cluster.gpu.memory_bytes / GIB
    values = (
        seconds, seconds * times.low, seconds * times.high, row.allocated_gib, row.reserved_gib,
        *reserved_range(row.reserved_gib, row.reserved_interval, device_gib), row.fits,
    )  # fmt: skip
    return {"id": row.run.id, **dict(zip(NUMBERS, values, strict=True)), "skipped": None}
