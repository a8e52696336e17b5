"""The core of softmax attention on one rank: softmax(q k^T) v."""

import math
from collections.abc import Iterator

from meshplan.costmodels.elementwise import Number, where
from meshplan.costmodels.model.transformer import Attention
from meshplan.costmodels.operations.attention.absorbed import core_widths
from meshplan.costmodels.operations.attention.compressed import compressed_keys
from meshplan.costmodels.operations.attention.pytorch_ring import kernels_in_turn, merges_outside
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import AttentionCore, Pointwise, ScoreOperators

WIDEST_FLASH = 256
"""The widest head that any release of FlashAttention and cuDNN's attention take."""
MASK_BYTES = 2.0
"""Of a query and key: PyTorch makes 16 bits of a mask of booleans in each layer and keeps them for
the backward (aten/src/ATen/native/transformers/attention.cpp convert_boolean_attn_mask). A mask
that is 16 bits wide when it comes would be there once; it is counted alike.
"""
MEGATRONS = ScoreOperators((32.0, 34.0), (4, 4), kept=2.0)
TRANSFORMERS = ScoreOperators((24.0, 22.0), (4, 3), kept=2.0)
OWN_MASKS = {
    "filled": ScoreOperators((4.0, 4.0), (1, 1)),
    "multiplied": ScoreOperators((12.0, 8.0), (5, 2)),
}
"""Of a 16-bit score, forward and backward.

MEGATRONS     to fp32 6, times the scale 8, masked in place 8, softmax 8 and back to 16 bits 6, less
              4; backward cast 6, softmax 12, mask 8, scale 8 and cast 6, less 6
              (forward_torch_softmax of megatron/model/fused_softmax.py, bigscience-workshop/
              Megatron-DeepSpeed@038bddc). Leaves out making the mask
TRANSFORMERS  times the scale 4, plus the mask 4, to fp32 6, softmax 8 and back 6, less 4; backward
              cast 6, softmax 12, cast 6 and scale 4, less 6 (eager_attention_forward of
              transformers' modeling_llama.py; torch 2.13 runs these operators. Softmax casts bf16
              by a kernel of its own, fp16 alone not: aten/src/ATen/native/SoftMax.cpp)
filled        all in 16 bits: the mask filled in 4; backward as much. Megatron-Core's where
              TransformerConfig says neither fp16 nor bf16: it casts the scores of a 16-bit model
              alone, and the product scales (forward_torch_softmax of
              megatron/core/fusions/fused_softmax.py, NVIDIA/Megatron-LM@00caa53a)
multiplied    all in 16 bits: over the scale 4, times the mask 4, less a penalty 4, which two
              kernels make for all heads; backward mask 4 and scale 4 (GPT2ParallelSelfAttention of
              Megatron-LM/mpu/transformer.py, deepspeedai/DeepSpeedExamples@a79272cc; Megatron-LM
              of 2019, whose copy it is)

MEGATRONS and TRANSFORMERS keep each probability in fp32 for the softmax's backward, not in 16 bits.
Not counted: reading a mask that heads share.
"""


def core(site: Site, attention: Attention) -> AttentionCore:
    """The kernel itself, causal, over a window or the keys that an indexer chose."""
    shard, a = site.shard, attention.heads / site.shard.tp
    seq_len, t = shard.seq_len, shard.tokens
    document = shard.document_len
    among_all = attention.indexer if attention.compression is None else None
    window = min(attention.window or document, among_all.top_k if among_all else document, document)
    keys, fused = _mean_keys(attention, window, document), is_fused(site, attention)
    compressed, all_compressed = compressed_keys(site, attention)
    wide, value = core_widths(attention)
    return AttentionCore(
        name="core_attention",
        queries=t,
        keys=keys + compressed,
        all_keys=float(window if fused else seq_len) + all_compressed,
        heads=a,
        head_dim=wide,
        v_head_dim=value,
        fused=fused,
        softmax_apart=softmax_apart(site, attention),
        apart=_score_operators(site),
        chosen=_is_chosen(attention),
        wide=_is_wide(attention),
        sinks_s=site.kernels.sink_token_s * t if attention.sinks else 0.0,
        chunk=_chunk(site, attention, whole=bool(window < seq_len or not attention.causal)),
        in_turn=kernels_in_turn(site, attention),
        masked_keys=_masked_keys(site),
        saved_bytes=_kept_bytes(site, attention),
    )


def _kept_bytes(site: Site, attention: Attention) -> Number:
    """What the backward pass keeps of the kernel: what it saves of scores, its mask, and outputs of
    other tokens or of latents, which are its own.
    """
    shard, a = site.shard, attention.heads / site.shard.tp
    t, seq_len = shard.tokens, shard.seq_len
    by_heads = site.meets_keys_by("all_to_all") | site.meets_keys_by("hierarchical")
    exchanged = where(by_heads & (shard.cp > 1), float(attention.compression is None), 0.0)
    outputs = exchanged * output_bytes(site, attention)
    latents = site.itemsize * t * a * core_widths(attention)[1] * attention.is_absorbed
    per_score = 5.0 if site.kernels.dropout else 4.0
    apart = _score_operators(site).kept * softmax_apart(site, attention)
    scores = t * seq_len * a * (per_score + apart)
    logsumexp = 4.0 * t * a
    mask = MASK_BYTES * t * _masked_keys(site)
    return outputs + latents + (logsumexp if is_fused(site, attention) else scores) + mask


def _masked_keys(site: Site) -> float:
    """Keys that a mask of one query covers, where the mask is a tensor."""
    return float(site.shard.seq_len) if site.kernels.attention == "masked" else 0.0


def is_fused(site: Site, attention: Attention) -> bool:
    """Whether a kernel computes attention without storing its scores.

    None of cuDNN's and FlashAttention's takes heads wider than `WIDEST_FLASH`, so Transformer
    Engine multiplies and stores them (NVIDIA/TransformerEngine issue 3006: Gemma 4's 512); PyTorch
    keeps its memory-efficient kernel.
    """
    by_cudnn = site.kernels.attention in ("cudnn", "cudnn_mxfp8")
    return site.kernels.flash_attention and not (by_cudnn and _is_wide(attention))


def _score_operators(site: Site) -> ScoreOperators:
    """What takes the place of the kernel where it cannot run."""
    if site.kernels.own_masks:
        return OWN_MASKS[site.kernels.own_masks]
    return MEGATRONS if site.kernels.softmax_blocks else TRANSFORMERS


def softmax_apart(site: Site, attention: Attention) -> Number:
    """1 where the kernel that scales, masks and takes the softmax cannot run, 0 where it does: its
    blocks take `KernelHabits.softmax_blocks` sequences x heads of a rank each, and fewer keys than
    `KernelHabits.softmax_keys`, and no masks of the engine's own.
    """
    if is_fused(site, attention):
        return 0.0
    most_keys = site.kernels.softmax_keys or math.inf
    none = not site.kernels.softmax_blocks or bool(site.kernels.own_masks)
    if none or site.shard.seq_len >= most_keys:
        return 1.0
    sequences = site.shard.tokens * site.shard.cp / site.shard.seq_len
    batches = sequences * attention.heads / site.shard.tp
    return where(batches % site.kernels.softmax_blocks > 0, 1.0, 0.0)


def _mean_keys(attention: Attention, window: int, document: int) -> float:
    """Keys that a query meets, in the mean over a document. Not causal: all of its window. Causal:
    the keys before it, at most a sliding window of them, or those of its own chunk.
    """
    if not attention.causal:
        return window
    if not attention.chunked:
        return window - window * window / (2 * document)
    chunks, rest = divmod(document, window)
    return (chunks * window * window + rest * rest) / (2 * document)


def _is_wide(attention: Attention) -> bool:
    """Whether its heads are too wide for the usual kernels. Attention over chosen keys has kernels
    of its own, which compute DeepSeek-V4's windows too (`out_groups`; sparse_attn of its
    inference/model.py).
    """
    own = _is_chosen(attention) or attention.out_groups > 0
    return not own and max(core_widths(attention)) > WIDEST_FLASH


def _is_chosen(attention: Attention) -> bool:
    """Whether each query has keys of its own, equal ones for all heads."""
    if attention.compression is not None:
        return True
    return attention.indexer is not None and not attention.indexer.by_head


def _chunk(site: Site, attention: Attention, *, whole: bool) -> Number:
    """Tokens of a chunk where ranks hold two chunks of a causal sequence each and gather keys."""
    if whole or merges_outside(site, attention):
        return 0.0
    cut = (site.shard.cp > 1) & site.meets_keys_by("all_gather")
    return where(cut, site.shard.seq_len / (2.0 * site.shard.cp), 0.0)


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


def head_copies(site: Site, attention: Attention) -> Iterator[Pointwise]:
    """Queries, keys and values brought from one order of tokens and sequences into the kernel's,
    and its output back (`KernelHabits.copies_heads`): each is read and written.
    """
    if not (site.kernels.copies_heads and is_fused(site, attention)):
        return
    heads, kv_heads = attention.heads / site.shard.tp, attention.kv_heads / site.shard.tp
    each = heads * attention.head_dim + kv_heads * (attention.head_dim + attention.v_head_dim)
    moved = 2 * (site.itemsize * site.shard.tokens * each + output_bytes(site, attention))
    yield Pointwise(
        name="head_copies", forward_bytes=moved, backward_bytes=moved, kernels=4,
        modules=("core_attention",),
    )  # fmt: skip
