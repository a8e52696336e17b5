"""Run one rank of a plan, whatever its size, on a CPU box: the engine's own program on fake
tensors.

    python -m meshplan.executor.dryrun.dry_run plan.yaml --rank R | --all-stages  [--json]

Each rank is simulated alone, with a process group that answers at once. What comes out is what the
program does: bytes of live tensors (no allocator slack, no CUDA context, no communication
library), the FLOPs it executes, and the bytes it communicates. Routed tokens are balanced over the
experts.
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from meshplan.costmodels.layout import InvalidLayout
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.executor.dryrun.report import tables
from meshplan.executor.dryrun.result import DryRun
from meshplan.executor.dryrun.tracker import Tracker
from meshplan.executor.dryrun.work import Work
from meshplan.executor.engine.step.engine import Engine, Job
from meshplan.executor.engine.step.pipeline import Batch
from meshplan.planner.case.plan_file import Plan, UnreadablePlan, read_plan
from meshplan.planner.report.terminal import as_written


def dry_run(plan: Plan, rank: int) -> DryRun:
    """Run `rank` of `plan`. Raises `InvalidLayout` for a layout that the engine cannot run."""
    return dry_run_job(job_of(plan), rank)


def job_of(plan: Plan) -> Job:
    """What a plan asks the engine to train."""
    return Job(
        model=model_from_config(plan.model.config, plan.model.name),
        layout=plan.layout,
        training=plan.training,
    )


def dry_run_job(job: Job, rank: int) -> DryRun:
    """Run one rank of `job`, one step; a step of very many micro-batches from two shorter ones.

    Once the pipeline is full every further pp micro-batches do the same: `2 pp` and `3 pp` of them
    (with the remainder that the schedule needs) give all figures of a longer step exactly.
    """
    began = time.perf_counter()
    pp = job.layout.pipeline_parallel
    wanted, short = job.layout.num_micro_batches(job.training), few_micro_batches(job)
    longer = short + pp
    if wanted <= short + longer:
        return _measure(job, rank, began)
    a, b = (_measure(_with_micro_batches(job, n), rank, began) for n in (short, longer))
    return _extrapolate(a, b, (wanted - longer) // pp)


def few_micro_batches(job: Job) -> int:
    """So many fill the pipeline and begin to repeat themselves."""
    pp = job.layout.pipeline_parallel
    return 2 * pp + job.layout.num_micro_batches(job.training) % pp


def shortened(job: Job) -> Job:
    """The job with few micro-batches where it has many more and holds no more of them at once."""
    few = few_micro_batches(job)
    more = job.layout.num_micro_batches(job.training) > 2 * few
    return _with_micro_batches(job, few) if more and job.layout.schedule != "gpipe" else job


def _with_micro_batches(job: Job, number: int) -> Job:
    """The same job with another global batch."""
    size = number * job.layout.data_parallel * job.layout.micro_batch_size
    return replace(job, training=replace(job.training, global_batch_size=size))


def _extrapolate(a: DryRun, b: DryRun, repeats: int) -> DryRun:
    """`b` and `repeats` times more of what it does beyond `a`."""

    def more(name: str) -> dict[str, Any]:
        before, after = getattr(a, name), getattr(b, name)
        return {key: x + repeats * (x - before.get(key, 0)) for key, x in after.items()}

    return DryRun(
        rank=b.rank,
        pp_rank=b.pp_rank,
        peak_bytes=b.peak_bytes + repeats * (b.peak_bytes - a.peak_bytes),
        peak_by_category=more("peak_by_category"),
        peak_by_phase=more("peak_by_phase"),
        flops=more("flops"),
        comm_bytes=more("comm_bytes"),
        comm_calls=more("comm_calls"),
        wall_s=b.wall_s,
    )


def _measure(job: Job, rank: int, began: float) -> DryRun:
    """The whole program of one step."""
    with watched_engine(job, rank) as (engine, tracker):
        work = Work(engine.local.groups.axes())
        tracker.work = work
        engine.run([fake_batch(engine)] * engine.num_micro_batches)
        return DryRun(
            rank=rank,
            pp_rank=engine.local.groups.at.pp_rank,
            peak_bytes=tracker.peak,
            peak_by_category={str(k): v for k, v in tracker.at_peak.items()},
            peak_by_phase=dict(tracker.phase_peaks),
            flops=dict(work.flops),
            comm_bytes=dict(work.comm_bytes),
            comm_calls=dict(work.comm_calls),
            wall_s=time.perf_counter() - began,
        )


@contextmanager
def watched_engine(job: Job, rank: int) -> Iterator[tuple[Engine, Tracker]]:
    """One rank's engine on fake tensors, alone in its world, and the tracker that follows it."""
    with _alone(rank, job.layout.world_size), FakeTensorMode(allow_non_fake_inputs=True):
        tracker = Tracker()
        with tracker.watching():
            engine = Engine(job, torch.device("cpu"), balanced=True, observer=tracker)
            tag_state(tracker, engine)
            yield engine, tracker


@contextmanager
def _alone(rank: int, world_size: int) -> Iterator[None]:
    """A process group of `world_size` ranks of which only this one exists; no garbage
    collection. Messages have gone as soon as they are sent (the fake group never says so).
    """
    dist.init_process_group("fake", rank=rank, world_size=world_size)
    asked = dist.Work.is_completed
    dist.Work.is_completed = lambda work: True  # type: ignore[assignment, method-assign]
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
        dist.Work.is_completed = asked  # type: ignore[method-assign]
        dist.destroy_process_group()


def tag_state(tracker: Tracker, engine: Engine) -> None:
    """Name the categories of everything that lives through the step."""
    for unit in engine.units:
        tracker.tag(unit.whole, "weights" if engine.job.layout.zero_stage < 3 else "transient")
        if tracker.category_of(unit.master) == "transient":
            tracker.tag(unit.master, "optimizer")
        tracker.tag(unit.kept_gradient, "gradients")
    for moment in engine.update.moments:
        tracker.tag(moment, "optimizer")


def fake_batch(engine: Engine) -> Batch:
    """Tokens without values."""
    shape = (engine.local.local_seq_len, engine.job.layout.micro_batch_size)
    targets = (1 + engine.job.model.mtp_layers, *shape)
    return Batch(torch.zeros(shape, dtype=torch.int64), torch.zeros(targets, dtype=torch.int64))


def main() -> None:
    """Run as the module's docstring says. Exit 2 when the plan cannot be used."""
    parser = argparse.ArgumentParser(prog="meshplan.executor.dryrun.dry_run")
    parser.add_argument("plan", type=Path)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--rank", type=int, default=0)
    which.add_argument("--all-stages", action="store_true", help="first rank of each pipeline rank")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        plan = read_plan(options.plan)
        layout = plan.layout
        step = layout.world_size // layout.pipeline_parallel
        ranks = range(0, layout.world_size, step) if options.all_stages else [options.rank]
        if not 0 <= options.rank < layout.world_size:
            raise InvalidLayout(
                f"rank {options.rank}: the plan has ranks 0 to {layout.world_size - 1}"
            )
        results = [dry_run(plan, rank) for rank in ranks]
    except (InvalidLayout, UnreadablePlan) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    if options.json:
        print(json.dumps([asdict(result) for result in results]))
        return
    console = as_written(width=None if sys.stdout.isatty() else 120)
    for table in tables(plan, results):
        console.print(table)
    print(f"{len(results)} of {layout.world_size} ranks, {sum(r.wall_s for r in results):.1f} s")


if __name__ == "__main__":
    main()
