"""Which operations of a layer run again in the backward pass.

An operation belongs to one or more modules (`Operation.modules`). Replaying a module runs its own
operations again and drops the bytes that they save; what it reads stays, saved by whoever made it.

    attention       the products that make queries, keys and values, and all to the output's
    core_attention  the kernel, and the exchange of context parallelism around it
    layernorm       the norms before attention and feed-forward that are kernels of their own
    mla_up_proj     up projections of latent attention, with their norms where those run in the same
                    kernel, and the rotation of positions
    moe_act         the activation of routed experts
    experts         their products and activation, the rows that they are given apart
    mlp             a dense feed-forward, with the exchange of tensor parallelism around it, and its
                    norm where that is in the first product's kernel
    shared_experts  the experts that all tokens visit, with the exchange around them
    moe             router, dispatch, routed and shared experts, combine
    norm, pointwise kernels between products and exchanges, copies of tokens among them
    linear_half     what selective checkpointing by operator runs again (`by_operator`), but for
                    norms and pointwise kernels: every second product, all of routed experts and
                    their router, gathers, and the sum behind attention

Beside them `unread` marks what no backward reads: the product that ends a dense feed-forward, its
collective and the sum with the residual stream, which is the next layer's input and kept.

Source: NVIDIA/Megatron-LM@d98e8a64 megatron/core/transformer/transformer_config.py
(recompute_modules); transformer_layer.py, multi_latent_attention.py (qkv_up_proj_and_rope_apply),
moe/moe_layer.py (custom_forward) and moe/experts.py say what each wraps, and
models/gpt/gpt_layer_specs.py which norms are part of a product. `experts` is moe_expert of
021ai/Megatron-LM-FP8FlowMoe@e68853f1 megatron/core/transformer/moe/moe_layer.py (experts_compute).
"""

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet

from meshplan.costmodels.elementwise import Number
from meshplan.costmodels.layout import RecomputeModule
from meshplan.costmodels.operations.adapters import adapted_part
from meshplan.costmodels.operations.by_operator import USUAL, Listing, by_operator
from meshplan.costmodels.operations.kinds import Operation, Pointwise
from meshplan.costmodels.training import Lora

HOLDS: dict[RecomputeModule, tuple[RecomputeModule, ...]] = {
    "moe": ("moe", "moe_act", "experts", "shared_experts"),
    "experts": ("experts", "moe_act"),
    "attention": ("attention", "core_attention", "mla_up_proj"),
}
"""Modules that hold others."""


def replayed_of(
    operations: Sequence[Operation], modules: Iterable[RecomputeModule], listing: Listing = USUAL
) -> list[Operation]:
    """The operations of `modules`, and what "linear_half" names."""
    return kept_and_replayed(operations, modules, listing)[1]


def kept_and_replayed(
    operations: Sequence[Operation], modules: Iterable[RecomputeModule], listing: Listing
) -> tuple[list[Operation], list[Operation]]:
    """The operations whose outputs a layer keeps for its backward, with what each saves, and those
    of `modules`, which run again. Products that a list names one by one are in both.
    """
    named = {part for module in modules for part in HOLDS.get(module, (module,))}
    listed = "linear_half" in named
    if listed:  # a list knows operators: the shared experts' products are on it beside any module
        named -= {"shared_experts"}
    each = by_operator(operations, listing, named) if listed else _by_module(operations, named)
    kept: list[Operation] = []
    again: list[Operation] = []
    for op, runs_again in each:
        (again if runs_again else kept).append(op)
    return kept, again


def _by_module(
    operations: Iterable[Operation], named: AbstractSet[str]
) -> Iterator[tuple[Operation, bool]]:
    return ((op, not named.isdisjoint(op.modules)) for op in operations)


def read_again_bytes(operations: Iterable[Operation], modules: Iterable[RecomputeModule]) -> Number:
    """What kernels between products read when they alone run again: queries and keys before their
    rotation, which nobody keeps otherwise. Lists of operators (`linear_half`) say themselves what
    they keep of products.
    """
    named = {part for module in modules for part in HOLDS.get(module, (module,))}
    if "linear_half" in named:
        return 0.0
    alone = (
        op for op in operations
        if isinstance(op, Pointwise) and named.intersection(op.modules) == {"pointwise"}
    )  # fmt: skip
    return sum(op.read_bytes for op in alone)


def without_unread(operations: Iterable[Operation], lora: Lora | None = None) -> list[Operation]:
    """Those of `operations` whose output some backward reads (`KernelHabits.drops_unread_replay`),
    and products that an adapter follows: it reads their input.
    """
    return [
        op for op in operations
        if "unread" not in op.modules or (lora and adapted_part(op, lora) is not None)
    ]  # fmt: skip
