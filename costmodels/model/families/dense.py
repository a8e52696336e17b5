"""Dense models of grouped-query attention."""

from dataclasses import replace

from meshplan.costmodels.model import layer_patterns as layers
from meshplan.costmodels.model.families.parts import (
    COHERE,
    LLAMA,
    MISTRAL,
    MODULES,
    MUSE,
    PLAIN,
    USING_BIAS,
)
from meshplan.costmodels.model.family import Family
from meshplan.costmodels.model.rules import compressed as compressed
from meshplan.costmodels.model.rules import family as rules
from meshplan.costmodels.model.rules import text_part as text_parts

QWEN3 = Family(head_dim=128, qk_norm="head", mixers=layers.upper_windowed)
QWEN2 = Family(qkv_bias=True, out_bias=False, mixers=layers.upper_windowed)
GLM4 = Family(
    head_dim=128, qkv_bias=("attention_bias", True), out_bias=False, kv_default=2, norms=4
)
APERTUS = Family(gated=False, qk_norm="head", numbers=rules.activation_numbers)
ERNIE = replace(USING_BIAS, head_dim=128, kv_default=2, tied=True)
GEMMA = Family(head_dim=256, tied=True)
GEMMA4 = Family(
    head_dim=256,
    tied=True,
    norms=4,
    qk_norm="head",
    v_norm=True,
    mixers=layers.gemma4_windows,
    overrides={
        "full": {
            "head_dim": ("global_head_dim",),
            "num_key_value_heads": ("num_global_key_value_heads",),
        }
    },
    adjust=rules.gemma4,
)

DENSE: dict[str, Family] = {
    "llama": LLAMA,
    "internlm2": replace(
        LLAMA, qkv_bias=("bias", False), out_bias=("bias", False), mlp_bias=("bias", False)
    ),
    "chatglm": Family(
        kv_heads=("multi_query_group_num",),
        ffn=("ffn_hidden_size",),
        qkv_bias=("add_qkv_bias", False),
        out_bias=("add_bias_linear", False),
        mlp_bias=("add_bias_linear", False),
        vocab=("padded_vocab_size",),
        tied=None,
        adjust=rules.chatglm,
    ),
    "minicpm": replace(LLAMA, tied=True),
    "baichuan": replace(LLAMA, qkv_bias=False, out_bias=False, mlp_bias=False),
    "orion": replace(LLAMA, qkv_bias=False, out_bias=False, mlp_bias=False, norm="layernorm"),
    "nemotron-nas": replace(
        LLAMA,
        kv_heads=(),
        parts=layers.nas_parts,
        ffn_of=lambda f: 1,
        adjust=text_parts.nemotron_nas,
    ),
    "internlm3": replace(LLAMA, adjust=rules.internlm3),
    "iquestcoder": LLAMA,
    "emu3_text_model": LLAMA,
    "exaone": LLAMA,
    "helium": replace(LLAMA, head_dim=128, out_bias=False, adjust=rules.helium),
    "arcee": replace(LLAMA, gated=False),
    "granite": LLAMA,
    "granite4_vision_text": LLAMA,
    "granite_docling_text": replace(LLAMA, tied=True),
    "cosmos3_edge_text": replace(LLAMA, gated=False),
    "granite_swa": replace(
        LLAMA, sinks=True, tied=True, mixers=layers.slides_but_each(4, first=True)
    ),
    "seed_oss": replace(
        LLAMA,
        head_dim=128,
        qkv_bias=("attention_bias", True),
        out_bias=("attention_out_bias", False),
    ),
    "hyperclovax": replace(LLAMA, more_norms=("use_post_norm", True, 4)),
    "cwm": replace(
        LLAMA,
        qkv_bias=False,
        out_bias=False,
        head_dim=128,
        mixers=layers.slides_but_each(4, first=True),
    ),
    "apertus": APERTUS,
    "apertus1p5_text": APERTUS,
    "exaone4": replace(
        PLAIN, qk_norm="head", mixers=layers.slides_but_each(4, "sliding_window_pattern")
    ),
    "exaone4_5_text": replace(
        PLAIN,
        qk_norm="head",
        mixers=layers.slides_but_each(4),
        modules=MODULES,
        adjust=rules.exaone_modules,
    ),
    "smollm3": replace(LLAMA, tied=True, mixers=layers.windowed_when_told),
    "mistral": MISTRAL,
    "ministral": replace(MISTRAL, qkv_bias=False, out_bias=False),
    "ministral3": replace(MISTRAL, qkv_bias=False, out_bias=False),
    "phi3": MISTRAL,
    "phi4_multimodal": MISTRAL,
    "qwen2": QWEN2,
    "mimo": replace(QWEN2, qkv_bias=("attention_bias", True), modules=MODULES),
    "qwen2_vl_text": QWEN2,
    "qwen2_5_vl_text": QWEN2,
    "qwen2_5_omni_text": QWEN2,
    "qwen3": QWEN3,
    "qwen3_vl_text": replace(QWEN3, mixers=layers.all_full),
    "hunyuan_v1_dense": Family(qk_norm="head"),
    "hunyuan_vl_text": Family(qk_norm="head", tied=True),
    "glm": replace(GLM4, norms=2),
    "glm4": GLM4,
    "glm4v_text": replace(GLM4, head_dim=None, qkv_bias=True),
    "glm_ocr_text": Family(qkv_bias=False, out_bias=False, norms=4),
    "ernie4_5": ERNIE,
    "paddleocr_vl_text": ERNIE,
    "muse_glimmer_text": MUSE,
    "molmo2_text": replace(
        PLAIN,
        qkv_bias=("qkv_bias", False),
        head_dim=128,
        qk_norm="head",
        adjust=text_parts.molmo,
    ),
    "cohere": replace(COHERE, qk_norm="full", qk_normed=("use_qk_norm", False)),
    "cohere_compass_text": replace(COHERE, mixers=layers.slides_but_each(4)),
    "cohere2": replace(COHERE, mixers=layers.slides_but_each(4, "sliding_window_pattern")),
    "gemma": GEMMA,
    "gemma2": replace(GEMMA, norms=4, mixers=layers.slides_but_each(2)),
    "vaultgemma": replace(GEMMA, mixers=layers.slides_but_each(2)),
    "gemma3_text": replace(
        GEMMA,
        norms=4,
        qk_norm="head",
        adjust=rules.bidirectional,
        defaults=(("vocab_size", 262208), ("num_attention_heads", 8), ("num_key_value_heads", 4)),
        mixers=layers.slides_but_each(6, "sliding_window_pattern", "_sliding_window_pattern"),
    ),
    "gemma4_text": GEMMA4,
    "gemma3n_text": Family(
        head_dim=256,
        tied=True,
        norms=4,
        qk_norm="head",
        v_norm=True,
        mixers=layers.slides_but_each(5),
        ffn_of=compressed.widest_of_layers,
        adjust=compressed.gemma3n,
    ),
    "gemma4_unified_text": replace(GEMMA4, adjust=rules.gemma4_without_experts),
    "olmo": Family(norm="none"),
    "olmo2": Family(qk_norm="full"),
    "olmo3": Family(qk_norm="full", mixers=layers.slides_but_each(4)),
    "nanochat": Family(norm="none", qk_norm="head", gated=False),
    "nemotron": Family(gated=False, norm="layernorm", mlp_bias=("mlp_bias", False)),
    "jais2": Family(
        gated=False,
        norm="layernorm",
        mlp_bias=("mlp_bias", True),
        qkv_bias=("attention_bias", True),
        out_bias=("attention_bias", True),
    ),
    "starcoder2": Family(
        gated=False,
        norm="layernorm",
        tied=True,
        kv_default=2,
        mixers=layers.windowed,
        qkv_bias=("use_bias", True),
        out_bias=("use_bias", True),
        mlp_bias=("use_bias", True),
    ),
    "stablelm": Family(
        norm="layernorm",
        qkv_bias=("use_qkv_bias", False),
        out_bias=False,
        parallel=("use_parallel_residual", False),
        qk_norm="full",  # each head has weights of its own
        qk_normed=("qk_layernorm", False),
        adjust=rules.stablelm,
    ),
    "bitnet": Family(gated=True, further_norms=1, numbers=rules.sub_norm),
    "doge": Family(
        mlp_bias=("mlp_bias", False),
        qk_norm="head",
        numbers=rules.doge_numbers,
        adjust=rules.doge,
    ),
}
