"""What computing and communicating at the same time costs either of them.

    compute        seconds of matmuls while all_reduces run throughout / seconds of the same alone
    communication  seconds of all_reduces while matmuls run throughout / seconds of the same alone

The load that disturbs is made twice as long as what it disturbs, so that it is there until the end.
Leaves out: other collectives, and the share of SMs that the communication library may take.
"""

import time
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch
import torch.distributed as dist

from meshplan.costmodels.units import MIB
from meshplan.executor.profile.bench import Bench, Call, stream_event
from meshplan.executor.profile.measured.collectives import Groups
from meshplan.executor.profile.measured.groups import GroupShape
from meshplan.executor.profile.measured.matmul import Shape, product_call
from meshplan.executor.profile.measurement import Measurement
from meshplan.executor.profile.record import Quantity, Record

REPEATS = {"cuda": 7, "cpu": 2}  # a CPU repeats them in every sweep


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two loads started together: when the matmuls were done, and when the all_reduces were."""

    compute_s: float
    communication_s: float


def measurements(bench: Bench, groups: Groups) -> tuple[Measurement, ...]:
    """Both directions in the group of all ranks; nothing for a single process."""
    if bench.world_size == 1:
        return ()
    title = "computing and communicating at once"
    run = partial(_run, groups=groups)
    return (Measurement("interference", title, 4.0, run, every_sweep=not bench.is_cuda),)


def _run(bench: Bench, groups: Groups) -> tuple[Record, ...]:
    groups.use(GroupShape(bench.nodes, bench.ranks_per_node), bench)
    group = groups.own
    assert group is not None, "the group of all ranks holds every rank"
    array = torch.zeros((256 if bench.is_cuda else 8) * MIB // 4, device=bench.device)
    side = 4096 if bench.is_cuda else 512
    multiply = product_call(Shape(side, side, side), "bf16", "TN", bench.device)
    compute_s = bench.measure(multiply).seconds
    communicate_s = bench.measure(
        lambda: dist.all_reduce(array, group=group), together=True
    ).seconds
    compute_s, communicate_s = bench.everywhere([compute_s, communicate_s])[0]
    repeats = REPEATS[bench.device.type]
    target_s = max(bench.budget_s / 10 / repeats, 2 * compute_s, 2 * communicate_s)
    few, many = round(target_s / compute_s), round(2 * target_s / compute_s)
    once, twice = round(target_s / communicate_s), round(2 * target_s / communicate_s)

    def overlap(multiplications: int, reductions: int) -> Overlap:
        runs = [
            both(bench, group, array, multiply, (multiplications, reductions))
            for _ in range(repeats)
        ]
        return Overlap(median(r.compute_s for r in runs), median(r.communication_s for r in runs))

    compute = overlap(few, twice).compute_s / overlap(few, 0).compute_s
    communication = overlap(many, once).communication_s / overlap(0, once).communication_s
    rows = bench.everywhere([compute, communication])
    worst = map(max, zip(*rows, strict=True))
    return tuple(map(partial(_record, repeats), ("compute", "communication"), worst))


def _record(repeats: int, name: str, value: float) -> Record:
    result = Quantity(name=f"interference.{name}", unit="ratio", value=value)
    return Record(key=f"interference/{name}", repeats=repeats, result=result)


def both(
    bench: Bench,
    group: "dist.ProcessGroup",
    array: torch.Tensor,
    multiply: Call,
    counts: tuple[int, int],
) -> Overlap:
    """Start `counts[1]` all_reduces, do `counts[0]` matmuls meanwhile, wait for both."""
    bench.everywhere([0.0])  # start together
    bench.synchronise()
    multiplications, reductions = counts
    if bench.is_cuda:
        return _both_on_streams(group, array, multiply, multiplications, reductions)
    start = time.perf_counter()
    works = [_reduce(array, group) for _ in range(reductions)]
    communication_s: float | None = None
    for _ in range(multiplications):
        multiply()
        if communication_s is None and works and works[-1].is_completed():
            communication_s = time.perf_counter() - start
    compute_s = time.perf_counter() - start
    for work in works:
        work.wait()
    if communication_s is None:
        communication_s = time.perf_counter() - start
    return Overlap(compute_s, communication_s)


def _both_on_streams(
    group: "dist.ProcessGroup",
    array: torch.Tensor,
    multiply: Call,
    multiplications: int,
    reductions: int,
) -> Overlap:
    begin, computed, communicated = (stream_event() for _ in range(3))
    begin.record()
    works = [_reduce(array, group) for _ in range(reductions)]
    for _ in range(multiplications):
        multiply()
    computed.record()
    waiting = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    waiting.wait_event(begin)
    with torch.cuda.stream(waiting):
        for work in works:
            work.wait()
        communicated.record()
    torch.cuda.synchronize()
    return Overlap(begin.elapsed_time(computed) * 1e-3, begin.elapsed_time(communicated) * 1e-3)


def _reduce(array: torch.Tensor, group: "dist.ProcessGroup") -> "dist.Work":
    work: dist.Work | None = dist.all_reduce(array, group=group, async_op=True)
    assert work is not None, "async_op returns the work"
    return work
