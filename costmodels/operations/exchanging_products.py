"""Products of experts whose own kernels fetch their rows from other ranks and send their output
back (`KernelHabits.exchanging_products`, DistMoE).

The kernel of the first product reads each row where it is, casts it for this product and for the
gradient of its weight, and multiplies tiles as they come; that of the second sends each tile to
the rank that its tokens came from. Backward the second product's fetches, and the first one's
sends. So an exchange runs under its product alone, rows are neither sorted nor cast apart, and of
the copies around them the sums over a token's experts are left: forward of what came back,
backward of the gradients of what was sent, and what makes a gradient for each copy.

Source: docs/mxfp8_execution.md ("staged"), docs/mxfp8_kernel_design.md,
meta-pytorch/dist_moe@191b73f3. Leaves out: the copy of a rank's tokens to where others read them
(1 / top_k of a permutation), SwiGLU in the kernel of the second product, and barriers.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from meshplan.costmodels.operations.kinds import Communication, Matmul, Operation, Pointwise

NOT_COPIED = ("sort_by_expert", "unsort")


def in_products(operations: Iterable[Operation]) -> Iterator[Operation]:
    """Of the operations of routed experts, those that are left, and what hides an exchange."""
    for op in operations:
        if isinstance(op, Matmul) and "experts" in op.modules:
            yield replace(op, casts=0)
        elif isinstance(op, Pointwise) and op.name in NOT_COPIED:
            yield replace(op, forward_bytes=0.0, backward_bytes=0.0, kernels=0)
        elif isinstance(op, Pointwise) and op.name == "permute":
            yield replace(op, forward_bytes=0.0)
        elif isinstance(op, Communication) and op.name == "dispatch":
            yield replace(op, hidden_by="experts_up")
        elif isinstance(op, Communication) and op.name == "combine":
            yield replace(op, hidden_by="experts_down")
        else:
            yield op
