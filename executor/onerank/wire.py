"""Seconds that a profile predicts for one message among given ranks of a plan. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from meshplan.costmodels.seconds.collectives import collective_s, send_s
from meshplan.costmodels.seconds.process_groups import Group
from meshplan.hardware_profiles.schema import Cluster, CollectiveKind


@dataclass(frozen=True, slots=True)
class Wire:
    """A cluster whose nodes hold consecutive ranks; `scale`: fitted seconds over its figures."""

    cluster: Cluster
    scale: float = 1.0

    def collective_s(self, kind: CollectiveKind, size_bytes: int, ranks: Sequence[int]) -> float:
        """Of the ranks `ranks`; bytes as `costmodels.seconds.collectives` counts them."""
        on_node = sum(self._node(rank) == self._node(ranks[0]) for rank in ranks)
        apart = (ranks[-1] - ranks[0]) / max(len(ranks) - 1, 1)
        group = Group(float(len(ranks)), float(on_node), max(apart, 1.0))
        return self.scale * float(collective_s(self.cluster, kind, float(size_bytes), group))

    def send_s(self, size_bytes: int, here: int, there: int) -> float:
        """Between two ranks."""
        away = self._node(here) != self._node(there)
        return self.scale * float(send_s(self.cluster, float(size_bytes), across_nodes=away))

    def _node(self, rank: int) -> int:
        return rank // self.cluster.gpus_per_node
