"""What a run measured, beside what its plan predicted.

    step time     of a step, the slowest rank's; of the run, the median of the timed steps
    ranks         each rank's phases in the timed step of median time, the faster of two
    parts         the row of that table with the most forward and backward time:
      compute and communication   forward + backward with the collectives inside them, and the
                                  gradient reductions that nothing hid
      bubble                      waiting for other pipeline stages, messages included
      optimizer                   gradient norm and weight update
      not accounted for           the rest of the step: data, host, synchronisation
    memory        the largest peak of each pipeline rank. On a CPU it is the process's resident set,
                  which holds Python and torch too: compared with predicted context + allocated for
                  the native engine, whose processes the context is of; not for another
    error         predicted / measured - 1

The file is written anew after every step, so a run that is killed leaves what it had.
"""

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median, median_low
from typing import Literal

from meshplan.executor.engine.parts.coordinates import Coordinates
from meshplan.executor.engine.watch.record import StepRecord, read_record
from meshplan.executor.launch.failures import RankFailed
from meshplan.executor.profile.statistics import summarise
from meshplan.hardware_profiles.engines import NATIVE
from meshplan.hardware_profiles.frozen import Frozen
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.text_files import write_text


class ComparedPart(Frozen):
    """One line of the comparison.

    name       what, in words
    unit       of both
    predicted  None: not predicted
    measured   None: not measured
    """

    name: str
    unit: Literal["s", "bytes"]
    predicted: float | None
    measured: float | None

    @property
    def error(self) -> float | None:
        """predicted / measured - 1."""
        if self.predicted is None or not self.measured:
            return None
        return self.predicted / self.measured - 1


class RankResult(Frozen):
    """One rank in the step of median time, and its peaks over all steps.

    rank                    global
    pipeline_rank           from 0
    step_time_s             wall time of the step
    forward_s, backward_s, optimizer_s
                            of its phases
    waiting_s               for other pipeline stages
    exposed_comm_s          gradient reductions that nothing hid
    processor_s             processor time of the process, all threads
    allocated_peak_bytes, reserved_peak_bytes
                            the most over all steps; on a CPU the process's resident set
    """

    rank: int
    pipeline_rank: int
    step_time_s: float
    forward_s: float
    backward_s: float
    optimizer_s: float
    waiting_s: float
    exposed_comm_s: float
    processor_s: float
    allocated_peak_bytes: float
    reserved_peak_bytes: float


class RunResult(Frozen):
    """A run, finished or not; `status` says which.

    meshplan_run          version of the file
    status                finished or not
    problem               why it failed
    starter_pid           the `meshplan execute` that writes this file: where `status` is "running"
                          and no such process is alive, the run was killed
    plan                  its file
    layout                in short
    engine                that ran
    device                `cpu` or a GPU's name
    versions              of the packages
    date                  of the start
    step_time_s           the median of the timed steps
    step_time_spread      interquartile range over median of the timed steps
    step_times_s          of each timed step
    tokens_per_s_per_gpu  measured
    losses                of each step, None where it was no finite number
    parts                 predicted beside measured
    ranks                 of the timed step of median time
    band                  how far the predicted step time may be off: |error| <= band
    """

    meshplan_run: Literal[1] = 1
    status: Literal["running", "complete", "interrupted", "failed"]
    problem: str | None = None
    starter_pid: int | None = None
    plan: str
    layout: str
    engine: str
    device: str
    versions: dict[str, str]
    date: str
    step_time_s: float | None = None
    step_time_spread: float | None = None
    step_times_s: tuple[float, ...] = ()
    tokens_per_s_per_gpu: float | None = None
    losses: tuple[float | None, ...] = ()
    parts: tuple[ComparedPart, ...] = ()
    ranks: tuple[RankResult, ...] = ()
    band: float | None = None

    @property
    def step_error(self) -> float | None:
        """Error of the predicted step time."""
        return next((part.error for part in self.parts if part.name == "step time"), None)

    @property
    def inside_band(self) -> bool | None:
        """Whether the prediction held; None if there was none."""
        if self.step_error is None or self.band is None:
            return None
        return abs(self.step_error) <= self.band


def finite(value: float) -> float | None:
    """The value, None if it is not finite: JSON has no word for that."""
    return value if math.isfinite(value) else None


def read_records(folder: Path, world_size: int) -> list[list[StepRecord]]:
    """The steps that every rank wrote so far, by rank; a line cut off by a kill is left out. Raises
    `RankFailed` for a line that no rank writes.
    """
    return [_steps(folder / f"rank{rank}.jsonl") for rank in range(world_size)]


def _steps(path: Path) -> list[StepRecord]:
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    steps = []
    for at, line in enumerate(lines, start=1):
        try:
            steps.append(read_record(line.decode("utf-8")))
        except (ValueError, TypeError, KeyError):
            raise RankFailed(
                f"{path}, line {at} is no step record: the file was changed, or its disk is full "
                "or failed; run again with another --out"
            ) from None
    return steps


def measured_fields(
    plan: Plan, records: Sequence[Sequence[StepRecord]], device: str
) -> dict[str, object]:
    """The fields of `RunResult` that come from the ranks' records; as many as are known by now."""
    common = min(len(steps) for steps in records)
    timed = timed_steps(records)
    losses = tuple(finite(records[0][i].loss) for i in range(common))
    if not timed:
        return {"losses": losses}
    step_times = tuple(max(steps[i].step_time_s for steps in records) for i in timed)
    typical = typical_step(records)
    ranks = tuple(_rank(plan, rank, steps, typical) for rank, steps in enumerate(records))
    return {
        "losses": losses,
        "ranks": ranks,
        "parts": (*compare(plan, ranks, median(step_times)), *memory_parts(plan, ranks, device)),
        **timing_fields(plan, step_times),
    }


def timing_fields(plan: Plan, step_times_s: Sequence[float]) -> dict[str, object]:
    """The fields of `RunResult` that come from the step times alone."""
    summary = summarise(step_times_s)
    tokens = plan.training.global_batch_tokens
    gpus = plan.layout.world_size
    return {
        "step_time_s": summary.median_s,
        "step_time_spread": summary.spread,
        "step_times_s": tuple(step_times_s),
        "tokens_per_s_per_gpu": tokens / gpus / summary.median_s,
    }


def timed_steps(records: Sequence[Sequence[StepRecord]]) -> list[int]:
    """The steps that every rank has done, without those of the warm-up."""
    common = min(len(steps) for steps in records)
    return [i for i in range(common) if not records[0][i].warmup]


def typical_step(records: Sequence[Sequence[StepRecord]]) -> int:
    """The timed step of median time, the slowest rank's counting."""
    timed = timed_steps(records)
    step_times_s = {i: max(steps[i].step_time_s for steps in records) for i in timed}
    middle = median_low(step_times_s.values())
    return next(i for i in timed if step_times_s[i] == middle)


def _rank(plan: Plan, rank: int, steps: Sequence[StepRecord], typical: int) -> RankResult:
    step = steps[typical]
    return RankResult(
        rank=rank,
        pipeline_rank=Coordinates(plan.layout, rank).pp_rank,
        step_time_s=step.step_time_s,
        forward_s=step.forward_s,
        backward_s=step.backward_s,
        optimizer_s=step.optimizer_s,
        waiting_s=step.waiting_s,
        exposed_comm_s=step.exposed_comm_s,
        processor_s=step.processor_s,
        allocated_peak_bytes=max(step.allocated_peak_bytes for step in steps),
        reserved_peak_bytes=max(step.reserved_peak_bytes for step in steps),
    )


def compare(
    plan: Plan, ranks: Sequence[RankResult], step_time_s: float
) -> tuple[ComparedPart, ...]:
    """Predicted against measured seconds: the busiest rank's phases, which add up to the step."""
    p = plan.prediction
    busiest = max(ranks, key=lambda rank: rank.forward_s + rank.backward_s)
    working_s = busiest.forward_s + busiest.backward_s + busiest.exposed_comm_s
    rest_s = step_time_s - working_s - busiest.waiting_s - busiest.optimizer_s
    return _parts("s", (
        ("step time", p.step_time_s if p else None, step_time_s),
        ("compute and communication", p.compute_s + p.exposed_comm_s if p else None, working_s),
        ("bubble", p.bubble_s if p else None, busiest.waiting_s),
        ("optimizer", p.optimizer_s if p else None, busiest.optimizer_s),
        ("not accounted for", None, rest_s),
    ))  # fmt: skip


def _parts(
    unit: Literal["s", "bytes"], rows: Iterable[tuple[str, float | None, float]]
) -> tuple[ComparedPart, ...]:
    """Lines of the comparison from names, predicted and measured values."""
    return tuple(
        ComparedPart(name=name, unit=unit, predicted=predicted, measured=measured)
        for name, predicted, measured in rows
    )


def memory_parts(plan: Plan, ranks: Sequence[RankResult], device: str) -> tuple[ComparedPart, ...]:
    """Predicted against measured peaks of each pipeline rank."""
    stages = plan.prediction.memory if plan.prediction else ()
    parts: list[tuple[str, float | None, float]] = []
    for place in sorted({rank.pipeline_rank for rank in ranks}):
        own = [rank for rank in ranks if rank.pipeline_rank == place]
        allocated = max(rank.allocated_peak_bytes for rank in own)
        reserved = max(rank.reserved_peak_bytes for rank in own)
        stage = stages[place] if place < len(stages) else None
        if device == "cpu" and plan.engine != NATIVE:
            parts.append((f"memory, stage {place}, resident (not compared)", None, reserved))
            continue
        if device != "cpu" or allocated != reserved:
            tensors = stage.allocated if stage else None
            parts.append((f"memory, stage {place}, allocated", tensors, allocated))
        word = "resident" if device == "cpu" else "reserved"
        kept = stage.reserved + (stage.context if device == "cpu" else 0.0) if stage else None
        parts.append((f"memory, stage {place}, {word}", kept, reserved))
    return _parts("bytes", parts)


def write_result(result: RunResult, path: Path) -> None:
    """Write atomically, errors of the parts included; raises `CannotWrite`.

    parts[].error  predicted / measured - 1; in `result.json` alone
    inside_band    whether the prediction held; in `result.json` alone
    """
    document = result.model_dump(mode="json")
    for part, written in zip(result.parts, document["parts"], strict=True):
        written["error"] = part.error
    document["inside_band"] = result.inside_band
    write_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n")
