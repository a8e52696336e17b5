"""What selective checkpointing by operator keeps of a layer, and what it runs again: the policy of
torchtitan, which PyTorch's `create_selective_checkpoint_contexts` asks about each operator.

    kept      every second matrix product without a bias, the first among them, and every product
              with one (addmm); the attention kernel's output; what a reduce-scatter or an exchange
              of tokens brought
    replayed  the other products, those of routed experts and their router, all-gathers, norms,
              pointwise kernels, and the sum behind attention

A framework that runs queries, keys and values, or gate and up, as products of their own counts each
of them (`Matmul.apart`). A compiler keeps a listed output only where a backward reads it; without
one PyTorch holds it in any case (`_CachingTorchDispatchMode` of torch/utils/checkpoint.py). For a
layer of h hidden, a query heads of d, a_kv key heads and f feed-forward columns this keeps

    2 (h + a d + a_kv d + a d + f)        bytes of a token: input, query, value, output, gate
    2 h more                              without a compiler: the product that ends the layer

as torch 2.13 does (a block of these seven products, compiled on a CPU, saves these numbers and the
log-sum-exp of attention).

Source: pytorch/torchtitan@b5bcd76 torchtitan/distributed/activation_checkpoint.py
(`_get_default_save_ops`, `SelectiveAC`: mm is kept where the count is odd, the router's shape does
not count; torch._grouped_mm and all_gather_into_tensor are on no list), the same by count in the
lists of each model since 2024 (@347ddc0d torchtitan/parallelisms/parallelize_llama.py); products
with a bias since 2026-03-23 alone (@114151ad, compute_intensive_ops of torch 2.13
_functorch/partitioners.py): before they were on no list. Leaves out: that reduce-scatters were on
none from 2025-03-20 to 2025-04-21 (@247f4e3a, @88d8ab37).
"""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

import numpy as np

from meshplan.costmodels.operations.kinds import Communication, Matmul, Operation
from meshplan.hardware_profiles.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Listing:
    """How a checkpoint by operator treats what is on its list.

    names_products  whether products in the training's format are on it
    keeps_unread    whether an output that no backward reads is kept too (no compiler)
    itemsize        bytes of a number that a product puts out
    """

    names_products: bool = True
    keeps_unread: bool = False
    itemsize: float = 2.0


USUAL = Listing()


def by_operator(
    operations: Sequence[Operation], listing: Listing, named: AbstractSet[str] = frozenset()
) -> Iterator[tuple[Operation, bool]]:
    """Each operation, a product of several weights as several of them, and whether it runs again:
    as the policy says, or as one of the modules that are `named`. What is kept saves its output.
    """
    count = 0
    for op in operations:
        if not named.isdisjoint(op.modules):
            if isinstance(op, Matmul) and "moe" not in op.modules:
                count += len(op.apart) or 1
            yield op, True
        elif isinstance(op, Communication):
            yield _sent(op, listing)
        elif not isinstance(op, Matmul):
            yield op, "sum" in op.modules
        elif "moe" in op.modules or _is_unlisted(op, listing):
            yield op, True
        elif op.biased:
            yield _keeping(op, listing), False
        else:
            for each in products_of(op):
                count += 1
                yield (_keeping(each, listing), False) if count % 2 else (each, True)


def products_of(op: Matmul) -> Iterator[Matmul]:
    """The products that a framework without joined weights runs for it."""
    if not op.apart:
        yield op
    for columns in op.apart:
        share = columns / op.n
        yield replace(op, n=columns, joined=1, key_columns=0, apart=(),
                      saved_bytes=share * op.saved_bytes)  # fmt: skip


def _is_unlisted(op: Matmul, listing: Listing) -> bool:
    return op.recipe and not (listing.names_products or op.in_16_bit)


def _keeping(op: Matmul, listing: Listing) -> Matmul:
    """`op` with its whole output saved, in the 16 bits that it is put out in."""
    unread = "unread" in op.modules and not listing.keeps_unread
    output = 0.0 if unread else listing.itemsize * op.m * op.n * op.groups
    return replace(op, saved_bytes=output, kept_cast=False)


def _sent(op: Communication, listing: Listing) -> tuple[Communication, bool]:
    if op.kind == "all_gather":
        return op, op.axis == "tp"
    if op.kind != "reduce_scatter" or not np.any(op.scattered_bytes):
        return op, False
    unread = "unread" in op.modules and not listing.keeps_unread
    return replace(op, saved_bytes=0.0 if unread else op.scattered_bytes), False
