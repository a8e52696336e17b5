"""Latent attention over chosen keys: its kernels exist in the absorbed form alone.

Each query has its own list of keys, so keys and values are never projected up: a head's query is
multiplied by the up projection of its keys instead, and its output by that of its values.

    r, d_r   rank of keys and values (`kv_lora_rank`), width of the rotary key
    core     a heads of queries r + d_r wide meet one key r + d_r wide, of which r are the value
    up       t x a products as of keys and values, in 16 bits: kv_up's FLOPs where queries are as
             many as keys
    copies   each query is put beside its rotary part: read and written twice
    cp       each rank gathers the latents (and the indexer's keys) of all tokens and puts them in
             order; backward the gradients of the latents return

Of Megatron-Core's backward (`KernelHabits.takes_chosen_rows`): queries, outputs and their gradients
are copied to one row more, those of queries that have keys are taken by number, and the gradients
of queries are put back so.

Source: DeepSeek-V2, 2405.04434, section 2.1.2; NVIDIA/Megatron-LM@d98e8a64 megatron/core/
transformer/experimental_attention_variant/absorbed_mla.py, dsa.py (cp_comm_type allgather alone),
dsa_cudnn_kernels.py `_run_sparse_attention_backward`; deepseek-ai/FlashMLA flash_mla_sparse_fwd and
NVIDIA/cudnn-frontend's DSA backward take no other form. Leaves out: sorting the chosen keys, the
indexer's own loss, a wait of the host for the number of queries that have keys.
"""

from collections.abc import Iterator

from meshplan.costmodels.elementwise import Number, where
from meshplan.costmodels.model.transformer import Attention
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import Communication, Operation, Pointwise


def core_widths(attention: Attention) -> tuple[int, int]:
    """Of one head's queries and values in the core attention."""
    if not attention.is_absorbed:
        return attention.head_dim, attention.v_head_dim
    return attention.kv_lora_rank + attention.rope_head_dim, attention.kv_lora_rank


def absorbed_query(site: Site, attention: Attention) -> Pointwise:
    """Queries of the latents: made whole, then put beside their rotary parts. Both are kept."""
    wide, rank = core_widths(attention)
    number = site.itemsize * site.shard.tokens * attention.heads / site.shard.tp
    moved = 2 * number * (rank + wide)
    kept = wide + attention.head_dim - attention.rope_head_dim
    return Pointwise(
        name="absorbed_query", forward_bytes=moved, backward_bytes=moved, kernels=2,
        operators=(2, 2), issued_share=0.0, saved_bytes=number * kept, modules=("mla_up_proj",),
    )  # fmt: skip


def latent_exchange(site: Site, attention: Attention) -> Iterator[Operation]:
    """The latents of all context-parallel ranks and the indexer's keys, in the order of tokens."""
    wide, index = core_widths(attention)[0], attention.indexer
    whole = site.itemsize * site.shard.tokens * site.shard.cp
    several = where(site.shard.cp > 1, 1.0, 0.0)
    keys = index.head_dim if index and index.heads else 0
    yield Communication(
        name="latent_keys", axis="cp", kind="all_gather", size_bytes=whole * (wide + keys),
        forward_count=several, backward_count=several * wide / (wide + keys), hidden_by="nothing",
        present=several, modules=("core_attention",),
    )  # fmt: skip
    moved = 2 * several * whole
    yield Pointwise(
        name="latents_in_order", forward_bytes=moved * (wide + keys), backward_bytes=moved * wide,
        kernels=0, operators=(2 * several, 2 * several), modules=("core_attention",),
        measured_as=("by_index", "by_index"), saved_bytes=several * whole * wide,
    )  # fmt: skip


def chosen_rows(site: Site, attention: Attention) -> Iterator[Pointwise]:
    """Queries that have keys, taken by number for the backward of their attention."""
    if not (site.kernels.takes_chosen_rows and attention.is_absorbed):
        return
    query, rows = _rows_bytes(site, attention)
    yield Pointwise(
        name="one_row_more", forward_bytes=0.0, backward_bytes=2 * rows + query, kernels=0,
        operators=(0, 14), modules=("core_attention",),
    )  # fmt: skip
    yield Pointwise(
        name="chosen_rows", forward_bytes=0.0, backward_bytes=2 * (rows + query), kernels=0,
        operators=(0, 7), measured_as=("", "by_index"), modules=("core_attention",),
    )  # fmt: skip


def _rows_bytes(site: Site, attention: Attention) -> tuple[Number, Number]:
    """Bytes of the queries, and of all that a row has: query, output, its gradient, its keys."""
    wide, rank = core_widths(attention)
    t, heads = site.shard.tokens, attention.heads / site.shard.tp
    query = site.itemsize * t * heads * wide
    keys = 4.0 * t * (attention.indexer.top_k if attention.indexer else 0)
    return query, query + 2 * site.itemsize * t * heads * rank + keys
