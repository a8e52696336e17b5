"""The operations of one layer on one rank: attention, then a dense or a mixture-of-experts
feed-forward.

    t      tokens of a micro-batch on this rank          micro_batch * seq_len / cp
    t_sp   the part of them outside the matmuls          t / tp with sequence parallel, else t
    h      hidden        a, a_kv   query, key/value heads on this rank
    d, d_v width of a query/key head, of a value head
    f      feed-forward width on this rank               ffn / tp

For a GPT block in 16 bit with dropout this list saves s b h (10 + 24 / t) bytes under tensor
parallel and 34 s b h / t with sequence parallel, plus 5 a s^2 b / t without FlashAttention:
Korthikanti et al. 2022 (arXiv 2205.05198), equations 1 to 4, which the tests hold it to.

Of packed sequences each document attends to itself alone, as if all were of their mean length: a
spread adds by its square (half the mean of the squares over the mean is what a query meets).

Leaves out: RoPE tables, position ids, random number state; how unevenly documents fall on
context-parallel ranks; that a layer kept in 16 bits gathers 16 where others gather cast inputs.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from meshplan.costmodels.elementwise import Number
from meshplan.costmodels.model.transformer import Attention, Layer
from meshplan.costmodels.operations.alternating import (
    corrected,
    given_to_others,
    low_rank_residual,
    predicted,
    thinned,
)
from meshplan.costmodels.operations.attention.absorbed import (
    absorbed_query,
    chosen_rows,
    latent_exchange,
)
from meshplan.costmodels.operations.attention.compressed import (
    compressed_exchange,
    compressor,
    out_projection,
)
from meshplan.costmodels.operations.attention.context_exchange import context_exchange, kv_heads
from meshplan.costmodels.operations.attention.core import (
    core,
    core_output,
    head_copies,
    output_bytes,
)
from meshplan.costmodels.operations.attention.sparse import index_operations
from meshplan.costmodels.operations.attention_residuals import earlier_sums
from meshplan.costmodels.operations.convolutions import (
    convolution,
    output_convolution,
    relative_bias,
)
from meshplan.costmodels.operations.dense_biases import attention_biases, feed_forward_biases
from meshplan.costmodels.operations.experts import expert_operations
from meshplan.costmodels.operations.feed_forward import (
    Site,
    dense_feed_forward,
    gather_attention,
    gather_feed_forward,
    own_operators,
    scatter_tokens,
)
from meshplan.costmodels.operations.kinds import (
    Communication,
    Matmul,
    Module,
    Operation,
    Pointwise,
)
from meshplan.costmodels.operations.ngrams import ngram_operations
from meshplan.costmodels.operations.norms import inner_norm, norm, norm_gate, norm_module
from meshplan.costmodels.operations.recurrent import recurrent_operations
from meshplan.costmodels.operations.remade import remade
from meshplan.costmodels.operations.residual import residual_sum, stream_itemsize
from meshplan.costmodels.operations.streams import from_streams, to_streams
from meshplan.costmodels.operations.traced import traced_operations

ROTATION_PASSES = 5
"""How often a rotation of PyTorch's own operators moves what a fused one moves once. Of 20 bytes a
16-bit number 8 are products with cosine and sine, 6 the halves that change places, 6 their sum
(transformers' apply_rotary_pos_emb and rotate_half, megatron/core rope_utils.py; backward 28);
torchtitan's apply_rotary_emb casts to fp32 6, multiplies 8 and casts back 6, backward as much.
"""


def layer_operations(site: Site, kind: Layer) -> tuple[Operation, ...]:
    """The operations of one layer of `kind`, in forward order."""
    if not kind.in_16_bit and not site.experts_alone:
        return _listed(site, kind)
    return tuple(
        op if not kind.in_16_bit and _of_experts(op) else _in_16_bits(op)
        for op in _listed(site, kind)
    )


def _in_16_bits(op: Operation) -> Operation:
    """The same in 16 bits, whatever the training's format."""
    return replace(op, in_16_bit=True) if isinstance(op, Matmul | Pointwise) else op


def _of_experts(op: Operation) -> bool:
    """Whether it is a product of routed experts, or hands its output to one."""
    return op.name.startswith("experts") or "moe_act" in op.modules


def _listed(site: Site, kind: Layer) -> tuple[Operation, ...]:
    """The same in the training's format throughout."""
    if kind.traced:
        return tuple(traced_operations(site, kind.traced))
    mixer = _mixer_half(site, kind) if kind.has_mixer else ()
    feed_forward = _feed_forward_half(site, kind) if kind.has_feed_forward else ()
    around = site.model.alternating
    before = predicted(site, around) if around else ()
    after = corrected(site, around) if around else ()
    ngrams = ngram_operations(site, kind.ngrams) if kind.ngrams else ()
    return (*ngrams, *before, *mixer, *feed_forward, *after, *_further(site, kind))


def input_bytes(site: Site) -> Number:
    """The layer's input: all that a fully recomputed layer keeps."""
    return stream_itemsize(site) * site.shard.tokens_outside * site.model.stream_width


def _mixer_half(site: Site, kind: Layer) -> Iterator[Operation]:
    """Attention, a recurrent mixer, or both side by side on the same input."""
    attention, streams = kind.attention, site.model.streams
    yield from earlier_sums(site, _sums(kind, 0), "attention_sums")
    if streams:
        yield from from_streams(site, streams, "attention_streams")
    if site.model.norms_per_layer:  # else the streams have
        entering = norm(site, "attention_norm", norm_module(site, apart=attention.is_mla))
        yield remade(site.kernels, entering)
    if kind.norm_gate_rank:
        yield from norm_gate(site, kind.norm_gate_rank, "attention_norm_gate")
    if site.model.alternating:
        yield from low_rank_residual(site, site.model.alternating)
    if not (attention.is_mla and site.kernels.own_token_latents):
        own = attention.heads and not attention.is_mla
        yield gather_attention(site, 3 if own else 1)
    if attention.heads:
        for op in _attention(site, attention):
            yield replace(op, modules=(*op.modules, "attention"))
    if kind.recurrent:
        yield from recurrent_operations(site, kind.recurrent)
    yield scatter_tokens(site, "attention_output")
    yield from output_convolution(site, kind, "attention_convolution")
    if streams:
        yield to_streams(site, streams, "attention_residual")
        return
    added = site.model.parallel_blocks and kind.has_feed_forward
    residual = residual_sum(site, "attention_residual", kept=not added)
    yield replace(residual, modules=(*residual.modules, "sum"))


def _attention(site: Site, attention: Attention) -> Iterator[Operation]:
    if attention.is_mla:
        yield from _latent_projections(site, attention)
    else:
        yield from _grouped_projections(site, attention)
    if attention.indexer:
        yield from index_operations(site, attention, attention.indexer)
    if attention.compression:
        yield from compressor(site, attention.compression, attention.head_dim, "attention")
        yield compressed_exchange(site, attention.compression, attention.head_dim)
    elif attention.is_absorbed:
        yield from latent_exchange(site, attention)
    else:
        yield from context_exchange(site, attention)
    yield core(site, attention)
    yield from chosen_rows(site, attention)
    yield from head_copies(site, attention)
    if attention.gate != "none":
        yield from _output_gate(site, attention)
    yield core_output(site, attention)
    if attention.out_groups:  # the rotation of keys that are values too is undone
        t, a = site.shard.tokens, attention.heads / site.shard.tp
        yield _rotary(site, t * a * attention.v_head_dim)
    yield from out_projection(site, attention)


def _output_gate(site: Site, attention: Attention) -> Iterator[Operation]:
    """A projection of the layer's input (or the query's latent), and the output times its sigmoid;
    both are kept.
    """
    t, heads = site.shard.tokens, attention.heads / site.shard.tp
    columns = heads * (attention.v_head_dim if attention.gate == "full" else 1)
    yield Matmul(
        name="attention_gate", m=t, n=columns,
        k=attention.query_rank if attention.latent_gate else site.model.hidden,
        saved_bytes=site.itemsize * t * columns, cast_shares=site.entering_casts,
    )  # fmt: skip
    size = output_bytes(site, attention)
    yield Pointwise(
        name="gated_output", forward_bytes=3 * size, backward_bytes=5 * size, saved_bytes=size
    )


def _grouped_projections(site: Site, attention: Attention) -> Iterator[Operation]:
    t, a, a_kv = site.shard.tokens, attention.heads / site.shard.tp, kv_heads(site.shard, attention)
    d, d_v = attention.head_dim, attention.v_head_dim * attention.own_values
    a_kv = a_kv * attention.own_keys
    rank = attention.q_lora_rank
    if rank:
        yield from _low_rank_query(site, rank, a * d)
    yield Matmul(
        name="qkv",
        m=t,
        n=(0 if rank else a * d) + a_kv * (d + d_v),
        k=site.model.hidden,
        saved_bytes=site.itemsize * t * (a_kv * d_v + _kept_with_values(site, a, a_kv, d)),
        cast_shares=site.entering_casts,
        joined=site.joined((not rank) + attention.own_keys * (1 + attention.own_values)),
        key_columns=0 if site.kernels.adapts_joined else a_kv * d,
        apart=_apart(0 if rank else a * d, a_kv * d, a_kv * d_v),
        biased=attention.qkv_bias,
    )
    if attention.key_steps:
        yield Matmul(name="key_steps", m=t, n=a_kv, k=a_kv * d_v)
    if attention.qk_norm != "none":
        values = a_kv * attention.v_head_dim * attention.v_norm
        yield inner_norm(site, "qk_norm", site.itemsize * t * ((a + a_kv) * d + values), 2)
    yield from attention_biases(site, attention, (0 if rank else a * d) + a_kv * (d + d_v))
    if attention.convolution:
        yield convolution(site, "key_convolution", a_kv * (d + d_v), t)
    if attention.relative_rank:
        yield from relative_bias(site, attention)
    else:
        yield _rotary(site, t * (a + a_kv) * d)


def _kept_with_values(site: Site, heads: Number, key_heads: Number, width: Number) -> Number:
    """Columns beside values that the product of query, key and value keeps of each token: queries
    and keys as they were before their rotation, and the rotation's own cosines and sines.
    """
    joined = (heads + key_heads) * width if site.kernels.keeps_joined_qkv else 0.0
    return joined + (4 * width if site.kernels.gathers_rotary else 0.0)


def _apart(*columns: Number) -> tuple[Number, ...]:
    """Of the weights that a layer has."""
    return tuple(each for each in columns if np.any(each))


def _low_rank_query(site: Site, rank: int, columns: Number) -> Iterator[Operation]:
    """A query of low rank beside whole keys: down, a norm, up."""
    t, size = site.shard.tokens, site.itemsize * site.shard.tokens * rank
    yield Matmul(name="q_down", m=t, n=rank, k=site.model.hidden, saved_bytes=size)
    yield inner_norm(site, "latent_norm", size, 1)
    yield Matmul(name="q_up", m=t, n=columns, k=rank)


def _latent_projections(site: Site, attention: Attention) -> Iterator[Operation]:
    shard, h = site.shard, site.model.hidden
    t, a = shard.tokens, attention.heads / shard.tp
    d, d_v, rope = attention.head_dim, attention.v_head_dim, attention.rope_head_dim
    q_rank, kv_rank = attention.q_lora_rank, attention.kv_lora_rank
    up: tuple[Module, ...] = ("mla_up_proj",)
    own = shard.tokens_outside if site.kernels.own_token_latents else t
    if q_rank:
        yield Matmul(name="q_down", m=own, n=q_rank, k=h, saved_bytes=site.itemsize * own * q_rank)
    yield Matmul(name="q_up", m=t, n=a * d, k=attention.query_rank or h, modules=up)
    yield Matmul(
        name="kv_down",
        m=own,
        n=kv_rank + rope,
        k=h,
        saved_bytes=site.itemsize * own * (kv_rank + rope),
    )
    ranks = site.itemsize * own * (q_rank + kv_rank)
    also = up if site.kernels.norms_in_products else ()
    yield inner_norm(site, "latent_norm", ranks, 2, also)
    if site.kernels.own_token_latents:
        yield from _gathered_latents(site, (attention.query_rank or h) + kv_rank, rope)
    yield Matmul(
        name="kv_up",
        m=t,
        n=a * (d - rope + d_v),
        k=kv_rank,
        recipe=not attention.is_absorbed,
        saved_bytes=0.0 if attention.is_absorbed else site.itemsize * t * a * d_v,
        modules=up,
    )
    if attention.is_absorbed:
        yield _rotary(site, t * (a + 1) * rope, up)
        yield absorbed_query(site, attention)
        return
    yield _rotary(site, 2 * t * a * d, up)


def _gathered_latents(site: Site, ranks: int, rope: int) -> Iterator[Communication]:
    """Latents gathered for the up projections (again in backward), the rotary key only once."""
    for name, width, backward in (("latents", ranks, 2.0), ("rotary_key", rope, 1.0)):
        size = site.itemsize * site.shard.tokens * width
        yield Communication(
            name=name, axis="tp", kind="all_gather", size_bytes=size,
            forward_count=1.0, backward_count=backward, hidden_by="linear",
        )  # fmt: skip


def _rotary(site: Site, elements: Number, also: tuple[Module, ...] = ()) -> Pointwise:
    """RoPE, or for positions that are not rotated the copy out of the fused projection; where
    attention takes views of it (`KernelHabits.copies_unrotated`), that of their gradients alone.
    """
    one = site.kernels.fused_rope or site.model.learned_positions > 0
    kernels = 1 if one else site.kernels.rope_kernels
    own = own_operators(site, kernels)
    apart = (0, 0) if one else site.kernels.rope_operators
    passes = 1 if one else ROTATION_PASSES
    move = 2 * site.itemsize * elements
    return Pointwise(
        name="rotary",
        forward_bytes=passes * move * site.kernels.copies_unrotated,
        backward_bytes=passes * move,
        kernels=kernels,
        issued_share=1.0 - own / kernels,
        operators=(apart[0] * site.shard.documents + own, apart[1] * site.shard.documents + own),
        measured_as=("rope", "rope"),
        saved_bytes=site.itemsize * elements,
        read_bytes=0.0 if site.kernels.keeps_joined_qkv else site.itemsize * elements,
        modules=("pointwise", *also),
    )


def _further(site: Site, kind: Layer) -> Iterator[Operation]:
    """Norms beyond the model's, the gated second embedding of each layer, and what the head reads
    after the last one.
    """
    width = site.stream_bytes
    yield from earlier_sums(site, _sums(kind, 2), "head_sums")
    if kind.further_norms:
        yield Pointwise(
            name="further_norm", forward_bytes=2 * width * kind.further_norms,
            backward_bytes=3 * width * kind.further_norms, kernels=kind.further_norms,
            saved_bytes=width * kind.further_norms, modules=("norm", "pointwise"),
        )  # fmt: skip
    inputs, t = site.model.layer_inputs, site.shard.tokens
    if inputs:
        yield Matmul(
            name="layer_input_gate", m=t, n=inputs, k=site.model.hidden,
            saved_bytes=2 * site.itemsize * t * inputs,
        )  # fmt: skip
        yield Matmul(name="layer_input", m=t, n=site.model.hidden, k=inputs)
        yield norm(site, "layer_input_norm")
    if site.model.alternating:
        yield given_to_others(site, site.model.alternating)


def _feed_forward_half(site: Site, kind: Layer) -> Iterator[Operation]:
    streams = site.model.streams
    yield from earlier_sums(site, _sums(kind, 1), "feed_forward_sums")
    if streams:
        yield from from_streams(site, streams, "feed_forward_streams")
    norms = site.model.norms_per_layer
    if norms > 1 or (norms and not kind.has_mixer):  # else it reads what the mixer reads
        apart = norm_module(site, apart=bool(kind.experts))
        yield remade(site.kernels, norm(site, "feed_forward_norm", apart or "mlp"))
    if kind.experts:
        if kind.norm_gate_rank:
            yield from norm_gate(site, kind.norm_gate_rank, "feed_forward_norm_gate")
        yield from expert_operations(site, kind.experts)
    else:
        yield gather_feed_forward(site)
        *before, down = dense_feed_forward(site, kind.ffn / site.shard.tp)
        yield from before
        yield from feed_forward_biases(site, (1 + site.model.gated) * kind.ffn / site.shard.tp)
        yield _only_added(site, kind, down)
        if kind.thinned:
            yield thinned(site, kind.ffn / site.shard.tp)
        yield _only_added(site, kind, scatter_tokens(site, "feed_forward_output", "mlp"))
    yield from output_convolution(site, kind, "feed_forward_convolution")
    if streams:
        yield to_streams(site, streams, "feed_forward_residual")
    else:
        yield _only_added(site, kind, residual_sum(site, "feed_forward_residual"))


def _sums(kind: Layer, half: int) -> float:
    """Sums of earlier blocks that a half reads, or as the third the head."""
    return kind.sums[half] if half < len(kind.sums) else 0


def _only_added(site: Site, kind: Layer, op: Operation) -> Operation:
    """`op` marked `unread` where no backward reads its output: the residual add is all that takes
    it. Not so where something follows it in the layer, or a norm of the layer's output does.
    """
    model = site.model
    followed = model.alternating or model.layer_inputs or kind.further_norms
    followed = followed or kind.output_convolution
    if followed or model.streams or model.norms_per_layer > 2:
        return op
    return replace(op, modules=(*op.modules, "unread"))
