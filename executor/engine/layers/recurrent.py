"""Recurrent mixers: Mamba-2 and gated DeltaNet. Tensor parallelism splits their heads.

Weights by what they are for: q and k, which Mamba-2 calls C and B, v (its x), z the output's gate,
a the step (and b, the delta rule's share), each a projection of the same gathered input.
"""

from typing import Any

from torch import Tensor

from meshplan.costmodels.model.recurrent import Recurrent
from meshplan.executor.engine.parts import recurrent_kernels as kernels
from meshplan.executor.engine.parts.functions import Differentiable, values_of
from meshplan.executor.engine.parts.projections import ColumnLinear, RowLinear
from meshplan.executor.engine.parts.rank_context import Local
from meshplan.executor.engine.parts.weights import Weight


class Convolve(Differentiable):
    """A short causal convolution and its silu. Saves its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Weight, bias: Weight | None) -> Tensor:
        """One filter for each channel."""
        ctx.weights = weight, bias
        ctx.save_for_backward(x)
        y: Tensor = kernels.short_conv(x, *values_of(weight, bias))
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        """The filters' gradients come with the input's."""
        (x,) = ctx.saved_tensors
        weight, bias = ctx.weights
        dx, dw, db = kernels.short_conv_backward(dy.contiguous(), x, *values_of(weight, bias))
        weight.gradient.add_(dw)
        if bias:
            bias.gradient.add_(db)
        return dx, None, None


class ScanStates(Differentiable):
    """The recurrence over the tokens. Saves its inputs and the state before each chunk."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor | None,
        weights: tuple[Weight, Weight, Weight | None], chunk: int,
    ) -> Tensor:  # fmt: skip
        """(sequence, batch, heads, width) of the values to the same."""
        ctx.weights, ctx.chunk = weights, chunk
        out, states = kernels.scan(q, k, v, a, b, *values_of(*weights), chunk)
        ctx.save_for_backward(states, q, k, v, a, b)
        y: Tensor = out
        return y

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        """The learnt numbers' gradients come with the inputs'."""
        states, *inputs = ctx.saved_tensors
        grads = kernels.scan_backward(
            dout.contiguous(), states, *inputs, *values_of(*ctx.weights), ctx.chunk
        )
        for weight, grad in zip(ctx.weights, grads[5:], strict=True):
            if weight is not None:
                weight.gradient.add_(grad)
        db = None if inputs[4] is None else grads[4]
        return (*grads[:4], db, None, None)


class GatedNorm(Differentiable):
    """The norm over heads or groups and the product with the gate. Saves both."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gate: Tensor, weight: Weight, eps: float, width: int, gate_first: bool
    ) -> Tensor:
        """Norms of `width` numbers each."""
        ctx.weight, ctx.settings = weight, (eps, width, gate_first)
        ctx.save_for_backward(x, gate)
        y: Tensor = kernels.gated_norm(x, gate, weight.value, *ctx.settings)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """The weight's gradient comes with the inputs'."""
        dx, dgate, dw = kernels.gated_norm_backward(
            dy.contiguous(), *ctx.saved_tensors, ctx.weight.value, *ctx.settings
        )
        ctx.weight.gradient.add_(dw)
        return dx, dgate, None, None, None, None


class RecurrentMixer:
    """One recurrent mixer."""

    def __init__(self, local: Local, name: str, shape: Recurrent, selective: bool) -> None:
        self.local, self.shape = local, shape
        hidden, inner, heads = local.model.hidden, shape.inner, shape.heads
        keys = (shape.convolved - inner) // 2
        widths = {"q": keys, "k": keys, "v": inner, "z": inner, "a": heads}
        widths |= {"b": heads} if shape.delta_rule else {}
        self.into = tuple(local.column(f"{name}.{part}", n, hidden) for part, n in widths.items())
        self.filters = [
            (
                local.matrix(f"{name}.conv_{part}", widths[part], shape.convolution, 0),
                local.vector(f"{name}.conv_{part}.bias", widths[part], 0.0, split=True)
                if shape.convolution_bias
                else None,
            )
            for part in "qkv"
        ]
        self.decay = local.vector(f"{name}.decay", heads, 0.0, split=True)
        self.step = local.vector(f"{name}.step", heads, 0.0, split=True)
        delta = shape.delta_rule
        self.skip = None if delta else local.vector(f"{name}.skip", heads, 1.0, split=True)
        self.width = shape.value_dim if delta else inner // shape.groups
        self.norm = (
            local.vector(f"{name}.norm", shape.value_dim, 1.0)
            if delta
            else local.vector(f"{name}.norm", inner, 1.0, split=True)
        )
        self.o = local.row(f"{name}.o", hidden, inner)
        self.core = local.maybe_recompute("core_attention", selective)

    @property
    def weights(self) -> list[Weight]:
        """All weights of the mixer."""
        found = [each.weight for each in (*self.into, self.o)]
        found += [weight for pair in self.filters for weight in pair if weight]
        numbers = (self.decay, self.step, self.skip, self.norm)
        return found + [weight for weight in numbers if weight]

    def __call__(self, x: Tensor) -> Tensor:
        """(local sequence, batch, hidden) to the same."""
        tp, shape = self.local.tp, self.shape
        q, k, v, z, a, *b = ColumnLinear.apply(x, tp, self.into)
        pairs = zip((q, k, v), self.filters, strict=True)
        parts = [Convolve.apply(each, *filters) for each, filters in pairs]
        dims = (shape.key_dim, shape.key_dim, shape.value_dim)
        q, k, v = (each.unflatten(-1, (-1, n)) for each, n in zip(parts, dims, strict=True))
        numbers = self.decay, self.step, self.skip
        out = self.core(
            lambda q, k, v, a, b=None: ScanStates.apply(q, k, v, a, b, numbers, shape.chunk),
            q, k, v, a, *b,
        )  # fmt: skip
        normed = GatedNorm.apply(
            out.flatten(-2), z, self.norm, self.local.norm_epsilon, self.width, not shape.delta_rule
        )
        y: Tensor = RowLinear.apply(normed, tp, self.o)
        return y
