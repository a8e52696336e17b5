"""Which operations of a layer run again in the backward pass."""

from collections.abc import Iterable, Sequence

from meshplan.costmodels.layout import RecomputeModule
from meshplan.costmodels.operations.kinds import Matmul, Operation


def replayed_of(
    operations: Sequence[Operation], modules: Iterable[RecomputeModule]
) -> list[Operation]:
    """The operations of `modules`; with "linear_half" every second matrix product too."""
    modules = tuple(modules)
    again = [op for op in operations if any(module in op.modules for module in modules)]
    if "linear_half" in modules:
        again += [op for op in operations if isinstance(op, Matmul)][1::2]
    return again
