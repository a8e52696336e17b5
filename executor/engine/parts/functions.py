"""The differentiable pieces of a layer. Each says exactly what it saves for the backward pass.

Weights are handles (`weights.Weight`) outside autograd: a function reads `value` and adds to
`gradient`. Activations are (sequence, batch, width); under tensor parallelism the residual stream
holds this rank's part of the sequence. Matrix products are in `projections`.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.distributed import ProcessGroup

from meshplan.executor.engine.parts import kernels
from meshplan.executor.engine.parts.groups import all_gather, all_to_all, reduce_scatter
from meshplan.executor.engine.parts.weights import Weight


class Differentiable(Function):
    """An autograd function whose `apply` type checkers accept."""

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Run forward and record backward."""
        return super().apply(*args)  # type: ignore[no-untyped-call]


def rows_of(x: Tensor) -> Tensor:
    """All but the last dimension flattened."""
    return x.reshape(-1, x.shape[-1])


class RmsNorm(Differentiable):
    """Root-mean-square norm. Saves its input and one fp32 number per row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Weight, eps: float) -> Tensor:
        """y = x rstd w."""
        y, rstd = kernels.rms_norm(x, weight.value, eps)
        ctx.weight = weight
        ctx.save_for_backward(x, rstd)
        out: Tensor = y
        return out

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        """The weight's gradient is never put off: it comes with the input's."""
        x, rstd = ctx.saved_tensors
        dx, dw = kernels.rms_norm_backward(dy, x, ctx.weight.value, rstd)
        ctx.weight.gradient.add_(dw)
        return dx, None, None


class LayerNorm(Differentiable):
    """Layer norm with or without weights. Saves its input and two numbers per row."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Weight | None, bias: Weight | None, eps: float
    ) -> Tensor:
        """y = (x - mean) rstd w + b."""
        ctx.weight, ctx.bias = weight, bias
        y, mean, rstd = torch.ops.aten.native_layer_norm(
            x, [x.shape[-1]], *values_of(weight, bias), eps
        )
        ctx.save_for_backward(x, mean, rstd)
        out: Tensor = y
        return out

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        """The weights' gradients come with the input's."""
        x, mean, rstd = ctx.saved_tensors
        learned = ctx.weight is not None
        dx, dw, db = torch.ops.aten.native_layer_norm_backward(
            dy.contiguous(),
            x,
            [x.shape[-1]],
            mean,
            rstd,
            *values_of(ctx.weight, ctx.bias),
            [True, learned, learned],
        )
        if learned:
            ctx.weight.gradient.add_(dw)
            ctx.bias.gradient.add_(db)
        return dx, None, None, None


def values_of(*weights: Weight | None) -> list[Tensor | None]:
    """Their values, None for those that a layer does not have."""
    return [None if weight is None else weight.value for weight in weights]


class SwiGlu(Differentiable):
    """silu(gate) * up, times one number per row if given. Saves its inputs."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, scale: Tensor | None) -> Tensor:
        """y = silu(gate) up scale."""
        ctx.save_for_backward(gate, up, scale)
        y: Tensor = kernels.swiglu(gate, up, scale)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """All three at once."""
        gate, up, scale = ctx.saved_tensors
        dgate, dup, dscale = kernels.swiglu_backward(dy.contiguous(), gate, up, scale)
        return dgate, dup, None if scale is None else dscale


class Rope(Differentiable):
    """Rotary positions. Saves nothing: its backward is the opposite rotation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate by +angle; the tables are shared by every layer."""
        ctx.tables = cos, sin
        y: Tensor = kernels.rope(x, cos, sin)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        """Rotate by -angle."""
        cos, sin = ctx.tables
        return kernels.rope(dy, cos, -sin), None, None


class Gather(Differentiable):
    """Gather along the sequence; the backward sums and scatters. Saves nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup | None) -> Tensor:
        """All ranks' parts of the sequence."""
        ctx.group = group
        return all_gather(x, group)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        """This rank's part of the sum."""
        return reduce_scatter(dy, ctx.group), None


class AllToAll(Differentiable):
    """Rows to other ranks; the backward brings their gradients back. Saves nothing."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, send: list[int], receive: list[int], group: ProcessGroup | None
    ) -> Tensor:
        """`send[r]` rows go to rank r, `receive[r]` come from it."""
        ctx.splits, ctx.group = (send, receive), group
        return all_to_all(x, send, receive, group)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        """The same the other way."""
        send, receive = ctx.splits
        return all_to_all(dy, receive, send, ctx.group), None, None, None


class Combine(Differentiable):
    """Rows added to the tokens they belong to. Saves the tokens' numbers."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, token: Tensor, tokens: int) -> Tensor:
        """y[token[i]] += rows[i], (tokens, hidden)."""
        ctx.save_for_backward(token)
        return rows.new_zeros((tokens, rows.shape[1])).index_add_(0, token, rows)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        """Each row gets its token's gradient."""
        (token,) = ctx.saved_tensors
        return dy.index_select(0, token), None, None


class Embedding(Differentiable):
    """Rows of a vocabulary-split table, summed over the group and scattered along the sequence.

    Saves the tokens. `anchor` is an empty tensor that requires a gradient, so that there is a
    backward.
    """

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        tokens: Tensor,
        table: Weight,
        first: int,
        group: ProcessGroup | None,
    ) -> Tensor:
        """`first` is the vocabulary entry of the local table's row 0; tokens are (sequence,
        batch).
        """
        local = tokens - first
        held = (local >= 0) & (local < table.shape[0])
        local = local.clamp_(0, table.shape[0] - 1)
        ctx.table, ctx.group = table, group
        ctx.save_for_backward(local, held)
        rows = F.embedding(local, table.value)
        return reduce_scatter(rows.mul_(held.unsqueeze(-1)), group)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[None, None, None, None, None]:
        """Adds into the table's rows at once: the table is read by nothing else."""
        local, held = ctx.saved_tensors
        whole = all_gather(dy, ctx.group).mul(held.unsqueeze(-1))
        ctx.table.gradient.index_add_(0, local.reshape(-1), rows_of(whole).float())
        return None, None, None, None, None
