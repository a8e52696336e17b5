"""What is put around a layer: weights gathered and freed, and the forward run again in backward."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from meshplan.executor.engine.parts.functions import Differentiable
from meshplan.executor.engine.parts.weights import Unit


class Enter(Differentiable):
    """Into a layer: its units are gathered before it, and complete after its backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, units: list[Unit], following: list[Unit]) -> Tensor:
        """Wait for this layer's weights and send for the next one's."""
        ctx.units = units
        for unit in units:
            unit.ready()
        for unit in following:
            unit.gather()
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor, None, None]:
        """The gradient is whole unless weight products were put off."""
        for unit in ctx.units:
            unit.free()
            if not unit.ledger.deferring:
                unit.complete()
        return dx, None, None


class Leave(Differentiable):
    """Out of a layer: its units are freed, and those it needs gathered again for its backward."""

    @staticmethod
    def forward(
        ctx: Any, y: Tensor, units: list[Unit], needed: list[Unit], preceding: list[Unit]
    ) -> Tensor:
        """Give the weights back."""
        ctx.needed, ctx.preceding = needed, preceding
        for unit in units:
            unit.free()
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        """Wait for this layer's weights and send for the one's before."""
        for unit in ctx.needed:
            unit.ready()
        for unit in ctx.preceding:
            unit.gather()
        return dy, None, None, None


class Recompute(Differentiable):
    """Run `function` again in the backward pass instead of keeping what it saves. Saves its
    inputs.
    """

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """y = function(*inputs), keeping nothing else."""
        ctx.function = function
        ctx.save_for_backward(*inputs)
        with torch.no_grad():
            return function(*inputs)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """The forward again, then its backward."""
        wanted = ctx.needs_input_grad[1:]
        inputs = [
            x.detach().requires_grad_(want)
            for x, want in zip(ctx.saved_tensors, wanted, strict=True)
        ]
        with torch.enable_grad():
            y = ctx.function(*inputs)
        torch.autograd.backward([y], [dy])
        return (None, *(x.grad for x in inputs))
