"""What of a model changes its results only, as its config.json states it."""

import pytest

from meshplan.costmodels.model.config_fields import UnsupportedModel
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.numerics import Numerics, Rotary, RotaryScaling, Router
from meshplan.hardware_profiles.load_models import load_model_config, model_names

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 100,
}
LLAMA3 = RotaryScaling(
    kind="llama3", factor=8, original_positions=8192, low_frequency=1, high_frequency=4
)
SCALED = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def _numerics(**fields: object) -> Numerics:
    return model_from_config({**LLAMA, **fields}, "x").numerics


def test_what_a_file_leaves_out_is_not_guessed() -> None:
    """A config.json of sizes alone has no rotary base and no epsilon: not 10000, not 1e-6."""
    assert _numerics() == Numerics()


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"rope_theta": 5e5, "rope_scaling": SCALED}, id="transformers 4"),
        pytest.param({"rope_parameters": {"rope_theta": 5e5, **SCALED}}, id="transformers 5"),
    ],
)
def test_rotary_positions_by_either_version(fields: dict[str, object]) -> None:
    """`rope_parameters` says what `rope_theta` and `rope_scaling` said before."""
    assert _numerics(**fields).rotary == Rotary(base=5e5, scaling=LLAMA3)


def test_rotary_positions_that_differ_by_layer() -> None:
    """Gemma 3's layers with a window have a base of their own, in both versions."""
    parts = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    }
    scaling = RotaryScaling(kind="linear", factor=8)
    wanted = Rotary(base=1e6, local_base=1e4, scaling=scaling)
    assert _numerics(rope_parameters=parts).rotary == wanted
    old = {"rope_theta": 1e6, "rope_local_base_freq": 1e4,
           "rope_scaling": {"rope_type": "linear", "factor": 8.0}}  # fmt: skip
    assert _numerics(**old).rotary == wanted


@pytest.mark.parametrize(
    ("name", "router"),
    [
        ("mixtral-8x7b", Router(score="softmax", normalised=True)),
        ("qwen2-57b-a14b", Router(score="softmax", normalised=False)),
        ("qwen3-30b-a3b", Router(score="softmax", normalised=True)),
        ("llama-4-scout", Router(score="sigmoid", normalised=False, weighs_inputs=True)),
        (
            "deepseek-v2",
            Router(score="softmax", normalised=False, groups=8, top_groups=3,
                   groups_by="best", scale=16),
        ),
        (
            "deepseek-v3",
            Router(score="sigmoid", normalised=True, bias=True, groups=8, top_groups=4, scale=2.5),
        ),
        ("kimi-k2", Router(score="sigmoid", normalised=True, bias=True, scale=2.827)),
    ],
)  # fmt: skip
def test_routers(name: str, router: Router) -> None:
    """Each family's router, by its paper and its file: DeepSeek-V3 2412.19437 section 2.1.2."""
    assert model_from_config(load_model_config(name), name).numerics.router == router


def test_an_old_file_of_a_model_with_groups_says_that_they_are_missing() -> None:
    """DeepSeek-V3's file without `n_group` does not become a router without groups."""
    config = dict(load_model_config("deepseek-v3"))
    del config["n_group"], config["norm_topk_prob"]
    router = model_from_config(config, "x").numerics.router
    assert router is not None
    assert (router.groups, router.normalised) == (None, None)


@pytest.mark.parametrize("name", model_names())
def test_the_catalogue_states_what_an_export_needs(name: str) -> None:
    """Every model has its epsilon and activation, and its rotary base if it rotates."""
    config = load_model_config(name)
    model = model_from_config(config, name)
    numerics = model.numerics
    assert numerics.norm_epsilon in (1e-5, 1e-6)
    alibi = config["model_type"] in ("bloom", "mpt")
    # no base, or none in a field
    types = ("nemotron_h", "jamba", "xlstm", "kimi_linear", "kimi_k3", "gptj", "glm5_next")
    unplaced = config["model_type"] in types or config.get("position_embedding_type") == "nope"
    assert alibi or numerics.activation is not None
    assert alibi or config["model_type"] == "xlstm" or numerics.init_std is not None
    learned = alibi or unplaced or model.learned_positions > 0
    assert (numerics.rotary.base is None) == learned
    assert (numerics.router is None) == (not model.is_moe)


@pytest.mark.parametrize(
    "fields",
    [
        {"rms_norm_eps": "1e-5"},
        {"rms_norm_eps": -1},
        {"rope_theta": float("nan")},
        {"rope_theta": 10**400},
        {"rope_scaling": [1]},
        {"hidden_act": 3},
    ],
    ids=str,
)
def test_a_value_of_the_wrong_kind_is_one_line(fields: dict[str, object]) -> None:
    """A number that is none, or is out of range, is refused by name."""
    with pytest.raises(UnsupportedModel, match=next(iter(fields))) as refused:
        _numerics(**fields)
    assert "\n" not in str(refused.value)


def test_numerics_are_no_part_of_a_models_identity() -> None:
    """Two models of one shape cost the same: they are equal, whatever their rotary base."""
    one, other = (model_from_config({**LLAMA, "rope_theta": x}, "x") for x in (1e4, 5e5))
    assert one == other
    assert one.numerics != other.numerics
