"""Which ranks and which links are slower than their peers.

A rank is judged by everything that each rank did on its own (matmuls, attention, memory), a group
of ranks by the large messages of every shape that has several groups.
"""

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from meshplan.costmodels.units import MIB
from meshplan.executor.profile.measured.groups import GroupShape, members
from meshplan.executor.profile.record import Record
from meshplan.executor.profile.statistics import slow_members
from meshplan.hardware_profiles.network_schema import CurvePoint

SLOW_RANK = 0.05  # of the median rank: GPUs of one kind differ by 1-3 % in clock under load
SLOW_LINK = 0.20  # of the median group


def slow_ranks(records: Sequence[Record], world_size: int) -> dict[str, float]:
    """Ranks that computed slower than the median rank, with how much."""
    ratios: dict[str, list[float]] = {f"rank {rank}": [] for rank in range(world_size)}
    for record in records:
        if isinstance(record.result, CurvePoint) or len(record.rank_seconds) != world_size:
            continue
        typical = median(record.rank_seconds)
        for rank, seconds in enumerate(record.rank_seconds):
            ratios[f"rank {rank}"].append(seconds / typical)
    return slow_members(ratios, SLOW_RANK)


def slow_links(records: Sequence[Record], ranks_per_node: int, nodes: int) -> dict[str, float]:
    """Groups whose large messages took longer than those of the median group of their shape."""
    ratios: dict[str, list[float]] = defaultdict(list)
    for record in records:
        point = record.result
        if not isinstance(point, CurvePoint) or point.size_bytes < MIB:
            continue
        if len(record.rank_seconds) != ranks_per_node * nodes:
            continue
        shape = GroupShape(point.nodes, point.ranks_per_node)
        groups = tuple(members(shape, ranks_per_node, nodes))
        seconds = [max(record.rank_seconds[rank] for rank in ranks) for ranks in groups]
        for ranks, own in zip(groups, seconds, strict=True):
            ratios[f"ranks {','.join(map(str, ranks))}"].append(own / median(seconds))
    return slow_members(ratios, SLOW_LINK)


def told(slow: dict[str, float]) -> str:
    """One line for the profile's conditions."""
    named = (f"{name} (+{excess:.0%})" for name, excess in sorted(slow.items()))
    return ", ".join(named) or "none"
