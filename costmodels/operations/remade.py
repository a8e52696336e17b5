"""Outputs that an engine's backward passes make again instead of keeping them.

A norm's or an activation's output is the input of the product behind it, whose weight's gradient
needs it. A hand-written autograd function keeps what the kernel read, which is kept anyway, and
runs the kernel again where the backward reads the output (`KernelHabits.remakes_outputs`). That is
no recompute mode: it holds in every layer, no plan chooses it, and no product runs again.

Of a SwiGLU layer of hidden size h, feed-forward size f and t tokens over tp ranks with sequence
parallelism it spares 2 (2 t h + t f) / tp bytes of 16-bit numbers: both norms' outputs and the
activation's.

Leaves out: that one kernel may write the output beside the gradient, which spares a read.
"""

from collections.abc import Iterable
from dataclasses import replace

from meshplan.costmodels.elementwise import Number
from meshplan.costmodels.operations.kinds import Operation, Pointwise
from meshplan.hardware_profiles.kernel_habits import KernelHabits


def remade(kernels: KernelHabits, op: Pointwise) -> Pointwise:
    """`op`, whose output the backward pass makes again where the engine does so."""
    if not kernels.remakes_outputs:
        return op
    again = op.backward_bytes + op.forward_bytes
    return replace(op, saved_bytes=0.0, remade_bytes=op.saved_bytes, backward_bytes=again)


def remade_bytes(operations: Iterable[Operation]) -> Number:
    """What of these is there in a layer's backward pass although the layer did not keep it."""
    return sum(op.remade_bytes for op in operations if isinstance(op, Pointwise))
