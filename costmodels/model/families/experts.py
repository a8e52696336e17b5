"""Mixtures of experts with grouped-query attention."""

from dataclasses import replace

from meshplan.costmodels.model import layer_patterns as layers
from meshplan.costmodels.model.families.parts import (
    COHERE,
    DEEPSEEK_EXPERTS,
    GRANITE_EXPERTS,
    LLAMA,
    MISTRAL,
    MIXTRAL_EXPERTS,
    MODULES,
    MUSE,
    PLAIN,
    SARVAM_EXPERTS,
    SHARED_GATED,
)
from meshplan.costmodels.model.family import Family, Routed
from meshplan.costmodels.model.rules import compressed as compressed
from meshplan.costmodels.model.rules import family as rules
from meshplan.costmodels.model.rules import text_part as text_parts
from meshplan.costmodels.model.rules.inkling import inkling, inkling_windows

QWEN_EXPERTS = Routed(layers=layers.qwen_sparse)
QWEN3_MOE = Family(qk_norm="head", mixers=layers.upper_windowed, experts=QWEN_EXPERTS)
GLM4_MOE = Family(
    floors_head_dim=True,
    qkv_bias=("attention_bias", False),
    out_bias=False,
    qk_norm="head",
    qk_normed=("use_qk_norm", False),
    modules=MODULES,
    experts=DEEPSEEK_EXPERTS,
)

BAILING = Family(
    qkv_bias=("use_qkv_bias", False),
    out_bias=("use_bias", False),
    mlp_bias=("use_bias", False),
    qk_norm="head",
    qk_normed=("use_qk_norm", False),
    modules=MODULES,
    experts=Routed(
        shared=("num_shared_experts",),
        shared_width=("moe_shared_expert_intermediate_size",),
        layers=layers.after_leading("first_k_dense_replace"),
    ),
)
"""Ling and Ring, which transformers does not have: inclusionAI/Ling-V2@af8837e
models/configuration_bailing_moe_v2.py and modeling_bailing_moe_v2.py."""

MIMO = Family(
    head_dim=192,
    own_value_dim=True,
    qkv_bias=("attention_bias", False),
    out_bias=False,
    adjust=rules.mimo,
    mixers=layers.mimo_windows,
    overrides={
        "sliding": {
            "num_attention_heads": ("swa_num_attention_heads",),
            "head_dim": ("swa_head_dim",),
            "num_key_value_heads": ("swa_num_key_value_heads",),
            "v_head_dim": ("swa_v_head_dim",),
        }
    },
    experts=Routed(layers=layers.after_leading("first_k_dense_replace", default=1)),
)
"""MiMo-V2-Flash; V2.5 and V2.5 Pro say `mimo_v2`, and transformers does not have them."""

EXPERTS: dict[str, Family] = {
    "bailing_moe": BAILING,
    "bailing_moe_v2": replace(BAILING, head_dim=128, qk_normed=("use_qk_norm", True)),
    "mixtral": replace(MISTRAL, experts=MIXTRAL_EXPERTS, qkv_bias=False, out_bias=False),
    "granitemoe": Family(experts=GRANITE_EXPERTS),
    "granitemoe_swa": Family(
        experts=GRANITE_EXPERTS, sinks=True, mixers=layers.slides_but_each(4, first=True)
    ),
    "granitemoeshared": Family(experts=GRANITE_EXPERTS),
    "qwen2_moe": Family(
        qkv_bias=("qkv_bias", True),
        out_bias=False,
        mixers=layers.upper_windowed,
        experts=SHARED_GATED,
    ),
    "qwen3_moe": QWEN3_MOE,
    "qwen3_vl_moe_text": replace(QWEN3_MOE, mixers=layers.all_full),
    "qwen3_omni_moe_text": replace(QWEN3_MOE, floors_head_dim=True, mixers=layers.all_full),
    "muse_spark_text": replace(
        MUSE,
        head_dim=64,
        further_norms=1,
        adjust=text_parts.muse_spark,
        experts=Routed(latent=("moe_hidden_size",), layers=layers.all_sparse),
    ),
    "deepseek": replace(LLAMA, mlp_bias=False, experts=DEEPSEEK_EXPERTS),
    "deepseek_ocr2_text": replace(LLAMA, mlp_bias=False, experts=DEEPSEEK_EXPERTS),
    "step3p5": Family(
        head_dim=128,
        kv_heads=("num_key_value_heads", "num_attention_groups"),
        qk_norm="head",
        gate="head",
        gated_output=("use_head_wise_attn_gate", True),
        modules=MODULES,
        adjust=text_parts.step3,
        experts=Routed(
            experts=("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"),
            top_k=("num_experts_per_tok", "moe_top_k"),
            shared_width=("share_expert_dim", "share_expert_dims"),
            layers=layers.step_sparse,
        ),
    ),
    "mellum": Family(
        head_dim=128, qk_norm="head", experts=replace(QWEN_EXPERTS, layers=layers.all_sparse)
    ),
    "olmoe": Family(qk_norm="full", experts=MIXTRAL_EXPERTS),
    "flex_olmo": Family(qk_norm="full", experts=MIXTRAL_EXPERTS),
    "minimax_m2": replace(
        PLAIN,
        head_dim=128,
        qk_norm="full",
        experts=MIXTRAL_EXPERTS,
        modules=("num_mtp_modules",),
        adjust=rules.minimax_modules,
    ),
    "minimax_m3_vl_text": replace(
        PLAIN,
        head_dim=128,
        qk_norm="head",
        experts=Routed(
            ffn=("intermediate_size",),
            dense_ffn=("dense_intermediate_size",),
            shared_width=("shared_intermediate_size",),
            layers=layers.all_sparse,
        ),
        listed_as=(),
        modules=("num_mtp_modules",),
        adjust=compressed.minimax_m3,
    ),
    "phimoe": Family(
        norm="layernorm",
        mixers=layers.windowed,
        head_bias=("lm_head_bias", False),
        experts=MIXTRAL_EXPERTS,
        adjust=rules.two_experts,
    ),
    "gpt_oss": Family(
        head_dim=64,
        sinks=True,
        qkv_bias=("attention_bias", True),
        out_bias=("attention_bias", True),
        mixers=layers.slides_but_each(2),
        experts=Routed(
            ffn=("intermediate_size",),
            layers=layers.all_sparse,
            router_bias=True,
            bias=True,
            top_k=("num_experts_per_tok", "experts_per_token"),
        ),
    ),
    "llama4_text": Family(
        head_dim=128,
        mixers=layers.llama4_chunks,
        experts=Routed(
            ffn=("intermediate_size",),
            dense_ffn=("intermediate_size_mlp",),
            layers=layers.llama4_sparse,
            shared_is_ffn=True,
        ),
    ),
    "aria_text": replace(
        LLAMA,
        mlp_bias=False,
        experts=Routed(
            experts=("moe_num_experts",),
            top_k=("moe_topk",),
            ffn=("intermediate_size",),
            shared=("moe_num_shared_experts",),
            layers=layers.all_sparse,
        ),
    ),
    "ernie4_5_moe": replace(
        PLAIN,
        tied=True,
        experts=Routed(
            experts=("moe_num_experts",),
            top_k=("moe_k",),
            router_bias=True,
            shared=("moe_num_shared_experts",),
            layers=layers.ernie_sparse,
        ),
        modules=("num_nextn_predict_layers",),
        adjust=text_parts.dense_modules,
    ),
    "ernie4_5_vl_moe_text": replace(
        PLAIN,
        tied=True,
        experts=Routed(
            experts=("moe_num_experts",),
            top_k=("moe_k",),
            of_images=True,
            router_bias=True,
            shared=("moe_num_shared_experts",),
            layers=layers.ernie_sparse,
        ),
    ),
    "hunyuan_v1_moe": Family(
        qk_norm="head",
        experts=Routed(
            ffn=("moe_intermediate_size", "intermediate_size"),
            top_k=("moe_topk",),
            shared_is_ffn=True,
            layers=layers.all_sparse,
        ),
    ),
    "hy_v3": Family(
        head_dim=128,
        qk_norm="head",
        modules=MODULES,
        adjust=rules.hy_v3,
        experts=Routed(
            shared=("num_shared_experts",),
            layers=layers.after_leading("first_k_dense_replace", default=1),
        ),
    ),
    "glm4_moe": GLM4_MOE,
    "glm4v_moe_text": replace(GLM4_MOE, qk_norm="none", qkv_bias=("attention_bias", True)),
    "sarvam_moe": replace(
        GLM4_MOE, head_dim=64, qk_normed=("use_qk_norm", True), experts=SARVAM_EXPERTS
    ),
    "solar_open": Family(
        qkv_bias=("attention_bias", False),
        out_bias=False,
        head_dim=128,
        experts=replace(DEEPSEEK_EXPERTS, layers=layers.after_leading("first_k_dense_replace")),
    ),
    "dots1": Family(qk_norm="head", mixers=layers.upper_windowed, experts=DEEPSEEK_EXPERTS),
    "exaone_moe": replace(
        PLAIN,
        qk_norm="head",
        mixers=layers.slides_but_each(4, "sliding_window_pattern"),
        modules=MODULES,
        experts=Routed(
            shared=("num_shared_experts",),
            layers=layers.exaone_sparse,
        ),
    ),
    "afmoe": replace(
        PLAIN,
        norms=4,
        head_dim=128,
        qk_norm="head",
        gate="full",
        mixers=layers.slides_but_each(4, "global_attn_every_n_layers"),
        experts=Routed(
            shared=("num_shared_experts",),
            router_bias=True,
            layers=layers.after_leading("num_dense_layers", default=1),
        ),
    ),
    "beam": replace(
        PLAIN,
        norms=4,
        head_dim=128,
        qk_norm="head",
        gate="full",
        numbers=rules.one_per_head,
        mixers=layers.slides_but_each(6),
        experts=Routed(layers=layers.after_leading("first_k_dense_replace", default=3)),
    ),
    "flint": Family(
        head_dim=128,
        qk_norm="head",
        sinks=True,
        mixers=layers.slides_but_each(4),
        experts=Routed(
            layers=layers.sparse_but(0, 1), shared_width=("shared_expert_intermediate_size",)
        ),
    ),
    "kolibri1": replace(
        PLAIN,
        norms=4,
        head_dim=128,
        qk_norm="head",
        mixers=layers.slides_but_each(5),
        experts=Routed(shared_width=("shared_expert_intermediate_size",), layers=layers.all_sparse),
    ),
    "laguna": Family(
        head_dim=128,
        qk_norm="head",
        gate="head",
        mixers=layers.windowed,
        adjust=rules.laguna,
        experts=Routed(
            shared_width=("shared_expert_intermediate_size",),
            router_bias=True,
            layers=layers.after_leading("first_k_dense_replace", default=1),
        ),
    ),
    "inkling_text": replace(
        PLAIN,
        tied=None,
        head_dim=128,
        qk_norm="head",
        embedding_norm=True,
        mixers=inkling_windows,
        overrides=MIMO.overrides,
        adjust=inkling,
        experts=Routed(shared=("n_shared_experts",), layers=layers.after_leading("dense_mlp_idx")),
    ),
    "mimo_v2_flash": MIMO,
    "mimo_v2": MIMO,
    "cohere2_moe": replace(
        COHERE,
        mixers=layers.slides_but_each(4, "sliding_window_pattern"),
        experts=Routed(
            ffn=("intermediate_size",),
            shared=("num_shared_experts",),
            layers=layers.after_leading("first_k_dense_replace"),
        ),
    ),
    "dbrx": replace(
        PLAIN,
        norm="layernorm_without_bias",
        kv_heads=("kv_n_heads",),
        flattened=("attn_config", "ffn_config"),
        experts=Routed(
            experts=("moe_num_experts",),
            top_k=("moe_top_k",),
            ffn=("ffn_hidden_size",),
            layers=layers.all_sparse,
        ),
    ),
    "longcat_flash": Family(
        latent=True,
        parts=layers.pairs_around_experts,
        adjust=rules.zero_experts,
        experts=Routed(
            experts=("n_routed_experts",),
            top_k=("moe_topk",),
            ffn=("expert_ffn_hidden_size",),
            dense_ffn=("ffn_hidden_size",),
            shared_width=("ffn_hidden_size",),
        ),
    ),
}
