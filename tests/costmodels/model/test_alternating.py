"""Alternating updates and residuals of low rank (Gemma 3n), worked out by hand."""

from dataclasses import replace
from typing import Any

import pytest

from meshplan.costmodels.model.compression import AlternatingUpdates
from meshplan.costmodels.model.config_fields import UnsupportedModel
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.parameters import (
    embedding_parameters_per_rank,
    final_norm_parameters,
    layer_parameters,
    layer_parameters_per_rank,
    model_parameters,
)
from meshplan.costmodels.model.rare_parts import rare_parts
from meshplan.costmodels.model.transformer import Attention, Layer, Model
from meshplan.costmodels.operations.embedding_head import embedding_operations, head_operations
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import Matmul, Pointwise
from meshplan.costmodels.operations.layers import input_bytes, layer_operations
from meshplan.costmodels.operations.rank_share import Shard
from meshplan.hardware_profiles.engines import load_engine

T, H, F = 128, 64, 96
FOUR = AlternatingUpdates(count=4, rank=8)


def model_of(updates: AlternatingUpdates | None, *, thinned: bool = False) -> Model:
    attention = Attention(heads=4, kv_heads=2, head_dim=16, v_head_dim=16)
    kind = Layer(attention=attention, ffn=F, thinned=thinned)
    return Model(
        name="x", hidden=H, vocab=512, kinds=(kind,), pattern=(0, 0), alternating=updates
    )  # fmt: skip


def site_of(model: Model, *, tp: float = 1.0) -> Site:
    shard = Shard(
        seq_len=T, document_len=T, tokens=float(T), tokens_outside=T / tp, tp=tp, cp=1.0, ep=1.0,
        etp=1.0, sequence_parallel=float(tp > 1),
    )  # fmt: skip
    return Site(model, shard, load_engine("generic").kernels)


@pytest.mark.parametrize(
    ("updates", "layer", "end"),
    [
        pytest.param(FOUR, 6 * 64 + 64 + 16 + 17 * 64, 3 * 64 * 64,
                     id="4 of 64: scale, norm, 4 of the router; 4^3 + 4^2; 2 x 8 and a norm"),
        pytest.param(AlternatingUpdates(count=2, rank=5), 4 * 64 + 8 + 4 + 11 * 64, 64 * 64,
                     id="2 of 64: 4 x 64 + 2^3 + 2^2 + (2 x 5 + 1) 64"),
    ],
)  # fmt: skip
def test_weights(updates: AlternatingUpdates, layer: int, end: int) -> None:
    """Two layers have the routers and projections that the ids count, the ends the others."""
    plain, several = model_of(None), model_of(updates)
    of_layer = [layer_parameters(model, model.kinds[0]).total for model in (plain, several)]
    assert of_layer[1] - of_layer[0] == layer
    assert model_parameters(several).total - model_parameters(plain).total == 2 * layer + 2 * end


def test_every_rank_of_tensor_parallelism_has_all_of_it() -> None:
    """Two ranks hold 2 x (6 x 64 + 80 + 17 x 64) numbers more than the plain layer's two halves."""
    plain, several = model_of(None), model_of(FOUR)
    held = [layer_parameters_per_rank(model, model.kinds[0], 2).dense for model in (plain, several)]
    assert held[1] - held[0] == 6 * 64 + 80 + 17 * 64
    ends = [
        embedding_parameters_per_rank(model, 2) + final_norm_parameters(model)
        for model in (plain, several)
    ]
    assert ends[1] - ends[0] == 2 * 3 * 64 * 64


def test_what_a_layer_keeps() -> None:
    """Beside the plain layer's: two routers' normed inputs, the predicted stream, the low rank's 8
    and 64 numbers, all four streams: (1 + 1 + 1 + 1 + 4) x 64 + 8 for each token in 16 bits."""
    saved = [
        sum(float(op.saved_bytes) for op in layer_operations(site_of(model), model.kinds[0]))
        for model in (model_of(None), model_of(FOUR))
    ]
    assert saved[1] - saved[0] == 2 * T * (8 * H + 8)


def test_all_streams_cross_a_pipeline() -> None:
    """Four streams of T tokens, H numbers of 16 bits each."""
    assert input_bytes(site_of(model_of(FOUR))) == 4 * 2 * T * H


@pytest.mark.parametrize(
    ("tp", "tokens"), [pytest.param(1.0, T, id="1 rank"), pytest.param(2.0, T / 2, id="its half")]
)
def test_flops_of_a_layer(tp: float, tokens: float) -> None:
    """Two routers of 4 columns, of them 16 and 4 weights, 64 to 8 and back; 4 x 4 streams mixed:
    2 t (h (8 + 16 + 16) + 4 (16 + 4))."""
    flops = []
    for model in (model_of(None), model_of(FOUR)):
        operations = layer_operations(site_of(model, tp=tp), model.kinds[0])
        counted = [op for op in operations if isinstance(op, Matmul | Pointwise)]
        flops.append(sum(float(op.forward_flops) for op in counted))
    assert flops[1] - flops[0] == 2 * tokens * (H * (8 + 16 + 16) + 4 * (16 + 4))


def test_flops_of_both_ends() -> None:
    """3 products of 64 by 64 after the embedding and before the head."""
    for end in (embedding_operations, head_operations):
        products = [
            sum(float(op.forward_flops) for op in end(site_of(model)) if isinstance(op, Matmul))
            for model in (model_of(None), model_of(FOUR))
        ]
        assert products[1] - products[0] == 3 * 2 * T * H * H


def test_a_thinned_gate_is_read_again() -> None:
    """96 numbers of each token once forward, twice backward; nothing kept, no weight."""
    models = model_of(None), model_of(None, thinned=True)
    assert model_parameters(models[0]) == model_parameters(models[1])
    (more,) = {op.name for op in layer_operations(site_of(models[1]), models[1].kinds[0])} - {
        op.name for op in layer_operations(site_of(models[0]), models[0].kinds[0])
    }
    thinned = next(
        op for op in layer_operations(site_of(models[1]), models[1].kinds[0]) if op.name == more
    )
    assert isinstance(thinned, Pointwise)
    moved = (thinned.forward_bytes, thinned.backward_bytes, thinned.saved_bytes)
    assert moved == (2 * T * F, 2 * 2 * T * F, 0)


CONFIG: dict[str, Any] = {
    "model_type": "gemma3n_text", "vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 12,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96,
    "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 256, "sliding_window": 32,
    "num_kv_shared_layers": 4,
}  # fmt: skip


def test_what_its_configuration_says() -> None:
    """Of twelve layers the last four have no keys of their own, each fifth sees all, and by default
    the first ten have a thinned gate; widths may differ."""
    model = model_from_config(CONFIG | {"intermediate_size": [96] * 11 + [128]}, "x")
    layers = [model.kinds[kind] for kind in model.pattern]
    assert [layer.attention.own_keys for layer in layers] == [True] * 8 + [False] * 4
    assert [layer.attention.window is None for layer in layers] == ([False] * 4 + [True]) * 2 + [
        False
    ] * 2
    assert [layer.thinned for layer in layers] == [True] * 10 + [False] * 2
    assert [layer.ffn for layer in layers] == [96] * 11 + [128]
    assert model.alternating == AlternatingUpdates(count=4, rank=64)


def test_the_streams_are_a_rare_part() -> None:
    """What a framework must build: exports and the native engine name it."""
    parts = rare_parts(model_from_config(CONFIG, "x"))
    assert {"several streams of hidden states", "a feed-forward of few numbers"} <= set(parts)
    plain = replace(model_of(None), kinds=(replace(model_of(None).kinds[0]),))
    assert "several streams of hidden states" not in rare_parts(plain)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"altup_active_idx": 4}, "altup_active_idx is not one of"),
        ({"activation_sparsity_pattern": [0.95]}, "not a list of 12 layers' shares"),
        ({"activation_sparsity_pattern": [1.0] * 12}, "not from 0 to below 1"),
        ({"intermediate_size": [96] * 3}, "intermediate_size is not a list of 12"),
    ],
)
def test_what_is_not_priced_is_refused(changes: dict[str, object], said: str) -> None:
    """Of AltUp and sparse activations, in the words of the configuration."""
    with pytest.raises(UnsupportedModel, match=said):
        model_from_config(CONFIG | changes, "x")
