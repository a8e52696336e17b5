"""One run of a plan by the native engine, watched step by step; and a tournament of several."""

import datetime
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from executor.failures import RankFailed
from executor.launch import CPU_ENVIRONMENT, Interrupted, Job
from executor.preflight import Placement, label
from executor.profile.progress import Bar
from executor.results import RunResult, measured_fields, read_records, write_result
from executor.run_row import write_row
from executor.slurm import SlurmFailed
from executor.start import Starter
from hardware_profiles.local_cpu import num_cores
from planner.plan import Plan, write_plan

ENGINE = "executor.engine.train"
PLAN_FILE, RESULT_FILE = "plan.yaml", "result.json"


def now() -> str:
    """The time of the run, as its result says it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to run.

    band    largest accepted |predicted / measured - 1| of the step time, None for the plan's own
    data    flat token file, None for synthetic tokens
    gpu     name of the profile's GPU, for the row of measured runs; None writes no row
    module  the program of one rank
    """

    placement: Placement
    starter: Starter = field(default_factory=Starter)
    rendezvous: str | None = None
    device: str = "cpu"
    date: str = field(default_factory=now)
    versions: dict[str, str] = field(default_factory=dict)
    steps: int = 10
    warmup: int = 3
    band: float | None = None
    data: Path | None = None
    gpu: str | None = None
    module: str = ENGINE


def job_of(settings: Settings, out: Path) -> Job:
    """The processes that run the plan in `out`."""
    data = ("--data", str(settings.data)) if settings.data else ()
    return Job(
        module=settings.module,
        arguments=(
            str(out / PLAN_FILE), "--steps", str(settings.steps), "--warmup", str(settings.warmup),
            "--out", str(out / "ranks"), "--device", settings.device, *data,
        ),
        processes_per_node=settings.placement.processes_per_node,
        nodes=settings.placement.nodes,
        rendezvous=settings.rendezvous,
        environment=_threads(settings),
    )  # fmt: skip


def _threads(settings: Settings) -> dict[str, str]:
    """CPU ranks share the cores evenly and keep their memory, as when the profile was measured."""
    if settings.device != "cpu":
        return {}
    share = max(1, num_cores() // settings.placement.processes_per_node)
    return {"OMP_NUM_THREADS": str(share), **CPU_ENVIRONMENT}


def run_plan(plan: Plan, settings: Settings, out: Path) -> RunResult:
    """Run `plan` and leave its result in `out`, whatever happens.

    Raises what `Starter.start` raises, after writing what was measured until then.
    """
    out.mkdir(parents=True, exist_ok=True)
    write_plan(plan, out / PLAN_FILE)
    for old in (out / "ranks").glob("rank*.jsonl"):
        old.unlink()
    tracker = Tracker(plan, settings, out)
    try:
        settings.starter.start(job_of(settings, out), out, tracker.look)
    except Interrupted as error:
        tracker.write("interrupted", str(error))
        raise
    except (RankFailed, SlurmFailed) as error:
        tracker.write("failed", str(error))
        raise
    finally:
        tracker.close()
    result = tracker.write("complete")
    if settings.gpu:
        write_row(plan, result, settings.gpu, out)
    return result


class Tracker:
    """Follows the ranks' records: progress for people, and a result file that is never stale."""

    def __init__(self, plan: Plan, settings: Settings, out: Path) -> None:
        self._plan, self._settings, self._out = plan, settings, out
        self._total = settings.warmup + settings.steps
        self._bar = Bar(self._total)
        self._seen = -1

    def look(self) -> None:
        """Read what is new; called a few times a second."""
        path = self._out / "ranks" / "rank0.jsonl"
        steps = path.read_bytes().count(b"\n") if path.exists() else 0
        if steps == self._seen:
            return
        self._seen = steps
        result = self.write("running")
        loss = f"loss {result.losses[-1]:.4f}" if result.losses else "building the model"
        seconds = result.step_time_s or 0.0
        self._bar.show(f"step {steps} {loss}", done=steps, left_s=(self._total - steps) * seconds)

    def write(self, status: str, problem: str | None = None) -> RunResult:
        """The result by now, written to its file."""
        plan, settings = self._plan, self._settings
        world_size = plan.layout.world_size
        band = settings.band
        if band is None and plan.prediction:
            band = plan.prediction.error_fraction
        records = read_records(self._out / "ranks", world_size)
        result = RunResult.model_validate({
            "status": status, "problem": problem, "plan": str(self._out / PLAN_FILE),
            "layout": label(plan), "engine": plan.engine, "device": settings.device,
            "versions": settings.versions, "date": settings.date, "band": band,
            **measured_fields(plan, records, settings.device),
        })  # fmt: skip
        write_result(result, self._out / RESULT_FILE)
        return result

    def close(self) -> None:
        """Remove the progress bar."""
        self._bar.close()


@dataclass(frozen=True, slots=True)
class Contender:
    """A layout of a tournament; `predicted_s` is its step time as the plan says it."""

    plan: Plan
    predicted_s: float | None


def contenders(plan: Plan, top: int) -> tuple[Contender, ...]:
    """The plan and its first `top` - 1 runners-up; their own predictions are not in the plan."""
    chosen = Contender(plan, plan.prediction.step_time_s if plan.prediction else None)
    others = (
        Contender(
            plan.model_copy(
                update={
                    "layout": other.layout, "prediction": None, "search": None, "runners_up": (),
                    "reasons": (f"runner-up of {label(plan)}",),
                }
            ),
            other.step_time_s,
        )
        for other in plan.runners_up[: top - 1]
    )  # fmt: skip
    return (chosen, *others)


def tournament(
    plan: Plan, top: int, run: Callable[[Plan, int], RunResult]
) -> tuple[tuple[Contender, RunResult], ...]:
    """Run every contender; the measured fastest comes first."""
    entered = contenders(plan, top)
    runs = [(each, run(each.plan, number)) for number, each in enumerate(entered, start=1)]
    return tuple(sorted(runs, key=lambda pair: pair[1].step_time_s or float("inf")))
