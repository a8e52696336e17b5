"""Many layouts at once: the degrees of `Layout` as parallel integer arrays.

The cost formulas take either one `Layout` or a `Grid`; they use the letters that both share, so a formula
is written once and prices one layout or a million.
"""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Layouts as columns, each of length N. Names are those of `Layout`; stages are decided later.

    schedule        index into `costmodels.layout.Schedule`'s names (SCHEDULES)
    shard_group     resolved: ranks over which ZeRO shards, never 0
    """

    data_parallel: Ints
    tensor_parallel: Ints
    pipeline_parallel: Ints
    virtual_stages: Ints
    context_parallel: Ints
    expert_parallel: Ints
    expert_tensor_parallel: Ints
    sequence_parallel: Ints
    zero_stage: Ints
    shard_group: Ints
    micro_batch_size: Ints
    schedule: Ints
    num_micro_batches: Ints

    def __len__(self) -> int:
        return len(self.data_parallel)

    def take(self, rows: Ints) -> "Grid":
        """The layouts at `rows`."""
        return Grid(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})
