"""One transformer layer: norms, attention, feed-forward, and what of it the backward pass
recomputes.
"""

from collections.abc import Callable

from torch import Tensor

from meshplan.costmodels.layout import RecomputeModule, Stage
from meshplan.costmodels.model.transformer import Layer
from meshplan.executor.engine.attention import GroupedQuery, Latent
from meshplan.executor.engine.feed_forward import Dense, Mixture
from meshplan.executor.engine.hooks import Recompute
from meshplan.executor.engine.rank_context import Local, Norm
from meshplan.executor.engine.weights import Unit


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
        module: RecomputeModule = "moe" if kind.experts else "mlp"
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
        """(local sequence, batch, hidden) to the same, recomputed in backward if the stage says
        so.
        """
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
