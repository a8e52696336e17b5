"""One run of a plan, watched step by step; and a tournament of several."""

import datetime
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from meshplan.executor.engine.watch.heartbeat import Beat, read_beat
from meshplan.executor.launch.failures import RankFailed
from meshplan.executor.launch.preflight import CannotRun, RankPlacement
from meshplan.executor.launch.rendezvous import Meeting
from meshplan.executor.launch.results import RunResult, measured_fields, read_records, write_result
from meshplan.executor.launch.run_row import write_row
from meshplan.executor.launch.slurm import SlurmFailed, check_free, follow, submit, submitted
from meshplan.executor.launch.start import Launcher, Starter, say
from meshplan.executor.launch.torchrun import CPU_ENVIRONMENT, Interrupted, TorchrunJob
from meshplan.executor.profile.progress import Bar
from meshplan.hardware_profiles.local_cpu import num_cores
from meshplan.planner.case.plan_file import Plan, read_plan, write_plan

GLOO_NETWORK = "GLOO_SOCKET_IFNAME"
ENGINE = "meshplan.executor.engine.train"
TIMEOUT_S = 600.0
"""No rank begins a phase or ends a step for so long: the run hangs."""

PLAN_FILE, RESULT_FILE, RANKS = "plan.yaml", "result.json", "ranks"

STARTING_S = 120.0


def now() -> str:
    """The time of the run, as its result says it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """How to run.

    rendezvous, meeting
            where several hosts meet; None, and none, for one host, and where Slurm starts them
    band    largest accepted |predicted / measured - 1| of the step time, None for the plan's own
    data    flat token file, None for synthetic tokens
    gpu     name of the profile's GPU, for the row of measured runs; None writes no row
    module  the program of one rank
    spans   ranks write when each action ran
    timeout_s
            seconds without progress of any rank after which the run has failed; `STARTING_S` where
            that is longer and no rank has begun, since importing torch is no hang
    """

    placement: RankPlacement
    starter: Starter = field(default_factory=Starter)
    rendezvous: str | None = None
    meeting: Meeting | None = None
    device: str = "cpu"
    date: str = field(default_factory=now)
    versions: dict[str, str] = field(default_factory=dict)
    steps: int = 10
    warmup: int = 3
    band: float | None = None
    data: Path | None = None
    gpu: str | None = None
    spans: bool = False
    module: str = ENGINE
    timeout_s: float = TIMEOUT_S


def job_of(settings: RunSettings, out: Path) -> TorchrunJob:
    """The processes that run the plan in `out`."""
    data = ("--data", str(settings.data)) if settings.data else ()
    spans = ("--spans",) if settings.spans else ()
    return TorchrunJob(
        module=settings.module,
        arguments=(
            str(out / PLAN_FILE), "--steps", str(settings.steps), "--warmup", str(settings.warmup),
            "--out", str(out / RANKS), "--device", settings.device, *data,
            *spans,
        ),
        processes_per_node=settings.placement.processes_per_node,
        nodes=settings.placement.nodes,
        rendezvous=settings.rendezvous,
        meeting=settings.meeting.options if settings.meeting else (),
        environment=rank_environment_of(settings),
    )  # fmt: skip


def rank_environment_of(settings: RunSettings) -> dict[str, str]:
    """CPU ranks share the cores evenly and keep their memory, as when the profile was measured.

    They speak to other hosts over the network by which these are reached, unless the user chose.
    """
    if settings.device != "cpu":
        return {}
    share = max(1, num_cores() // settings.placement.processes_per_node)
    environment = {"OMP_NUM_THREADS": str(share), **CPU_ENVIRONMENT}
    if settings.meeting and settings.meeting.interface and GLOO_NETWORK not in os.environ:
        environment[GLOO_NETWORK] = settings.meeting.interface
    return environment


def run_plan(plan: Plan, settings: RunSettings, out: Path) -> RunResult:
    """Run `plan` by the native engine and leave its result in `out`; raises as `run_watched`."""
    starter = settings.starter
    return run_watched(
        plan, settings, out, lambda watch: starter.start(job_of(settings, out), out, watch)
    )


def submit_plan(plan: Plan, settings: RunSettings, out: Path) -> str:
    """Submit the job that runs `plan` under Slurm, and leave it to `collect_plan`; its number.

    Raises `SlurmFailed`, and `CannotRun` if `out` cannot be made.
    """
    prepare(plan, out)
    return submit(job_of(settings, out), settings.starter.slurm, out)


def collect_plan(settings: RunSettings, out: Path) -> RunResult:
    """Compare what the ranks of a job left in `out`: under Slurm, once it has ended. Raises as
    `run_watched`, and `UnreadablePlan` where there is no plan in `out`.
    """
    plan = read_plan(out / PLAN_FILE)
    if settings.starter.launcher is not Launcher.slurm:
        return _watched(plan, settings, out, lambda watch: watch())
    number = submitted(out)
    return _watched(plan, settings, out, lambda watch: follow(number, out, watch=watch, say=say))


Start = Callable[[Callable[[], None]], None]
"""Runs ranks to their end, and calls what it is given a few times a second."""


def run_watched(plan: Plan, settings: RunSettings, out: Path, start: Start) -> RunResult:
    """Run ranks that write their steps to `out`/ranks and leave their result in `out`, whatever
    happens.

    Raises what `start` raises, after writing what was measured until then, `RankFailed` if a rank
    hangs or the training diverges, and `CannotRun` if `out` cannot be made or a run goes on in it.
    """
    if settings.placement.nodes == 1:
        check_ended(out)
    prepare(plan, out)
    return _watched(plan, settings, out, start)


def check_ended(out: Path) -> None:
    """Raise `CannotRun` while another command of this host runs a plan in `out`, whose records a
    second run would remove.
    """
    try:
        said = json.loads((out / RESULT_FILE).read_bytes())
        running, pid = said["status"] == "running", int(said["starter_pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return  # no run before, or a file that no run wrote
    if running and pid != os.getpid() and _is_starter(pid):
        raise CannotRun(
            f"a run goes on in {out} (process {pid}): let it end, or give another folder with --out"
        )


def _is_starter(pid: int) -> bool:
    """Whether the process `pid` of this host is a command of ours; its number may be used anew."""
    try:
        return b"meshplan" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def prepare(plan: Plan, out: Path) -> None:
    """The folder of a run: its plan, and nothing of a run before it. Raises `SlurmFailed` while a
    job runs there, and `CannotRun` if `out` cannot be made.
    """
    check_free(out)
    try:
        (out / RANKS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotRun(f"--out {out}: {error.strerror}; give a folder that can be made") from None
    write_plan(plan, out / PLAN_FILE)
    for old in (out / RANKS).glob("rank*"):
        old.unlink(missing_ok=True)  # another host of the run may have been here first


def _watched(plan: Plan, settings: RunSettings, out: Path, start: Start) -> RunResult:
    tracker = Tracker(plan, settings, out)
    try:
        start(tracker.look)
        _check_complete(plan, out)
    except Interrupted as error:
        tracker.write("interrupted", str(error))
        raise
    except (RankFailed, SlurmFailed) as error:
        tracker.write("failed", str(error))
        raise
    finally:
        tracker.close()
    diverged = tracker.divergence()
    result = tracker.write("failed" if diverged else "complete", diverged)
    if diverged:
        raise RankFailed(diverged)
    if settings.gpu:
        write_row(plan, result, settings.gpu, out)
    return result


def _check_complete(plan: Plan, out: Path) -> None:
    """Raise `RankFailed` unless every rank of a run that has ended left its steps here."""
    records = read_records(out / RANKS, plan.layout.world_size)
    if missing := [str(rank) for rank, steps in enumerate(records) if not steps]:
        raise RankFailed(
            f"the ranks have ended, and {out / 'ranks'} has no steps of rank {missing[0]} "
            f"({len(missing)} such); give an --out that every host sees"
        )


class Tracker:
    """Follows the ranks' records: progress for people, a result file that is never stale, and a
    limit on how long nothing may happen.
    """

    def __init__(self, plan: Plan, settings: RunSettings, out: Path) -> None:
        self._plan, self._settings, self._out = plan, settings, out
        self._total = settings.warmup + settings.steps
        self._bar = Bar(self._total)
        self._seen = -1
        self._progress: object = None
        self._progress_at = time.monotonic()

    def look(self) -> None:
        """Read what is new; called a few times a second. Raises `RankFailed` if nothing happens for
        too long.
        """
        self._check_progress()
        path = self._out / RANKS / "rank0.jsonl"
        steps = path.read_bytes().count(b"\n") if path.exists() else 0
        if steps == self._seen:
            return
        self._seen = steps
        result = self.write("running")
        last = result.losses[-1] if result.losses else None
        begun = any((self._out / RANKS).glob("rank*.phase"))
        unseen = "building the model" if begun else "no rank has begun"
        said = unseen if last is None else f"step {steps} loss {last:.4f}"
        seconds = result.step_time_s or 0.0
        self._bar.show(said, done=steps, left_s=(self._total - steps) * seconds)

    def _check_progress(self) -> None:
        folder = self._out / RANKS
        beats = {path.stem: read_beat(path) for path in sorted(folder.glob("rank*.phase"))}
        sizes = tuple(path.stat().st_size for path in sorted(folder.glob("rank*.jsonl")))
        waits_for_slurm = self._settings.starter.launcher is Launcher.slurm and not beats
        if (beats, sizes) != self._progress or waits_for_slurm:
            self._progress, self._progress_at = (beats, sizes), time.monotonic()
        elif (still_s := time.monotonic() - self._progress_at) > self._settings.timeout_s:
            begun = {name: beat for name, beat in beats.items() if beat}
            if begun or still_s > STARTING_S:
                raise RankFailed(self._hung(begun, still_s))

    def _hung(self, beats: dict[str, Beat], still_s: float) -> str:
        """Which rank is behind the others, and where: it waits for none of them."""
        limit = f"no progress for {still_s:.0f} s (--timeout {self._settings.timeout_s:g})"
        if not beats:
            return f"{limit}: no rank has begun a phase or ended a step; logs: {self._out / 'logs'}"
        waiting = {"wait", "reduce", "optimizer"}
        first, beat = min(
            beats.items(), key=lambda item: (item[1].phase in waiting, item[1].counter)
        )
        steps = self._out / RANKS / f"{first}.jsonl"
        done = steps.read_bytes().count(b"\n") if steps.exists() else 0
        others = sorted({f"{each.phase}" for name, each in beats.items() if name != first})
        beside = f"; the others are in: {', '.join(others)}" if others else ""
        return (
            f"{limit}: rank {first.removeprefix('rank')} hangs in phase {beat.phase!r} of step "
            f"{done}{beside}; logs: {self._out / 'logs'}"
        )

    def divergence(self) -> str | None:
        """The first step whose loss or gradient norm is not finite, as one line."""
        for step in read_records(self._out / RANKS, 1)[0]:
            if step.diverged:
                return (
                    f"step {step.step} diverged: loss {step.loss:g}, gradient norm "
                    f"{step.grad_norm:g}; a time that is not of training is no measurement"
                )
        return None

    def write(self, status: str, problem: str | None = None) -> RunResult:
        """The result by now, written to its file."""
        plan, settings = self._plan, self._settings
        world_size = plan.layout.world_size
        band = settings.band
        if band is None and plan.prediction:
            band = plan.prediction.error_fraction
        records = read_records(self._out / RANKS, world_size)
        result = RunResult.model_validate({
            "status": status, "problem": problem, "starter_pid": os.getpid(),
            "plan": str(self._out / PLAN_FILE),
            "layout": plan.layout.label, "engine": plan.engine, "device": settings.device,
            "versions": settings.versions, "date": settings.date, "band": band,
            **measured_fields(plan, records, settings.device),
        })  # fmt: skip
        write_result(result, self._out / RESULT_FILE)
        return result

    def close(self) -> None:
        """Remove the progress bar."""
        self._bar.close()
