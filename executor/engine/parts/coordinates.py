"""Where one rank sits in a layout, and which ranks it shares each kind of group with. No torch.

Ranks count tensor parallel fastest, then context, data, pipeline:

    rank = ((pp_rank * dp + dp_rank) * cp + cp_rank) * tp + tp_rank

ZeRO shards over consecutive ranks of the flattened dp x cp; experts live on consecutive ranks of
the flattened dp x cp x tp, so that expert parallelism takes tensor ranks first, then context, then
data.
"""

from dataclasses import dataclass
from functools import cached_property

from meshplan.costmodels.layout import Layout


@dataclass(frozen=True)
class Coordinates:
    """One rank of a layout; every group is a list of global ranks that holds this one."""

    layout: Layout
    rank: int

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.layout.world_size, (self.rank, self.layout.world_size)

    @property
    def tp_rank(self) -> int:
        """Index in the tensor-parallel group."""
        return self.rank % self.layout.tensor_parallel

    @property
    def cp_rank(self) -> int:
        """Index in the context-parallel group."""
        return self.rank // self.layout.tensor_parallel % self.layout.context_parallel

    @property
    def dp_rank(self) -> int:
        """Index of the replica of the batch dimension."""
        return (
            self.rank
            // (self.layout.tensor_parallel * self.layout.context_parallel)
            % (self.layout.data_parallel)
        )

    @property
    def pp_rank(self) -> int:
        """Physical pipeline rank."""
        return self.rank // self.layout.stage_ranks

    @property
    def ep_rank(self) -> int:
        """Index in the expert-parallel group."""
        return self.rank % self.layout.expert_parallel

    @property
    def _first(self) -> int:
        """The first global rank of this pipeline rank."""
        return self.pp_rank * self.layout.stage_ranks

    @cached_property
    def shard_ranks(self) -> int:
        """Ranks over which ZeRO shards the dense weights: 1 for ZeRO-0."""
        layout = self.layout
        if layout.zero_stage == 0:
            return 1
        return layout.shard_group or layout.data_parallel * layout.context_parallel

    @property
    def expert_shard_ranks(self) -> int:
        """Ranks over which ZeRO shards the experts of one expert rank: 1 for ZeRO-0."""
        if self.layout.zero_stage == 0:
            return 1
        return self.shard_ranks * self.layout.tensor_parallel // self.layout.expert_parallel

    def tp_group(self) -> list[int]:
        """Ranks that split each matrix with this one."""
        start = self.rank - self.tp_rank
        return list(range(start, start + self.layout.tensor_parallel))

    def cp_group(self) -> list[int]:
        """Ranks that split each sequence with this one."""
        tp, cp = self.layout.tensor_parallel, self.layout.context_parallel
        start = self.rank - self.cp_rank * tp
        return [start + i * tp for i in range(cp)]

    def ep_group(self) -> list[int]:
        """Ranks that hold the other experts."""
        start = self.rank - self.ep_rank
        return list(range(start, start + self.layout.expert_parallel))

    def pp_group(self) -> list[int]:
        """Ranks of the other pipeline ranks at the same place."""
        place = self.rank - self._first
        return [i * self.layout.stage_ranks + place for i in range(self.layout.pipeline_parallel)]

    def shard_group(self) -> list[int]:
        """Ranks that hold the other shards of the dense weights."""
        return self._blocks(self.layout.tensor_parallel, self.shard_ranks)[0]

    def replica_group(self) -> list[int]:
        """Ranks that hold the same shard of the dense weights."""
        return self._blocks(self.layout.tensor_parallel, self.shard_ranks)[1]

    def expert_shard_group(self) -> list[int]:
        """Ranks that hold the other shards of the same experts."""
        return self._blocks(self.layout.expert_parallel, self.expert_shard_ranks)[0]

    def expert_replica_group(self) -> list[int]:
        """Ranks that hold the same shard of the same experts."""
        return self._blocks(self.layout.expert_parallel, self.expert_shard_ranks)[1]

    def _blocks(self, inner: int, shard: int) -> tuple[list[int], list[int]]:
        """The stage's ranks as (replica, shard, inner): the shard and the replica group of this
        one.
        """
        place = self.rank - self._first
        lane, block = place % inner, place // inner
        replica, index = divmod(block, shard)
        count = self.layout.stage_ranks // (inner * shard)
        shards = [self._first + (replica * shard + i) * inner + lane for i in range(shard)]
        copies = [self._first + (i * shard + index) * inner + lane for i in range(count)]
        return shards, copies
