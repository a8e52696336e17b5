"""The two tables that the rows of a grid are put together from, and how rows look things up.

work      depends on (tp, cp, ep, etp, micro-batch, sequence parallel), on which groups are on
          several nodes, and on whether ranks have several chunks: computing, and the
          communication inside a layer
weights   depends on (tp, dp cp, ep, etp, ZeRO stage, shard group): states, gradients, optimizer

A grid of a million rows has a few thousand different entries in each.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from meshplan.costmodels.elementwise import Number
from meshplan.costmodels.grid import Floats, Grid, Ints, distinct, thousandths
from meshplan.costmodels.layout import MODES
from meshplan.costmodels.seconds.process_groups import shard_group
from meshplan.costmodels.step.ranks import Rank
from meshplan.costmodels.step.setting import Setting
from meshplan.hardware_profiles.engine_schema import Axis


class Table:
    """Ranks under the rows of `grid` that differ in `key`; each row of it finds its own."""

    def __init__(self, setting: Setting, grid: Grid, key: Sequence[Ints]) -> None:
        first, self.of_row = distinct(key)
        self.rank, self.entries = Rank(setting, grid.take(first)), len(first)
        self.kinds = range(len(setting.model.kinds))

    def rows(self, value: Number) -> Floats:
        """`value` of every row of the whole grid."""
        return self._column(value)[self.of_row]

    def stacked(self, values: Iterable[Number]) -> Floats:
        """(N, number of `values`)."""
        return np.stack([self._column(value) for value in values], axis=1)[self.of_row]

    def by_kind(self, value_of: Callable[[int], Number]) -> Floats:
        """(N, K): `value_of` each layer kind."""
        return self.stacked(value_of(kind) for kind in self.kinds)

    def by_mode(self, value_of: Callable[[int, str], Number]) -> Floats:
        """(N, K, R): `value_of` each layer kind and recompute mode."""
        columns = self.stacked(value_of(kind, mode) for kind in self.kinds for mode in MODES)
        return columns.reshape(-1, len(self.kinds), len(MODES))

    def most(self, values: Iterable[Number]) -> Floats:
        """(N,): the largest of `values`, such as those of each layer kind."""
        columns = [self._column(value) for value in values]
        return self.rows(np.max(columns, axis=0))

    def _column(self, value: Number) -> Floats:
        return np.broadcast_to(np.asarray(value, np.float64), self.entries)


def work_table(setting: Setting, grid: Grid) -> Table:
    """What computing and the communication inside a layer depend on."""
    order, per_node = setting.engine.legality.rank_order, setting.cluster.gpus_per_node
    leave = np.broadcast_to(shard_group(grid, order, per_node).nodes > 1, len(grid))
    crosses = np.asarray(Rank(setting, grid).crosses_nodes)
    places = (crosses, grid.pipeline_parallel > 1, leave, grid.virtual_stages > 1)
    key = (
        grid.tensor_parallel, grid.context_parallel, grid.expert_parallel,
        grid.expert_tensor_parallel, grid.micro_batch_size, grid.sequence_parallel,
        *(place.astype(np.int64) for place in places),
        thousandths(grid.activation_offload), *_inner_degrees(setting, grid, ("tp", "cp")),
    )  # fmt: skip
    return Table(setting, grid, key)


def weight_table(setting: Setting, grid: Grid) -> Table:
    """What weights, their states and their traffic depend on."""
    one_table = setting.model.tied and setting.engine.state.one_table_per_rank
    key = (
        grid.tensor_parallel, grid.data_parallel * grid.context_parallel,
        grid.expert_parallel, grid.expert_tensor_parallel,
        grid.zero_stage, grid.shard_group, (grid.pipeline_parallel > 1).astype(np.int64),
        thousandths(grid.optimizer_offload), (grid.schedule + 1) * int(one_table),
        (grid.virtual_stages > 1).astype(np.int64) * int(setting.model.tied),
        *_inner_degrees(setting, grid, ("dp",), but=("tp", "cp")),
    )  # fmt: skip
    return Table(setting, grid, key)


def _inner_degrees(
    setting: Setting, grid: Grid, axes: tuple[Axis, ...], but: tuple[Axis, ...] = ()
) -> tuple[Ints, ...]:
    """The degrees of the axes inside `axes` in the engine's rank order: they place their groups."""
    columns: dict[Axis, Ints] = {
        "tp": grid.tensor_parallel, "cp": grid.context_parallel,
        "dp": grid.data_parallel, "pp": grid.pipeline_parallel,
    }  # fmt: skip
    order = setting.engine.legality.rank_order
    inner = {axis for outer in axes for axis in order[: order.index(outer)]}
    return tuple(columns[axis] for axis in sorted(inner - {"ep", *but}))
