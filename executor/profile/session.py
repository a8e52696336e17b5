"""One profiling run, on every rank: plan, measure what is not yet measured, write.

Started by `meshplan profile` through torchrun (or by srun, or alone) as `python -m
meshplan.executor.profile.session OPTIONS`, with OPTIONS as JSON. Rank 0 keeps the partial file and
writes the profile; the others only measure.
"""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record as report_error

from meshplan.executor.engine.watch.heap import keep_freed_memory
from meshplan.executor.profile.bench import Bench
from meshplan.executor.profile.device import found_gpu
from meshplan.executor.profile.environment import conditions, header
from meshplan.executor.profile.measured import attention, collectives, interference, matmul, memory
from meshplan.executor.profile.measured.collectives import Groups
from meshplan.executor.profile.measurement import Measurement
from meshplan.executor.profile.options import Options
from meshplan.executor.profile.progress import Progress
from meshplan.executor.profile.record import (
    Quantity,
    Record,
    append_partial,
    partial_path,
    read_partial,
    start_partial,
)
from meshplan.executor.profile.sweeps import SWEEPS, is_of, merged, named, repeated, swept
from meshplan.executor.profile.write import Measured, MeasuringRanks, build_cluster
from meshplan.hardware_profiles.load import save_cluster
from meshplan.hardware_profiles.local_cpu import num_cores
from meshplan.planner.processes.parent_death import die_with_parent

Value = TypeVar("Value")
RESERVE_S = 10.0  # of the time limit, for starting the processes and for writing
MOST_S = {  # of one visit to a measurement of weight 1; a CPU is better served by more sweeps
    "cuda": {"quick": 0.6, "full": 4.0},
    "cpu": {"quick": 0.01, "full": 0.1},
}


@contextmanager
def distributed(device_kind: str) -> Iterator[Bench]:
    """This rank's bench inside its job; a process that torchrun did not start is alone."""
    world_size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    per_node = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if device_kind == "auto":
        device_kind = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(device_kind, int(os.environ.get("LOCAL_RANK", "0")))
    if device_kind == "cuda":
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
        torch.set_num_threads(max(1, num_cores() // per_node))
        keep_freed_memory()
    control = None
    if world_size > 1:
        backend = "nccl" if device_kind == "cuda" else "gloo"
        dist.init_process_group(backend, device_id=device if device_kind == "cuda" else None)
        control = dist.new_group(backend="gloo")
    try:
        yield Bench(
            device=device,
            rank=rank,
            world_size=world_size,
            ranks_per_node=per_node,
            control=control,
        )
    finally:
        if world_size > 1:
            dist.destroy_process_group()


def plan(bench: Bench, groups: Groups, *, quick: bool) -> tuple[Measurement, ...]:
    """Everything to measure, in order; the same on every rank."""
    once = (
        *memory.measurements(bench.device),
        *matmul.measurements(
            bench.device,
            quick=quick,
            memory_bytes=memory.usable_bytes(bench.device, bench.ranks_per_node),
        ),
        *attention.measurements(bench.device, quick=quick),
        *collectives.measurements(bench, groups, quick=quick),
        *interference.measurements(bench, groups),
    )
    return swept(once, SWEEPS[bench.device.type])


def measure_all(bench: Bench, options: Options, start: float) -> tuple[Record, ...]:
    """Measure what the partial file does not have, within the time limit: at least one sweep. Every
    rank gets all.
    """
    groups, found = Groups(), header(bench, quick=options.quick)
    most_s = MOST_S[bench.device.type]["quick" if options.quick else "full"]
    path = partial_path(options.out)
    done: dict[str, Record] = {}
    if bench.rank == 0:
        done = {} if options.restart else read_partial(path, found)
        start_partial(path, found, done)
    finished = _agreed(bench, tuple(done))
    planned = plan(bench, groups, quick=options.quick)
    waiting = [item for item in planned if not any(is_of(name, item.key) for name in finished)]
    progress = Progress(
        bench.rank, options.progress, total=len(planned), done=len(planned) - len(waiting)
    )
    for index, item in enumerate(waiting):
        left_s = _agreed(bench, options.limit_s - RESERVE_S - (time.monotonic() - start))
        if left_s <= 0 and repeated(item):
            continue
        progress.show(item.title, done=len(planned) - len(waiting) + index, left_s=left_s)
        bench.budget_s = budget_s(waiting[index:], left_s, most_s)
        for entry in (named(record, item) for record in item.run(bench)):
            done[entry.key] = entry
            if bench.rank == 0:
                append_partial(path, entry)
    groups.end()
    progress.close()
    return tuple(done.values())


def budget_s(waiting: Sequence[Measurement], left_s: float, most_s: float) -> float:
    """The time for the first of `waiting`: its share by weight of what is left, but no luxury."""
    first = waiting[0].weight
    share = first / max(1e-9, sum(item.weight for item in waiting))
    return max(0.0, min(left_s * share, most_s * first))


def _agreed(bench: Bench, value: Value) -> Value:
    """Rank 0's `value`, on every rank."""
    if bench.control is None:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0, group=bench.control)
    return box[0]


def profile_here(options: Options) -> None:
    """Measure as a rank of the job that this process is in; rank 0 writes the profile."""
    start = time.monotonic()
    with distributed(options.device) as bench:
        context = Quantity(name="context", value=memory.context_bytes(bench.device), unit="bytes")
        records = measure_all(bench, options, start)
        said = {**conditions(bench, header(bench, quick=options.quick)), "command": options.command}
        if bench.rank == 0:
            records = (*merged(records), Record(key="memory/context", result=context))
            gpu = found_gpu(bench.device, bench.ranks_per_node, Measured.of(records))
            job = MeasuringRanks(bench.ranks_per_node, bench.nodes)
            save_cluster(build_cluster(records, gpu, job, said, options.out.stem), options.out)
            partial_path(options.out).unlink()


@report_error
def main() -> None:
    """The program of one rank, which dies with the process that started it."""
    die_with_parent()
    profile_here(Options.model_validate_json(sys.argv[1]))


if __name__ == "__main__":
    main()
