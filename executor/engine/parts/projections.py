"""Matrix products of a layer: split by output columns, by input columns, and one for each expert.

Their weights' gradients go through the ledger, which may put them off. A column-split projection
gathers its input (again in backward), as in Korthikanti et al. 2022.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup

from meshplan.executor.engine.parts import kernels
from meshplan.executor.engine.parts.functions import Differentiable, rows_of
from meshplan.executor.engine.parts.groups import all_gather, reduce_scatter
from meshplan.executor.engine.parts.weights import Ledger, Weight


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
