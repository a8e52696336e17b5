"""`meshplan execute --one-rank`: each rank in a process of its own. No torch.

A rank on a CPU gets the threads that it would have beside the other ranks of its host, and several
ranks run at the same time as far as there are cores: caches and memory are their neighbours' too.
On a GPU they run one after the other.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from meshplan.costmodels.layout import Layout
from meshplan.costmodels.step.step import StepModel
from meshplan.executor.engine.parts.coordinates import Coordinates
from meshplan.executor.launch.failures import RankFailed
from meshplan.executor.launch.plan_engine import for_engine, repriced_line
from meshplan.executor.launch.preflight import CannotRun, profile_of
from meshplan.executor.launch.probe import Found, find_hardware
from meshplan.executor.launch.run import now
from meshplan.executor.launch.torchrun import CPU_ENVIRONMENT
from meshplan.executor.onerank.priced import priced
from meshplan.executor.onerank.result import OneRankRun, RankMeasured, parts_of, step_of
from meshplan.hardware_profiles.engines import NATIVE
from meshplan.hardware_profiles.local_cpu import num_cores
from meshplan.planner.case.plan_file import Plan, write_plan

PROGRAM = "meshplan.executor.onerank.one_rank"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to run: one `rank`, or one of `every_stage`; on `device`, None for what is at hand."""

    rank: int = 0
    every_stage: bool = False
    device: str | None = None
    cluster: str | None = None
    warmup: int = 2
    steps: int = 5
    all_micro_batches: bool = False


def run_one_rank(
    plan: Plan, wanted: Wanted, found: Found | None = None
) -> tuple[OneRankRun, list[str]]:
    """Measure the ranks asked for, and what the reader should know beforehand; `found`: this host,
    where it is known.

    Raises `CannotRun` for a plan that cannot run here, `RankFailed` when a rank dies.
    """
    native = for_engine(plan, NATIVE, profile_of(plan, wanted.cluster))
    model, ranks = priced(native, wanted.cluster), ranks_of(plan.layout, wanted)
    found = found or find_hardware()
    device = device_of(wanted, found, model)
    said = [] if native is plan else [repriced_line(plan, native)]
    with tempfile.TemporaryDirectory() as folder:
        write_plan(native, Path(folder) / "plan.yaml")
        at_once = 1 if device == "cuda" else min(len(ranks), num_cores())
        task = Task(
            folder=Path(folder), wanted=wanted, device=device,
            needed_bytes=at_once * _needed_bytes(model, ranks),
            environment=environment(device, model),
        )  # fmt: skip
        with ThreadPoolExecutor(at_once) as pool:
            measured = list(pool.map(task.measured, ranks))
    apart = set(range(plan.layout.pipeline_parallel)) - {each.pipeline_rank for each in measured}
    run = OneRankRun(
        plan=plan.model.name, layout=plan.layout.label, device=device,
        versions=versions_of(found, device),
        date=now(), micro_batches=model.m, ranks=tuple(measured),
        parts={each.rank: parts_of(model, each) for each in measured},
        step=step_of(model, measured), estimated_pipeline_ranks=tuple(sorted(apart)),
    )  # fmt: skip
    return run, said


def versions_of(found: Found, device: str) -> dict[str, str]:
    """What ran it."""
    said = {"torch": found.torch, "host": found.host}
    if device == "cuda":
        return {**said, "device": found.name, "cuda": found.cuda or ""}
    return {**said, "device": "cpu"}


def ranks_of(layout: Layout, wanted: Wanted) -> list[int]:
    """The ranks to run. Raises `CannotRun` for one that the plan does not have."""
    if wanted.every_stage:
        return list(range(0, layout.world_size, layout.world_size // layout.pipeline_parallel))
    if not 0 <= wanted.rank < layout.world_size:
        raise CannotRun(f"rank {wanted.rank}: the plan has ranks 0 to {layout.world_size - 1}")
    return [wanted.rank]


def device_of(wanted: Wanted, found: Found, model: StepModel) -> str:
    """Where the rank runs. Raises `CannotRun` for a plan for GPUs on a host without, unless the CPU
    was asked for.
    """
    if wanted.device is not None:
        return wanted.device
    if model.setting.cluster.gpu.vendor == "cpu":
        return "cpu"
    if found.device == "cuda":
        return "cuda"
    raise CannotRun(
        f"the plan is for {model.setting.cluster.gpu.title}, and this host has no GPU: look at it "
        "with --dry-run, or give --device cpu where a rank is small enough"
    )


def _needed_bytes(model: StepModel, ranks: Sequence[int]) -> float:
    """What the fullest of these ranks takes of its device."""
    places = {Coordinates(model.layout, rank).pp_rank for rank in ranks}
    held = model.memory()
    return max(float(model.reserved_bytes(held[place])) for place in places)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What every rank's process is told; `needed_bytes` of the device, all at once."""

    folder: Path
    wanted: Wanted
    device: str
    needed_bytes: float
    environment: dict[str, str]

    def measured(self, rank: int) -> RankMeasured:
        """One rank, in a process that ends with its memory."""
        wanted, out = self.wanted, self.folder / f"rank{rank}.json"
        command = [
            sys.executable, "-m", PROGRAM, str(self.folder / "plan.yaml"), "--rank", str(rank),
            "--device", self.device, "--needs", str(self.needed_bytes), "--out", str(out),
            "--warmup", str(wanted.warmup), "--steps", str(wanted.steps),
            *(["--all"] if wanted.all_micro_batches else []),
            *(["--cluster", wanted.cluster] if wanted.cluster else []),
        ]  # fmt: skip
        done = subprocess.run(
            command, check=False, stderr=subprocess.PIPE, text=True, env=self.environment
        )
        if done.returncode == 0:
            return RankMeasured.model_validate_json(out.read_text(encoding="utf-8"))
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        if done.returncode == 2:
            raise CannotRun(last)
        raise RankFailed(f"rank {rank}: {last}")


def environment(device: str, model: StepModel) -> dict[str, str]:
    """On a CPU the threads of a rank that shares its host with those of the plan."""
    if device != "cpu":
        return dict(os.environ)
    beside = min(model.layout.world_size, model.setting.cluster.gpus_per_node)
    threads = max(1, num_cores() // beside)
    return {**os.environ, **CPU_ENVIRONMENT, "OMP_NUM_THREADS": str(threads)}
