"""Reads a training log and the config of its run into a measured run that the cost model prices.

A config is a plan file or a framework's own; it is named, or lies beside the log.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from meshplan.costmodels.layout import InvalidLayout
from meshplan.costmodels.model.config_fields import UnsupportedModel
from meshplan.costmodels.units import GIB
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.planner.case.config_files import text_of
from meshplan.planner.case.missing import MissingFacts
from meshplan.planner.case.plan_file import IS_PLAN, Plan, UnreadablePlan
from meshplan.planner.case.predict import stage_memory, step_model_of
from meshplan.planner.case.reading import (
    UNRECOGNISED,
    IllegalConfig,
    Reading,
    UnreadableConfig,
)
from meshplan.planner.case.resolve import (
    Case,
    check_case,
    check_levels,
    engine_named,
    resolve,
)
from meshplan.planner.case.run_facts import facts_of
from meshplan.planner.case.seal import UNSEALED
from meshplan.planner.case.settings import Settings, one_line, settings_near
from meshplan.planner.check.check import UNKNOWN, Reader, case_of
from meshplan.planner.check.not_taken import not_taken, read_started
from meshplan.planner.logs.read import (
    CONSOLE,
    Batch,
    Recognised,
    UnreadableLog,
    check_text,
    read_log,
)
from meshplan.planner.logs.steady import Steady, steady
from meshplan.planner.logs.training_log import LoggedStep, Stated
from meshplan.planner.logs.warned import OVER_SOCKETS
from meshplan.planner.runs.rows import Measured
from meshplan.planner.runs.runs import Run

UNMEASURED = Measured(
    step_time_s=None, allocated_gib=None, reserved_gib=None, rank_0=False, oom=False
)


class UnusableRun(ValueError):
    """A log or config that gives no measured run; one line with the place, the rule and the fix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSource:
    """How to read a config: the reader, the facts of the command line, the framework if named."""

    read: Reader
    given: Settings
    framework: str | None = None

    def reading(self, text: str, path: Path) -> Reading | None:
        """The config, started as the options and the nearest settings say."""
        start = self.given.fill(settings_near(path)).start
        return read_started(partial(self.read, text, str(path), self.framework), start, self.given)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRun:
    """A run with what its log says.

    run     as the cost model prices it; the step time is the median after warm-up
    notes   what was recognised in the log and the config, or left out
    steps   of the log, as they were logged
    device_gib  the most that was in use on a device, as its driver counts; None: not in the log
    """

    log: Path
    config: Path
    format: str
    run: Run
    case: Case
    steady: Steady
    notes: tuple[str, ...]
    steps: tuple[LoggedStep, ...] = ()
    device_gib: float | None = None


def distinct(runs: Sequence[LoggedRun]) -> list[LoggedRun]:
    """Each run once: logs with the same steps are one run, which a note of the first says.

    Raises `UnusableRun` where they are given with configs that differ.
    """
    kept: dict[tuple[LoggedStep, ...], LoggedRun] = {}
    for run in runs:
        first = kept.setdefault(run.steps, run)
        if first is run:
            continue
        if first.case != run.case:
            raise UnusableRun(
                f"{run.log}: the same steps as {first.log}, but its config {run.config} differs "
                f"from {first.config}; name the config of this run"
            )
        said = f"{run.log} has the same steps: one run, counted once"
        kept[run.steps] = replace(first, notes=(*first.notes, said))
    return list(kept.values())


def measured_run(log: Path, config: Path | None, source: LogSource) -> LoggedRun:
    """The run of `log` and its config; raises `UnusableRun`."""
    found = config or config_beside(log, source)
    case = case_at(found, source)
    training, gpus = case.training, case.layout.world_size
    batch = Batch(training.global_batch_size, training.global_batch_tokens / gpus, gpus)
    try:
        recognised = read_log(log, batch)
        check_stated(log, recognised.log.stated, found, case)
        steps = steady(recognised.log, str(log))
    except UnreadableLog as error:
        raise UnusableRun(one_line(error)) from None
    used = recognised.log.device_peak_bytes
    return LoggedRun(
        log=log, config=found, format=recognised.format, run=_run(log, case, recognised, steps),
        case=case, steady=steps, notes=(
            *_another(recognised.format, case), *recognised.log.notes, *_room(recognised, case),
            *_warned(recognised, case), *steps.notes, *case.notes,
        ),
        steps=recognised.log.steps, device_gib=used / GIB if used else None,
    )  # fmt: skip


STATED = {
    "gpus": "GPUs", "tensor_parallel": "tensor-parallel ranks",
    "pipeline_parallel": "pipeline ranks", "context_parallel": "context-parallel ranks",
    "expert_parallel": "expert-parallel ranks", "sequences": "sequences in a step",
    "sequence_length": "tokens in a sequence", "tokens": "tokens in a step",
}  # fmt: skip


def check_stated(log: Path, stated: Stated, config: Path, case: Case) -> None:
    """Raises `UnusableRun` where the log says that it is of another run than the config."""
    layout, training = case.layout, case.training
    known = {
        "gpus": layout.world_size, "tensor_parallel": layout.tensor_parallel,
        "pipeline_parallel": layout.pipeline_parallel, "context_parallel": layout.context_parallel,
        "expert_parallel": layout.expert_parallel, "sequences": training.global_batch_size,
        "sequence_length": training.seq_len, "tokens": training.global_batch_tokens,
    }  # fmt: skip
    for name, values in stated.items():
        if known[name] not in values:
            said = " and ".join(f"{value:,}" for value in sorted(values))
            raise UnusableRun(
                f"{log} states {said} {STATED[name]}, its config {config} {known[name]:,}: name "
                "the config of this run with --config"
            )


def _warned(recognised: Recognised, case: Case) -> tuple[str, ...]:
    """What the log says of why its steps take long; on one node there is no network."""
    one_node = case.layout.world_size <= case.cluster.gpus_per_node
    said = recognised.log.warned
    return tuple(each for each in said if not (one_node and each == OVER_SOCKETS))


def _room(recognised: Recognised, case: Case) -> tuple[str, ...]:
    """Of a run that did not fit, what was expected of its memory."""
    if not recognised.log.out_of_memory:
        return ()
    peak = max(float(stage.reserved) for stage in stage_memory(step_model_of(case)))
    room = f"{peak / GIB:.1f} GiB reserved on the fullest rank"
    has = f"{case.cluster.gpu.name} has {case.cluster.gpu.memory_bytes / GIB:.1f} GiB"
    return (f"expected {room}; {has}",)


def _another(format_: str, case: Case) -> tuple[str, ...]:
    """A note if the log is one framework's and its config is priced as another's."""
    engine = case.engine
    names = (engine.name, engine.fitted_as, *engine.aliases)
    if format_ not in CONSOLE or any(format_ in name for name in names):
        return ()
    return (f"the log is from {format_}, but the config is priced as {engine.name} runs it",)


def _run(log: Path, case: Case, recognised: Recognised, steps: Steady) -> Run:
    allocated, reserved = (
        peak / GIB if peak else None
        for peak in (recognised.log.allocated_peak_bytes, recognised.log.reserved_peak_bytes)
    )
    measured = Measured(
        step_time_s=steps.step_time_s, allocated_gib=allocated, reserved_gib=reserved,
        rank_0=False, oom=False,
    )  # fmt: skip
    return run_of_case(log, case, measured)


def run_of_case(path: Path, case: Case, measured: Measured = UNMEASURED) -> Run:
    """The run of a case, as the cost model prices it."""
    return Run(
        id=str(path), suite="own", grade="A", model=case.model, training=case.training,
        layout=case.layout, cluster=case.cluster, engine=case.engine, measured=measured,
        assumed=(),
    )  # fmt: skip


def facts_of_run(run: Run) -> dict[str, str]:
    """What tells a run from others."""
    return facts_of(run.layout, run.training, run.model.name)


def case_at(path: Path, source: LogSource) -> Case:
    """The plan or config at `path`, complete and legal; raises `UnusableRun`."""
    try:
        text = text_of(path)
        if source.framework is None and IS_PLAN.search(text):
            plan = Plan.from_yaml(text, str(path))
            case = case_of(plan)
            notes = [note for note in case.notes if note != UNSEALED]  # of figures that none reads
            case = replace(case, notes=(*not_taken(source.given, plan, case.model), *notes))
            if source.given.engine:
                case = replace(case, engine=engine_named(source.given.engine))
        else:
            reading = source.reading(text, path)
            if reading is None:
                raise UnreadableConfig(UNRECOGNISED)
            case = resolve(reading.alone(), source.given, settings_near(path))
            check_levels(case, reading)
        check_case(case)
    except (
        UnreadableConfig, UnreadablePlan, MissingFacts, InvalidLayout, UnsupportedModel, *UNKNOWN,
    ) as error:  # fmt: skip
        said = one_line(error)
        raise UnusableRun(said if said.startswith(str(path)) else f"{path}: {said}") from None
    return case


def config_beside(log: Path, source: LogSource) -> Path:
    """The one plan or config in the log's folder; raises `UnusableRun` where there is not one."""
    if not log.exists():
        raise UnusableRun(f"{log}: cannot be read: no such file")
    names = _recognised(sorted(_files(log.parent)), log, source)
    if len(names) != 1:
        try:
            check_text(log)
        except UnreadableLog as error:
            raise UnusableRun(one_line(error)) from None
        found = ", ".join(path.name for path in names[:SHOWN_BESIDE]) or "none"
        if len(names) > SHOWN_BESIDE:
            found += f" and {len(names) - SHOWN_BESIDE} more"
        raise UnusableRun(
            f"{log}: the config of its run is not clear (beside it: {found}); name it with --config"
        )
    return names[0]


MOST_BESIDE, SHOWN_BESIDE = 100, 6
SHARD = ("deepspeed", "accelerate")
"""Formats that say how a training is sharded, which another config states."""


def _files(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.is_file()]
    except OSError as error:
        raise UnusableRun(f"{folder}: cannot be listed: {error.strerror}") from None


def _recognised(paths: Sequence[Path], log: Path, source: LogSource) -> list[Path]:
    """The plans and configs among them; where there is none, those that cannot be read, which say
    why when they are read for themselves; else files that only shard a training (`SHARD`).
    """
    whole, unread, sharding = list[Path](), list[Path](), list[Path]()
    for path in paths[:MOST_BESIDE]:
        text = _text_of(path) if path != log else ""
        try:
            reading = None if IS_PLAN.search(text) or not text else source.reading(text, path)
            if reading and reading.framework in SHARD and not reading.facts.get("model"):
                sharding.append(path)
            elif reading or IS_PLAN.search(text):
                whole.append(path)
        except UnreadableConfig:
            unread.append(path)
        except IllegalConfig:  # a config all the same: it says so when it is read for itself
            whole.append(path)
    return whole or unread or sharding


def _text_of(path: Path) -> str:
    try:
        return text_of(path)
    except UnreadableConfig:
        return ""
