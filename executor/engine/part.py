"""The layers of one virtual stage on one rank, between its embedding and its head if it has them."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from costmodels.layout import Stage
from costmodels.model import Layer
from executor.engine.attention import GroupedQuery, Latent
from executor.engine.ends import Embed, Head
from executor.engine.feed_forward import Dense, Mixture
from executor.engine.functions import Enter, Leave, Recompute
from executor.engine.local import Local, Norm
from executor.engine.weights import Unit


class Block:
    """One transformer layer."""

    def __init__(self, local: Local, name: str, kind: Layer, stage: Stage, index: int) -> None:
        model = local.model
        self.parallel = model.parallel_blocks
        self.full = index < stage.full_layers
        selective = stage.full_layers <= index < stage.full_layers + stage.selective_layers
        attention = Latent if kind.attention.is_mla else GroupedQuery
        self.attention: Callable[[Tensor], Tensor] = attention(
            local, f"{name}.attention", kind.attention, selective
        )
        self.ffn: Dense | Mixture = (
            Mixture(local, f"{name}.ffn", kind.experts)
            if kind.experts
            else Dense(local, f"{name}.ffn", kind.ffn, model.bias)
        )
        module = "moe" if kind.experts else "mlp"
        self.feed_forward = local.maybe_recompute(module, selective)
        self.norms = [
            Norm(local, f"{name}.norm{i}", model.hidden) for i in range(model.norms_per_layer)
        ]
        self.units = self._units(local, name)

    def _units(self, local: Local, name: str) -> list[Unit]:
        dense = [w for norm in self.norms for w in norm.weights]
        dense += [*self.attention.weights, *self.ffn.weights]  # type: ignore[attr-defined]
        units = [local.unit(name, dense)]
        if isinstance(self.ffn, Mixture):
            units.append(local.unit(f"{name}.experts", self.ffn.expert_weights, experts=True))
        return units

    def __call__(self, x: Tensor) -> Tensor:
        """(local sequence, batch, hidden) to the same, recomputed in backward if the stage says so."""
        return Recompute.apply(self._run, x) if self.full else self._run(x)

    def _run(self, x: Tensor) -> Tensor:
        before = self.norms[:2]
        after: list[Norm | Callable[[Tensor], Tensor]] = [*self.norms[2:]] or [_same, _same]
        first = before[0](x)
        attended = after[0](self.attention(first))
        if self.parallel:
            second = before[-1](x) if len(before) == 2 else first
            return x + attended + after[1](self.feed_forward(self.ffn, second))
        x = x + attended
        return x + after[1](self.feed_forward(self.ffn, before[1](x)))


def _same(x: Tensor) -> Tensor:
    return x


@dataclass(frozen=True, slots=True)
class Segment:
    """What runs between the gathering and the freeing of some units.

    needed  the units whose weights its backward pass reads: neither table of the vocabulary is
    """

    run: Callable[[Tensor], Tensor]
    units: list[Unit]
    needed: list[Unit]


class Part:
    """One virtual stage: maybe the embedding, its layers, maybe the head."""

    def __init__(self, local: Local, index: int, embed: Embed | None, head: Head | None) -> None:
        stages, model = local.layout.stages, local.model
        first = sum(stage.layers for stage in stages[:index])
        numbers = range(first, first + stages[index].layers)
        self.index, self.local, self.embed, self.head = index, local, embed, head
        self.blocks = [
            Block(local, f"layers.{n}", model.kinds[model.pattern[n]], stages[index], n - first)
            for n in numbers
        ]
        self.loss_scale = 1 / local.training.global_batch_tokens

    @property
    def units(self) -> list[Unit]:
        """Every unit, in the order of the forward pass; a table tied within the stage comes twice."""
        units = [*(self.embed.units if self.embed else [])]
        units += [unit for block in self.blocks for unit in block.units]
        return units + (self.head.units if self.head else [])

    def __call__(self, x: Tensor, targets: Tensor | None) -> Tensor:
        """Tokens or the last stage's output to this stage's output, or to the loss."""
        segments = [Segment(block, block.units, block.units) for block in self.blocks]
        if self.embed is not None:
            embed, tokens = self.embed, x
            x = self.local.anchor
            segments.insert(
                0, Segment(lambda anchor: embed(anchor, tokens), embed.units, embed.units[1:])
            )
        if self.head is not None:
            assert targets is not None
            head, wanted = self.head, targets
            segments.append(
                Segment(
                    lambda y: head(y, wanted, self.loss_scale), head.units, head.units[1:]
                )
            )
        for before, segment, after in zip(
            [None, *segments], segments, [*segments[1:], None], strict=False
        ):
            y = Enter.apply(x, segment.units, after.units if after else [])
            y = segment.run(y)
            x = Leave.apply(y, segment.units, segment.needed, before.needed if before else [])
        return x
