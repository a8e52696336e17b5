"""The operations of a mixture-of-experts feed-forward on one rank.

    t      tokens that this rank routes       micro_batch * seq_len / (cp * tp)
    k      experts that each token visits     top_k
    rows   token copies that this rank's experts compute, balanced: t * k * etp, times the imbalance
    e      experts on this rank               experts / ep
    f      width of one expert on this rank   ffn / etp
    h      hidden, or the latent width that experts work in

Each rank sends t k h numbers and receives as many, before and after the experts (all-to-all over
ep); the busiest one receives, and sends back, the imbalance times as many, which all wait for.
Beside an all-to-all of the tokens, the int64 counts of all experts are a message of their own
forward (`KernelHabits.counts_by`), and the fp32 weights of the copies there and their gradients
back (`weights_apart`): few bytes, but messages. DeepEP sends both with the tokens; HybridEP gathers
who goes where, and sends weights of all experts with each copy (`routing_maps`). Tensor-parallel
ranks hold different tokens (sequence parallel), so ep may run through tp, cp
and dp.

What this rank's experts are given, and what comes back, is charged to the exchange that brought it,
and without one (ep = 1) to the copy: what replays copies alone, and no exchange, keeps it. Of
DeepEP's single copies all rows are counted there.

What comes back is kept for the gradient of the router's weights where they multiply it here: not
where experts weigh their own rows, as they must where one copy of a token comes back
(Megatron-Core's flex dispatcher: NVIDIA/Megatron-LM@4af25fe8 megatron/core/transformer/moe,
experts.py, token_dispatcher.py).

Leaves out: dropping at a capacity, and the auxiliary loss.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, NamedTuple

from meshplan.costmodels.elementwise import Number, where
from meshplan.costmodels.model.transformer import Experts
from meshplan.costmodels.operations.exchanging_products import in_products
from meshplan.costmodels.operations.expert_biases import add_bias
from meshplan.costmodels.operations.feed_forward import (
    Site,
    activation,
    dense_feed_forward,
    gather_tokens,
    scatter_tokens,
)
from meshplan.costmodels.operations.kinds import (
    Communication,
    Matmul,
    Operation,
    Pointwise,
    Routing,
)
from meshplan.costmodels.operations.remade import remade
from meshplan.costmodels.operations.routing_maps import (
    routing_maps,
    weight_bytes,
    with_hybrid_ep,
)


class _Sizes(NamedTuple):
    """Of one rank, by the letters of the module's docstring.

    tokens, copies  t that it routes, and their t k copies
    busiest, rows   copies that the busiest rank receives, and those that it computes
    width           h of the numbers that are sent
    """

    tokens: Number
    copies: Number
    busiest: Number
    rows: Number
    width: int


def expert_operations(site: Site, experts: Experts) -> Iterator[Operation]:
    """Router, dispatch, routed experts, combine, and the shared experts beside them."""
    tokens = site.shard.tokens / site.shard.tp
    copies = tokens * experts.top_k
    busiest = copies * site.shard.imbalance
    width = experts.latent or site.model.hidden
    sizes = _Sizes(tokens, copies, busiest, busiest * site.shard.etp, width)
    cycle = experts.experts if site.kernels.deals_experts else 0
    routing = Routing(experts.top_k, *site.model.expert_groups, cycle)
    yield from _router(site, experts, sizes)
    routed = _routed(site, experts, sizes, routing)
    yield from in_products(routed) if site.kernels.exchanging_products else routed
    if experts.shared_ffn:
        yield gather_tokens(site, "shared_input", "shared_experts")
        yield from dense_feed_forward(site, experts.shared_ffn / site.shard.tp, "shared_experts")
        yield scatter_tokens(site, "shared_output", "shared_experts")
        if experts.shared_gate:
            yield from _shared_gate(site, tokens)


def _routed(site: Site, experts: Experts, sizes: _Sizes, routing: Routing) -> Iterator[Operation]:
    """Tokens to their experts, through them, and back."""
    yield from _to_experts(site, experts, sizes, routing)
    yield from _products(site, experts, sizes.rows)
    yield from _from_experts(site, experts, sizes, routing)


def _router(site: Site, experts: Experts, sizes: _Sizes) -> Iterator[Operation]:
    """Scores of all experts, and the choice."""
    yield Matmul(
        name="router",
        m=sizes.tokens,
        n=experts.experts + experts.scored_shared,
        k=site.model.hidden,
        recipe=False,
        saved_bytes=_routing_bytes(site, experts, sizes.copies, sizes.rows),
        modules=("moe",),
    )
    yield choose(sizes.tokens, experts.experts, site.kernels.routing_kernels)


def _to_experts(
    site: Site, experts: Experts, sizes: _Sizes, routing: Routing
) -> Iterator[Operation]:
    """Copies of the tokens sent to their experts' ranks, and put in the experts' order there."""
    kernels, h = site.kernels, sizes.width
    if experts.latent:
        yield _latent(site, "latent_in", h, site.model.hidden)
    sent = share_permuted(site) * site.itemsize * sizes.copies * h
    yield permute(site, "permute", sent, adds="backward")
    if kernels.counts_by:
        yield _counts(site, experts.experts, kernels.counts_by)
    yield from routing_maps(site, experts.experts)
    beside, received = weight_bytes(site, experts.experts), site.itemsize * sizes.rows * h
    in_8_bit = kernels.keeps_casts or kernels.receives_casts or kernels.keeps_received_cast
    exchanged = _exchanged(site)
    yield replace(
        exchange_tokens("dispatch", (site.itemsize * h + beside) * sizes.busiest, routing),
        saved_bytes=exchanged * received,
        kept_cast=in_8_bit,
    )
    if kernels.weights_apart:
        yield _weights(site, 4.0 * sizes.busiest)
    yield gather_experts(site, "expert_input", received, "all_gather")
    if kernels.weights_apart:
        yield _gathered_weights(site, 4.0 * sizes.rows)
    kept = (1.0 - exchanged) * received
    sorting = permute(site, "sort_by_expert", _sorted(site) * received, saved=kept, adds="backward")
    yield replace(sorting, kept_cast=in_8_bit)


def _from_experts(
    site: Site, experts: Experts, sizes: _Sizes, routing: Routing
) -> Iterator[Operation]:
    """What the experts put out sent back, and the copies of each token added up."""
    kernels, h = site.kernels, sizes.width
    computed = site.itemsize * sizes.rows * h
    yield permute(site, "unsort", _sorted(site) * computed, adds="forward")
    yield gather_experts(site, "expert_output", computed, "reduce_scatter")
    back = share_permuted(site) * site.itemsize * sizes.copies * h
    kept = 0.0 if kernels.weighs_inside_experts or kernels.weighs_apart else back
    exchanged = _exchanged(site)
    combine = exchange_tokens("combine", site.itemsize * sizes.busiest * h, routing)
    yield replace(combine, saved_bytes=exchanged * kept)
    if kernels.weighs_apart:
        yield weigh(sizes.copies * h)
    yield permute(site, "unpermute", back, saved=(1.0 - exchanged) * kept, adds="forward")
    if experts.latent:
        yield _latent(site, "latent_out", site.model.hidden, h)


def _exchanged(site: Site) -> Number:
    """1 where ranks hold different experts and exchange tokens, else 0."""
    return where(site.shard.ep > 1, 1.0, 0.0)


def _sorted(site: Site) -> Number:
    """The share of rows that are put in the experts' order apart from the copy that is sent."""
    return _exchanged(site) if site.kernels.sorts_once else 1.0


def _shared_gate(site: Site, tokens: Number) -> Iterator[Operation]:
    """The shared experts' output times the sigmoid of one number for each token; it is kept."""
    size = site.itemsize * tokens * site.model.hidden
    yield Matmul(
        name="shared_gate",
        m=tokens,
        n=1,
        k=site.model.hidden,
        recipe=False,
        modules=("shared_experts",),
    )
    yield Pointwise(
        name="gated_shared", forward_bytes=2 * size, backward_bytes=4 * size, saved_bytes=size,
        modules=("shared_experts", "pointwise"),
    )  # fmt: skip


def _products(site: Site, experts: Experts, rows: Number) -> Iterator[Operation]:
    """What the experts of this rank compute on the `rows` that they are given."""
    shard, up = site.shard, 2 if site.model.gated else 1
    h, f = experts.latent or site.model.hidden, experts.ffn / shard.etp
    into = Matmul(
        name="experts_up",
        m=rows * shard.ep / experts.experts,
        n=up * f,
        k=h,
        groups=experts.experts / shard.ep,
        casts=site.kernels.expert_casts,
        kept_cast=site.kernels.keeps_casts,
        imbalance=shard.imbalance,
        saved_bytes=site.itemsize * rows * up * f,
        modules=("moe", "experts"),
    )
    yield into
    yield from add_bias(site, experts, rows * up * f, last=False)
    weighed = site.kernels.weighs_inside_experts
    acting = activation(site, rows * f, "moe_act", weighed=weighed, clamped=experts.bias)
    yield remade(site.kernels, acting)
    yield replace(into, name="experts_down", n=h, k=f, kept_cast=False, saved_bytes=0.0)
    yield from add_bias(site, experts, rows * h, last=True)


def _routing_bytes(site: Site, experts: Experts, copies: Number, rows: Number) -> Number:
    """What routing keeps: the router's fp32 scores, or the choices themselves.

    Where experts weigh their own rows: int64 choice, order and token and one fp32 weight of each
    copy, an fp32 weight of each received row, and two int64 orders of those that arrive mixed.
    """
    if not site.kernels.weighs_inside_experts:
        return 4.0 * site.shard.tokens / site.shard.tp * experts.experts
    mixed = (site.shard.ep > 1) & (site.shard.ep < experts.experts)
    return 28.0 * copies + 4.0 * rows + where(mixed, 16.0 * rows, 0.0)


def _latent(site: Site, name: str, n: int, k: int) -> Matmul:
    """A projection of the tokens that this rank routes; its output is kept."""
    t = site.shard.tokens / site.shard.tp
    return Matmul(name=name, m=t, n=n, k=k, saved_bytes=site.itemsize * t * n, modules=("moe",))


def choose(tokens: Number, experts: int, kernels: int = 10) -> Pointwise:
    """The choice of each token's experts, of the scores of all."""
    scores = tokens * experts
    return Pointwise(
        name="top_k", forward_bytes=12.0 * scores, backward_bytes=8.0 * scores, kernels=kernels,
        modules=("moe", "pointwise"),
    )  # fmt: skip


def share_permuted(site: Site) -> Number:
    """1 where tokens are copied before they are sent: a dispatch of single copies reads them where
    they are, and adds them up where they were.
    """
    return where(site.sends_single_copies & (site.shard.ep > 1), 0.0, 1.0)


def permute(
    site: Site,
    name: str,
    size_bytes: Number,
    saved: Number = 0.0,
    adds: Literal["forward", "backward"] | None = None,
) -> Pointwise:
    """Rows copied into another order; `adds`: the pass that adds the copies of a token up.
    HybridEP's calls permute and send (dispatch_with_permute, combine_with_unpermute:
    NVIDIA/Megatron-LM@d98e8a64 megatron/core/transformer/moe/fused_a2a.py).
    """
    passes = ("forward", "backward")
    forward, backward = ("permute_sum" if adds == each else "permute" for each in passes)
    return Pointwise(
        name=name,
        forward_bytes=2 * size_bytes,
        backward_bytes=2 * size_bytes,
        kernels=2,
        issued_share=1.0 - with_hybrid_ep(site),
        measured_as=(forward, backward),
        saved_bytes=saved,
        modules=("moe", "pointwise"),
    )


def weigh(elements: Number) -> Pointwise:
    """Rows of 16 bits times a weight each, as PyTorch's own kernels: a copy in fp32, which is kept,
    6 bytes of each number, the product 8, and back 6; backward a copy 6, the rows' gradient 8, that
    of the weights 12 and their sum 4, and back 6.
    """
    return Pointwise(
        name="weigh", forward_bytes=20.0 * elements, backward_bytes=36.0 * elements, kernels=3,
        saved_bytes=4.0 * elements, modules=("moe", "pointwise"),
    )  # fmt: skip


def exchange_tokens(name: str, size_bytes: Number, routing: Routing) -> Communication:
    """Tokens to the ranks of their experts, or back."""
    return Communication(
        name=name, axis="ep", kind="all_to_all", size_bytes=size_bytes, forward_count=1,
        backward_count=1, routing=routing, hidden_by="expert", modules=("moe",),
    )  # fmt: skip


def _counts(site: Site, experts: int, kind: Literal["all_to_all", "all_gather"]) -> Communication:
    """How many tokens each expert gets from each rank."""
    ranks = site.shard.ep if kind == "all_gather" else 1.0
    sent = _exchanged(site) * share_permuted(site)
    return Communication(
        name="counts", axis="ep", kind=kind, size_bytes=8.0 * experts * ranks, forward_count=sent,
        backward_count=0, hidden_by="nothing", modules=("moe",), present=sent,
        differentiable=False,
    )  # fmt: skip


def _weights(site: Site, size_bytes: Number) -> Communication:
    """The router's weights of the copies sent, behind the tokens, and their gradients back."""
    sent = share_permuted(site)
    return Communication(
        name="weights", axis="ep", kind="all_to_all", size_bytes=size_bytes, forward_count=sent,
        backward_count=sent, hidden_by="expert", modules=("moe",), present=sent,
    )  # fmt: skip


def _gathered_weights(site: Site, size_bytes: Number) -> Communication:
    """The same on ranks that split one expert."""
    sent = share_permuted(site)
    found = gather_experts(site, "gathered_weights", size_bytes, "all_gather")
    return replace(
        found,
        forward_count=found.forward_count * sent,
        backward_count=found.backward_count * sent,
        present=sent,
    )


def gather_experts(
    site: Site, name: str, size_bytes: Number, kind: Literal["all_gather", "reduce_scatter"]
) -> Communication:
    """Ranks that split one expert hold all of its tokens."""
    once = where(site.shard.etp > 1, 1.0, 0.0)
    return Communication(
        name=name, axis="etp", kind=kind, size_bytes=size_bytes, forward_count=once,
        backward_count=once, hidden_by="nothing", modules=("moe",),
    )  # fmt: skip
