"""HybridEP's traffic beside the tokens: who goes where (the routing map), and the router's weights.

    gathered   P t E bytes         every rank learns for each token of all P whether it goes to each
                                   of the E experts: a byte each, in an all-gather
    read       P t (E + 5 E/P)     those bytes, once; for each own expert a byte and an int32 of
                                   each token are written
    weights    4 E r/P bytes       travel with each copy of a token, forward and with its gradient
                                   backward: fp32, of all experts of the ranks that a node has

    t  tokens that a rank routes     P  ranks of the group, r of them on a node (an NVLink domain)

Both the map and the weights grow with the number of experts and not with the width of a token: 512
experts and a latent of 1,024 numbers double what a token sends. DeepEP sends the chosen experts'
numbers and weights alone.

Source: deepseek-ai/DeepEP@94a9f8f6 (branch hybrid-ep) csrc/hybrid_ep/executor/executor.cu
(allgather_routing_map, metadata_preprocess_core), backend/hybrid_ep_backend.cuh (scan, and
INTRA_NODE_S2G_GROUP of a forward dispatch). Leaves out: that the host waits for the number of rows
where the buffers have no fixed size.
"""

from collections.abc import Iterator

from meshplan.costmodels.elementwise import Number, anywhere, where
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import Communication, Operation, Pointwise


def routing_maps(site: Site, experts: int) -> Iterator[Operation]:
    """The all-gather of who goes where, and what is read and written of it; nothing where another
    library, or none, sends tokens.
    """
    if not anywhere(site.gathers_routing):
        return
    shard = site.shard
    gathers = with_hybrid_ep(site)
    tokens = gathers * shard.ep * shard.tokens / shard.tp
    yield Communication(
        name="routing_map", axis="ep", kind="all_gather", size_bytes=tokens * experts,
        forward_count=gathers, backward_count=0, hidden_by="nothing", modules=("moe",),
        present=gathers, differentiable=False,
    )  # fmt: skip
    yield Pointwise(
        name="read_routing_map", forward_bytes=tokens * (experts + 5.0 * experts / shard.ep),
        backward_bytes=0.0, kernels=0, modules=("moe",),
    )  # fmt: skip


def weight_bytes(site: Site, experts: int) -> Number:
    """Bytes of the router's weights that travel with each copy of a token."""
    sent = 4.0 * experts * site.ep_ranks_per_node / site.shard.ep
    return with_hybrid_ep(site) * sent


def with_hybrid_ep(site: Site) -> Number:
    """1 where HybridEP sends tokens to other ranks, else 0."""
    return where(site.gathers_routing & (site.shard.ep > 1), 1.0, 0.0)
