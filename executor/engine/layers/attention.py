"""Attention layers: grouped-query and multi-head latent, with tensor and context parallelism.

Context parallelism gathers keys and values over the group (again in backward). The sequence is cut
into 2 cp chunks and rank r holds chunks r and 2 cp - 1 - r, so that causal work is equal (Llama 3,
2407.21783 section 3.3.2). A chunk of queries sees all earlier chunks in one kernel and its own in a
causal one; the two are merged by their log-sum-exp.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from meshplan.costmodels.model.transformer import Attention
from meshplan.executor.engine.parts import kernels
from meshplan.executor.engine.parts.functions import Differentiable, Gather, RmsNorm, Rope
from meshplan.executor.engine.parts.groups import all_gather, reduce_scatter
from meshplan.executor.engine.parts.projections import ColumnLinear, RowLinear
from meshplan.executor.engine.parts.rank_context import Local, Norm
from meshplan.executor.engine.parts.recurrent_kernels import gated_output, gated_output_backward
from meshplan.executor.engine.parts.weights import Weight

LATENT_EPS = 1e-6
"""Of the norms of latents, whatever the file says of the others: DeepSeek-V3's own `model.py` and
transformers' families with latent attention (`modeling_deepseek_v3.py`) give them no epsilon.
"""


@dataclass(frozen=True, slots=True)
class ContextGroup:
    """A context-parallel group and this rank's place in it."""

    group: ProcessGroup
    rank: int

    def in_order(self, x: Tensor) -> Tensor:
        """Every rank's rows of `x`, gathered and put in the order of the sequence."""
        parts = all_gather(x, self.group).chunk(2 * self.group.size())
        return torch.cat([*parts[0::2], *parts[1::2][::-1]])

    def summed_back(self, x: Tensor) -> Tensor:
        """This rank's rows of the group's sum of `x`, which is in the order of the sequence."""
        cp = self.group.size()
        parts = x.chunk(2 * cp)
        pairs = [part for i in range(cp) for part in (parts[i], parts[2 * cp - 1 - i])]
        return reduce_scatter(torch.cat(pairs), self.group)

    def pieces(self, rows: int) -> Iterator[tuple[slice, slice, bool]]:
        """(local queries, keys in sequence order, causal) of each kernel; `rows` local queries."""
        chunk, cp = rows // 2, self.group.size()
        for half, place in enumerate((self.rank, 2 * cp - 1 - self.rank)):
            queries = slice(half * chunk, (half + 1) * chunk)
            if place:
                yield queries, slice(0, place * chunk), False
            yield queries, slice(place * chunk, (place + 1) * chunk), True


class CoreAttention(Differentiable):
    """softmax(q k^T) v, causal. Saves q, k, v, the output and its log-sum-exp."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, context: ContextGroup | None, window: int | None
    ) -> Tensor:
        """One kernel, or with context parallelism up to four."""
        ctx.context, ctx.window = context, window
        out, lse = (
            kernels.attention(q, k, v, True, window)
            if context is None
            else _in_pieces(q, context.in_order(k), context.in_order(v), context)
        )
        ctx.save_for_backward(q, k, v, out, lse)
        result: Tensor = out
        return result

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        """Each kernel's backward uses the merged output and log-sum-exp."""
        q, k, v, out, lse = ctx.saved_tensors
        context: ContextGroup | None = ctx.context
        dout = dout.contiguous()
        if context is None:
            grads = kernels.attention_backward(dout, q, k, v, out, lse, True, ctx.window)
            return (*grads, None, None)
        k, v = context.in_order(k), context.in_order(v)
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for rows, keys, causal in context.pieces(q.shape[0]):
            grads = kernels.attention_backward(
                dout[rows],
                q[rows],
                k[keys],
                v[keys],
                out[rows],
                lse[:, :, rows].contiguous(),
                causal,
                None,
            )
            for total, part, where in zip((dq, dk, dv), grads, (rows, keys, keys), strict=True):
                total[where] += part
        return dq, context.summed_back(dk), context.summed_back(dv), None, None


def _in_pieces(q: Tensor, k: Tensor, v: Tensor, context: ContextGroup) -> tuple[Tensor, Tensor]:
    """Attention of the local queries to all keys: per query chunk, the kernels merged in fp32."""
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    lse = q.new_empty((q.shape[1], q.shape[2], q.shape[0]), dtype=torch.float32)
    earlier: tuple[Tensor, Tensor] | None = None
    for rows, keys, causal in context.pieces(q.shape[0]):
        part = kernels.attention(q[rows], k[keys], v[keys], causal, None)
        if not causal:
            earlier = part
            continue
        merged = part if earlier is None else _merge(earlier, part)
        out[rows], lse[:, :, rows] = merged
        earlier = None
    return out, lse


def _merge(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Two softmax-weighted sums over disjoint keys as one over both."""
    lse = torch.logaddexp(a[1], b[1])
    weights = [(part[1] - lse).exp().permute(2, 0, 1).unsqueeze(-1) for part in (a, b)]
    return (a[0] * weights[0] + b[0] * weights[1]).to(a[0].dtype), lse


class HeadNorm:
    """A root-mean-square norm of each head of q or k."""

    def __init__(self, local: Local, name: str, width: int) -> None:
        self.weight, self.eps = local.vector(f"{name}.weight", width, 1.0), local.norm_epsilon

    def __call__(self, x: Tensor) -> Tensor:
        """The normed heads of (sequence, batch, heads, width)."""
        y: Tensor = RmsNorm.apply(x, self.weight, self.eps)
        return y


class GatedOutput(Differentiable):
    """The attention's output times a gate's sigmoid. Saves both."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor) -> Tensor:
        """One gate for each head, or for each number."""
        ctx.save_for_backward(x, gate)
        y: Tensor = gated_output(x, gate)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        """Both at once."""
        dx, dgate = gated_output_backward(dy.contiguous(), *ctx.saved_tensors)
        return dx, dgate


class GroupedQuery:
    """Attention with as many or fewer key/value heads."""

    def __init__(self, local: Local, name: str, shape: Attention, selective: bool) -> None:
        self.local, self.shape = local, shape
        hidden, width, bias = local.model.hidden, shape.head_dim, shape.qkv_bias
        self.q = local.column(f"{name}.q", shape.heads * width, hidden, bias)
        self.k = local.column(f"{name}.k", shape.kv_heads * width, hidden, bias)
        self.v = local.column(f"{name}.v", shape.kv_heads * shape.v_head_dim, hidden, bias)
        self.o = local.row(f"{name}.o", hidden, shape.heads * shape.v_head_dim, shape.out_bias)
        gates = {"none": 0, "head": shape.heads, "full": shape.heads * shape.v_head_dim}[shape.gate]
        self.gate = local.column(f"{name}.gate", gates, hidden) if gates else None
        self.norms = (
            [HeadNorm(local, f"{name}.{part}_norm", width) for part in "qk"]
            if shape.qk_norm == "head"
            else []
        )
        rotary = not local.model.learned_positions
        self.rotated = int(width * local.model.numerics.rotary.share)
        self.tables = local.rope_tables(self.rotated) if rotary else None
        self.core = local.maybe_recompute("core_attention", selective)

    @property
    def weights(self) -> list[Weight]:
        """All weights of the layer."""
        projections = [self.q, self.k, self.v, self.o, *([self.gate] if self.gate else [])]
        found = [w for p in projections for w in (p.weight, p.bias) if w]
        return found + [norm.weight for norm in self.norms]

    def __call__(self, x: Tensor) -> Tensor:
        """(local sequence, batch, hidden) to the same."""
        tp = self.local.tp
        gates = (self.gate,) if self.gate else ()
        parts = ColumnLinear.apply(x, tp, (self.q, self.k, self.v, *gates))
        widths = (self.shape.head_dim, self.shape.head_dim, self.shape.v_head_dim)
        q, k, v = (y.unflatten(-1, (-1, w)) for y, w in zip(parts[:3], widths, strict=True))
        if self.norms:
            q, k = self.norms[0](q), self.norms[1](k)
        q, k = self._placed(q), self._placed(k)
        context = context_of(self.local)
        out = self.core(
            lambda q, k, v: CoreAttention.apply(q, k, v, context, self.shape.window), q, k, v
        )
        if gates:
            width = self.shape.v_head_dim if self.shape.gate == "full" else 1
            out = GatedOutput.apply(out, parts[3].unflatten(-1, (-1, width)))
        y: Tensor = RowLinear.apply(out.flatten(-2), tp, self.o)
        return y

    def _placed(self, x: Tensor) -> Tensor:
        """Heads with the positions of their tokens, in all or the first numbers of each."""
        if self.tables is None:
            return x
        if self.rotated == self.shape.head_dim:
            y: Tensor = Rope.apply(x, *self.tables)
            return y
        rotated = Rope.apply(x[..., : self.rotated], *self.tables)
        return torch.cat((rotated, x[..., self.rotated :]), dim=-1)


class Latent:
    """Multi-head latent attention (DeepSeek-V2, 2405.04434): low-rank queries, keys and values.

    The down projections and their norms run on each tensor rank's own tokens; the up projections
    are split by heads and gather the narrow latents instead of the hidden states.
    """

    def __init__(self, local: Local, name: str, shape: Attention, selective: bool) -> None:
        self.local, self.shape = local, shape
        hidden, heads = local.model.hidden, shape.heads
        latent = shape.kv_lora_rank
        self.nope = shape.head_dim - shape.rope_head_dim
        q_in = shape.q_lora_rank or hidden
        self.q_down = local.whole(f"{name}.q_down", q_in, hidden) if shape.q_lora_rank else None
        self.q_norm = Norm(local, f"{name}.q_norm", q_in, LATENT_EPS) if shape.q_lora_rank else None
        self.q_up = local.column(f"{name}.q_up", heads * shape.head_dim, q_in)
        self.kv_down = local.whole(f"{name}.kv_down", latent + shape.rope_head_dim, hidden)
        self.kv_norm = Norm(local, f"{name}.kv_norm", latent, LATENT_EPS)
        self.kv_up = local.column(f"{name}.kv_up", heads * (self.nope + shape.v_head_dim), latent)
        self.o = local.row(f"{name}.o", hidden, heads * shape.v_head_dim, shape.out_bias)
        self.tables = local.rope_tables(shape.rope_head_dim)
        self.core = local.maybe_recompute("core_attention", selective)

    @property
    def weights(self) -> list[Weight]:
        """All weights of the layer."""
        projections = [self.q_up, self.kv_down, self.kv_up, self.o]
        projections += [self.q_down] if self.q_down else []
        found = [w for p in projections for w in (p.weight, p.bias) if w]
        return found + self.kv_norm.weights + (self.q_norm.weights if self.q_norm else [])

    def __call__(self, x: Tensor) -> Tensor:
        """(local sequence, batch, hidden) to the same."""
        tp, shape = self.local.tp, self.shape
        if self.q_down is not None and self.q_norm is not None:
            q_latent, kv = ColumnLinear.apply(x, None, (self.q_down, self.kv_down))
            q_latent = self.q_norm(q_latent)
        else:
            q_latent, (kv,) = x, ColumnLinear.apply(x, None, (self.kv_down,))
        latent, key = kv.split([shape.kv_lora_rank, shape.rope_head_dim], dim=-1)
        (q,) = ColumnLinear.apply(q_latent, tp, (self.q_up,))
        (kv,) = ColumnLinear.apply(self.kv_norm(latent), tp, (self.kv_up,))
        q = q.unflatten(-1, (-1, shape.head_dim))
        nope, rotary = q.split([self.nope, shape.rope_head_dim], dim=-1)
        q = torch.cat((nope, Rope.apply(rotary, *self.tables)), dim=-1)
        k, v = kv.unflatten(-1, (-1, self.nope + shape.v_head_dim)).split(
            [self.nope, shape.v_head_dim], dim=-1
        )
        key = Rope.apply(Gather.apply(key, tp).unsqueeze(2), *self.tables)
        k = torch.cat((k, key.expand(-1, -1, k.shape[2], -1)), dim=-1)
        context = context_of(self.local)
        out = self.core(
            lambda q, k, v: CoreAttention.apply(q, k, v, context, shape.window),
            q,
            k,
            v.contiguous(),  # a view would keep the keys' half of `kv` alive too
        )
        y: Tensor = RowLinear.apply(out.flatten(-2), tp, self.o)
        return y


def context_of(local: Local) -> ContextGroup | None:
    """The rank's context-parallel group, None without context parallelism."""
    group = local.groups.cp
    return None if group is None else ContextGroup(group, local.groups.at.cp_rank)
