"""Where the ranks of a process group sit: how many of them on one node, on how many nodes.

Ranks are numbered with the engine's innermost axis fastest, and nodes hold consecutive ranks. A
group of `size` ranks that are `stride` apart therefore has r = min(size, max(1, g // stride)) of
them on each node of g accelerators, and the g / r groups of a node share its network.
"""

import math
from functools import cached_property
from typing import Any

from meshplan.costmodels.elementwise import Condition, Number, ceil, floor, maximum, minimum, where
from meshplan.costmodels.layout import Layout
from meshplan.costmodels.layouts import Layouts
from meshplan.costmodels.operations.kinds import Routing
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.engine_schema import Axis, Overlap


@dataclass(frozen=True)
class Group:
    """Ranks that communicate; the numbers may be arrays over many layouts.

    stride  ranks from one of them to the next
    world   ranks of the whole job, infinite where nobody said
    """

    size: Number
    ranks_per_node: Number
    stride: Number = 1.0
    world: Number = math.inf

    @cached_property
    def nodes(self) -> Number:
        """Nodes that the group touches."""
        return ceil(self.size / self.ranks_per_node)

    @cached_property
    def on_links(self) -> dict[tuple[object, str], tuple[object, Any]]:
        """What was found of its links, by what and for which kind of collective, on a cluster."""
        return {}

    @cached_property
    def reached(self) -> dict[tuple[str, Routing], Number]:
        """How many of its ranks, or nodes, a token's copies reach under a routing."""
        return {}


def place(size: Number, stride: Number, gpus_per_node: int, world: Number = math.inf) -> Group:
    """The group of `size` ranks that are `stride` apart, on nodes of `gpus_per_node`."""
    on_node = maximum(1.0, floor(gpus_per_node / stride))
    return Group(size, minimum(size, on_node), stride, world)


def axis_group(
    layout: Layout | Layouts, axis: Axis, order: tuple[Axis, ...], gpus_per_node: int
) -> Group:
    """The group of `axis`. Experts and their data parallel run through the dp, cp and tp ranks."""
    if axis == "ep":
        stride = layout.expert_tensor_parallel * 1.0
        return place(layout.expert_parallel * 1.0, stride, gpus_per_node, _world(layout))
    stride = axis_stride(layout, axis, order)
    return place(_degree(layout, axis), stride, gpus_per_node, _world(layout))


def layer_groups(
    layout: Layout | Layouts, order: tuple[Axis, ...], gpus_per_node: int
) -> dict[str, Group]:
    """The process groups of a layer's collectives (`costmodels.operations.kinds.Axis`)."""
    axes: tuple[Axis, ...] = ("tp", "cp", "ep")
    groups: dict[str, Group] = {
        axis: axis_group(layout, axis, order, gpus_per_node) for axis in axes
    }
    groups["etp"] = place(layout.expert_tensor_parallel * 1.0, 1.0, gpus_per_node)
    groups["cp_in_node"], groups["cp_between_nodes"] = levels(groups["cp"], gpus_per_node)
    return groups


def levels(group: Group, gpus_per_node: int) -> tuple[Group, Group]:
    """`group` in two levels: its ranks on one node, and those at one place of each node."""
    per_node = group.ranks_per_node
    within = Group(per_node, per_node, group.stride, group.world)
    stride = maximum(group.stride * per_node, gpus_per_node * 1.0)
    return within, Group(group.nodes, 1.0, stride, group.world)


def axis_stride(layout: Layout | Layouts, axis: Axis, order: tuple[Axis, ...]) -> Number:
    """Ranks between two neighbours of `axis`: the product of the degrees inside it."""
    stride: Number = 1.0
    for inner in order[: order.index(axis)]:
        if inner != "ep":
            stride = stride * _degree(layout, inner)
    return stride


def _degree(layout: Layout | Layouts, axis: Axis) -> Number:
    degrees = {
        "tp": layout.tensor_parallel, "cp": layout.context_parallel,
        "dp": layout.data_parallel, "pp": layout.pipeline_parallel,
    }  # fmt: skip
    return degrees[axis] * 1.0


def hidden_exchange(
    layout: Layout | Layouts, overlap: Overlap, gpus_per_node: int
) -> tuple[Number, Number]:
    """Fraction of the exchange between experts that hides behind another micro-batch's pass, with
    one chunk per rank and with several: where it goes between nodes, or wherever a run says so.
    In a pipeline one chunk has no other pass to hide it (`overlap_moe_expert_parallel_comm` asks
    for virtual stages there: NVIDIA/Megatron-LM megatron/core/transformer/transformer_config.py).
    """
    away = axis_group(layout, "ep", (), gpus_per_node).nodes > 1
    one = where(layout.pipeline_parallel == 1, overlap.expert, 0.0)
    most = max(overlap.expert, overlap.expert_interleaved)
    return one, where(away, most, overlap.expert)


def hides_with_chunks(layout: Layout | Layouts, overlap: Overlap, gpus_per_node: int) -> Condition:
    """Whether several chunks per rank hide more of it."""
    one, several = hidden_exchange(layout, overlap, gpus_per_node)
    return several > one


def exchanges_between_nodes(layout: Layout, dispatch: str, gpus_per_node: int) -> bool:
    """Whether experts get tokens from other nodes by all-to-all, one copy for each expert, where
    the engine usually brings them by `dispatch` (`KernelHabits.dispatch`).
    """
    by_copies = (layout.dispatcher or dispatch) == "all_to_all"
    return by_copies and bool(axis_group(layout, "ep", (), gpus_per_node).nodes > 1)


def shard_group(layout: Layout | Layouts, order: tuple[Axis, ...], gpus_per_node: int) -> Group:
    """Ranks with the same weights: dp and cp together, over which gradients are reduced."""
    cp, dp = layout.context_parallel * 1.0, layout.data_parallel * 1.0
    return place(cp * dp, shard_stride(layout, order), gpus_per_node, _world(layout))


def shard_stride(layout: Layout | Layouts, order: tuple[Axis, ...]) -> Number:
    """Ranks between two neighbours of that group."""
    inner = layout.tensor_parallel * 1.0
    if order.index("pp") < order.index("dp"):
        inner = inner * layout.pipeline_parallel
    return inner


def expert_data_group(layout: Layout | Layouts, gpus_per_node: int) -> Group:
    """Ranks with the same experts, ep * etp apart."""
    experts = layout.expert_parallel * layout.expert_tensor_parallel * 1.0
    return place(layout.stage_ranks / experts, experts, gpus_per_node, _world(layout))


def _world(layout: Layout | Layouts) -> Number:
    return layout.world_size * 1.0
