"""Defaults of fields that a configuration leaves out, where its class gives them a size.

Of each field, the families by their value. A field that is null is stated and has none. Source: the
configuration classes in huggingface/transformers 5.24; `tests/costmodels/model/test_families.py`
drops each field of each family's defaults and asks for the same model or a refusal.
"""

from functools import cache
from typing import Any

BY_FIELD: dict[str, dict[int, str]] = {
    "attention_chunk_size": {
        8192: "llama4_text",
    },
    "conv_L_cache": {
        7: "lfm3",
    },
    "dff": {
        8192: "ctrl",
    },
    "first_k_dense_replace": {
        1: (
            "axk1 axk2 dots3_note_text glm4_moe glm4_moe_lite glm4v_moe_text kimi_linear "
            "mistral_large4_text sarvam_mla sarvam_moe"
        ),
        2: "bailing_hybrid",
        3: "deepseek_v3 deepseek_v32 glm_moe_dsa glm5_next_text",
    },
    "global_head_dim": {
        512: "gemma4_text gemma4_unified_text",
    },
    "head_dim": {
        512: "deepseek_v4",
    },
    "hidden_size_per_layer_input": {
        256: "gemma4_text",
    },
    "linear_head_dim": {
        128: "kimi_linear glm5_next_text",
    },
    "linear_num_heads": {
        64: "glm5_next_text",
    },
    "mamba_head_dim": {
        64: "nemotron_h",
    },
    "moe_num_shared_experts": {
        2: "aria_text ernie4_5_moe ernie4_5_vl_moe_text",
    },
    "moe_shared_expert_intermediate_size": {
        7688: "nemotron_h",
    },
    "n_groups": {
        8: "mamba2 nemotron_h",
    },
    "n_routed_experts": {
        64: "deepseek_v2 glm4_moe_lite deepseek_ocr2_text",
        128: "axk2 sarvam_mla mistral4 mistral_large4_text glm4v_moe_text",
        192: "axk1",
        256: "deepseek_v3 deepseek_v32 glm_moe_dsa hy_v4 hy_v4_vl_text inkling_text",
        288: "step3p5 step3p7 glm5_next_text",
    },
    "n_shared_experts": {
        1: (
            "axk1 axk2 deepseek_v3 deepseek_v32 deepseek_v4 dots3_note_text glm4_moe glm4_moe_lite "
            "glm_moe_dsa hy_v4 sarvam_mla sarvam_moe solar_open glm5_next_text "
            "glm4v_moe_text hy_v4_vl_text mistral4 mistral_large4_text"
        ),
        2: "deepseek_v2 deepseek_ocr2_text inkling_text",
    },
    "num_key_value_heads": {
        2: "gemma3n_text internlm3 qwen3_5_moe_text qwen3_next qwen4_exp_text muse_glimmer_text",
        4: (
            "ernie4_5_moe flint gemma2 gemma3_text gemma4_text gemma4_unified_text granite_swa "
            "kolibri1 lara_mini lfm3 mellum mimo_v2_flash minimax_m3_vl_text qwen3_5_text "
            "qwen3_moe sarvam_moe smollm3 vaultgemma "
            "granite_docling_text qwen2_5_omni_text qwen3_omni_moe_text ernie4_5_vl_moe_text"
        ),
        5: "bitnet",
        8: (
            "beam cwm exaone falcon_h1 glm4_moe gpt_oss hy_v3 iquestcoder jamba laguna lfm2 "
            "llama4_text minimax minimax_m2 ministral3 mistral mixtral nemotron_h phimoe "
            "seed_oss solar_open bamba emu3_text_model glm4v_moe_text lfm2_moe ministral "
            "qwen2_5_vl_text qwen2_vl_text phi4_multimodal "
            "cosmos3_edge_text glm_ocr_text molmo2_text step3p5 step3p7 inkling_text"
        ),
        16: "gemma qwen2_moe qwen3_vl_moe_text muse_spark_text",
        20: "helium",
        32: (
            "deepseek_ocr2_text dots1 exaone4 exaone_moe mistral4 qwen2 qwen3 qwen3_vl_text "
            "stablelm"
        ),
        64: "hy_v4_vl_text",
    },
    "num_local_experts": {
        8: "granitemoehybrid",
    },
    "num_shared_experts": {
        1: "bailing_hybrid exaone_moe hy_v3 kimi_linear",
        2: "afmoe",
    },
    "q_lora_rank": {
        768: "glm4_moe_lite minicpm3",
        1024: "dots3_note_text mistral4",
        1536: "axk1 deepseek_v2 deepseek_v3 deepseek_v32 hy_v4 longcat_flash youtu glm5_next_text",
        2048: "glm_moe_dsa hy_v4_vl_text",
    },
    "shared_expert_intermediate_size": {
        512: "kolibri1 laguna lara_mini qwen3_5_moe_text qwen3_next qwen4_exp_text",
        1024: "flint",
        5632: "qwen2_moe",
    },
    "shared_intermediate_size": {
        1024: "granitemoehybrid",
        3072: "minimax_m3_vl_text",
    },
    "v_head_dim": {
        128: "mimo_v2_flash mimo_v2",
    },
    "vocab_size_per_layer_input": {
        262144: "gemma4_text gemma4_unified_text",
    },
    "share_expert_dim": {
        1280: "step3p5 step3p7",
    },
    "swa_num_key_value_heads": {
        16: "inkling_text",
    },
    "swa_num_attention_heads": {
        64: "inkling_text",
    },
    "swa_head_dim": {
        128: "inkling_text",
    },
    "sliding_window_size": {
        512: "inkling_text",
    },
    "moe_intermediate_size": {
        3072: "inkling_text",
    },
    "zero_expert_num": {
        256: "longcat_flash",
    },
}

OTHER_NAMES = (
    ("n_routed_experts", "num_experts", "num_local_experts"),
    ("n_shared_experts", "num_shared_experts"),
)
"""Names of one field: a file that has any of them leaves out none."""


def class_defaults(model_type: str) -> tuple[tuple[str, int], ...]:
    """The fields of a family that mean something where a file leaves them out, and what."""
    return _by_type().get(model_type, ())


@cache
def _by_type() -> dict[str, tuple[tuple[str, int], ...]]:
    """`class_defaults` of each family that has any."""
    found: dict[str, tuple[tuple[str, int], ...]] = {}
    for field, families in BY_FIELD.items():
        for value, types in families.items():
            for each in dict.fromkeys(types.split()):
                found[each] = (*found.get(each, ()), (field, value))
    return found


def nothing_left_out(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration that a reader of another format made: what it does not state is not there."""
    return {field: None for field, _ in class_defaults(str(config.get("model_type")))} | config


def names_of(field: str) -> tuple[str, ...]:
    """The names that files give this field."""
    return next((names for names in OTHER_NAMES if field in names), (field,))
