"""The indexer of sparse attention: it scores all earlier tokens for each query.

    projections  queries from the latent (or the input), one key head, a weight for each head
    scores       2 t s a_i (d_i + 1), causal, s the tokens before each query, and their weighted sum
    choice       one pass over the fp32 scores of all heads summed, to find the `top_k` best; where
                 each head chooses (MiniMax-M3, whole blocks of keys) over those of each

    t tokens on this rank     a_i, d_i heads and head_dim of the indexer

Of compressed keys it scores those, by keys that a compressor of its own makes (DeepSeek-V4). Where
blocks of tokens are chosen together it scores the mean of their keys (Qwen4), weighed by gates that
are projected beside the keys (GLM-5.3-Flash, which attends to the tokens after the last whole block
too: left out, fewer than the 16 of a block beside 2,048).

Source: DeepSeek-V3.2, arXiv 2512.02556, section 2.1; transformers 5.23 `modeling_deepseek_v32.py`.
Each tensor-parallel rank runs the whole indexer. Leaves out: its own loss, and the gather of the
chosen keys, which a sparse kernel reads where they are.
"""

from collections.abc import Iterator

from meshplan.costmodels.model.compression import Indexer
from meshplan.costmodels.model.transformer import Attention
from meshplan.costmodels.operations.attention.compressed import compressed_exchange, compressor
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import AttentionCore, Matmul, Operation, Pointwise


def index_operations(site: Site, attention: Attention, index: Indexer) -> Iterator[Operation]:
    """Its projections, the scores of all earlier tokens, and the choice of the best."""
    if not index.heads:
        return  # the keys are those that an earlier layer chose
    t, h, wide = site.shard.tokens, site.model.hidden, index.heads * index.head_dim
    source = attention.q_lora_rank or h
    yield Matmul(name="index_query", m=t, n=wide, k=source, saved_bytes=site.itemsize * t * wide)
    compression = attention.compression
    narrow = index.weights + (0 if compression else index.key_columns)
    yield Matmul(name="index_key", m=t, n=narrow, k=h, saved_bytes=site.itemsize * t * narrow)
    keys = site.shard.document_len // index.block / 2
    if compression:
        yield from compressor(site, compression, index.head_dim, "index")
        yield compressed_exchange(site, compression, index.head_dim)
        keys = site.shard.document_len // compression.ratio / 2
    chosen = 4.0 * t * index.top_k / index.block
    yield AttentionCore(
        name="index_scores", queries=t, keys=keys, all_keys=2 * keys, heads=index.heads,
        head_dim=index.head_dim, v_head_dim=0 if index.by_head else 1, fused=True,
        saved_bytes=chosen,
    )  # fmt: skip
    size = 4.0 * t * keys * (index.heads if index.by_head else 1)
    yield Pointwise(
        name="choice", forward_bytes=size, backward_bytes=chosen, kernels=2,
        modules=("core_attention",),
    )  # fmt: skip
