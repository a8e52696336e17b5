"""Latent attention over chosen keys in its absorbed form, worked out by hand."""

from dataclasses import replace
from typing import Any

import pytest

from meshplan.costmodels.model.compression import Compression, Indexer
from meshplan.costmodels.model.transformer import Attention, Layer, Model
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.layers import layer_operations
from meshplan.costmodels.operations.rank_share import Shard
from meshplan.hardware_profiles.engines import load_engine

T = 1024
INDEX = Indexer(heads=4, head_dim=16, top_k=128)
LATENT = Attention(
    heads=8, kv_heads=8, head_dim=48, v_head_dim=24, q_lora_rank=64, kv_lora_rank=128,
    rope_head_dim=16, indexer=INDEX,
)  # fmt: skip


def found(attention: Attention, cp: float = 1.0, **habits: Any) -> dict[str, Any]:
    """The operations of a layer on a rank, by name."""
    tokens = T / cp
    shard = Shard(
        seq_len=T, document_len=T, tokens=tokens, tokens_outside=tokens, tp=1.0, cp=cp, ep=1.0,
        etp=1.0, sequence_parallel=0.0,
    )  # fmt: skip
    layer = Layer(attention=attention, ffn=512)
    model = Model(name="one", hidden=256, vocab=1000, kinds=(layer,), pattern=(0, 0))
    kernels = load_engine("generic").kernels.model_copy(update=habits)
    return {op.name: op for op in layer_operations(Site(model, shard, kernels), layer)}


def test_heads_meet_the_latents_themselves() -> None:
    """Queries are 128 + 16 wide and values 128, of 128 - 128^2 / 2048 = 120 keys; what the core
    puts out is kept beside a number a head and token.
    """
    core = found(LATENT)["core_attention"]
    assert core.forward_flops == 2 * T * 120 * 8 * (144 + 128)
    assert core.saved_bytes == 4 * T * 8 + 2 * T * 8 * 128


def test_products_of_keys_and_values_are_those_of_queries_and_outputs() -> None:
    """T x 8 products of 32 x 128 and of 128 x 24 are as many FLOPs, but in 16 bits."""
    plain, absorbed = found(replace(LATENT, indexer=None)), found(LATENT)
    assert absorbed["kv_up"].forward_flops == plain["kv_up"].forward_flops
    assert absorbed["kv_up"].forward_flops == 2 * T * 8 * (32 * 128 + 128 * 24)
    assert (plain["kv_up"].recipe, absorbed["kv_up"].recipe) == (True, False)


def test_a_query_is_made_whole_and_put_beside_its_rotary_part() -> None:
    """2 (128 + 144) numbers moved; 144 and, for the weight's gradient, 32 are kept."""
    query = found(LATENT)["absorbed_query"]
    assert query.forward_bytes == 2 * T * 8 * 2 * (128 + 144)
    assert query.saved_bytes == 2 * T * 8 * (144 + 32)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(replace(LATENT, indexer=None), id="all keys"),
        pytest.param(replace(LATENT, indexer=replace(INDEX, by_head=True)), id="chosen by head"),
        pytest.param(replace(LATENT, kv_lora_rank=0, rope_head_dim=0), id="no latents"),
        pytest.param(replace(LATENT, compression=Compression(ratio=4)), id="compressed keys"),
    ],
)
def test_nothing_else_is_absorbed(other: Attention) -> None:
    """Where heads have keys of their own, they meet those."""
    core = found(other)["core_attention"]
    assert (core.head_dim, core.v_head_dim) == (48, 24)
    assert "absorbed_query" not in found(other)


def test_context_parallel_ranks_gather_latents() -> None:
    """Of four ranks each gathers 144 numbers of each of the T tokens, and 16 of the indexer where
    the layer has one; the gradients of the 144 alone return.
    """
    operations = found(LATENT, cp=4.0)
    latents, order = operations["latent_keys"], operations["latents_in_order"]
    assert latents.size_bytes == 2 * T * 160
    assert latents.size_bytes * latents.backward_count == 2 * T * 144
    assert (order.forward_bytes, order.backward_bytes) == (4 * T * 160, 4 * T * 144)
    assert "key_value" not in operations
    shared = found(replace(LATENT, indexer=replace(INDEX, heads=0)), cp=4.0)["latent_keys"]
    assert shared.size_bytes == 2 * T * 144
    assert found(LATENT)["latent_keys"].forward_count == 0


def test_queries_that_have_keys_are_taken_by_number_backward() -> None:
    """A row is 144 + 2 x 128 numbers of 8 heads and 128 keys of 4 bytes: 6,912 bytes, copied to one
    row more and then taken by number; gradients of queries, 2,304 bytes, are put back.
    """
    operations = found(LATENT, takes_chosen_rows=True)
    more, rows = operations["one_row_more"], operations["chosen_rows"]
    assert (more.forward_bytes, more.backward_bytes) == (0, T * (2 * 6912 + 2304))
    assert (rows.forward_bytes, rows.backward_bytes) == (0, T * 2 * (6912 + 2304))
    assert "chosen_rows" not in found(LATENT)
