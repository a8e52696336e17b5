"""Embeddings of n-grams of tokens, gated by the streams that they are added to (Qwen4).

    lookup       m rows for each token, cut by their columns over the tensor-parallel ranks
    projections  t x d by d x n h (a key for each stream) and by d x h (the value)
    gate         norms of keys and streams, their product, the gated values and their norm
    convolution  over earlier tokens, and the sum to the streams

    t tokens, d width, n streams, h hidden

Kept are what the products and norms read: the rows, the keys, the value, the normed values that the
convolution reads, and the streams before. The table's gradient is as large as the table, as that of
any `nn.Embedding`.

Source: transformers 5.24 `modeling_qwen4_exp.py` (Qwen4ExpTextPLELayer) and its `tp_plan`. Leaves
out: the hashes, tables that are left on the host, and which kernels a training framework has for
it: counted is one for the gate and one for the convolution.
"""

from collections.abc import Iterator

from meshplan.costmodels.model.ngrams import NGrams
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import Communication, Matmul, Operation, Pointwise


def ngram_operations(site: Site, ngrams: NGrams) -> Iterator[Operation]:
    """What stands before the mixer of a layer that has them."""
    h, wide = site.model.hidden, site.model.stream_width
    t, width = site.shard.tokens_outside, ngrams.width
    rows, one, all_streams = (site.itemsize * t * each for each in (width, h, wide))
    own = site.itemsize * site.shard.tokens * width / site.shard.tp
    yield Pointwise(
        name="ngrams", forward_bytes=2 * own, backward_bytes=3 * own, kernels=2, saved_bytes=rows,
        modules=("input",),
    )  # fmt: skip
    yield Communication(
        name="ngrams", axis="tp", kind="all_gather", size_bytes=own * site.shard.tp,
        forward_count=1.0, backward_count=1.0, hidden_by="nothing",
    )  # fmt: skip
    yield Matmul(name="ngram_keys", m=t, n=wide, k=width, saved_bytes=all_streams)
    yield Matmul(name="ngram_value", m=t, n=h, k=width, saved_bytes=one)
    yield Pointwise(
        name="ngram_gate", forward_bytes=3 * all_streams + one,
        backward_bytes=5 * all_streams + 2 * one, saved_bytes=all_streams,
    )  # fmt: skip
    yield Pointwise(
        name="ngram_convolution", forward_bytes=3 * all_streams, backward_bytes=4 * all_streams,
        saved_bytes=all_streams, modules=("input",),
    )  # fmt: skip
