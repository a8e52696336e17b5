"""Published files with one field changed: what transformers 5.24 builds then, or a refusal.

Each case was found by `python -m benchmarks.models.published_fuzz`, which compares with the module.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from meshplan.costmodels.model.config_fields import UnsupportedModel
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.parameters import model_parameters
from meshplan.costmodels.model.towers.parameters import tower_parameters
from meshplan.hardware_profiles.load_models import load_model_config, model_names

PUBLISHED: dict[str, Any] = json.loads(
    Path(__file__).with_name("published_configs.json").read_text()
)
ABSENT = object()


def config_of(name: str) -> dict[str, Any]:
    known = load_model_config(name) if name in model_names() else PUBLISHED[name]["config"]
    return json.loads(json.dumps(known))  # type: ignore[no-any-return]


def changed(name: str, changes: dict[str, object]) -> dict[str, Any]:
    """The file with other values; a dot leads into a section."""
    config = config_of(name)
    for path, value in changes.items():
        *sections, field = path.split(".")
        part = config
        for section in sections:
            part = part[section]
        if value is ABSENT:
            part.pop(field, None)
        else:
            part[field] = value
    return config


def counted(config: dict[str, Any]) -> int:
    model = model_from_config(config, "x")
    tower = tower_parameters(model.tower) if model.tower else 0
    return model_parameters(model).without_mtp + tower


@pytest.mark.parametrize(
    ("name", "changes", "more"),
    [
        pytest.param(
            "exaone-4.0-32b", {"num_key_value_heads": ABSENT, "num_attention_heads": 64},
            64 * 5120 * 128 * (2 * (64 - 40) + 2 * (32 - 8)),
            id="64 layers of 5120 x 128: 24 more query heads (q, o), 32 key heads, not 8 (k, v)",
        ),
        pytest.param(
            "gemma-4-26b-a4b", {"text_config.attention_k_eq_v": False},
            5 * 2816 * 512 * (2 * 8 - 2),
            id="5 full layers: keys and values of 8 heads of 512, not keys of 2",
        ),
        pytest.param(
            "GLM-4.1V-9B", {"text_config.attention_bias": False}, 0, id="always biased"
        ),
        pytest.param(
            "qwen3-next-80b-a3b", {"shared_expert_intermediate_size": 0}, -48 * 3 * 2048 * 512,
            id="48 shared experts of 3 x 2048 x 512; their gates of 2048 stay",
        ),
        pytest.param(
            "Ling-3.0-flash", {"head_dim": 256},
            35 * ((6 * 2560 + 3 * 4 + 1) * 32 * 128 + 128),
            id="35 states of 32 heads of 256: six projections, a convolution, decays, a norm",
        ),
        pytest.param(
            "qwen2.5-vl-7b", {"text_config.tie_word_embeddings": True}, -152064 * 3584,
            id="older files tie in the text part",
        ),
        pytest.param(
            "ernie-4.5-0.3b", {"num_key_value_heads": None}, 18 * 2 * 1024 * 128 * (16 - 2),
            id="null: as many key heads as query heads",
        ),
        pytest.param(
            "seed-oss-36b", {"head_dim": None}, -64 * (2 * 80 + 2 * 8) * 64 * 5120 - 64 * 64 * 96,
            id="null: the hidden size over the heads, 64",
        ),
        pytest.param(
            "qwen3-vl-32b", {"vision_config.deepstack_visual_indexes": ABSENT}, 0,
            id="absent: the class has the three of this file",
        ),
        pytest.param("Falcon-H1-7B", {"mamba_conv_bias": None}, -44 * 3584, id="null is false"),
        pytest.param("Falcon-7B", {"parallel_attn": None}, 32 * 2 * 4544, id="null: a norm more"),
    ],
)  # fmt: skip
def test_parameters_of_a_changed_file(name: str, changes: dict[str, object], more: int) -> None:
    """What the file has more than before, worked by hand and equal to the module's."""
    assert counted(changed(name, changes)) - counted(config_of(name)) == more


@pytest.mark.parametrize(
    ("name", "changes", "field"),
    [
        ("qwen3-235b-a22b", {"num_local_experts": 256}, "num_local_experts"),
        ("Sarvam-105B", {"n_shared_experts": 3}, "n_shared_experts|num_shared_experts"),
        ("Sarvam-30B", {"n_routed_experts": 896}, "n_routed_experts|num_experts"),
        ("hunyuan-a13b", {"intermediate_size": 4096}, "intermediate_size"),
        ("InternLM3-8B", {"attention_bias": True}, "attention_bias|qkv_bias"),
        ("deepseek-v4-flash", {"n_shared_experts": 3}, "n_shared_experts"),
        ("exaone-4.0-32b", {"num_key_value_heads": ABSENT}, "query heads"),
        ("llama-4-scout", {"layer_types": ["chunked_attention"] * 47 + ["moe"]}, "'moe'"),
        (
            "gemma-4-26b-a4b",
            {"text_config.layer_types": ["full_attention"] + ["sliding_attention"] * 29},
            "last layer",
        ),
    ],
)
def test_a_file_that_says_two_things_is_refused(
    name: str, changes: dict[str, object], field: str
) -> None:
    """Two names of one size must agree, and what only one value is built of must have it."""
    with pytest.raises(UnsupportedModel, match=field):
        model_from_config(changed(name, changes), "x")


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("qwen3.5-27b", "deepstack_visual_indexes", [1]),
        ("gemma-4-26b-a4b", "head_dim", ABSENT),
    ],
)
def test_a_tower_that_is_built_otherwise_is_refused(name: str, field: str, value: object) -> None:
    """Qwen3.5's tower joins no inner layers, whatever its file says; Gemma 4's heads are 64 wide
    where a file says nothing, which its other sizes do not give."""
    assert model_from_config(config_of(name), "x").tower
    assert model_from_config(changed(name, {f"vision_config.{field}": value}), "x").tower is None


@pytest.mark.parametrize(
    ("name", "repeated", "otherwise"),
    [
        ("apertus-70b", {"qk_norm": True}, {"post_norm": True}),
        ("exaone-4.0-32b", {"reorder_and_qk_norm": True}, {"reorder_and_qk_norm": "once"}),
        (
            "ernie-4.5-21b-a3b",
            {"moe_capacity": [64, 64, 64], "moe_use_aux_free": True, "moe_gate": "topk"},
            {"moe_gate": "hash"},
        ),
        (
            "hunyuan-a13b",
            {"cla_share_factor": 2, "use_mixed_mlp_moe": True, "num_shared_expert": [1] * 32},
            {"num_shared_expert": [1] * 31 + [2]},
        ),
        (
            "minimax-m2",
            {"layernorm_full_attention_beta": 1.0, "layernorm_mlp_beta": 1.0},
            {"num_shared_experts": 2},
        ),
        (
            "MiniMax-Text-01",
            {"layernorm_linear_attention_alpha": 3.5565588200778455, "postnorm": True},
            {"num_shared_experts": 2},
        ),
    ],
)
def test_what_a_published_file_repeats(
    name: str, repeated: dict[str, object], otherwise: dict[str, object]
) -> None:
    """Fields that say what the modules always have change no size; another value is refused."""
    assert counted(changed(name, repeated)) == counted(config_of(name))
    with pytest.raises(UnsupportedModel, match=next(iter(otherwise))):
        model_from_config(changed(name, otherwise), "x")
