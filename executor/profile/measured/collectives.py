"""Collectives of every group shape and size: seconds of so many bytes among so many ranks.

A group shape is (ranks per node, nodes). All groups of a shape run at once, as they do in a
layout: with 8 GPUs a node, shape (1, 2) is 8 groups at a time, GPU i of one node with GPU i of the
other, and they share the nodes' network cards. Ranks that no group of the shape reaches wait.

    size_bytes   the whole array: after all_gather, before reduce_scatter and all_to_all
    send         one pair, one direction
    seconds      until the slowest rank of all groups is done; between CPU processes in turns with
                 computing (`turns`)
"""

from dataclasses import dataclass, field
from typing import get_args

import torch
import torch.distributed as dist

from meshplan.costmodels.units import MIB
from meshplan.executor.profile.bench import Bench, Call
from meshplan.executor.profile.measured.groups import GroupShape, group_shapes, members
from meshplan.executor.profile.measured.memory import context_bytes
from meshplan.executor.profile.measured.turns import Part, in_turns
from meshplan.executor.profile.measurement import Measurement
from meshplan.executor.profile.record import Quantity, Record
from meshplan.hardware_profiles.network_schema import CollectiveKind, CurvePoint

KINDS: tuple[CollectiveKind, ...] = get_args(CollectiveKind)
NUMBER = torch.float32


def sizes_bytes(*, is_cuda: bool, quick: bool) -> tuple[int, ...]:
    """Message sizes from 1 KiB to 1 GiB; a CPU is bounded at 64 MiB, it would take minutes each."""
    largest = 1024 * MIB if is_cuda else (32 if quick else 64) * MIB
    factor = 4 if quick else 2
    found = [1024]
    while found[-1] * factor <= largest:
        found.append(found[-1] * factor)
    return (*found, largest) if found[-1] < largest else tuple(found)


@dataclass(slots=True)
class Groups:
    """The process groups of one shape at a time: communicators hold memory on a GPU."""

    shape: GroupShape | None = None
    own: "dist.ProcessGroup | None" = None
    ranks: tuple[int, ...] = field(default=())

    def use(self, shape: GroupShape, bench: Bench) -> None:
        """Make the groups of `shape`, after ending those of another. All ranks must call it."""
        if shape == self.shape:
            return
        self.end()
        for ranks in members(shape, bench.ranks_per_node, bench.nodes):
            group = dist.new_group(list(ranks))
            if bench.rank in ranks:
                self.own, self.ranks = group, ranks
        self.shape = shape

    def end(self) -> None:
        """Release the communicator of this rank."""
        if self.own is not None:
            dist.destroy_process_group(self.own)
        self.shape, self.own, self.ranks = None, None, ()


def collective_call(kind: CollectiveKind, size_bytes: int, groups: Groups, bench: Bench) -> Call:
    """A call that does the collective once in this rank's group, or nothing if it has none."""
    group = groups.own
    if group is None:
        return lambda: None
    n = len(groups.ranks)
    whole_numbers = max(1, size_bytes // NUMBER.itemsize // n) * n
    whole = torch.zeros(whole_numbers, dtype=NUMBER, device=bench.device)
    if kind == "all_reduce":
        return lambda: dist.all_reduce(whole, group=group)
    if kind == "broadcast":
        return lambda: dist.broadcast(whole, src=groups.ranks[0], group=group)
    if kind == "send":
        return _send_call(whole, groups, bench.rank)
    if kind == "all_to_all":
        result = torch.empty_like(whole)
        return lambda: dist.all_to_all_single(result, whole, group=group)
    part = torch.zeros(whole_numbers // n, dtype=NUMBER, device=bench.device)
    if kind == "all_gather":
        return lambda: dist.all_gather_single(whole, part, group=group)
    return lambda: dist.reduce_scatter_single(part, whole, group=group)


def _send_call(whole: torch.Tensor, groups: Groups, rank: int) -> Call:
    first, second = groups.ranks
    if rank == first:
        return lambda: dist.send(whole, dst=second, group=groups.own)
    return lambda: dist.recv(whole, src=first, group=groups.own)


def measurements(bench: Bench, groups: Groups, *, quick: bool) -> tuple[Measurement, ...]:
    """Every shape, kind and size that the job's ranks can form; none for a single process."""
    planned: list[Measurement] = []
    for shape in group_shapes(bench.ranks_per_node, bench.nodes):
        for kind in KINDS:
            if kind == "send" and shape.ranks != 2:
                continue
            planned += [
                _point(kind, size, shape, groups)
                for size in sizes_bytes(is_cuda=bench.is_cuda, quick=quick)
            ]
    if bench.world_size > 1:
        planned.insert(0, _communicator(groups))
    return tuple(planned)


def _point(kind: CollectiveKind, size_bytes: int, shape: GroupShape, groups: Groups) -> Measurement:
    where = f"{shape.ranks_per_node}x{shape.nodes}"
    key = f"collective/{where}/{kind}/{size_bytes}"

    def run(bench: Bench) -> tuple[Record, ...]:
        groups.use(shape, bench)
        call = collective_call(kind, size_bytes, groups, bench)
        beside: dict[str, float] = {}
        if bench.is_cuda:
            timing = bench.measure(call, together=True)
        else:
            group = groups.ranks[0] if groups.own is not None else None
            found = in_turns(bench, call, Part(group=group, one_waits=kind == "send"))
            timing = found.timing
            beside = {"processor_s": found.processor_s, "apart": found.apart}
        point = CurvePoint(
            kind=kind,
            ranks_per_node=shape.ranks_per_node,
            nodes=shape.nodes,
            size_bytes=size_bytes,
            seconds=timing.seconds,
            spread=timing.spread,
            **beside,
        )
        return (Record.timed(key, point, timing),)

    title = f"{kind} {where} {size_bytes / 1024:.0f} KiB"
    return Measurement(key, title, 1.0, run, every_sweep=True)


def _communicator(groups: Groups) -> Measurement:
    """Device memory of one process group of all ranks, after its first use."""

    def run(bench: Bench) -> tuple[Record, ...]:
        groups.end()
        before = context_bytes(bench.device)
        groups.use(GroupShape(bench.nodes, bench.ranks_per_node), bench)
        collective_call("all_reduce", MIB, groups, bench)()
        bench.synchronise()
        grown = bench.everywhere([context_bytes(bench.device) - before])
        result = Quantity(name="communicator", value=max(row[0] for row in grown), unit="bytes")
        return (Record(key="collective/communicator", result=result),)

    return Measurement("collective/communicator", "communicator memory", 0.5, run)
