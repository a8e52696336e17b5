"""Multi-token prediction (DeepSeek-V3, 2412.19437 section 2.2): layers after the last that look
further.

Module k joins the hidden state with the embedding of the token k ahead, runs one more layer, and
predicts the token k + 1 ahead with the model's own head:

    h_k = layer(project([norm(h_{k-1}); norm(embedding(token k ahead))]))
    loss += WEIGHT / modules * cross_entropy(head(norm(h_k)), token k + 1 ahead)

The projection is held whole by every tensor rank and runs on its own tokens.
"""

import torch
from torch import Tensor

from meshplan.executor.engine.layers.block import Block
from meshplan.executor.engine.layers.embedding_head import HeadLoss
from meshplan.executor.engine.parts.functions import Embedding
from meshplan.executor.engine.parts.projections import ColumnLinear
from meshplan.executor.engine.parts.rank_context import Local, Norm
from meshplan.executor.engine.parts.weights import Unit

WEIGHT = 0.3  # 2412.19437 section 4.2, the first 10T tokens


class MultiToken:
    """One module; it shares the embedding's and the head's table with the model's ends."""

    def __init__(self, local: Local, number: int, embedding: Unit, head: Unit) -> None:
        model, name = local.model, f"multi_token.{number}"
        self.local, self.embedding, self.head = local, embedding, head
        self.norms = [
            Norm(local, f"{name}.{part}_norm", model.hidden) for part in ("h", "e", "out")
        ]
        self.project = local.whole(f"{name}.project", model.hidden, 2 * model.hidden)
        stage = local.layout.stages[-1]
        kind = model.module_layer
        self.block = Block(local, f"{name}.layer", kind, stage, max(0, stage.layers - 1))
        weights = [w for norm in self.norms for w in norm.weights]
        self.own = local.unit(name, [*weights, self.project.weight])

    @property
    def needed(self) -> list[Unit]:
        """What its backward pass reads."""
        return [self.own, *self.block.units]

    @property
    def units(self) -> list[Unit]:
        """Every unit it uses."""
        return [self.embedding, self.head, *self.needed]

    def __call__(self, x: Tensor, tokens: Tensor) -> Tensor:
        """The next hidden states from the last and from (local sequence, batch) tokens."""
        table, tp = self.embedding.weights[0], self.local.tp
        embedded = Embedding.apply(x, tokens, table, table.sources[0].start, tp)
        joined = torch.cat((self.norms[0](x), self.norms[1](embedded)), dim=-1)
        (y,) = ColumnLinear.apply(joined, None, (self.project,))
        return self.block(y)

    def loss(self, x: Tensor, targets: Tensor, scale: float) -> Tensor:
        """Its weighted part of the loss."""
        weight = WEIGHT / self.local.model.mtp_layers
        table = self.head.weights[0]
        loss: Tensor = HeadLoss.apply(
            self.norms[2](x), targets, table, self.local.tp, weight * scale
        )
        return loss
