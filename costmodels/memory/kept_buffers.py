"""Buffers that outlive their use: Megatron-Core's, where an engine keeps them (`keeps_buffers`),
and those that tensor-parallel gathers write to (`gather_buffers`).

    gathers     2 t h each: of a layer's input, and backward of an output's gradient
    stand-ins   2 k n for each shape of weight on the rank: what autograd gets in place of a
                gradient that its product has itself added to the gradient buffer
    head        2 t h of its input gathered for sequence parallel, and 2 h V / tp, the table's
                stand-in

    t      tokens of a micro-batch on this rank     h, V   hidden, padded vocabulary
    k, n   sides of a weight on this rank

Source: huggingface/nanotron@67c5ebb6 src/nanotron/parallel/utils.py (MemoryBuffer, one for each
name) and tensor_parallel/functional.py (allgather, allgather2); NVIDIA/TransformerEngine
transformer_engine/pytorch/module/base.py (get_dummy_wgrad); NVIDIA/Megatron-LM
megatron/core/tensor_parallel/layers.py (the same for the head, and get_global_memory_buffer). With
Megatron's the thirteen peaks that SimuMax measured are met within 0.3 %.
Leaves out: workspaces of matrix products, 0.1 GiB of those peaks. Frozen weights have none.
"""

from collections.abc import Iterable

from meshplan.costmodels.elementwise import Number, where
from meshplan.costmodels.model.parameters import padded_vocab
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import Matmul, Operation


def stand_in_bytes(site: Site, operations: Iterable[Operation]) -> Number:
    """Bytes of the stand-in gradients of the weights that these operations multiply by."""
    if not site.kernels.keeps_buffers:
        return 0.0
    weights = [op for op in operations if isinstance(op, Matmul) and op.name != "router"]
    total: Number = 0.0
    for at, op in enumerate(weights):
        twins = [where((op.k == o.k) & (op.n == o.n), 1.0, 0.0) for o in weights[:at]]
        first = where(sum(twins) > 0, 0.0, 1.0)
        total = total + site.itemsize * first * op.k * op.n
    return total


def gather_buffer_bytes(site: Site) -> Number:
    """Bytes of buffers that tensor-parallel gathers write to, on every pipeline rank."""
    whole = site.kernels.gather_buffers * site.gathered_bytes
    return where(site.shard.sequence_parallel > 0, whole, 0.0)


def head_buffer_bytes(site: Site) -> Number:
    """Bytes of buffers that the head keeps on the last pipeline rank."""
    if not site.kernels.keeps_buffers:
        return 0.0
    columns = padded_vocab(site.model.vocab, site.shard.tp) / site.shard.tp
    gathered = where(site.shard.sequence_parallel > 0, site.gathered_bytes, 0.0)
    return gathered + site.itemsize * columns * site.model.hidden
