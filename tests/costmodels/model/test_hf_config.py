"""Reading config.json: what each family becomes, and one clear line for all that is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.models.published import family_of
from meshplan.costmodels.model.config_fields import MAX_COUNT, MAX_LAYERS, UnsupportedModel
from meshplan.costmodels.model.families.remote import REMOTE
from meshplan.costmodels.model.hf_config import FAMILIES, left_out, model_from_config
from meshplan.costmodels.model.parameters import model_parameters
from meshplan.costmodels.model.transformer import Attention, Model
from meshplan.hardware_profiles.load_models import load_model_config, model_names

CONFIGS = {name: load_model_config(name) for name in model_names()}


def model(name: str, **changes: Any) -> Model:
    return model_from_config(CONFIGS[name] | changes, name)


def windows(model: Model) -> list[int | None]:
    return [model.kinds[kind].attention.window for kind in model.pattern]


@pytest.mark.parametrize(
    ("name", "named", "says"),
    [
        pytest.param("llama-3.1-8b", "Qwen3MoeForCausalLM", True, id="another family's"),
        pytest.param("llama-3.1-8b", "OwnLlamaForCausalLM", True, id="code of its own"),
        pytest.param("llama-3.1-8b", "MistralForCausalLM", False, id="which reads the same"),
        pytest.param("llama-3.1-8b", "LlamaForSequenceClassification", False, id="its own"),
        pytest.param("kimi-k2", "DeepseekV3ForCausalLM", False, id="as published"),
        pytest.param("hunyuan-7b", "HunYuanDenseV1ForCausalLM", False, id="in another order"),
    ],
)
def test_a_class_of_another_name_is_said(name: str, named: str, says: bool) -> None:
    """`model_type` decides, as in transformers; that `architectures` differs is a warning."""
    said = left_out(CONFIGS[name] | {"architectures": [named]})
    assert any(named in words for words in said) == says


def test_no_published_file_names_another_class() -> None:
    """Of all that the catalogue holds: the warning is for odd files alone."""
    assert not [name for name, each in CONFIGS.items() if any("class" in w for w in left_out(each))]


# What families become


def test_every_family_is_in_the_catalogue_or_counted() -> None:
    """Each entry of the table is exercised by a catalogue model or by transformers' own count."""
    here = Path(__file__)
    files = (here.with_name(f"{kind}_configs.json") for kind in ("family", "published", "tower"))
    counted = [each for file in files for each in json.loads(file.read_text()).values()]
    types = {family_of(each["config"]) for each in counted}
    types |= {str(config["model_type"]) for config in CONFIGS.values()}
    # text parts' names; test_inkling.py; test_remote_families.py
    others = {"llama4", "gemma3", "step3_vl", "inkling_mm_model", "inkling_model", *REMOTE}
    assert set(FAMILIES) - types == others


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("mistral-7b", [None] * 32, id="mistral v0.3: none"),
        pytest.param("gpt-oss-20b", [128, None] * 12, id="gpt-oss: every other layer"),
        pytest.param("gemma-2-2b", [4096, None] * 13, id="gemma 2: every other layer"),
        pytest.param(
            "gemma-3-1b", ([512] * 5 + [None]) * 4 + [512] * 2, id="gemma 3: five of six, 26 layers"
        ),
        pytest.param(
            "llama-4-scout", ([8192] * 3 + [None]) * 12, id="llama 4: three of four, in chunks"
        ),
        pytest.param("phi-3-mini", [2047] * 32, id="phi 3: all"),
    ],
)
def test_windows(name: str, expected: list[int | None]) -> None:
    """Families differ in which of their layers see only a window of the sequence."""
    assert windows(model(name)) == expected


def test_qwen_slides_from_max_window_layers_on() -> None:
    """Qwen has a sliding window only when told so, and only on its upper layers."""
    on = model("qwen2.5-7b", use_sliding_window=True, sliding_window=1024, max_window_layers=20)
    assert windows(on) == [None] * 20 + [1024] * 8
    assert windows(model("qwen2.5-7b", sliding_window=1024)) == [None] * 28


def test_values_are_as_wide_as_keys_where_the_family_says_nothing() -> None:
    """Llama's class does not know `v_head_dim`; MiMo's has it."""
    assert model("llama-3.1-8b", v_head_dim=128) == model("llama-3.1-8b")
    with pytest.raises(UnsupportedModel, match="v_head_dim 64 is not head_dim 128"):
        model("llama-3.1-8b", v_head_dim=64)
    assert model("mimo-v2-flash").kinds[0].attention.v_head_dim == 128


def test_layer_types_win_over_the_pattern() -> None:
    """A configuration that lists its layers' attention is believed."""
    types = ["full_attention"] * 25 + ["sliding_attention"]
    assert windows(model("gemma-2-2b", layer_types=types)) == [None] * 25 + [4096]


def test_llama_4_interleaves() -> None:
    """Maverick routes every second layer, Scout all; a shared expert is as wide as a routed one."""
    maverick = model("llama-4-maverick")
    routed = [maverick.kinds[kind].experts is not None for kind in maverick.pattern]
    assert routed == [False, True] * 24
    assert {kind.ffn for kind in maverick.kinds} == {0, 16384}
    scout = model("llama-4-scout")
    assert all(kind.experts and kind.experts.shared_ffn == 8192 for kind in scout.kinds)
    assert {kind.attention.chunked for kind in scout.kinds} == {True, False}


def test_qwen_moe_dense_layers() -> None:
    """Every `decoder_sparse_step`-th layer is routed, but for those listed as dense."""
    moe = model("qwen3-30b-a3b", decoder_sparse_step=2, mlp_only_layers=[1, 3])
    routed = [i for i, kind in enumerate(moe.pattern) if moe.kinds[kind].experts]
    assert routed == list(range(5, 48, 2))


def test_deepseek_v3_layers() -> None:
    """Three dense layers lead, then 58 routed ones with one shared expert; one MTP module."""
    v3 = model("deepseek-v3")
    assert v3.runs == ((0, 3), (1, 58))
    assert v3.kinds[0].ffn == 18432
    experts = v3.kinds[1].experts
    assert experts is not None
    assert (experts.experts, experts.top_k, experts.shared_ffn) == (256, 8, 2048)
    assert experts.router_bias
    assert v3.mtp_layers == 1
    assert v3.kinds[0].attention == Attention(
        heads=128,
        kv_heads=128,
        head_dim=192,
        v_head_dim=128,
        q_lora_rank=1536,
        kv_lora_rank=512,
        rope_head_dim=64,
    )


def test_a_config_that_transformers_5_wrote() -> None:
    """Newer files rename a few fields and leave out those that have one value only."""
    renamed = {"num_experts": None, "num_local_experts": 128}
    assert model("qwen3-30b-a3b", **renamed) == model("qwen3-30b-a3b")
    renamed = {"num_nextn_predict_layers": None, "num_mtp_layers": 1}
    config = {key: value for key, value in CONFIGS["deepseek-v3"].items() if key != "topk_method"}
    assert model_from_config(config | renamed, "deepseek-v3") == model("deepseek-v3")


def test_deepseek_without_experts_is_dense() -> None:
    """A null `n_routed_experts` means dense layers throughout."""
    assert not model("deepseek-v2", n_routed_experts=None).is_moe


@pytest.mark.parametrize(
    ("name", "traits"),
    [
        ("llama-3.1-8b", {"gated": True, "norm": "rmsnorm", "tied": False, "bias": False}),
        ("llama-3.2-1b", {"tied": True}),
        ("gemma-2-9b", {"norms_per_layer": 4, "tied": True}),
        ("gpt3-175b", {"gated": False, "norm": "layernorm", "bias": True, "tied": True}),
        ("gpt3-13b", {"learned_positions": 2048}),
        ("gpt-neox-20b", {"parallel_blocks": True, "gated": False, "tied": False}),
        ("mpt-7b", {"gated": False, "bias": False, "learned_positions": 0, "tied": True}),
        ("bloom-176b", {"embedding_norm": True, "learned_positions": 0}),
        ("nemotron-4-340b", {"gated": False, "bias": False, "norm": "layernorm"}),
    ],
)
def test_traits(name: str, traits: dict[str, object]) -> None:
    """Families differ in gates, norms, biases, positions and whether the head is tied."""
    read = model(name)
    assert {trait: getattr(read, trait) for trait in traits} == traits


def test_qkv_and_qk_norm_traits() -> None:
    """Qwen2 has query/key/value biases only; Qwen3 and OLMo 2 have norms instead."""
    qwen2, qwen3 = model("qwen2.5-7b").kinds[0].attention, model("qwen3-8b").kinds[0].attention
    assert (qwen2.qkv_bias, qwen2.out_bias, qwen2.qk_norm) == (True, False, "none")
    assert (qwen3.qkv_bias, qwen3.head_dim, qwen3.qk_norm) == (False, 128, "head")
    assert model("olmo-2-7b").kinds[0].attention.qk_norm == "full"
    assert model("gpt-oss-20b").kinds[0].attention.sinks


def test_mpt_variants() -> None:
    """Without ALiBi MPT learns its positions; with biases it has them in the norms too."""
    learned = model("mpt-7b", attn_config={"alibi": False}, no_bias=False)
    assert learned.learned_positions == 2048
    assert (learned.bias, learned.norm) == (True, "layernorm")
    assert model("mpt-7b", attn_config={"kv_n_heads": 8}).kinds[0].attention.kv_heads == 8


def test_mobilellm_r1_is_llama_4_without_experts() -> None:
    """MobileLLM-R1-950M by hand: 22 layers, 24 heads over 6 of 64, a tied head."""
    config = {
        "model_type": "llama4_text", "hidden_size": 1536, "intermediate_size": 6144,
        "intermediate_size_mlp": 6144, "num_hidden_layers": 22, "num_attention_heads": 24,
        "num_key_value_heads": 6, "head_dim": 64, "vocab_size": 128256, "use_qk_norm": True,
        "tie_word_embeddings": True, "num_local_experts": 0, "num_experts_per_tok": 0,
        "interleave_moe_layer_step": 0, "moe_layers": [],
    }  # fmt: skip
    layer = 2 * 1536 * (24 + 6) * 64 + 3 * 1536 * 6144 + 2 * 1536
    total = 22 * layer + 1536 + 128256 * 1536
    assert model_parameters(model_from_config(config, "x")).total == total


def test_fields_of_phi_4_mini_that_say_what_all_layers_have() -> None:
    """3.84 billion parameters, as published; a stride of full attention that says otherwise is
    refused.
    """
    config = {
        "model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192,
        "num_attention_heads": 24, "num_key_value_heads": 8, "num_hidden_layers": 32,
        "vocab_size": 200064, "tie_word_embeddings": True, "lm_head_bias": False,
        "sliding_window": 262144, "full_attn_mod": 1, "interpolate_factor": 1,
        "partial_rotary_factor": 0.75,
    }  # fmt: skip
    assert model_parameters(model_from_config(config, "x")).total == 3_836_021_760
    with pytest.raises(UnsupportedModel, match="'full_attn_mod' is not read"):
        model_from_config(config | {"full_attn_mod": 4}, "x")


# Refusals


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ([1, 2], "an object, not a list"),
        ({}, "'model_type' is missing"),
        ({"model_type": 7}, "'model_type' is missing"),
        ({"model_type": "t5"}, "'t5' is not priced: an encoder-decoder"),
        ({"model_type": "zamba2"}, "is used by several layers"),
        ({"model_type": "diffllama"}, "two softmaxes for each head"),
        ({"model_type": "llama", "is_encoder_decoder": True}, "encoder-decoder"),
        ({"model_type": "qwen3_moon"}, "close names: qwen3_moe"),
        ({"model_type": "qwen3_moon"}, "meshplan models CONFIG --trace"),
        ({"model_type": "gemma3", "text_config": 3}, "text_config is 3, not an object"),
    ],
)
def test_refused_by_name(config: object, words: str) -> None:
    """A family that is not priced is refused with its name and the reason."""
    with pytest.raises(UnsupportedModel, match=words):
        model_from_config(config, "x")


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("llama-3.1-8b", {"hidden_size": None}, "'hidden_size' or 'n_embd'.* is missing"),
        ("llama-3.1-8b", {"hidden_size": "4096"}, "hidden_size is '4096', not a whole number"),
        ("llama-3.1-8b", {"hidden_size": 4096.5}, "hidden_size is 4096.5, not a whole number"),
        ("llama-3.1-8b", {"hidden_size": True}, "hidden_size is True, not a whole number"),
        ("llama-3.1-8b", {"vocab_size": 0}, "vocab_size is 0, not between 1"),
        ("llama-3.1-8b", {"vocab_size": MAX_COUNT + 1}, "vocab_size is 2147483648, not between"),
        ("llama-3.1-8b", {"vocab_size": 10**5000}, "vocab_size is a number of 16610 bits"),
        ("llama-3.1-8b", {"num_hidden_layers": MAX_LAYERS + 1}, "10001 layers; at most 10000"),
        ("llama-3.1-8b", {"num_key_value_heads": 5}, "32 does not divide by 5"),
        ("llama-3.1-8b", {"num_attention_heads": 24}, "4096 does not divide by 24"),
        ("llama-3.1-8b", {"tie_word_embeddings": "yes"}, "'yes', not true or false"),
        ("gpt-oss-20b", {"layer_types": ["full_attention"]}, "names 1 layers of 24"),
        ("gpt-oss-20b", {"layer_types": ["linear_attention"] * 24}, "with a state"),
        ("gpt-oss-20b", {"layer_types": 3}, "layer_types is 3, not a list of words"),
        ("qwen3-30b-a3b", {"mlp_only_layers": ["a"]}, "not a list of whole numbers"),
        ("mixtral-8x7b", {"num_experts_per_tok": 9}, "9 experts per token, but only 8"),
        ("deepseek-v3", {"attention_bias": True}, "attention_bias with latent attention"),
        ("mpt-7b", {"attn_config": {"qk_ln": True}}, "qk_ln"),
        ("gemma-3-1b", {"use_bidirectional_attention": True}, "causal attention is"),
    ],
)
def test_field_refused(name: str, changes: dict[str, object], words: str) -> None:
    """A missing, ill-typed, out-of-range or contradictory field is named with its value."""
    with pytest.raises(UnsupportedModel, match=words) as refusal:
        model(name, **changes)
    assert str(refusal.value).startswith(f"{name}: ")


def test_catalogue_is_json_that_stands_alone() -> None:
    """Each file says where it is from, which family it is, and survives a round trip."""
    for name, config in CONFIGS.items():
        assert isinstance(config["_source"], str), name
        assert isinstance(config["architectures"], list), name
        assert json.loads(json.dumps(config)) == config


def test_a_hybrid_family_without_recurrent_layers_ignores_their_fields() -> None:
    """ibm-granite/granite-4.0-micro: attention on all layers, and Mamba's sizes beside them.

    Its embedding 100352 x 2560 is tied; a layer has q and o of 2560 x 2560, k and v of 2560 x 512,
    a gated feed-forward of 3 x 2560 x 8192 and two norms; one norm ends it.
    """
    config = {
        "model_type": "granitemoehybrid", "hidden_size": 2560, "intermediate_size": 8192,
        "shared_intermediate_size": 8192, "num_local_experts": 0, "num_experts_per_tok": 0,
        "num_hidden_layers": 40, "layer_types": ["attention"] * 40, "num_attention_heads": 40,
        "num_key_value_heads": 8, "vocab_size": 100352, "tie_word_embeddings": True,
        "mamba_n_heads": 128, "mamba_d_head": 64, "mamba_d_state": 256, "mamba_d_conv": 4,
        "mamba_expand": 2, "mamba_n_groups": 1, "mamba_chunk_size": 256, "mamba_conv_bias": True,
    }  # fmt: skip
    layer = 2 * 2560 * 2560 + 2 * 2560 * 512 + 3 * 2560 * 8192 + 2 * 2560
    by_hand = 100352 * 2560 + 40 * layer + 2560
    assert model_parameters(model_from_config(config, "micro")).total == by_hand == 3_402_836_480


HUNYUAN = {
    "model_type": "hunyuan_v1_dense", "hidden_size": 1024, "num_hidden_layers": 24,
    "intermediate_size": 3584, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 128, "vocab_size": 120818, "tie_word_embeddings": True, "num_experts": 1,
}  # fmt: skip


def test_one_expert_is_a_feed_forward() -> None:
    """Hunyuan's dense files say so: 539.0 million, as transformers counts (and 120,818 x 1,024 +
    24 x (6,291,456 + 11,010,048 + 2 x 1,024 + 2 x 128) + 1,024); two experts are refused.
    """
    each = 6_291_456 + 11_010_048 + 2 * 1024 + 2 * 128
    count = model_parameters(model_from_config(HUNYUAN, "hunyuan-0.5b"))
    assert count.total == 120_818 * 1024 + 24 * each + 1024 == 539_010_048
    with pytest.raises(UnsupportedModel, match="num_experts"):
        model_from_config(HUNYUAN | {"num_experts": 2}, "two")


def test_llama_4_reads_chunks_of_its_class() -> None:
    """Llama4TextConfig's 8,192 tokens, where a file leaves them out."""
    config = CONFIGS["llama-4-scout"]
    without = {key: value for key, value in config.items() if key != "attention_chunk_size"}
    assert model_from_config(without, "x") == model_from_config(config, "x")


def test_an_infinite_size_is_shown_as_one() -> None:
    """As the loader writes what Python reads of `Infinity`."""
    infinite = {"hidden_size": {"__float__": "Infinity"}}
    with pytest.raises(UnsupportedModel, match="hidden_size is 'Infinity', not a whole number"):
        model("llama-3.1-8b", **infinite)
