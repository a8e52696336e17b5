"""The operations of a layer that a trace found, on one rank (`hardware_profiles.traced_model`).

    t, r   tokens in the matmuls and outside them       c   rows of experts for each token

    column m = t, n / tp      row, narrow  m = t, k / tp      whole  m = t      own  m = r
    expert m = t / tp c etp, spread over the groups / ep that a rank has; n or k / etp

Bytes kept and moved are those of the module's own kernels, or, where an engine fuses norms and
gated activations, those of chains fused into one kernel each; there the rows of routed experts are
chosen and moved as in any other layer with experts. What attention keeps and moves is the engine's.
A backward chain moves `BACKWARD` as much as a forward one: what it kept, and gradients. In 8-bit
training what chains keep stays in 16 bits.

Around products that tp cuts the stream is gathered once for each tensor of it that enters, and
scattered once for each product that leaves.
"""

from collections.abc import Iterator

from meshplan.costmodels.elementwise import Number
from meshplan.costmodels.model.traced import attention_of
from meshplan.costmodels.operations.attention.context_exchange import context_exchange
from meshplan.costmodels.operations.attention.core import core
from meshplan.costmodels.operations.experts import (
    choose,
    exchange_tokens,
    gather_experts,
    permute,
    share_permuted,
)
from meshplan.costmodels.operations.feed_forward import Site, gather_tokens, scatter_tokens
from meshplan.costmodels.operations.kinds import (
    Communication,
    Matmul,
    Operation,
    Pointwise,
    Routing,
    Scan,
)
from meshplan.hardware_profiles.traced_model import (
    TracedBytes,
    TracedExperts,
    TracedLayer,
    TracedProduct,
)

BACKWARD = 1.5


def traced_operations(site: Site, layer: TracedLayer) -> Iterator[Operation]:
    """Products, attention, what else mixes tokens, chains and collectives."""
    for number in range(layer.entries):
        yield gather_tokens(site, f"entry_{number}")
    for product in layer.products:
        yield from _product(site, product, layer.experts)
    for attention in attention_of(layer):
        yield from context_exchange(site, attention)
        yield core(site, attention)
    yield from _state(site, layer)
    if layer.experts:
        yield from _to_experts(site, layer.experts)
    yield _chains(site, layer)


def _product(
    site: Site, product: TracedProduct, experts: TracedExperts | None
) -> Iterator[Operation]:
    split, shard = product.split, site.shard
    if split in ("expert_in", "expert_out"):
        yield _expert_product(site, product)
        return
    cut = {"column": (shard.tp, 1.0), "row": (1.0, shard.tp), "narrow": (1.0, shard.tp)}
    n_cut, k_cut = cut.get(split, (1.0, 1.0))
    tokens = shard.tokens_outside if split == "own" else shard.tokens
    routes = experts is not None and split == "own" and product.n == experts.experts
    yield Matmul(
        name="router" if routes else product.name, m=tokens * product.rows, n=product.n / n_cut,
        k=product.k / k_cut, groups=product.groups, recipe=split != "own",
        modules=("moe",) if routes else ("linear",),
    )  # fmt: skip
    if split == "row":
        yield scatter_tokens(site, product.name)
    if split == "narrow":
        yield Communication(
            name=product.name, axis="tp", kind="all_gather", forward_count=2, backward_count=2,
            size_bytes=site.itemsize * shard.tokens * product.n, hidden_by="nothing",
        )  # fmt: skip


def _expert_product(site: Site, product: TracedProduct) -> Matmul:
    shard = site.shard
    into = product.split == "expert_in"
    return Matmul(
        name=f"experts {product.name}", m=_copies(site) * product.rows * shard.ep / product.groups,
        n=product.n / (shard.etp if into else 1.0), k=product.k / (1.0 if into else shard.etp),
        groups=product.groups / shard.ep, casts=site.kernels.expert_casts,
        imbalance=shard.imbalance, modules=("moe",),
    )  # fmt: skip


def _copies(site: Site) -> Number:
    """Tokens of which a rank's experts compute all copies, where they are spread evenly."""
    shard = site.shard
    return shard.tokens / shard.tp * shard.etp * shard.imbalance


def _state(site: Site, layer: TracedLayer) -> Iterator[Scan]:
    """Products of activations with each other, at the rate of a scan; its bytes are a chain's."""
    shard = site.shard
    each = layer.state_flops + layer.state_flops_per_key * shard.document_len
    if each:
        yield Scan(
            name="state", forward_flops=each * shard.tokens / shard.tp, forward_bytes=0.0,
        )  # fmt: skip


def _to_experts(site: Site, experts: TracedExperts) -> Iterator[Operation]:
    """Each token to its experts and back, all of its copies."""
    sent = site.itemsize * site.shard.tokens / site.shard.tp * experts.top_k * experts.outer
    busiest = sent * site.shard.imbalance
    rows = site.itemsize * _copies(site) * experts.top_k * experts.outer
    routing = Routing(experts.top_k)
    yield exchange_tokens("dispatch", busiest, routing)
    yield gather_experts(site, "expert_input", rows, "all_gather")
    yield gather_experts(site, "expert_output", rows, "reduce_scatter")
    yield exchange_tokens("combine", busiest, routing)
    if is_fused(site):
        yield choose(
            site.shard.tokens / site.shard.tp, experts.experts, site.kernels.routing_kernels
        )
        for name, size in (("permute", sent), ("unpermute", sent)):
            yield permute(site, name, share_permuted(site) * size)
        for name, size in (("sort_by_expert", rows), ("unsort", rows)):
            yield permute(site, name, size)


def is_fused(site: Site) -> bool:
    """Whether the engine's chains of kernels between products are fused."""
    return site.kernels.fused_norm and site.kernels.fused_gated


def _chains(site: Site, layer: TracedLayer) -> Pointwise:
    """All kernels between products, and all that the layer keeps but for attention's statistics."""
    fused = is_fused(site)
    moved = on_rank(site, layer.fused_moved if fused else layer.moved)
    pairs = 0.0 if fused else layer.saved_per_key * site.shard.seq_len / site.shard.tp
    return Pointwise(
        name="chains", forward_bytes=moved, backward_bytes=BACKWARD * moved,
        kernels=layer.fused_kernels if fused else layer.kernels,
        saved_bytes=on_rank(site, layer.fused_saved if fused else layer.saved)
        + site.itemsize / 2 * pairs * site.shard.tokens,
    )  # fmt: skip


def on_rank(site: Site, each: TracedBytes) -> Number:
    """Bytes on one rank, of bytes for each token in 16 bits."""
    shard = site.shard
    tokens = each.stream * shard.tokens_outside + each.whole * shard.tokens
    tokens = tokens + each.cut * shard.tokens / shard.tp + each.copies * _copies(site)
    return site.itemsize / 2 * tokens
