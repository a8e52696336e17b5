"""Families whose code lies beside their weights, against the parameters that their makers publish.

Fields are those of the published `config.json`; figures: RWKV-7, 2503.14456 table of models (and
its formula, 2 D V + 4 D + L D (12 D + 2 (w + a + v + g) + 19) - (2 D v + D)); Hugging Face's count
of the checkpoints of MiniMax-Text-01, Hunyuan-A13B and Qwen-7B; 2411.02265 (389 and 52 billion),
2507.19427 (316 and 38 billion).
"""

from typing import Any

import pytest

from meshplan.costmodels.model.config_fields import UnsupportedModel
from meshplan.costmodels.model.hf_config import left_out, model_from_config
from meshplan.costmodels.model.parameters import active_parameters, model_parameters

MINIMAX: dict[str, Any] = {
    "model_type": "minimax_text_01", "attn_type_list": ([0] * 7 + [1]) * 10, "head_dim": 128,
    "hidden_size": 6144, "intermediate_size": 9216, "layernorm_mlp_alpha": 3.5565588200778455,
    "num_attention_heads": 64, "num_experts_per_tok": 2, "num_hidden_layers": 80,
    "num_key_value_heads": 8, "num_local_experts": 32, "postnorm": True, "rotary_dim": 64,
    "shared_intermediate_size": 0, "shared_moe_mode": "sigmoid", "tie_word_embeddings": False,
    "vocab_size": 200064,
}  # fmt: skip
HUNYUAN: dict[str, Any] = {
    "model_type": "hunyuan", "hidden_size": 6400, "num_hidden_layers": 64,
    "num_attention_heads": 80, "num_key_value_heads": 8, "intermediate_size": 18304,
    "moe_topk": 1, "num_experts": 16, "num_shared_expert": 1, "use_mixed_mlp_moe": True,
    "use_cla": True, "cla_share_factor": 2, "use_qk_norm": True, "vocab_size": 128512,
    "tie_word_embeddings": True, "norm_type": "rms",
}  # fmt: skip
A13B = HUNYUAN | {
    "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_experts": 64,
    "intermediate_size": 3072, "moe_topk": [8] * 32, "num_shared_expert": [1] * 32,
    "moe_intermediate_size": [3072] * 32, "attention_head_dim": 128, "use_cla": False,
    "vocab_size": 128167, "moe_layer_num_skipped": 0,
}  # fmt: skip
STEP3: dict[str, Any] = {
    "model_type": "step3_vl",
    "text_config": {
        "hidden_size": 7168, "intermediate_size": 18432, "num_attention_heads": 64,
        "num_attention_groups": 1, "num_hidden_layers": 61, "vocab_size": 128815,
        "moe_intermediate_size": 5120, "moe_num_experts": 48, "moe_top_k": 3, "head_dim": 256,
        "share_expert_dim": 5120, "share_q_dim": 2048, "norm_expert_weight": False,
        "max_position_embedding": 65536, "moe_layers_enum": ",".join(map(str, range(4, 60))),
    },
    "vision_config": {"hidden_size": 1792},
}  # fmt: skip
QWEN: dict[str, Any] = {
    "model_type": "qwen", "hidden_size": 4096, "intermediate_size": 22016, "kv_channels": 128,
    "no_bias": True, "num_attention_heads": 32, "num_hidden_layers": 32, "vocab_size": 151936,
    "tie_word_embeddings": False, "use_dynamic_ntk": True, "use_logn_attn": True,
}  # fmt: skip


def _rwkv7(hidden: int, layers: int, *ranks: int) -> dict[str, Any]:
    decay, step, value, gate = ranks
    return {
        "model_type": "rwkv7", "attn": None, "attn_mode": "chunk", "hidden_size": hidden,
        "num_hidden_layers": layers, "head_dim": 64, "num_heads": 32, "hidden_ratio": 4.0,
        "intermediate_size": None, "decay_low_rank_dim": decay, "a_low_rank_dim": step,
        "v_low_rank_dim": value, "gate_low_rank_dim": gate, "norm_bias": True, "norm_first": True,
        "vocab_size": 65536, "tie_word_embeddings": False, "fuse_norm": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("config", "published"),
    [
        pytest.param(_rwkv7(768, 12, 64, 64, 32, 128), 191_034_624, id="RWKV-7 0.1B"),
        pytest.param(_rwkv7(1024, 24, 64, 64, 32, 128), 450_767_872, id="RWKV-7 0.4B"),
        pytest.param(_rwkv7(2048, 24, 96, 96, 64, 256), 1_527_404_544, id="RWKV-7 1.5B"),
        pytest.param(_rwkv7(2560, 32, 96, 96, 64, 320), 2_947_735_040, id="RWKV-7 2.9B"),
        pytest.param(MINIMAX, 456_089_655_296, id="MiniMax-Text-01"),
        pytest.param(MINIMAX | {"model_type": "minimax_m1"}, 456_089_655_296, id="MiniMax-M1"),
        pytest.param(A13B, 80_393_183_232, id="Hunyuan-A13B, its own name"),
        pytest.param(QWEN, 7_721_324_544, id="Qwen-7B, the first"),
    ],
)
def test_every_parameter_is_counted(config: dict[str, Any], published: int) -> None:
    """To the last one."""
    assert model_parameters(model_from_config(config, "x")).total == published


@pytest.mark.parametrize(
    ("config", "total", "active"),
    [
        pytest.param(HUNYUAN, 389e9, 52e9, id="Hunyuan-Large"),
        pytest.param(STEP3, 316e9, 38e9, id="Step-3"),
    ],
)
def test_parameters_to_the_digits_that_are_published(
    config: dict[str, Any], total: float, active: float
) -> None:
    """Three and two digits."""
    model = model_from_config(config, "x")
    assert abs(model_parameters(model).total - total) < 1e9
    assert abs(active_parameters(model).total - active) < 1e9


def test_two_layers_share_keys_and_values() -> None:
    """Of 64 layers 32 lack 2 x 6,400 x 8 x 80 weights, and a norm of 80."""
    shared, own = (
        model_parameters(model_from_config(HUNYUAN | {"use_cla": use}, "x")).total
        for use in (True, False)
    )
    assert own - shared == 32 * (2 * 6400 * 8 * 80 + 80)


def test_the_first_layer_mixes_no_values_in() -> None:
    """It lacks two products of rank 32, and a bias."""
    model = model_from_config(_rwkv7(768, 12, 64, 64, 32, 128), "x")
    first, other = (model.kinds[model.pattern[at]].recurrent for at in (0, 1))
    assert first is not None
    assert other is not None
    assert set(other.low_rank) - set(first.low_rank) == {(32, 768)}
    assert other.numbers - first.numbers == 768


@pytest.mark.parametrize(
    ("config", "changed", "why"),
    [
        (_rwkv7(768, 12, 64, 64, 32, 128), {"attn": {"layers": [3], "num_heads": 12}}, "attn"),
        (_rwkv7(768, 12, 64, 64, 32, 128), {"norm_first": False}, "norm_first"),
        (_rwkv7(768, 12, 64, 64, 32, 128), {"v_low_rank_dim": None}, "v_low_rank_dim"),
        (MINIMAX, {"shared_intermediate_size": 512}, "shared_intermediate_size"),
        (HUNYUAN, {"num_shared_expert": 2}, "num_shared_expert"),
        (QWEN, {"no_bias": False}, "no_bias"),
        (QWEN, {"model_type": "sdar"}, "denoises blocks"),
        (QWEN, {"model_type": "minicpmv"}, "its version says which language model"),
        (QWEN, {"model_type": "llada2_moe"}, "denoises"),
        (QWEN, {"model_type": "longcat_flash_ngram"}, "n-grams"),
        (QWEN, {"model_type": "deepseek_v41_text"}, "an earlier one compressed"),
        (QWEN, {"model_type": "nomic_bert"}, "an encoder"),
    ],
)
def test_what_is_not_read_is_refused(
    config: dict[str, Any], changed: dict[str, Any], why: str
) -> None:
    """By the field's or the family's name."""
    with pytest.raises(UnsupportedModel, match=why):
        model_from_config(config | changed, "x")


def test_the_tower_of_step_3_is_named() -> None:
    """Its text is priced without it."""
    assert left_out(STEP3) == ("vision tower",)


def test_the_text_of_a_file_of_llava() -> None:
    """Vicuna's 6,738,415,616 parameters; what stands beside them of images is named, once."""
    config = {
        "model_type": "llava_llama", "hidden_size": 4096, "intermediate_size": 11008,
        "num_attention_heads": 32, "num_key_value_heads": 32, "num_hidden_layers": 32,
        "vocab_size": 32000, "tie_word_embeddings": False, "mm_hidden_size": 1024,
        "mm_vision_tower": "openai/clip-vit-large-patch14-336", "image_aspect_ratio": "pad",
        "mm_projector_type": "mlp2x_gelu", "tune_mm_mlp_adapter": False, "use_mm_proj": True,
        "mm_vision_select_layer": -2, "freeze_mm_mlp_adapter": False,
    }  # fmt: skip
    assert model_parameters(model_from_config(config, "x")).total == 6_738_415_616
    assert left_out(config) == ("vision tower",)
    del config["mm_vision_tower"]
    with pytest.raises(UnsupportedModel, match="llava_llama"):
        model_from_config(config, "x")


def test_pangu_has_biases_in_attention_alone() -> None:
    """openPangu-Embedded-7B by hand: 34 layers; 32 heads over 8 of 128."""
    pangu: dict[str, Any] = {
        "model_type": "PanguEmbedded", "vocab_size": 153376, "hidden_size": 4096,
        "intermediate_size": 12800, "num_hidden_layers": 34, "num_attention_heads": 32,
        "num_key_value_heads": 8, "bias": True, "tie_word_embeddings": False,
    }  # fmt: skip
    attention = 2 * 4096 * (4096 + 1024) + 4096 + 2 * 1024 + 4096
    layer = attention + 3 * 4096 * 12800 + 2 * 4096
    total = 34 * layer + 4096 + 2 * 153376 * 4096
    assert model_parameters(model_from_config(pangu, "x")).total == total
    plain = model_from_config(pangu | {"bias": False}, "x")
    assert model_parameters(plain).total == total - 34 * (2 * 4096 + 2 * 1024)


@pytest.mark.parametrize("model_type", ["ouro", "phi4flash", "hymba"])
def test_what_shares_between_layers_is_refused_by_its_reason(model_type: str) -> None:
    with pytest.raises(UnsupportedModel, match="layer"):
        model_from_config({"model_type": model_type, "hidden_size": 2048}, "x")


TELECHAT3: dict[str, Any] = {
    "model_type": "telechat3", "hidden_size": 6144, "intermediate_size": 24576, "head_dim": 128,
    "num_attention_heads": 48, "num_hidden_layers": 64, "num_key_value_heads": 8,
    "vocab_size": 131072, "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False,
}  # fmt: skip
TELECHAT: dict[str, Any] = {
    "model_type": "telechat", "hidden_size": 64, "ffn_hidden_size": 96, "intermediate_size": 1,
    "n_layer": 3, "n_head": 4, "vocab_size": 128, "training_seqlen": 8192, "base_seqlen": 8192,
    "logn": True, "embed_layernorm": False, "tie_word_embeddings": False,
}  # fmt: skip


def test_telechat_has_biases_after_attention_and_feed_forward_alone() -> None:
    """4 x 64 x 64 and 3 x 64 x 96 weights, two biases and two norms of 64 in each of 3 layers; with
    2 of 4 heads for keys and values 2 x 64 x 32 weights less.
    """
    layer, ends = 4 * 64 * 64 + 3 * 64 * 96 + 4 * 64, 2 * 128 * 64 + 64
    whole = model_parameters(model_from_config(TELECHAT, "t")).total
    assert whole == 3 * layer + ends
    fewer = model_from_config(TELECHAT | {"num_key_value_heads": 2}, "t")
    assert whole - model_parameters(fewer).total == 3 * 2 * 64 * 32
    assert left_out(TELECHAT) == ()
    with pytest.raises(UnsupportedModel, match="embed_layernorm"):
        model_from_config(TELECHAT | {"embed_layernorm": True}, "t")


def test_telechat3_has_36_billion_parameters() -> None:
    total = model_parameters(model_from_config(TELECHAT3, "t")).total
    assert total == 64 * (2 * 6144**2 + 2 * 6144 * 1024 + 3 * 6144 * 24576 + 2 * 6144) + (
        2 * 131072 * 6144 + 6144
    )
    assert round(total / 1e9) == 36


QWEN3: dict[str, Any] = {
    "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 160, "vocab_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "tie_word_embeddings": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("whole", "without"),
    [
        ({"model_type": "ovis2_5", "llm_config": QWEN3, "vit_config": {"depth": 2}}, "vit tower"),
        (
            {"model_type": "Llama_Nemotron_Nano_VL", "llm_config": QWEN3, "vision_config": {}},
            "vision tower",
        ),
        (QWEN3 | {"model_type": "Keye", "vision_config": {"depth": 2}}, "vision tower"),
        (
            {
                "model_type": "llavaonevision1_5", "vision_config": {"depth": 2},
                "text_config": QWEN3 | {"model_type": "LLaVAOneVision1_5_text"},
            },
            "vision tower",
        ),
    ],
)  # fmt: skip
def test_the_language_model_of_an_image_model_is_read(whole: dict[str, Any], without: str) -> None:
    """As its own family, tied as its section says; the tower is named as left out."""
    assert model_from_config(whole, "w") == model_from_config(QWEN3, "w")
    assert left_out(whole) == (without,)


def test_dots_ocr_holds_a_qwen2() -> None:
    qwen2 = {key: value for key, value in QWEN3.items() if key != "head_dim"}
    qwen2 |= {"model_type": "qwen2", "sliding_window": 131072, "use_sliding_window": False}
    dots = qwen2 | {"model_type": "dots_ocr", "attention_bias": True}
    assert model_from_config(dots, "d") == model_from_config(qwen2, "d")
    assert model_from_config(dots | {"attention_bias": False}, "d") != model_from_config(qwen2, "d")


@pytest.mark.parametrize("model_type", ["qwen2", "qwen2_5_vl"])
def test_the_biases_that_qwen2_always_has_may_be_said(model_type: str) -> None:
    """Files of MiMo-VL and of others that are built on Qwen2 repeat them."""
    qwen2 = {key: value for key, value in QWEN3.items() if key != "head_dim"}
    qwen2 |= {"model_type": model_type}
    assert model_from_config(qwen2 | {"attention_bias": True}, "q") == model_from_config(qwen2, "q")


def test_the_prompt_of_paligemma_attends_both_ways_which_is_said() -> None:
    """Whether its file says so (transformers 5 writes it) or leaves it to the class."""
    text = {
        "model_type": "gemma", "hidden_size": 64, "intermediate_size": 160, "vocab_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16,
    }  # fmt: skip
    said = "attention of a prompt to its later tokens"
    whole = {"model_type": "paligemma", "text_config": text}
    stated = whole | {"text_config": text | {"use_bidirectional_attention": True}}
    assert model_from_config(stated, "p") == model_from_config(whole, "p")
    assert (left_out(stated), left_out(whole)) == ((said,), (said,))
    causal = whole | {"text_config": text | {"use_bidirectional_attention": False}}
    assert left_out(causal) == ()
