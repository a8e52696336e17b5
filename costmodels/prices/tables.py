"""The two tables that a grid of layouts is priced from, and how its rows look things up in them.

work      depends on (tp, cp, ep, etp, micro-batch, sequence parallel, the kinds of exchanges), on
          which groups are on several nodes, on whether ranks have several chunks, and on the ZeRO
          stage where hooks go by it: computing, and the communication inside a layer
weights   depends on (tp, dp cp, ep, etp, ZeRO stage, shard group): states, gradients, optimizer

A grid of a million rows has a few thousand different entries in each.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import numpy as np

from meshplan.costmodels.elementwise import Number
from meshplan.costmodels.layout import Mode
from meshplan.costmodels.layouts import Floats, Ints, Layouts, distinct, thousandths
from meshplan.costmodels.model.parameters import RankParameters
from meshplan.costmodels.ranks.beside import Sent
from meshplan.costmodels.ranks.rank import Rank
from meshplan.costmodels.ranks.recompute_sets import recompute_sets
from meshplan.costmodels.seconds.process_groups import shard_group
from meshplan.costmodels.setting import Setting
from meshplan.hardware_profiles.engine_schema import Axis


class Table:
    """One `Rank` for each distinct `key` among the rows of `layouts`, looked up row by row."""

    def __init__(self, setting: Setting, layouts: Layouts, key: Sequence[Ints]) -> None:
        first, self.of_row = distinct(key)
        self.rank, self.entries = Rank(setting, layouts.take(first)), len(first)
        self.layer_kinds = range(len(setting.model.kinds))
        self.kinds = range(len(setting.model.kinds) + setting.places_modules)
        self.setting = setting

    @cached_property
    def modes(self) -> tuple[Mode, ...]:
        """What layers may recompute: the columns of prices, in their order."""
        return ("none", *recompute_sets(self.setting), "full")

    def rows(self, value: Number) -> Floats:
        """`value` of every row of the whole grid."""
        return self._column(value)[self.of_row]

    def sent(self, parameters: RankParameters, *, again: Number = 0.0) -> Sent:
        """`Rank.sent` of every row."""
        sent = self.rank.sent(parameters, again=again)
        return Sent(*(self.rows(each) if np.ndim(each) else each for each in sent))

    def stacked(self, values: Iterable[Number]) -> Floats:
        """(N, number of `values`)."""
        return np.stack([self._column(value) for value in values], axis=1)[self.of_row]

    def by_kind(self, value_of: Callable[[int], Number]) -> Floats:
        """(N, K): `value_of` each layer kind."""
        return self.stacked(value_of(kind) for kind in self.kinds)

    def by_mode(self, value_of: Callable[[int, Mode], Number]) -> Floats:
        """(N, K, R): `value_of` each layer kind and recompute mode."""
        columns = self.stacked(value_of(kind, mode) for kind in self.kinds for mode in self.modes)
        return columns.reshape(-1, len(self.kinds), len(self.modes))

    def most(self, values: Iterable[Number]) -> Floats:
        """(N,): the largest of `values`, such as those of each layer kind."""
        columns = [self._column(value) for value in values]
        return self.rows(np.max(columns, axis=0))

    def _column(self, value: Number) -> Floats:
        return np.broadcast_to(np.asarray(value, np.float64), self.entries)


SHARES = 10**9  # shares of hops are told apart by so many parts


def work_table(setting: Setting, layouts: Layouts) -> Table:
    """One entry for each combination that computing and communication inside a layer depend on."""
    return Table(setting, layouts, work_key(setting, layouts))


def work_key(setting: Setting, layouts: Layouts) -> tuple[Ints, ...]:
    """The columns that an entry of the table of work depends on."""
    order, per_node = setting.engine.legality.rank_order, setting.cluster.gpus_per_node
    leave = np.broadcast_to(shard_group(layouts, order, per_node).nodes > 1, len(layouts))
    rank, piped = Rank(setting, layouts), layouts.pipeline_parallel > 1
    crosses = np.asarray(rank.hops.crosses_nodes)
    hops_cross = np.rint(np.asarray(rank.hops.share_across) * SHARES)
    places = (crosses, hops_cross, piped, leave, layouts.virtual_stages > 1)
    return (
        layouts.tensor_parallel, layouts.context_parallel, layouts.expert_parallel,
        layouts.expert_tensor_parallel, layouts.micro_batch_size, layouts.sequence_parallel,
        layouts.context_kind, layouts.dispatcher,
        *(place.astype(np.int64) for place in places),
        thousandths(layouts.activation_offload), *_inner_degrees(setting, layouts, ("tp", "cp")),
        *_place_in_pods(setting, layouts), *_hooked_stage(setting, layouts),
    )  # fmt: skip


def _hooked_stage(setting: Setting, layouts: Layouts) -> tuple[Ints, ...]:
    """The column that says which hooks a layer's weights have, 0: none."""
    least = setting.engine.kernels.hooked_from
    return (layouts.zero_stage * (layouts.zero_stage >= least),) if least else ()


def weight_table(setting: Setting, layouts: Layouts) -> Table:
    """One entry for each combination that weights, their states and their traffic depend on."""
    one_table = setting.model.tied and setting.engine.state.one_table_per_rank
    key = (
        layouts.tensor_parallel, layouts.data_parallel * layouts.context_parallel,
        layouts.expert_parallel, layouts.expert_tensor_parallel,
        layouts.zero_stage, layouts.shard_group, (layouts.pipeline_parallel > 1).astype(np.int64),
        thousandths(layouts.optimizer_offload), (layouts.schedule + 1) * int(one_table),
        (layouts.virtual_stages > 1).astype(np.int64) * int(setting.model.tied),
        *_inner_degrees(setting, layouts, ("dp",), but=("tp", "cp")),
        *_place_in_pods(setting, layouts),
    )  # fmt: skip
    return Table(setting, layouts, key)


def _place_in_pods(setting: Setting, layouts: Layouts) -> tuple[Ints, ...]:
    """The columns that decide which groups and hops cross pods, apart from those for nodes."""
    if setting.cluster.pod is None:
        return ()
    degrees = _inner_degrees(setting, layouts, ("pp",))
    return layouts.world_size, layouts.pipeline_parallel, *degrees


def _inner_degrees(
    setting: Setting, layouts: Layouts, axes: tuple[Axis, ...], but: tuple[Axis, ...] = ()
) -> tuple[Ints, ...]:
    """The degrees of the axes inside `axes` in the engine's rank order: they place their groups."""
    columns: dict[Axis, Ints] = {
        "tp": layouts.tensor_parallel, "cp": layouts.context_parallel,
        "dp": layouts.data_parallel, "pp": layouts.pipeline_parallel,
    }  # fmt: skip
    order = setting.engine.legality.rank_order
    inner = {axis for outer in axes for axis in order[: order.index(outer)]}
    return tuple(columns[axis] for axis in sorted(inner - {"ep", *but}))
