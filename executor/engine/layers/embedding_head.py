"""The two ends of the model: the embedding, and the head with its loss.

The head projects, takes the cross-entropy and both gradients in one pass over chunks of tokens, so
that no more than one chunk of logits exists; the head's weight gradient is added in the forward
pass. The vocabulary is split over the tensor ranks: three all-reduces of one number per token make
the loss whole.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from meshplan.costmodels.operations.embedding_head import rows_that_fit
from meshplan.executor.engine.parts.functions import Differentiable, Embedding, rows_of
from meshplan.executor.engine.parts.groups import all_gather, all_reduce, reduce_scatter
from meshplan.executor.engine.parts.rank_context import Local, Norm
from meshplan.executor.engine.parts.weights import Unit, Weight
from meshplan.hardware_profiles.engines import NATIVE, load_engine

# fp32 logits of one chunk: enough rows for a large matmul and few additions to the table's gradient
CHUNK_BYTES = load_engine(NATIVE).kernels.loss_chunk_bytes


class _End:
    """One end of the model: a unit of a vocabulary table, and one of small weights, if any."""

    table_unit: Unit
    small: Unit | None

    @property
    def small_units(self) -> list[Unit]:
        """The small weights, if any: all that the backward pass reads."""
        return [self.small] if self.small else []

    @property
    def units(self) -> list[Unit]:
        """The table and the small weights."""
        return [self.table_unit, *self.small_units]


class Embed(_End):
    """Token rows, learned positions and the embedding's norm, in this rank's part of the
    sequence.
    """

    def __init__(self, local: Local, table: Unit) -> None:
        self.local, model = local, local.model
        self.table_unit, self.table = table, table.weights[0]
        self.norm = Norm(local, "embedding_norm", model.hidden) if model.embedding_norm else None
        self.positions = (
            local.matrix("positions", model.learned_positions, model.hidden, None)
            if model.learned_positions
            else None
        )
        small = [
            *(self.norm.weights if self.norm else []),
            *([self.positions] if self.positions else []),
        ]
        self.small = local.unit("embedding_ends", small) if small else None

    def __call__(self, anchor: Tensor, tokens: Tensor) -> Tensor:
        """(local sequence, batch) tokens to (tensor rank's part, batch, hidden)."""
        local = self.local
        first = self.table.sources[0].start
        x = Embedding.apply(anchor, tokens, self.table, first, local.tp)
        if self.positions is not None:
            at = local.positions.to(tokens.device)
            part = at.chunk(local.layout.tensor_parallel)[local.groups.at.tp_rank]
            x = x + PositionRows.apply(anchor, part, self.positions).unsqueeze(1)
        return x if self.norm is None else self.norm(x)


class PositionRows(Differentiable):
    """Rows of the learned position table. Saves their numbers."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, at: Tensor, table: Weight) -> Tensor:
        """One row per local position."""
        ctx.table = table
        ctx.save_for_backward(at)
        return table.value.index_select(0, at)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[None, None, None]:
        """Adds to the table at once."""
        (at,) = ctx.saved_tensors
        ctx.table.gradient.index_add_(0, at, dy.float())
        return None, None, None


class Head(_End):
    """The final norm, the projection to the vocabulary, and the sum of the tokens' losses."""

    def __init__(self, local: Local, table: Unit) -> None:
        self.local, self.table_unit, self.table = local, table, table.weights[0]
        self.norm = (
            Norm(local, "final_norm", local.model.hidden) if local.model.final_norm else None
        )
        weights = self.norm.weights if self.norm else []
        self.small = local.unit("head_ends", weights) if weights else None

    def __call__(self, x: Tensor, targets: Tensor, scale: float) -> Tensor:
        """`scale` times the summed loss of this rank's (local sequence, batch) targets, fp32."""
        if self.norm is not None:
            x = self.norm(x)
        loss: Tensor = HeadLoss.apply(x, targets, self.table, self.local.tp, scale)
        return loss


class HeadLoss(Differentiable):
    """Projection and cross-entropy over chunks of tokens. Saves the input's gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        targets: Tensor,
        table: Weight,
        group: ProcessGroup | None,
        scale: float,
    ) -> Tensor:
        """The loss; adds the table's gradient and keeps the input's."""
        rows = rows_of(all_gather(x, group))
        dx = torch.empty_like(rows)
        loss = torch.zeros((), dtype=torch.float32, device=x.device)
        local = targets.reshape(-1) - table.sources[0].start
        size = int(rows_that_fit(table.shape[0], CHUNK_BYTES))
        chunks = [x.split(size) for x in (rows, local, dx)]  # type: ignore[no-untyped-call]
        for chunk, target, dchunk in zip(*chunks, strict=True):
            part, dlogits = cross_entropy(chunk @ table.value.t(), target, group, scale)
            loss += part
            torch.mm(dlogits, table.value, out=dchunk)
            table.gradient.add_(dlogits.t() @ chunk)
        dx = reduce_scatter(dx.view(-1, *x.shape[1:]), group)
        ctx.save_for_backward(dx)
        return loss

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor, None, None, None, None]:
        """The gradient was taken with a unit upstream gradient: the loss is the root."""
        (dx,) = ctx.saved_tensors
        return dx, None, None, None, None


def cross_entropy(
    logits: Tensor, target: Tensor, group: ProcessGroup | None, scale: float
) -> tuple[Tensor, Tensor]:
    """scale x summed loss of some rows, and its gradient over this rank's part of the
    vocabulary.
    """
    wide = logits.float() if logits.dtype != torch.float32 else logits
    held = (target >= 0) & (target < wide.shape[1])
    column = target.clamp(0, wide.shape[1] - 1).unsqueeze(1)
    largest = all_reduce(wide.amax(1, keepdim=True), group, dist.ReduceOp.MAX)
    wide = wide.sub_(largest)
    chosen = all_reduce(wide.gather(1, column) * held.unsqueeze(1), group)
    total = all_reduce(wide.exp_().sum(1, keepdim=True), group)
    loss = (total.log() - chosen).sum() * scale
    wide.div_(total).scatter_add_(1, column, -held.unsqueeze(1).to(wide.dtype)).mul_(scale)
    return loss, wide.to(logits.dtype)
