"""The core of softmax attention on one rank: softmax(q k^T) v, and how queries meet all keys."""

from collections.abc import Iterator

from meshplan.costmodels.elementwise import Number, maximum, where
from meshplan.costmodels.model.transformer import Attention
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import AttentionCore, Communication, Operation, Pointwise
from meshplan.costmodels.operations.rank_share import Shard


def context_exchange(site: Site, attention: Attention) -> Iterator[Operation]:
    """Keys and values reach every rank of the context-parallel group, and their gradients return;
    or queries, keys, values and outputs of some heads do, of all tokens.
    """
    widths = attention.head_dim + attention.v_head_dim
    kv = site.itemsize * site.shard.tokens * kv_heads(site.shard, attention) * widths
    if site.kernels.context == "all_to_all":
        own = site.itemsize * site.shard.tokens * attention.heads / site.shard.tp * widths
        yield Communication(
            name="heads", axis="cp", kind="all_to_all", size_bytes=own + kv, forward_count=1,
            backward_count=1, hidden_by="nothing", modules=("core_attention",),
        )  # fmt: skip
        return
    yield Communication(
        name="key_value", axis="cp", kind="all_gather", size_bytes=site.shard.cp * kv,
        forward_count=1, backward_count=2, hidden_by="attention", modules=("core_attention",),
    )  # fmt: skip


def core(site: Site, attention: Attention) -> AttentionCore:
    """The kernel itself, causal, over a window or the keys that an indexer chose."""
    shard, a = site.shard, attention.heads / site.shard.tp
    seq_len, t = shard.seq_len, shard.tokens
    document = shard.document_len
    chosen = attention.indexer.top_k if attention.indexer else document
    window = min(attention.window or document, chosen, document)
    keys = window - attention.causal * window * window / (2 * document)
    logsumexp = 4.0 * t * a
    scores = t * seq_len * a * (5.0 if site.kernels.dropout else 4.0)
    exchanged = where(shard.cp > 1, 1.0, 0.0) * (site.kernels.context == "all_to_all")
    own_output = exchanged * output_bytes(site, attention)  # of other tokens
    return AttentionCore(
        name="core_attention",
        queries=t,
        keys=keys,
        all_keys=float(window),
        heads=a,
        head_dim=attention.head_dim,
        v_head_dim=attention.v_head_dim,
        fused=site.kernels.flash_attention,
        sinks_s=site.kernels.sink_token_s * t if attention.sinks else 0.0,
        saved_bytes=own_output + (logsumexp if site.kernels.flash_attention else scores),
    )


def output_bytes(site: Site, attention: Attention) -> Number:
    """Bytes of the core attention's output on this rank."""
    heads = attention.heads / site.shard.tp
    return site.itemsize * site.shard.tokens * heads * attention.v_head_dim


def core_output(site: Site, attention: Attention) -> Pointwise:
    """The output of the core attention: the projection keeps it even where the core is replayed."""
    return Pointwise(
        name="core_output", forward_bytes=0.0, backward_bytes=0.0, kernels=0,
        saved_bytes=output_bytes(site, attention),
        modules=("linear",),
    )  # fmt: skip


def kv_heads(shard: Shard, attention: Attention) -> Number:
    """Key/value heads on one rank; with fewer than `tp` of them they are replicated."""
    if attention.is_mla:
        return attention.heads / shard.tp
    return maximum(attention.kv_heads / shard.tp, 1.0)
