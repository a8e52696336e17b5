"""One transformer layer: norms, attention, feed-forward, and what of it the backward pass
recomputes.
"""

from collections.abc import Callable

from torch import Tensor

from meshplan.costmodels.layout import RecomputeModule, Stage
from meshplan.costmodels.model.transformer import Layer
from meshplan.executor.engine.layers.attention import GroupedQuery, Latent
from meshplan.executor.engine.layers.feed_forward import Dense, Mixture
from meshplan.executor.engine.layers.recurrent import RecurrentMixer
from meshplan.executor.engine.parts.hooks import Recompute
from meshplan.executor.engine.parts.rank_context import Local, Norm
from meshplan.executor.engine.parts.weights import Unit

Mixer = Latent | GroupedQuery | RecurrentMixer


class Block:
    """One transformer layer."""

    def __init__(self, local: Local, name: str, kind: Layer, stage: Stage, index: int) -> None:
        model = local.model
        self.parallel = model.parallel_blocks
        self.full = index < stage.full_layers
        selective = stage.full_layers <= index < stage.full_layers + stage.selective_layers
        self.mixer = _mixer(local, name, kind, selective)
        self.ffn = _feed_forward(local, f"{name}.ffn", kind)
        module: RecomputeModule = "moe" if kind.experts else "mlp"
        self.feed_forward = local.maybe_recompute(module, selective)
        count = model.norms_per_layer if self.mixer and self.ffn else 1
        self.norms = [Norm(local, f"{name}.norm{i}", model.hidden) for i in range(count)]
        self.units = self._units(local, name)

    def _units(self, local: Local, name: str) -> list[Unit]:
        dense = [w for norm in self.norms for w in norm.weights]
        dense += self.mixer.weights if self.mixer else []
        dense += self.ffn.weights if self.ffn else []
        units = [local.unit(name, dense)]
        if isinstance(self.ffn, Mixture):
            units.append(local.unit(f"{name}.experts", self.ffn.expert_weights, experts=True))
        return units

    def __call__(self, x: Tensor) -> Tensor:
        """(local sequence, batch, hidden) to the same, recomputed in backward if the stage says
        so.
        """
        return Recompute.apply(self._run, x) if self.full else self._run(x)

    def _only(self, x: Tensor) -> Tensor:
        """The layer's one part."""
        if self.mixer is not None:
            return self.mixer(x)
        assert self.ffn is not None
        return self.feed_forward(self.ffn, x)

    def _run(self, x: Tensor) -> Tensor:
        if self.mixer is None or self.ffn is None:
            return x + self._only(self.norms[0](x))
        before = self.norms[:2]
        after: list[Norm | Callable[[Tensor], Tensor]] = [*self.norms[2:]] or [_same, _same]
        first = before[0](x)
        attended = after[0](self.mixer(first))
        if self.parallel:
            second = before[-1](x) if len(before) == 2 else first
            return x + attended + after[1](self.feed_forward(self.ffn, second))
        x = x + attended
        return x + after[1](self.feed_forward(self.ffn, before[1](x)))


def _mixer(local: Local, name: str, kind: Layer, selective: bool) -> Mixer | None:
    """What mixes the layer's tokens, None where nothing does."""
    if kind.recurrent:
        return RecurrentMixer(local, f"{name}.recurrent", kind.recurrent, selective)
    if not kind.attention.heads:
        return None
    attention = Latent if kind.attention.is_mla else GroupedQuery
    return attention(local, f"{name}.attention", kind.attention, selective)


def _feed_forward(local: Local, name: str, kind: Layer) -> Dense | Mixture | None:
    if kind.experts:
        return Mixture(local, name, kind.experts)
    return Dense(local, name, kind.ffn, local.model.bias) if kind.ffn else None


def _same(x: Tensor) -> Tensor:
    return x
