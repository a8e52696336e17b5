"""The process groups of one rank, and the collectives that the engine uses on them.

Groups are made by their members alone (local synchronisation), so that the cost of making them does
not grow with the world. A group of one rank is None: its collectives do nothing.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from meshplan.executor.engine.parts.coordinates import Coordinates


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Process groups by what they share; None stands for this rank alone.

    shard, replicas                the dense weights' ZeRO groups (reduce-scatter, then all-reduce)
    expert_shard, expert_replicas  the same for the experts of this expert rank
    up, down                       pipeline messages to a higher and to a lower rank: one direction
                                   each, so that messages between two ranks arrive in order
    ties                           first and last pipeline rank, where both hold the embedding
    """

    at: Coordinates
    tp: ProcessGroup | None
    cp: ProcessGroup | None
    ep: ProcessGroup | None
    shard: ProcessGroup | None
    replicas: ProcessGroup | None
    expert_shard: ProcessGroup | None
    expert_replicas: ProcessGroup | None
    up: ProcessGroup | None
    down: ProcessGroup | None
    ties: ProcessGroup | None

    def axes(self) -> dict[str, str]:
        """The axis that each group's traffic belongs to, by the group's name."""
        axis_of = {
            "tp": self.tp,
            "cp": self.cp,
            "ep": self.ep,
            "dp": (self.shard, self.replicas, self.expert_shard, self.expert_replicas, self.ties),
            "pp": (self.up, self.down),
        }
        return {
            group.group_name: axis
            for axis, groups in axis_of.items()
            for group in (groups if isinstance(groups, tuple) else (groups,))
            if group is not None
        }


def make_groups(at: Coordinates, tied: bool) -> Groups:
    """The groups of the rank `at`; `tied` models also join their first and last pipeline rank."""
    pipeline = at.pp_group()
    ends = [pipeline[0], pipeline[-1]]
    return Groups(
        at=at,
        tp=_group(at.tp_group()),
        cp=_group(at.cp_group()),
        ep=_group(at.ep_group()),
        shard=_group(at.shard_group()),
        replicas=_group(at.replica_group()),
        expert_shard=_group(at.expert_shard_group()),
        expert_replicas=_group(at.expert_replica_group()),
        up=_group(pipeline),
        down=_group(pipeline),
        ties=_group(ends) if tied and len(pipeline) > 1 and at.rank in ends else None,
    )


def _group(ranks: list[int]) -> ProcessGroup | None:
    if len(ranks) == 1:
        return None
    group = dist.new_group(ranks, use_local_synchronization=True)
    assert isinstance(group, ProcessGroup)
    return group


def group_size(group: ProcessGroup | None) -> int:
    """Ranks in `group`."""
    return 1 if group is None else group.size()


def all_gather(x: Tensor, group: ProcessGroup | None) -> Tensor:
    """Every rank's `x` one after another along the first dimension."""
    if group is None:
        return x
    whole = x.new_empty((x.shape[0] * group.size(), *x.shape[1:]))
    dist.all_gather_single(whole, x.contiguous(), group=group)
    return whole


def reduce_scatter(x: Tensor, group: ProcessGroup | None) -> Tensor:
    """This rank's part along the first dimension of the sum of every rank's `x`."""
    if group is None:
        return x
    part = x.new_empty((x.shape[0] // group.size(), *x.shape[1:]))
    dist.reduce_scatter_single(part, x.contiguous(), group=group)
    return part


def all_reduce(
    x: Tensor, group: ProcessGroup | None, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM
) -> Tensor:
    """`x` combined over the group, in place."""
    if group is not None:
        dist.all_reduce(x, op=op, group=group)
    return x


def all_to_all(
    x: Tensor, send: list[int], receive: list[int], group: ProcessGroup | None
) -> Tensor:
    """Rows of `x` to every rank (`send[r]` of them to rank r), and theirs to this one."""
    if group is None:
        return x
    out = x.new_empty((sum(receive), *x.shape[1:]))
    dist.all_to_all_single(out, x.contiguous(), receive, send, group=group)
    return out


def exchange_counts(counts: Tensor, group: ProcessGroup | None) -> Tensor:
    """Row r of the result is what rank r's `counts` says about this rank, (ranks, per rank)."""
    sent = counts.view(group_size(group), -1)
    if group is None:
        return sent
    got = torch.empty_like(sent)
    dist.all_to_all_single(got, sent.contiguous(), group=group)
    return got
