"""The differentiable pieces of a layer. Each says exactly what it saves for the backward pass.

Weights are handles (`weights.Weight`) outside autograd: a function reads `value` and adds to
`gradient` through the ledger, which may put the product off to a zero-bubble W action. Activations
are (sequence, batch, width); under tensor parallelism the residual stream holds this rank's part
of the sequence, and a column-split projection gathers it (again in backward), as in Korthikanti et
al. 2022.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.distributed import ProcessGroup

from meshplan.executor.engine.parts import kernels
from meshplan.executor.engine.parts.groups import all_gather, all_to_all, reduce_scatter
from meshplan.executor.engine.parts.weights import Ledger, Weight


class Differentiable(Function):
    """An autograd function whose `apply` type checkers accept."""

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Run forward and record backward."""
        return super().apply(*args)  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class Projection:
    """A matrix (out, in) and perhaps a bias (out)."""

    weight: Weight
    bias: Weight | None = None

    @property
    def ledger(self) -> Ledger:
        """Where its weight products go."""
        assert self.weight.unit is not None
        return self.weight.unit.ledger


def rows_of(x: Tensor) -> Tensor:
    """All but the last dimension flattened."""
    return x.reshape(-1, x.shape[-1])


def add_products(projections: Sequence[Projection], dys: Sequence[Tensor], x: Tensor) -> None:
    """gradient += dy^T x, and the bias its column sums."""
    for projection, dy in zip(projections, dys, strict=True):
        projection.weight.gradient.add_(rows_of(dy).t() @ rows_of(x))
        if projection.bias is not None:
            projection.bias.gradient.add_(rows_of(dy).sum(0))


class ColumnLinear(Differentiable):
    """Projections split by output columns, of one gathered input. Saves the local part of the
    input.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, group: ProcessGroup | None, projections: tuple[Projection, ...]
    ) -> tuple[Tensor, ...]:
        """y_i = gather(x) W_i^T + b_i."""
        ctx.group, ctx.projections = group, projections
        ctx.save_for_backward(x)
        whole = all_gather(x, group)
        return tuple(
            F.linear(whole, p.weight.value, None if p.bias is None else p.bias.value)
            for p in projections
        )

    @staticmethod
    def backward(ctx: Any, *dys: Tensor) -> tuple[Tensor, None, None]:
        """The input is gathered again beside the first product, dx scattered beside the last."""
        (x,) = ctx.saved_tensors
        group, projections = ctx.group, ctx.projections
        ledger = projections[0].ledger
        whole, gathering = x, None
        if group is not None and not ledger.deferring:
            whole = x.new_empty((x.shape[0] * group.size(), *x.shape[1:]))
            gathering = dist.all_gather_single(whole, x.contiguous(), group=group, async_op=True)
        dwhole = rows_of(dys[0]) @ projections[0].weight.value
        for projection, dy in zip(projections[1:], dys[1:], strict=True):
            dwhole.addmm_(rows_of(dy), projection.weight.value)
        dwhole = dwhole.view(*dys[0].shape[:-1], -1)
        dx, scattering = dwhole, None
        if group is not None:
            dx = torch.empty_like(x)
            scattering = dist.reduce_scatter_single(dx, dwhole, group=group, async_op=True)
        if gathering is not None:
            gathering.wait()
        if ledger.deferring:
            ledger.add(lambda: add_products(projections, dys, all_gather(x, group)))
        else:
            add_products(projections, dys, whole)
        if scattering is not None:
            scattering.wait()
        return dx, None, None


class RowLinear(Differentiable):
    """A projection split by input columns, its sum scattered along the sequence. Saves its
    input.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup | None, projection: Projection) -> Tensor:
        """y = scatter(sum of x W^T) + b."""
        ctx.group, ctx.projection = group, projection
        ctx.save_for_backward(x)
        y = reduce_scatter(F.linear(x, projection.weight.value), group)
        return y if projection.bias is None else y.add_(projection.bias.value)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        """dx = gather(dy) W."""
        (x,) = ctx.saved_tensors
        projection: Projection = ctx.projection
        whole = all_gather(dy, ctx.group)
        dx = whole @ projection.weight.value

        def add() -> None:
            projection.weight.gradient.add_(rows_of(whole).t() @ rows_of(x))
            if projection.bias is not None:
                projection.bias.gradient.add_(rows_of(dy).sum(0))

        projection.ledger.add(add)
        return dx, None, None


class GroupedLinear(Differentiable):
    """Consecutive groups of rows, each times its own expert's matrix. Saves its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: list[int], projection: Projection) -> Tensor:
        """y[group e] = x[group e] W_e^T + b_e."""
        ctx.rows, ctx.projection = rows, projection
        ctx.save_for_backward(x)
        y: Tensor = kernels.grouped_linear(x, projection.weight.value, rows)
        return y if projection.bias is None else y.add_(_spread(projection.bias.value, rows))

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        """dx[group e] = dy[group e] W_e."""
        (x,) = ctx.saved_tensors
        projection: Projection = ctx.projection
        dy = dy.contiguous()
        dx = kernels.grouped_linear(dy, projection.weight.value.transpose(1, 2), ctx.rows)

        def add() -> None:
            projection.weight.gradient.add_(kernels.grouped_outer(dy, x, ctx.rows))
            if projection.bias is not None:
                parts = [part.sum(0) for part in dy.split(ctx.rows)]  # type: ignore[no-untyped-call]
                projection.bias.gradient.add_(torch.stack(parts))

        projection.ledger.add(add)
        return dx, None, None


def _spread(bias: Tensor, rows: list[int]) -> Tensor:
    """Each expert's bias, once per row of its group."""
    return torch.cat([b.expand(n, -1) for b, n in zip(bias, rows, strict=True)])


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
