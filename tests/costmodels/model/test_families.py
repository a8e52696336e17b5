"""Families as data, against the modules that transformers builds from their configurations.

`family_configs.json` is made by `python -m benchmarks.models.families`: the configuration of each
family by transformers 5.24, and the parameters of the module on the meta device.
"""

import json
import random
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from benchmarks.models.families import (
    GATES_IN_BLOCKS,
    OUTPUTS_IN_GROUPS,
    VARIANTS,
    WITH_TOWERS,
    our_flops,
)
from meshplan.costmodels.model.config_fields import Fields, UnsupportedModel
from meshplan.costmodels.model.families import FAMILIES
from meshplan.costmodels.model.family import read_family
from meshplan.costmodels.model.hf_config import left_out, model_from_config
from meshplan.costmodels.model.parameters import layer_parameters_per_rank, model_parameters
from meshplan.costmodels.model.rare_parts import rare_parts
from meshplan.costmodels.model.rules.family import lfm_width
from meshplan.costmodels.model.unread_fields import CHANGES_COST
from meshplan.hardware_profiles.load_models import load_model_config

CONFIGS: dict[str, Any] = json.loads(Path(__file__).with_name("family_configs.json").read_text())
PUBLISHED: dict[str, Any] = json.loads(
    Path(__file__).with_name("published_configs.json").read_text()
)
BUFFERS = {"deepseek_v3": 58 * 256, "longcat_flash": -28 * 256 * 2 * 2048 * 6144}
"""DeepSeek-V3's correction biases: tensors of its checkpoint, buffers and no parameters there; and
what LongCat-Flash's module allocates for experts that return their input, and never reads."""
EXACT = sorted(set(CONFIGS) - set(WITH_TOWERS))
READ_BY_ALL = """vocab_size hidden_size num_hidden_layers num_attention_heads n_embd n_embed d_model
    n_head n_heads n_layer n_layers num_layers num_blocks num_heads attention_heads embedding_dim
    max_position_embeddings n_positions n_ctx tie_word_embeddings tie_embedding chunk_size
    mamba_chunk_size block_size conv_kernel expand time_step_rank ffn_round_up_to_multiple_of
    learned_pos_emb max_seq_len n_head_kv experts_per_token no_bias alibi
    intermediate_multiple_size _sliding_window_pattern no_rope_layer_interval"""


@pytest.mark.parametrize("name", EXACT)
def test_parameters_are_those_of_the_real_module(name: str) -> None:
    """Exact to the parameter; modules of multi-token prediction, which it leaves out, apart."""
    model = model_from_config(CONFIGS[name]["config"], name)
    counted = model_parameters(model).without_mtp - BUFFERS.get(name, 0)
    assert counted == CONFIGS[name]["parameters"]


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_files_as_they_were_published_have_the_published_size(name: str) -> None:
    """Older names of fields, lists left to a rule: the total of the module that transformers builds
    of the file (`benchmarks.models.published`), or to the last digit that its publisher prints."""
    entry = PUBLISHED[name]
    counted = model_parameters(model_from_config(entry["config"], name)).without_mtp
    if "parameters" in entry:
        assert counted == entry["parameters"]
    else:
        digits = Decimal(entry["published"]).as_tuple().exponent
        assert isinstance(digits, int)
        assert abs(counted - float(entry["published"])) < 10.0**digits
    towers = ("vision tower",) if "vision_config" in entry["config"] else ()
    assert left_out(entry["config"]) == towers


@pytest.mark.parametrize("name", WITH_TOWERS)
def test_towers_are_named_as_left_out(name: str) -> None:
    """What a multimodal configuration has beside its language model is said, not counted."""
    config = CONFIGS[name]["config"]
    assert model_parameters(model_from_config(config, name)).total < CONFIGS[name]["parameters"]
    assert any("tower" in words for words in left_out(config))


@pytest.mark.parametrize("name", EXACT)
def test_ranks_hold_a_layer_together(name: str) -> None:
    """One rank holds all of a layer; eight hold at least all of it, none of them more than one."""
    model = model_from_config(CONFIGS[name]["config"], name)
    for kind in model.kinds:
        alone = layer_parameters_per_rank(model, kind, 1)
        split = layer_parameters_per_rank(model, kind, 8)
        assert alone.dense >= split.dense >= alone.dense / 8 - 1e-6
        assert alone.expert == split.expert


COUNTED = [
    name for name in EXACT if "weight_flops" in CONFIGS[name] and name not in GATES_IN_BLOCKS
]


def flops_of(name: str) -> tuple[float, float, bool]:
    """Forward FLOPs of products with weights and of all others; whether there is a state too."""
    return our_flops(model_from_config(CONFIGS[name]["config"], name))


@pytest.mark.few(60)
@pytest.mark.parametrize("name", COUNTED)
def test_flops_are_those_that_torch_counts(name: str) -> None:
    """Products with weights within 0.1 % of torch's FLOP counter; attention too, where no state
    adds products of its own."""
    weights, attention, has_state = flops_of(name)
    if name in OUTPUTS_IN_GROUPS:
        counted = CONFIGS[name]["weight_flops"] + CONFIGS[name]["other_flops"]
        assert weights + attention == pytest.approx(counted, rel=1e-3)
        return
    assert weights == pytest.approx(CONFIGS[name]["weight_flops"], rel=1e-3)
    if not has_state and CONFIGS[name]["other_flops"]:
        assert attention == pytest.approx(CONFIGS[name]["other_flops"], rel=1e-3)


@pytest.mark.parametrize(
    ("stated", "width"),
    [
        pytest.param({"block_auto_adjust_ff_dim": False}, 900, id="as stated"),
        pytest.param({}, 768, id="2/3 of it, 600, up to 3 x 256"),
        pytest.param({"block_ffn_dim_multiplier": 1.5}, 1024, id="1.5 x 600 = 900, up to 4 x 256"),
        pytest.param({"block_multiple_of": 100}, 600, id="6 x 100"),
    ],
)
def test_width_of_lfm2_by_hand(stated: dict[str, Any], width: int) -> None:
    """A stated width of 900."""
    assert lfm_width(Fields({"intermediate_size": 900, **stated}, "lfm2")) == width


def test_most_families_are_counted() -> None:
    """The oracle is no empty one."""
    assert len(COUNTED) > 130


def test_what_families_read_is_what_changes_cost() -> None:
    """Every field that a family asks for is on the list, so another family refuses it unread."""
    asked: set[str] = set()
    for name, entry in CONFIGS.items():
        config = entry["config"].get("text_config", entry["config"])
        fields = Fields(config, name)
        read_family(FAMILIES[config["model_type"]], fields)
        asked |= fields.asked & set(config)
    assert asked - CHANGES_COST - set(READ_BY_ALL.split()) == set()


MADE_UP = {
    "bailing_hybrid": {"linear_head_dim"},
    "dots3_note_text": {"layer_types", "per_layer_config"},
    "gemma4_text, varied": {"per_layer_config"},
    "qwen2_5_omni_text": {"tie_word_embeddings"},
    "qwen3_vl_moe_text": {"tie_word_embeddings"},
}
"""What a class makes up where a file has none: of fields that it does not write back, and Bailing's
width of states, of the `head_dim` that it overwrites afterwards; and what the whole file says of a
text part, not its own class."""


def fields_left_out(name: str) -> Iterator[set[str]]:
    """Each field of a family's defaults alone, with all lists, and three drawn sets of fields."""
    config = CONFIGS[name]["config"]
    varied = VARIANTS[config["model_type"]] if "varied" in name else {}
    fields = sorted(set(config) - MADE_UP.get(name, set()) - {"model_type", *varied})
    lists = {field for field in fields if isinstance(config[field], list)}
    yield from ({field} for field in fields)
    if lists:
        yield from ({field, *lists} for field in fields)
    draw = random.Random(name)
    yield from (set(draw.sample(fields, draw.randrange(2, len(fields)))) for _ in range(3))


@pytest.mark.few(48)
@pytest.mark.parametrize("name", EXACT)
def test_fields_that_are_left_out_mean_what_their_class_says(name: str) -> None:
    """The same parameters as with all fields or a refusal, never another model."""
    config = CONFIGS[name]["config"]
    whole = model_parameters(model_from_config(config, name)).without_mtp
    for fields in fields_left_out(name):
        try:
            dropped = model_from_config({k: v for k, v in config.items() if k not in fields}, name)
        except UnsupportedModel:
            continue
        assert model_parameters(dropped).without_mtp == whole, fields


@pytest.mark.parametrize(
    ("name", "changes", "field"),
    [
        ("llama", {"kv_lora_rank": 512}, "kv_lora_rank"),
        ("llama", {"num_experts": 8}, "num_experts"),
        ("mistral", {"use_qk_norm": True}, "use_qk_norm"),
        ("qwen3_moe", {"index_topk": 2048}, "index_topk"),
        ("qwen3_moe", {"n_shared_experts": 1}, "n_shared_experts"),  # its layers have experts
        ("olmo3", {"mlp_bias": True}, "mlp_bias"),
        ("llama", {"attn_output_gate": True}, "attn_output_gate"),  # Qwen3.5's
        ("llama", {"qk_head_dim": 96}, "qk_head_dim"),
        ("llama", {"index_topk_blocks": 16}, "index_topk_blocks"),
        ("mistral", {"block_use_swiglu": True}, "block_use_swiglu"),
        ("qwen3", {"use_cross_layer_attention": True}, "use_cross_layer_attention"),
        ("llama", {"num_memory_layers": 4}, "num_memory_layers"),  # no family's
        ("llama", {"hyper_connections": {"streams": 4}}, "hyper_connections"),
        ("llama", {"lora_adapters": ["a"]}, "lora_adapters"),
    ],
)
def test_a_field_that_is_not_read_is_refused(
    name: str, changes: dict[str, Any], field: str
) -> None:
    """A field that changes cost elsewhere and that this family leaves unread is named."""
    with pytest.raises(UnsupportedModel, match=f"'{field}' is not read for model_type '{name}'"):
        model_from_config(CONFIGS[name]["config"] | changes, name)


@pytest.mark.parametrize(
    ("name", "left_out", "changes", "windows"),
    [
        pytest.param("exaone4", "layer_types", {"sliding_window_pattern": "LLG"},
                     [True, True, False, True, True, False, True, False],
                     id="EXAONE 4: LLG repeats, the last of eight sees all"),
        pytest.param("gpt_neo", "attention_layers", {"attention_types": [[["global", "local"], 4]]},
                     [False, True] * 4, id="GPT-Neo: a pair four times"),
    ],
)  # fmt: skip
def test_words_that_repeat(
    name: str, left_out: str, changes: dict[str, Any], windows: list[bool]
) -> None:
    """Which of eight layers have a window, where the file says how a pattern repeats."""
    stated = CONFIGS[name]["config"]
    layers = "num_layers" if "num_layers" in stated else "num_hidden_layers"
    config = {key: value for key, value in stated.items() if key != left_out}
    model = model_from_config(config | changes | {layers: 8}, name)
    assert [model.kinds[kind].attention.window is not None for kind in model.pattern] == windows


def test_widths_that_differ_are_a_rare_part() -> None:
    """Llama-Nemotron's blocks: one number does not say their widths, so exports name them."""
    one = model_from_config(CONFIGS["llama"]["config"], "")
    several = model_from_config(PUBLISHED["Llama-Nemotron-Super-49B"]["config"], "")
    assert len({kind.ffn for kind in several.kinds if kind.ffn}) > 1
    assert "dense feed-forwards of several widths" in rare_parts(several)
    assert "dense feed-forwards of several widths" not in rare_parts(one)


def test_a_second_embedding_keeps_its_own_rows() -> None:
    """Gemma 4 with half its vocabulary: 131,072 x 2,304 fewer, its layers' table as it was."""
    config = {**CONFIGS["gemma4_text"]["config"], "vocab_size": 131072}
    del config["vocab_size_per_layer_input"]
    fewer = 131072 * config["hidden_size"]
    counted = model_parameters(model_from_config(config, "")).total
    assert counted == CONFIGS["gemma4_text"]["parameters"] - fewer


def test_an_unknown_field_is_named() -> None:
    """A field in no list whose name does not speak of layers is in the warning; off is off."""
    config = CONFIGS["llama"]["config"] | {"my_note": 3, "use_moe": False, "_id": 4, "z_loss": 1}
    assert left_out(config) == ("field 'my_note', which is not understood,",)


@pytest.mark.parametrize("name", EXACT)
def test_defaults_leave_nothing_unexplained(name: str) -> None:
    """No configuration of transformers itself draws the warning."""
    assert [words for words in left_out(CONFIGS[name]["config"]) if "field" in words] == []


@pytest.mark.parametrize(
    ("model", "changes", "said"),
    [
        ("minimax-m2", {"qk_norm_type": "per_head"}, "qk_norm_type is not per_layer"),
        ("minimax-m2", {"use_qk_norm": False}, "use_qk_norm is false"),
        ("minimax-m2", {"mtp_transformer_layers": 2}, "mtp_transformer_layers other than 1"),
        ("mimo-v2-flash", {"hybrid_layer_pattern": [0, 1]}, "hybrid_layer_pattern is not a list"),
        ("mimo-v2-flash", {"moe_layer_freq": [2] * 48}, "moe_layer_freq is not a list of 48"),
        ("glm-5", {"index_topk_pattern": "FFX"}, "index_topk_pattern has another letter"),
        ("qwen3-30b-a3b", {"use_qk_norm": False}, "use_qk_norm is false"),
        ("phi-3.5-moe", {"num_experts_per_tok": 3}, "num_experts_per_tok is 3, but Phi-3.5-MoE's"),
    ],
)
def test_what_a_file_says_again_must_agree(model: str, changes: dict[str, Any], said: str) -> None:
    """Published files repeat what their family's code has; another value is another model."""
    with pytest.raises(UnsupportedModel, match=said):
        model_from_config(load_model_config(model) | changes, model)


def test_two_modules_that_are_one_are_refused() -> None:
    """EXAONE 4.5 has one module of multi-token prediction, so that it is shared means nothing."""
    config = PUBLISHED["EXAONE-4.5"]["config"]
    assert model_from_config(config, "x").mtp_layers == 1
    with pytest.raises(UnsupportedModel, match="mtp_share_layers"):
        model_from_config(config | {"num_nextn_predict_layers": 2}, "x")


def test_one_layer_in_four_has_an_indexer() -> None:
    """GLM-5.2's `index_topk_freq` 4 and offset 3: the first three, then each fourth, as its file
    lists them too; 6144 x 128 + 2048 x 32 x 128 + 2 x 128 + 6144 x 32 numbers in each."""
    config = load_model_config("glm-5")
    fewer = {"index_topk_freq": 4, "index_skip_topk_offset": 3}
    model = model_from_config(config | fewer, "x")
    own = [bool(kind.attention.indexer and kind.attention.indexer.heads)
           for kind in (model.kinds[at] for at in model.pattern)]  # fmt: skip
    assert own == [i < 3 or (i - 2) % 4 == 0 for i in range(78)]
    each = 6144 * 128 + 2048 * 32 * 128 + 2 * 128 + 6144 * 32
    whole = model_parameters(model_from_config(config, "x")).without_mtp
    assert whole - model_parameters(model).without_mtp == own.count(False) * each


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("Laguna-S-2.1", "gating_types", ["per_head"] * 47 + ["per_element"]),
        ("SantaCoder", "use_cla", True),
        ("StarCoder2-7B", "mlp_type", "gated"),
        ("Trinity-Nano", "num_expert_groups", 8),
        ("Mamba-2.8B", "rms_norm", "layer"),
        ("RecurrentGemma-2B", "embeddings_scale_by_sqrt_dim", "twice"),
    ],
)
def test_what_repeats_the_code_must_agree_with_it(name: str, field: str, value: object) -> None:
    """A published file's field that says again what its family always has: any other value is
    another model."""
    config = PUBLISHED[name]["config"] | {field: value}
    with pytest.raises(UnsupportedModel, match=field):
        model_from_config(config, "x")


def test_two_names_of_one_width_must_agree() -> None:
    """Hy3 states the experts' width twice."""
    config = load_model_config("hy3-preview")
    with pytest.raises(UnsupportedModel, match="expert_hidden_dim"):
        model_from_config(config | {"expert_hidden_dim": 1537}, "x")


def test_modules_that_are_not_used_are_not_counted() -> None:
    """MiniMax-M2's file has three modules of multi-token prediction, unless `use_mtp` is false."""
    config = load_model_config("minimax-m2")
    layers = [
        model_from_config(config | {"use_mtp": told}, "x").mtp_layers for told in (True, False)
    ]
    assert layers == [3, 0]


def test_experts_beside_a_dense_feed_forward() -> None:
    """Gemma 4 26B-A4B: 128 experts of 704 beside 2112 in each of 30 layers, with three norms, a
    scale and one number for each expert: 30 (128 x (3 x 2816 x 704 + 2816 + 1) + 4 x 2816)."""
    config = load_model_config("gemma-4-26b-a4b")
    off = {"enable_moe_block": False, "num_experts": None, "top_k_experts": None}
    text = config["text_config"] | off | {"moe_intermediate_size": None}  # type: ignore[operator]
    dense = config | {"text_config": text}
    counts = [model_parameters(model_from_config(each, "x")).total for each in (config, dense)]
    assert counts[0] - counts[1] == 30 * (128 * (3 * 2816 * 704 + 2816 + 1) + 4 * 2816)


ERNIE: dict[str, Any] = {
    "model_type": "ernie4_5_moe", "hidden_size": 64, "intermediate_size": 160,
    "moe_intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 128, "moe_num_experts": 4, "moe_k": 2,
    "moe_num_shared_experts": 1, "moe_layer_start_index": 1, "use_bias": False,
    "tie_word_embeddings": True,
}  # fmt: skip


def test_a_module_of_ernie_is_a_dense_layer() -> None:
    """q, k, v, o of 64 x (64 + 32 + 32 + 64); three products of 64 x 160; two norms; the 128 x 64
    projection and its three norms.
    """
    without = model_parameters(model_from_config(ERNIE, "e")).total
    one = ERNIE | {"num_nextn_predict_layers": 1}
    module = model_parameters(model_from_config(one, "e")).total - without
    assert module == 64 * 192 + 3 * 64 * 160 + 2 * 64 + 128 * 64 + 3 * 64


def test_the_language_model_of_internvl_is_read_without_its_tower() -> None:
    text = {"model_type": "qwen2", "hidden_size": 64, "intermediate_size": 160, "vocab_size": 128,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "tie_word_embeddings": True}  # fmt: skip
    whole = {"model_type": "internvl_chat", "llm_config": text, "vision_config": {"depth": 2}}
    alone = model_from_config(text | {"tie_word_embeddings": False}, "t")
    assert model_parameters(model_from_config(whole, "i")) == model_parameters(alone)
    tied = whole | {"tie_word_embeddings": True}  # the whole decides
    assert model_from_config(tied, "i").tied
    assert left_out(whole) == ("vision tower",)
    with pytest.raises(UnsupportedModel, match="llm_config"):
        model_from_config({"model_type": "internvl_chat"}, "i")
