"""Models from a bare shape or from a row of a table of measured runs."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshplan.costmodels.model.bare_shape import SHAPE_FIELDS, model_from_shape
from meshplan.costmodels.model.config_fields import UnsupportedModel
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.parameters import model_parameters
from meshplan.costmodels.model.transformer import Model
from meshplan.hardware_profiles.load_models import load_model_config

DENSE = {"layers": 4, "hidden": 64, "ffn": 256, "heads": 8, "vocab": 1000}
MOE = DENSE | {"experts": 8, "top_k": 2, "moe_ffn": 32, "shared_experts": 2, "dense_layers": 1}


def catalogue(name: str) -> Model:
    return model_from_config(load_model_config(name), name)


def row(text: str) -> dict[str, str]:
    """A row as csv reads it: every value a text, "" where the source says nothing."""
    keys = (
        *("layers", "hidden", "ffn", "heads", "kv_heads", "head_dim", "vocab"),
        *("gated_mlp", "tied", "experts", "top_k", "moe_ffn", "shared_experts", "dense_layers"),
        *("attention", "params_b"),
    )
    return dict(zip(keys, text.split(","), strict=True))


@pytest.mark.parametrize(
    ("text", "name", "within"),
    [
        ("32,4096,14336,32,8,128,128256,1,0,,,,,,gqa,8.03", "llama-3.1-8b", 0.0),
        ("16,2048,8192,32,32,64,131072,1,1,,,,,,mha,1.34", "ultrascale-1b", 0.0),
        ("56,6144,16384,48,8,128,32768,1,0,8,2,16384,0,0,gqa,141", "mixtral-8x22b", 0.0),
        ("61,7168,18432,128,,,129280,1,0,256,8,2048,1,3,mla,671", "deepseek-v3", 1e-6),
        ("60,5120,12288,128,128,,102400,1,0,160,6,1536,2,1,mla,236", "deepseek-v2", 0.0),
        ("27,2048,10944,16,16,,102400,1,0,64,6,1408,2,1,mla,15.7", "deepseek-v2-lite", 0.0),
        ("94,4096,12288,64,4,128,151936,1,0,128,8,1536,0,0,gqa,235", "qwen3-235b-a22b", 1e-6),
        ("96,12288,49152,96,96,128,50257,0,1,,,,,,mha,175", "gpt3-175b", 0.001),
        ("96,18432,73728,96,8,192,256000,0,0,,,,,,gqa,340", "nemotron-4-340b", 0.001),
    ],
)
def test_rows_of_known_models(text: str, name: str, within: float) -> None:
    """A row's shape has the parameters of the model that it names.

    What a shape cannot say may differ: router biases, norms over heads, positions, biases.
    """
    counted = model_parameters(model_from_shape(row(text), name)).without_mtp
    assert counted == pytest.approx(model_parameters(catalogue(name)).without_mtp, rel=within)


def test_one_key_and_value_head_for_all_queries() -> None:
    """`mqa` is one key/value head, which its row need not state."""
    attention = model_from_shape(DENSE | {"attention": "mqa"}, "inline").kinds[0].attention
    assert (attention.heads, attention.kv_heads) == (8, 1)


def test_bare_shape_by_hand() -> None:
    """Absent fields: multi-head, head width hidden / heads, gated, untied."""
    read = model_from_shape(DENSE, "inline")
    attention = read.kinds[0].attention
    assert (attention.kv_heads, attention.head_dim) == (8, 8)
    assert (read.gated, read.tied, read.norm, read.bias) == (True, False, "rmsnorm", False)
    assert model_parameters(read).total == 2 * 64_000 + 4 * (4 * 64**2 + 3 * 64 * 256 + 128) + 64


def test_ungated_shape_is_a_gpt() -> None:
    """Without a gate: layer norms, biases, a tied head, and as many positions as the sequence."""
    read = model_from_shape(DENSE | {"gated": "0", "seq_len": "512"}, "gpt")
    assert (read.norm, read.bias, read.tied, read.learned_positions) == (
        "layernorm",
        True,
        True,
        512,
    )


def test_experts_follow_the_dense_layers() -> None:
    """`dense_layers` lead; shared experts are as wide as the routed ones, side by side."""
    read = model_from_shape(MOE, "moe")
    assert read.pattern == (0, 1, 1, 1)
    experts = read.kinds[1].experts
    assert experts is not None
    assert (experts.experts, experts.top_k, experts.ffn, experts.shared_ffn) == (8, 2, 32, 64)


@pytest.mark.parametrize(
    ("attention", "expected"),
    [
        ("gqa (alternating 128-token sliding window)", [128, None, 128, None]),
        ("gqa (3 of 4 layers chunked 8192)", [8192, 8192, 8192, None]),
    ],
)
def test_windows_in_words(attention: str, expected: list[int | None]) -> None:
    """The notes that the runs carry put a window on the layers that they name."""
    read = model_from_shape(DENSE | {"kv_heads": 4, "attention": attention}, "x")
    assert [read.kinds[kind].attention.window for kind in read.pattern] == expected


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ({}, "'layers' is missing"),
        (DENSE | {"vocab": ""}, "'vocab' is missing"),
        (DENSE | {"heads": "many"}, "heads is 'many', not a whole number"),
        (DENSE | {"heads": 7}, "64 does not divide by 7"),
        (DENSE | {"attention": "gqa"}, "'kv_heads' is missing"),
        (DENSE | {"attention": "hybrid: 10 attention + 54 Mamba-2"}, "'hybrid: 10.* not priced"),
        (DENSE | {"attention": "mha (on Sundays)"}, "note that is not understood"),
        (DENSE | {"gated": "perhaps"}, "gated is 'perhaps', not true or false"),
        (MOE | {"top_k": None}, "'top_k' is missing"),
        (MOE | {"top_k": 9}, "top_k 9 of 8 experts"),
        (DENSE | {"params_b": "7"}, "0.00039.*e9 parameters, but 7e9 are stated"),
        (DENSE | {"params_b": "big"}, "params_b is 'big', not a number"),
    ],
)
def test_refused(shape: dict[str, Any], words: str) -> None:
    """What is missing, malformed, not priced or contradicted by the stated size is named."""
    with pytest.raises(UnsupportedModel, match=words):
        model_from_shape(shape, "x")


VALUES = st.none() | st.booleans() | st.integers(-2, 600) | st.floats() | st.text(max_size=6)
NOTES = st.sampled_from(["mha", "gqa", "mla", "gqa (0 of 0 layers chunked 0)"])


@given(
    st.sampled_from([{}, DENSE, MOE]),
    st.dictionaries(st.sampled_from(SHAPE_FIELDS), VALUES | NOTES | st.just("12"), max_size=6),
)
def test_any_shape_is_read_or_refused(shape: dict[str, object], changed: dict[str, object]) -> None:
    """No mixture of fields and values crashes the reader, alone or in a shape that is read."""
    outcome = model_or_refusal(shape | changed)
    if isinstance(outcome, str):
        assert "\n" not in outcome
    else:
        assert model_parameters(outcome).total > 0


def model_or_refusal(shape: dict[str, object]) -> Model | str:
    try:
        return model_from_shape(shape, "fuzz")
    except UnsupportedModel as refusal:
        return str(refusal)


@pytest.mark.parametrize("name", ["GPT-OSS 120B", "Qwen3-235B-A22B"])
def test_no_trait_goes_by_name(name: str) -> None:
    """Sinks and norms of queries and keys are fields: a name alone changes nothing."""
    (plain,) = model_from_shape(DENSE, name).kinds
    assert (plain.attention.sinks, plain.attention.qk_norm) == (False, "none")
    (stated,) = model_from_shape(DENSE | {"sinks": "1", "qk_norm": "head"}, name).kinds
    assert (stated.attention.sinks, stated.attention.qk_norm) == (True, "head")
    with pytest.raises(UnsupportedModel, match="qk_norm is 'row'"):
        model_from_shape(DENSE | {"qk_norm": "row"}, name)
