"""What a profile predicts of one message among given ranks of a plan: seconds, and how long it
keeps a core of a CPU rank busy. No torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshplan.costmodels.seconds.collectives import collective_s, send_s, straggler_fraction
from meshplan.costmodels.seconds.process_groups import Group
from meshplan.hardware_profiles.local_cpu import GLOO_PROCESSOR_SHARE
from meshplan.hardware_profiles.network_schema import CollectiveKind
from meshplan.hardware_profiles.schema import Cluster


@dataclass(frozen=True, slots=True)
class Message:
    """`seconds` until it has arrived, `busy_s` of a processor meanwhile."""

    seconds: float
    busy_s: float


@dataclass(frozen=True, slots=True)
class Wire:
    """A cluster whose nodes hold consecutive ranks; `scale`: fitted seconds over its figures."""

    cluster: Cluster
    scale: float = 1.0

    def collective(self, kind: CollectiveKind, size_bytes: int, ranks: Sequence[int]) -> Message:
        """Among the ranks `ranks`; bytes as `costmodels.seconds.collectives` counts them."""
        group = self._group(ranks)
        seconds = self.scale * float(collective_s(self.cluster, kind, float(size_bytes), group))
        return self._message(kind, size_bytes, group, seconds)

    def straggler_fraction(self, ranks: Sequence[int]) -> float:
        """What one of `ranks` waits for the slowest, over what it has computed since they met."""
        return float(straggler_fraction(self.cluster, self._group(ranks)))

    def _group(self, ranks: Sequence[int]) -> Group:
        on_node = sum(self._node(rank) == self._node(ranks[0]) for rank in ranks)
        stride = (ranks[-1] - ranks[0]) / max(len(ranks) - 1, 1)
        return Group(float(len(ranks)), float(on_node), max(stride, 1.0))

    def send(self, size_bytes: int, here: int, there: int) -> Message:
        """Between two ranks."""
        away = self._node(here) != self._node(there)
        seconds = self.scale * float(send_s(self.cluster, float(size_bytes), across_nodes=away))
        return self._message("send", size_bytes, Group(2.0, 1.0 if away else 2.0), seconds)

    def _message(
        self, kind: CollectiveKind, size_bytes: int, group: Group, seconds: float
    ) -> Message:
        """With its processor seconds as measured, in proportion between the sizes; else a share."""
        points = sorted(
            (point.size_bytes, point.processor_s)
            for point in self.cluster.collective_points
            if point.processor_s is not None
            and (point.kind, point.ranks_per_node, point.nodes)
            == (kind, group.ranks_per_node, group.nodes)
        )
        if not points:
            return Message(seconds, seconds * GLOO_PROCESSOR_SHARE)
        sizes, busy = zip(*points, strict=True)
        beyond = max(1.0, size_bytes / sizes[-1])
        busy_s = beyond * float(np.interp(float(size_bytes), np.array(sizes), np.array(busy)))
        return Message(seconds, min(busy_s, seconds))

    def _node(self, rank: int) -> int:
        return rank // self.cluster.gpus_per_node
