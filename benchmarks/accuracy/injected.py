"""Does `meshplan diagnose` name a cause that is known? Causes put into the cost model itself.

    python -m benchmarks.accuracy.injected    the table of docs/learn.md, 30 s on one core

Of the first published run of each of `SUITES` suites, in an order drawn once, that does not
recompute already: the step and the peak of memory as the cost model has them with one cause put in.
What `planner.learn.reasons` makes of that step, without the peak in the log and with it, under the
model's own error as its range of 8 of 10 runs has it.
"""

import math
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmarks.accuracy.learn import PAGE
from benchmarks.pages import put
from benchmarks.usage import check_usage
from meshplan.costmodels.step.step import StepModel
from meshplan.hardware_profiles.errors.intervals import STATE, reserved_interval, step_time_interval
from meshplan.hardware_profiles.network_schema import Link
from meshplan.hardware_profiles.tunings import KERNEL_SCALES, load_fit
from meshplan.planner.case.predict import stage_memory
from meshplan.planner.learn.likelihood import OF_8_OF_10, Seen, likeliest
from meshplan.planner.learn.reasons import SLOWER, Slower, reasons, switches
from meshplan.planner.logs.steady import Steady
from meshplan.planner.runs.rows import SkippedRow
from meshplan.planner.runs.runs import BUILT_IN, Run, read_runs, run_of
from meshplan.planner.runs.validate import step_model

SUITES, SMALLEST_GAP = 14, 1.05
CLOCK, STALL, HOST, NETWORK = 1.3, 1.25, 2.0, 2.0
NAMED, AMONG, BESIDE, OFF, WRONG = (
    "named", "cause among what cannot be told apart", "the same, and that the model is off",
    "that the model is off, without the cause", "another cause",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Injected:
    """A cause, how the reason that names it begins, and the run with it."""

    cause: str
    named: str
    model: StepModel
    step_time_s: float


def published() -> Iterator[tuple[Run, StepModel]]:
    """A run of each suite."""
    seen: set[str] = set()
    for cells in sorted(read_runs(BUILT_IN), key=lambda row: zlib.crc32(f"x{row['id']}".encode())):
        if len(seen) == SUITES:
            return
        try:
            run = run_of(cells)
        except SkippedRow:
            continue
        fit = run.measured.step_time_s and run.layout.world_size >= 8 and run.suite not in seen
        if fit and run.layout.recompute != "full" and run.model.kind != STATE:
            seen.add(run.suite)
            yield run, step_model(run, load_fit(run.engine.name, run.cluster.gpu.name).tuning)


def injected(model: StepModel) -> Iterator[Injected]:
    """Every cause that applies."""
    setting, step_s = model.setting, model.time().step_time_s
    slow = setting.cluster.model_copy(
        update={name: slower_link(getattr(setting.cluster, name)) for name in ("node", "network")}
    )
    yield _with("network at half its rate", SLOWER[1].name, model, cluster=slow)
    scaled = {KERNEL_SCALES: CLOCK, SLOWER[2].scales: HOST}
    for slower in (SLOWER[0], SLOWER[2]):
        yield _slowed(slower, scaled[slower.scales], model)
    yield Injected(f"steps wait {STALL - 1:.0%} for data", "each step waits", model, STALL * step_s)
    for switch in switches(model):
        yield Injected(switch.name, switch.name, switch.model, switch.model.time().step_time_s)


def slower_link(link: Link) -> Link:
    """At `NETWORK` times the seconds."""
    rates = {name: each / NETWORK for name, each in link.bus_bandwidth.model_dump().items()}
    fits = tuple(
        fit.model_copy(update={
            "latency_s": tuple(each * NETWORK for each in fit.latency_s),
            "bandwidth_bytes_per_s": tuple(each / NETWORK for each in fit.bandwidth_bytes_per_s),
        })
        for fit in link.collective_fits
    )  # fmt: skip
    return link.model_copy(update={
        "latency_s": link.latency_s * NETWORK, "collective_fits": fits,
        "bus_bandwidth": link.bus_bandwidth.model_copy(update=rates),
    })  # fmt: skip


def _slowed(slower: Slower, factor: float, model: StepModel) -> Injected:
    tuning = model.setting.tuning
    scales = {name: getattr(tuning, name) * factor for name in slower.scales}
    said = slower.name.format(factor=factor)
    return _with(said, slower.name, model, tuning=tuning.model_copy(update=scales))


def _with(cause: str, name: str, model: StepModel, **update: object) -> Injected:
    changed = StepModel(replace(model.setting, **update), model.layout)  # type: ignore[arg-type]
    return Injected(cause, name.partition(" {")[0], changed, changed.time().step_time_s)


def verdict(run: Run, model: StepModel, found: Injected, *, peak: bool) -> tuple[str, str]:
    """What is made of it, and of the reason that would explain most of the gap."""
    seen = Seen(
        step_time_s=found.step_time_s,
        step_deviation=math.log(step_time_interval(run.asked).high) / OF_8_OF_10,
        kind="reserved" if peak else None,
        memory_bytes=max(stage.reserved for stage in stage_memory(found.model)),
        memory_deviation=math.log(reserved_interval(run.asked).high) / OF_8_OF_10,
    )
    told = reasons(model, seen, _quiet(found.step_time_s))
    off = 1 - sum(reason.probability for reason in told)
    places = likeliest([off, *(reason.probability for reason in told)])
    hit = any(told[at - 1].name.startswith(found.named) for at in places if at)
    first = max(told, key=lambda reason: reason.explains, default=None)
    top = NAMED if first and first.name.startswith(found.named) else WRONG
    if hit:
        return (BESIDE if 0 in places else AMONG if len(places) > 1 else NAMED), top
    return (OFF if 0 in places else WRONG), top


def _quiet(step_time_s: float) -> Steady:
    """Steps that show nothing by themselves."""
    return Steady(
        step_time_s=step_time_s, entries=20, warm_up=3, attempts=1, pauses=0, pause_share=0.0,
        pause_every=None, spread=0.0, jitter=0.0, drift=0.0,
    )  # fmt: skip


def main() -> None:
    """Count, and write the table."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for run, model in published():
        for found in injected(model):
            if found.step_time_s < SMALLEST_GAP * model.time().step_time_s:
                continue
            for peak, column in ((False, "step alone"), (True, "step and peak")):
                said, top = verdict(run, model, found, peak=peak)
                counts[column][said] += 1
                counts[f"most explained, {column}"][top] += 1
    columns = ["step alone", "step and peak", "most explained, step alone"]
    lines = ["| said | step alone | step and peak of memory | what explains most of the gap |",
             "|---|---|---|---|"]  # fmt: skip
    for said in (NAMED, AMONG, BESIDE, OFF, WRONG):
        cells = " | ".join(str(counts[column][said]) for column in columns)
        lines.append(f"| {said} | {cells} |")
    put(PAGE, "injected table", "\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    check_usage(str(__doc__))
    main()
