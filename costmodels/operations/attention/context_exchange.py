"""What context-parallel ranks send so that their queries meet all keys of the sequence.

    t      tokens of a micro-batch on this rank       micro_batch * seq_len / cp
    kv     bytes of their keys and values on it       2 t a_kv (d + d_v), a_kv heads on this rank
    own    of their queries and outputs               2 t a (d + d_v)

    ring, all_gather   cp kv, all-gathered; backward it is gathered again and its gradient
                       reduce-scattered; PyTorch's sends gradients otherwise (`pytorch_ring`)
    all_to_all         each rank sends own + kv, forward and backward
    hierarchical       that among the r ranks of a node, then cp / r kv as in a ring of the nodes

What hides them is in `Communication.hidden_by`: ring steps run beside the attention of the chunk
before (Transformer Engine's p2p, torchtitan's "alltoall"), an all-gather beside that of the first
chunk at most (torchtitan's "allgather"; Transformer Engine's waits).

Source: NVIDIA/TransformerEngine@015d2257 context_parallel.py; Megatron-Core transformer_config.py,
`cp_comm_type`; pytorch torch/distributed/tensor/experimental, `_templated_ring_attention` (a gather
is launched before the first chunk's attention, and waited for after it). Leaves out: that a kernel
on a chunk of Transformer Engine's ring is slower than on the whole; that a rank launches one for
each; the gathered keys and values themselves, which are held for the moment of one layer.
"""

from collections.abc import Iterator
from typing import Literal

import numpy as np

from meshplan.costmodels.elementwise import Condition, Number, maximum, where
from meshplan.costmodels.layout import CONTEXT_KINDS
from meshplan.costmodels.model.transformer import Attention
from meshplan.costmodels.operations.attention.pytorch_ring import merges_outside, ring_operations
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import Communication, Operation, Pointwise
from meshplan.costmodels.operations.rank_share import Shard


def context_exchange(site: Site, attention: Attention) -> Iterator[Operation]:
    """What each kind of context parallelism sends, in the layouts that have that kind.

    ring, all_gather   keys and values of all tokens reach every rank, and their gradients return
    all_to_all         each rank gets queries, keys and values of all tokens for some heads, and
                       sends the outputs back
    hierarchical       all_to_all within a node; then keys and values of these heads reach the ranks
                       with the same heads on the other nodes
    """
    widths = attention.head_dim + attention.v_head_dim
    kv = site.itemsize * site.shard.tokens * kv_heads(site.shard, attention) * widths
    own = site.itemsize * site.shard.tokens * attention.heads / site.shard.tp * widths
    present = {kind: site.meets_keys_by(kind) for kind in CONTEXT_KINDS}
    merged = merges_outside(site, attention)
    if np.any(there := present["ring"]):
        yield _keys_and_values("cp", site.shard.cp * kv, "attention", there, gradients=not merged)
    if np.any(there := present["all_gather"]):
        yield _keys_and_values("cp", site.shard.cp * kv, "first_chunk", there, gradients=not merged)
    if merged:
        yield from ring_operations(site, attention, kv)
    if np.any(there := present["all_to_all"]):
        yield _heads_for_tokens("cp", own + kv, there)
        if site.kernels.reorders_documents and site.shard.document_len < site.shard.seq_len:
            yield _documents_in_order(site.shard, there)
    if np.any(there := present["hierarchical"]):
        yield _heads_for_tokens("cp_in_node", own + kv, there)
        nodes = site.shard.cp / site.cp_ranks_per_node
        yield _keys_and_values("cp_between_nodes", nodes * kv, "attention", there)


def _keys_and_values(
    axis: Literal["cp", "cp_between_nodes"],
    size_bytes: Number,
    hidden_by: Literal["attention", "first_chunk"],
    there: Condition,
    *,
    gradients: bool = True,
) -> Communication:
    here = _in(there)
    return Communication(
        name="key_value", axis=axis, kind="all_gather", size_bytes=size_bytes, forward_count=here,
        backward_count=(1 + gradients) * here, hidden_by=hidden_by, present=here,
        modules=("core_attention",),
    )  # fmt: skip


def _heads_for_tokens(
    axis: Literal["cp", "cp_in_node"], size_bytes: Number, there: Condition
) -> Communication:
    here = _in(there)
    return Communication(
        name="heads", axis=axis, kind="all_to_all", size_bytes=size_bytes, forward_count=here,
        backward_count=here, hidden_by="nothing", present=here, modules=("core_attention",),
    )  # fmt: skip


def _documents_in_order(shard: Shard, there: Condition) -> Pointwise:
    """Packed documents are cut into 2 cp chunks each, whose indices Transformer Engine made one by
    one until 2026: 11 operators each for q, k and v on their way in (and the gradient of what came
    out), 7 for what goes out (and the gradients of the three), two of them waits for a number from
    the GPU (NVIDIA/TransformerEngine@ee5dcec22 context_parallel.py, reorder_seq_chunks_after_a2a_
    before_attn_thd and reorder_seq_chunks_before_a2a_after_attn_thd; kernels since @701011849).
    """
    chunks = 2 * shard.cp * shard.documents * _in(there)
    return Pointwise(
        name="document_order", forward_bytes=0.0, backward_bytes=0.0, kernels=0,
        operators=((3 * 11 + 7) * chunks, (11 + 3 * 7) * chunks), modules=("core_attention",),
    )  # fmt: skip


def _in(there: Condition) -> Number:
    """1 in the layouts that have it and 0 elsewhere; plainly 1.0 where all have it."""
    return 1.0 if np.all(there) else where(there, 1.0, 0.0)


def kv_heads(shard: Shard, attention: Attention) -> Number:
    """Key/value heads on one rank; with fewer than `tp` of them they are replicated."""
    if attention.is_mla:
        return attention.heads / shard.tp
    return maximum(attention.kv_heads / shard.tp, 1.0)
