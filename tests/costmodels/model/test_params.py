"""Parameter counts: by hand, and the laws of sharding (published: test_published_parameters)."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.parameter_count import ParameterCount
from meshplan.costmodels.model.parameters import (
    embedding_parameters_per_rank,
    final_norm_parameters,
    head_parameters_per_rank,
    layer_parameters,
    layer_parameters_per_rank,
    model_parameters,
    mtp_parameters_per_rank,
    padded_vocab,
)
from meshplan.costmodels.model.transformer import Attention, Experts, Layer, Model
from meshplan.hardware_profiles.load_models import load_model_config, model_names


def catalogue(name: str) -> Model:
    return model_from_config(load_model_config(name), name)


MODELS = {name: catalogue(name) for name in model_names()}


def attention(heads: int = 4, kv_heads: int = 2, head_dim: int = 8) -> Attention:
    return Attention(heads=heads, kv_heads=kv_heads, head_dim=head_dim, v_head_dim=head_dim)


def one_layer(kind: Layer, **traits: object) -> Model:
    model = Model(name="one layer", hidden=32, vocab=100, kinds=(kind,), pattern=(0,))
    return replace(model, **traits)  # type: ignore[arg-type]


# By hand


@pytest.mark.parametrize(
    ("kind", "traits", "part", "expected"),
    [
        pytest.param(
            Layer(attention=attention(), ffn=64),
            {},
            "attention",
            3072,
            id="GQA: q 32x32 + k 32x16 + v 32x16 + out 32x32",
        ),
        pytest.param(
            Layer(attention=replace(attention(), qkv_bias=True, out_bias=True), ffn=64),
            {},
            "attention",
            3168,
            id="GQA with biases: 3072 + 32 + 16 + 16 + 32",
        ),
        pytest.param(
            Layer(attention=replace(attention(), sinks=True), ffn=64),
            {},
            "attention",
            3076,
            id="sinks: 3072 + one per head, 4",
        ),
        pytest.param(
            Layer(
                attention=Attention(
                    heads=4,
                    kv_heads=4,
                    head_dim=12,
                    v_head_dim=8,
                    q_lora_rank=16,
                    kv_lora_rank=20,
                    rope_head_dim=4,
                ),
                ffn=64,
            ),
            {},
            "attention",
            4352,
            id="MLA: 32x16 + 16x4x12 + 32x(20+4) + 20x4x(8+8) + 4x8x32",
        ),
        pytest.param(
            Layer(attention=attention(), ffn=64), {}, "dense_ffn", 6144, id="SwiGLU: 3 x 32 x 64"
        ),
        pytest.param(
            Layer(attention=attention(), ffn=64),
            {"gated": False, "bias": True},
            "dense_ffn",
            4192,
            id="GELU with biases: 2 x 32 x 64 + 64 + 32",
        ),
        pytest.param(
            Layer(attention=attention(), experts=Experts(experts=8, top_k=2, ffn=16)),
            {},
            "routed_experts",
            12288,
            id="8 experts x 3 x 32 x 16",
        ),
        pytest.param(
            Layer(
                attention=attention(),
                experts=Experts(experts=8, top_k=2, ffn=16, bias=True, router_bias=True),
            ),
            {},
            "routed_experts",
            12800,
            id="with biases: 8 x (3 x 32 x 16 + 16 + 16 + 32)",
        ),
        pytest.param(
            Layer(
                attention=attention(),
                experts=Experts(experts=8, top_k=2, ffn=16, router_bias=True),
            ),
            {},
            "router",
            264,
            id="router: 8 x 32 + 8",
        ),
        pytest.param(
            Layer(
                attention=attention(),
                experts=Experts(experts=8, top_k=2, ffn=16, shared_ffn=48, shared_gate=True),
            ),
            {},
            "shared_experts",
            4640,
            id="shared: 3 x 32 x 48 + gate 32",
        ),
        pytest.param(
            Layer(attention=replace(attention(), qk_norm="head"), ffn=64),
            {"norms_per_layer": 4},
            "norms",
            144,
            id="4 RMSNorms x 32 + q and k norms of 8",
        ),
        pytest.param(
            Layer(attention=replace(attention(), qk_norm="full"), ffn=64),
            {"norm": "layernorm"},
            "norms",
            176,
            id="2 LayerNorms x 2 x 32 + norms over (4 + 2) heads of 8",
        ),
    ],
)
def test_part_of_a_layer_by_hand(
    kind: Layer, traits: dict[str, object], part: str, expected: int
) -> None:
    """Each part of a layer is the sum of its matrices, biases and norms."""
    assert getattr(layer_parameters(one_layer(kind, **traits), kind), part) == expected


def test_ends_by_hand() -> None:
    """An untied model has two vocabulary matrices; positions, norms and MTP modules add up."""
    kind = Layer(attention=attention(), ffn=64)
    model = one_layer(kind, learned_positions=10, embedding_norm=True, mtp_layers=2)
    count = model_parameters(model)
    assert count.embedding == 100 * 32 + 10 * 32
    assert count.head == 100 * 32
    assert count.norms == 2 * 32 + 32 + 32  # the layer's, the embedding's, the final one
    assert count.mtp == 2 * (3072 + 6144 + 64 + 2 * 32 * 32 + 3 * 32)
    assert model_parameters(replace(model, tied=True)).head == 0


# Laws

NAMES = st.sampled_from(sorted(MODELS))
DEGREES = st.sampled_from([1, 2, 4, 8, 16, 32])


@given(NAMES)
def test_one_rank_holds_the_whole_layer(name: str) -> None:
    """With every degree 1 a rank holds exactly the layer, its embedding, head and MTP modules."""
    model = MODELS[name]
    for kind in model.kinds:
        rank = layer_parameters_per_rank(model, kind, 1, 1, 1)
        count = layer_parameters(model, kind)
        assert rank.dense + rank.expert == count.total
        assert rank.expert == count.routed_experts
    count = model_parameters(model)
    mtp = mtp_parameters_per_rank(model, 1)
    assert mtp.dense + mtp.expert == count.mtp
    tied = model.vocab * model.hidden if model.tied else 0
    ends = embedding_parameters_per_rank(model, 1) + head_parameters_per_rank(model, 1) - tied
    layers = sum(layer_parameters(model, model.kinds[kind]).total for kind in model.pattern)
    assert ends + layers + count.mtp == count.total


@given(NAMES, DEGREES, DEGREES, st.sampled_from([1, 2]))
def test_ranks_together_hold_at_least_the_layer(name: str, tp: int, ep: int, etp: int) -> None:
    """Sharding never loses a parameter, never keeps more than the layer, and more never costs."""
    model = MODELS[name]
    for kind in model.kinds:
        whole = layer_parameters(model, kind)
        rank = layer_parameters_per_rank(model, kind, tp, ep, etp)
        dense = whole.total - whole.routed_experts
        assert dense / tp <= rank.dense * (1 + 1e-12)
        assert rank.dense <= dense
        assert whole.routed_experts / (ep * etp) <= rank.expert * (1 + 1e-12)
        assert rank.expert <= whole.routed_experts
        more = layer_parameters_per_rank(model, kind, 2 * tp, 2 * ep, etp)
        assert more.dense <= rank.dense
        assert more.expert <= rank.expert


@given(NAMES, st.lists(st.tuples(DEGREES, DEGREES, DEGREES), min_size=1, max_size=8))
def test_arrays_give_what_numbers_give(name: str, degrees: list[tuple[int, int, int]]) -> None:
    """A column of layouts gets, element for element, what each layout alone gets."""
    model = MODELS[name]
    tp, ep, etp = (np.array(column) for column in zip(*degrees, strict=True))
    for kind in model.kinds:
        columns = layer_parameters_per_rank(model, kind, tp, ep, etp)
        for row, (tp_1, ep_1, etp_1) in enumerate(degrees):
            rank = layer_parameters_per_rank(model, kind, tp_1, ep_1, etp_1)
            assert np.broadcast_to(columns.dense, tp.shape)[row] == rank.dense
            assert np.broadcast_to(columns.expert, tp.shape)[row] == rank.expert
    head = np.broadcast_to(head_parameters_per_rank(model, tp), tp.shape)
    assert head[0] == head_parameters_per_rank(model, degrees[0][0])


def test_key_value_heads_are_not_cut() -> None:
    """Beyond 8 key/value heads, 16 tensor ranks each hold a whole one, so some hold the same."""
    model = MODELS["llama-3.1-70b"]
    at_8, at_16 = (layer_parameters_per_rank(model, model.kinds[0], tp).dense for tp in (8, 16))
    one_head, norms = 2 * 8192 * 128, 2 * 8192
    cut = 2 * 8192 * 8192 + 3 * 8192 * 28672
    assert at_8 == cut / 8 + one_head + norms
    assert at_16 == cut / 16 + one_head + norms


def test_latent_down_projections_are_on_every_rank() -> None:
    """Tensor parallelism cuts MLA by heads; the compressions to the latents stay whole."""
    model = MODELS["deepseek-v3"]
    dense_layer = model.kinds[0]
    whole = 7168 * (1536 + 512 + 64) + 2 * 7168 + 1536 + 512
    total = layer_parameters(model, dense_layer).total
    assert layer_parameters_per_rank(model, dense_layer, 8).dense == (total - whole) / 8 + whole


def test_mtp_module_on_a_rank() -> None:
    """A module is a layer of the last kind, a 2h x h projection cut over tp, and three norms."""
    model = MODELS["deepseek-v3"]
    layer = layer_parameters_per_rank(model, model.kinds[1], 8, 64, 1)
    mtp = mtp_parameters_per_rank(model, 8, 64, 1)
    assert mtp.dense == layer.dense + 2 * 7168 * 7168 / 8 + 3 * 7168
    assert mtp.expert == layer.expert == 256 * 3 * 7168 * 2048 / 64


def test_embedding_on_a_rank() -> None:
    """The vocabulary is padded and cut over tp; positions and the embedding's norm are whole."""
    gpt3, bloom = MODELS["gpt3-175b"], MODELS["bloom-176b"]
    assert embedding_parameters_per_rank(gpt3, 8) == 50264 * 12288 / 8 + 2048 * 12288
    assert embedding_parameters_per_rank(bloom, 4) == 250880 * 14336 / 4 + 2 * 14336


def test_expert_biases_on_a_rank() -> None:
    """The output bias of an expert is added after the reduction, so `etp` does not cut it."""
    model = MODELS["gpt-oss-20b"]
    rank = layer_parameters_per_rank(model, model.kinds[0], 1, 4, 2)
    per_expert = 3 * 2880 * 2880 + 2 * 2880
    assert rank.expert == 32 * per_expert / (4 * 2) + 32 * 2880 / 4


def test_final_norm_is_all_that_a_tied_head_adds_without_a_pipeline() -> None:
    """The last stage of a pipeline holds its own copy of a tied matrix, a lone stage does not."""
    model = MODELS["gemma-2-2b"]
    copy = model.vocab * model.hidden
    assert head_parameters_per_rank(model, 1) == copy + final_norm_parameters(model)


@given(st.integers(1, 300_000), st.integers(1, 64))
def test_padded_vocab_is_the_next_multiple(vocab: int, tp: int) -> None:
    """The padded vocabulary divides evenly, holds every token, and wastes less than a row each."""
    padded = padded_vocab(vocab, tp)
    assert padded % tp == 0
    assert vocab <= padded < vocab + tp


PARTS = len(ParameterCount.__dataclass_fields__)


@given(st.lists(st.integers(0, 10**12), min_size=PARTS, max_size=PARTS), st.integers(0, 200))
def test_counts_add_and_scale(parts: list[int], layers: int) -> None:
    """`total` is linear: of a sum it is the sum, of so many layers so many times the total."""
    names = [f for f in ParameterCount.__dataclass_fields__]
    count = ParameterCount(**dict(zip(names, parts, strict=True)))
    assert count.total == sum(parts)
    assert (count + count * layers).total == count.total * (layers + 1)
