"""Qwen4: gated streams, blocks of chosen keys and embeddings of n-grams, worked out by hand."""

from dataclasses import replace
from typing import Any

import pytest

from meshplan.costmodels.model.compression import Indexer, Streams
from meshplan.costmodels.model.config_fields import UnsupportedModel
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.ngrams import NGrams, hashed_rows
from meshplan.costmodels.model.parameters import (
    active_parameters,
    layer_parameters_per_rank,
    model_parameters,
)
from meshplan.costmodels.model.transformer import Attention, Layer, Model
from meshplan.costmodels.operations.embedding_head import head_operations
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import AttentionCore, Communication, Matmul
from meshplan.costmodels.operations.layers import layer_operations
from meshplan.costmodels.operations.rank_share import Shard
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load_models import load_model_config

T, H = 1024, 64
STREAMS = Streams(count=4, mixed=False, rank=8)
TABLE = NGrams(rows=1000, heads=4, width=32, convolution=4)
ATTENTION = Attention(heads=4, kv_heads=2, head_dim=16, v_head_dim=16)
QWEN4: dict[str, Any] = load_model_config("qwen3.8-flash-next")


def model_of(kind: Layer) -> Model:
    return Model(
        name="x", hidden=H, vocab=512, kinds=(kind,), pattern=(0,), streams=STREAMS,
        norms_per_layer=0, final_norm=False,
    )  # fmt: skip


def site_of(model: Model, tp: float = 1.0) -> Site:
    shard = Shard(
        seq_len=T, document_len=T, tokens=T, tokens_outside=T / tp, tp=tp, cp=1.0, ep=1.0, etp=1.0,
        sequence_parallel=float(tp > 1),
    )  # fmt: skip
    return Site(model, shard, load_engine("generic").kernels)


def changed(**fields: object) -> dict[str, Any]:
    return {**QWEN4["text_config"], **fields}


def test_the_published_model_to_the_last_number() -> None:
    """Of the file's tensors: 125,743,653,760 and a table of 51,200,245,760; a module of
    2,607,150,848; a tower of 448,931,056.
    """
    model = model_from_config(QWEN4, "q")
    count = model_parameters(model)
    assert count.without_mtp == 125_743_653_760 + 51_200_245_760
    assert count.mtp == 2_607_150_848
    used = 512 * 2560 * 3 * 640 * 48 // 512 * 10  # of 512 experts 10
    beside = 125_743_653_760 - 512 * 2560 * 3 * 640 * 48
    assert active_parameters(model).without_mtp == beside + used + 2560  # numbers of the table
    assert sum(kind.ngrams.table for kind in model.kinds if kind.ngrams) == 51_200_245_760


@pytest.mark.parametrize(
    ("place", "rows"),
    [
        pytest.param(0, 72, id="11 + 13 + 17 + 19 = 60, up to 8 x 9"),
        pytest.param(1, 120, id="23 + 29 + 31 + 37 = 120"),
    ],
)
def test_heads_of_n_grams_have_prime_numbers_of_rows(place: int, rows: int) -> None:
    assert hashed_rows(8, 4, place, 24) == rows


def test_weights_of_a_layer() -> None:
    """Each half: norms 4 x 64, gates 2 x 8 x 256, 4 numbers of 256 out of it; no norm beside. The
    n-grams: 32 x (256 + 64), three norms and four places of 256, rows of 32 / 4 = 8 numbers.
    """
    half = 256 + 2 * 8 * 256 + 4 * 256
    gates = 32 * (256 + 64) + 3 * 256 + 4 * 256
    with_table, without = (
        layer_parameters_per_rank(model_of(kind), kind, 2).dense
        for kind in (Layer(ffn=96, ngrams=TABLE), Layer(ffn=96))
    )
    assert without == half + 3 * 64 * 96 / 2
    assert with_table - without == gates + 8 * 1000 / 2


def test_products_of_gated_streams() -> None:
    """Before each half 256 x 8, 8 x 256 and 256 x 4; before the head the first two."""
    model = model_of(Layer(attention=ATTENTION, ffn=96))
    site, names = site_of(model), ("gate_down", "gate_up", "weights")
    found = [
        (op.k, op.n)
        for op in (*layer_operations(site, model.kinds[0]), *head_operations(site))
        if isinstance(op, Matmul) and op.name.endswith(names)
    ]  # fmt: skip
    half = [(256, 8), (8, 256), (256, 4)]
    assert found == [*half, *half, *half[:2]]
    norms = [op.name for op in layer_operations(site, model.kinds[0]) if "norm" in op.name]
    assert norms == ["attention_streams_norm", "feed_forward_streams_norm"]


def test_products_of_n_grams_come_first_and_their_columns_are_gathered() -> None:
    """32 x 256 and 32 x 64 of a rank's own tokens; 2 x 1024 x 32 bytes of all of them over tp."""
    model = model_of(Layer(attention=ATTENTION, ffn=96, ngrams=TABLE))
    found = layer_operations(site_of(model, tp=2.0), model.kinds[0])
    assert [(op.m, op.k, op.n) for op in found if isinstance(op, Matmul)][:2] == [
        (T / 2, 32, 256), (T / 2, 32, 64)
    ]  # fmt: skip
    sent = next(op for op in found if isinstance(op, Communication))
    assert (sent.name, sent.axis, sent.size_bytes) == ("ngrams", "tp", 2 * T * 32)


def test_blocks_are_scored_by_the_mean_of_their_keys() -> None:
    """1024 tokens in blocks of 4: 256 keys, half of them before a query; 64 tokens are 16 blocks'
    numbers; a key of 8 numbers and none that weigh the heads.
    """
    index = Indexer(heads=2, head_dim=8, top_k=64, weighed=False, block=4)
    model = model_of(Layer(attention=replace(ATTENTION, indexer=index), ffn=96))
    found = {op.name: op for op in layer_operations(site_of(model), model.kinds[0])}
    scores, key, core = (found[name] for name in ("index_scores", "index_key", "core_attention"))
    assert isinstance(scores, AttentionCore)
    assert (scores.keys, scores.all_keys, scores.saved_bytes) == (128, 256, 4 * T * 16)
    assert isinstance(key, Matmul)
    assert key.n == 8
    assert isinstance(core, AttentionCore)
    assert core.all_keys == 64


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"ple_layer_ids": [4]}, "layer 4, which has attention"),
        ({"ple_layer_ids": [0]}, "not from 1 to 48"),
        ({"ple_embed_dim": 2561}, "ple_embed_dim over heads"),
        ({"heads_per_ngram": 3000}, "6000 heads of n-grams"),
        ({"indexer_kv_heads": 2}, "indexer_kv_heads is not 1"),
        ({"indexer_budget": 2047}, "indexer_budget over"),
        ({"hc_count": 1}, "hc_count is 1"),
        ({"mtp": {"layer_types": ["linear_attention"]}}, "other layers"),
        (
            {"mtp": {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}},
            "but mtp has 2 layers",
        ),
        ({"layer_types": ["linear_attention"] * 48}, "no layer of layer_types does"),
    ],
)
def test_what_is_not_priced_is_refused(fields: dict[str, object], why: str) -> None:
    with pytest.raises(UnsupportedModel, match=why):
        model_from_config(changed(**fields), "q")
