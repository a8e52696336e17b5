"""The compressor of keys, and an output projection in groups of heads (DeepSeek-V4's attention).

    compressor   keys and gates of each token, c d numbers each; a softmax over the gates of each
                 window of c r tokens, and the mean of its keys by it: t / r keys of d numbers
    out groups   g products of (a e / g) by r_o on the rotated output, whose g r_o numbers the
                 output projection reads

    t tokens of this rank, r of a window, c 2 where windows overlap, d head_dim; a heads, e
    v_head_dim

Each tensor-parallel rank runs the whole compressor, for there is one head of keys; the groups are
cut with their heads. Under context parallelism each rank compresses its own tokens and gathers the
others' compressed keys: all else that a query meets is in its window.

Source: transformers 5.24 `modeling_deepseek_v4.py`. Leaves out: the window's last tokens of the
rank before, which are sent too.
"""

from collections.abc import Iterator

from meshplan.costmodels.elementwise import Number, where
from meshplan.costmodels.model.compression import Compression
from meshplan.costmodels.model.transformer import Attention
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import Communication, Matmul, Operation, Pointwise


def compressor(
    site: Site, compression: Compression, width: int, name: str
) -> Iterator[Matmul | Pointwise]:
    """From the layer's input to the normed and rotated keys; both are kept, as are their parts."""
    t, columns = site.shard.tokens, 2 * compression.series * width
    parts = site.itemsize * t * columns
    yield Matmul(
        name=f"{name}_keys_gates", m=t, n=columns, k=site.model.hidden, saved_bytes=parts,
        cast_shares=site.entering_casts,
    )  # fmt: skip
    keys = site.itemsize * t / compression.ratio * width
    yield Pointwise(
        name=f"{name}_compression", forward_bytes=parts + 2 * keys,
        backward_bytes=2 * parts + 3 * keys, kernels=2, saved_bytes=2 * keys,
    )  # fmt: skip


def compressed_exchange(site: Site, compression: Compression, width: int) -> Communication:
    """The compressed keys of all context-parallel ranks, and back the gradients."""
    size = site.itemsize * site.shard.tokens * site.shard.cp / compression.ratio * width
    once = where(site.shard.cp > 1, 1.0, 0.0)
    return Communication(
        name="compressed_keys", axis="cp", kind="all_gather", size_bytes=size,
        forward_count=once, backward_count=2 * once, hidden_by="nothing",
        modules=("core_attention",),
    )  # fmt: skip


def compressed_keys(site: Site, attention: Attention) -> tuple[Number, Number]:
    """Compressed keys that a query meets on average, and the most of them: only whole windows
    before it have one, and of them the `top_k` that the indexer chose.
    """
    if attention.compression is None:
        return 0.0, 0.0
    ratio, document = attention.compression.ratio, site.shard.document_len
    there = document // ratio
    chosen = min(attention.indexer.top_k, there) if attention.indexer else there
    return chosen - chosen * chosen * ratio / (2 * document), float(chosen)


def out_projection(site: Site, attention: Attention) -> Iterator[Operation]:
    """From the core attention's output to the hidden size, through groups where there are any."""
    t, tp = site.shard.tokens, site.shard.tp
    groups = attention.out_groups
    if groups:
        made = groups * attention.out_rank / tp
        yield Matmul(
            name="attention_out_groups", m=t, n=attention.out_rank,
            k=attention.heads * attention.v_head_dim / groups, groups=groups / tp,
            saved_bytes=site.itemsize * t * made,
        )  # fmt: skip
    yield Matmul(
        name="attention_out", m=t, n=site.model.hidden, k=attention.out_width / tp,
        cast_shares=site.leaving_casts, biased=attention.out_bias,
    )  # fmt: skip
