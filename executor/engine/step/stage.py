"""The layers of one virtual stage on one rank, between its embedding and its head if it has
them.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from meshplan.executor.engine.layers.block import Block
from meshplan.executor.engine.layers.embedding_head import Embed, Head
from meshplan.executor.engine.layers.multi_token import MultiToken
from meshplan.executor.engine.parts.hooks import Enter, Leave
from meshplan.executor.engine.parts.rank_context import Local
from meshplan.executor.engine.parts.weights import Unit


@dataclass(frozen=True, slots=True)
class Segment:
    """What runs between the gathering and the freeing of some units.

    needed  the units whose weights its backward pass reads: neither table of the vocabulary is
    """

    run: Callable[[Tensor], Tensor]
    units: list[Unit]
    needed: list[Unit]


@dataclass(frozen=True, slots=True)
class Ends:
    """What a stage holds besides its layers: the first the embedding, the last the head."""

    embed: Embed | None = None
    head: Head | None = None
    further: tuple[MultiToken, ...] = ()


class VirtualStage:
    """One virtual stage: maybe the embedding, its layers, maybe the head and what predicts further.

    Targets are (further predictions + 1, local sequence, batch): the tokens 1, 2, ... ahead.
    """

    def __init__(self, local: Local, index: int, ends: Ends) -> None:
        stages, model = local.layout.stages, local.model
        first = sum(stage.layers for stage in stages[:index])
        numbers = range(first, first + stages[index].layers)
        self.index, self.local, self.ends = index, local, ends
        self.blocks = [
            Block(local, f"layers.{n}", model.kinds[model.pattern[n]], stages[index], n - first)
            for n in numbers
        ]

    @property
    def units(self) -> list[Unit]:
        """Every unit, in the order of the forward pass; one that several segments use comes as
        often.
        """
        none = self.local.anchor
        return [unit for segment in self._segments(none, none) for unit in segment.units]

    def __call__(self, x: Tensor, targets: Tensor) -> Tensor:
        """Tokens or the last stage's output to this stage's output, or to the loss."""
        segments = self._segments(x, targets)
        if self.ends.embed is not None:
            x = self.local.anchor
        for before, segment, after in zip(
            [None, *segments], segments, [*segments[1:], None], strict=False
        ):
            y = Enter.apply(x, segment.units, after.units if after else [])
            y = segment.run(y)
            x = Leave.apply(y, segment.units, segment.needed, before.needed if before else [])
        return x

    def _segments(self, tokens: Tensor, targets: Tensor) -> list[Segment]:
        segments = [Segment(block, block.units, block.units) for block in self.blocks]
        embed, head = self.ends.embed, self.ends.head
        if embed is not None:
            first = Segment(lambda anchor: embed(anchor, tokens), embed.units, embed.small_units)
            segments.insert(0, first)
        if head is not None:
            units, needed = list(head.units), list(head.small_units)
            for module in self.ends.further:
                units += [unit for unit in module.units if unit not in units]
                needed += module.needed
            segments.append(Segment(lambda x: self._loss(x, targets), units, needed))
        return segments

    def _loss(self, x: Tensor, targets: Tensor) -> Tensor:
        """The loss of the next token, and of those further ahead at their weight."""
        head, scale = self.ends.head, 1 / self.local.training.global_batch_tokens
        assert head is not None
        loss = head(x, targets[0], scale)
        for ahead, module in enumerate(self.ends.further, start=1):
            x = module(x, targets[ahead - 1])
            loss = loss + module.loss(x, targets[ahead], scale)
        return loss
