"""The families that are read, each a few lines over the vocabulary of `family.Family`.

Each line is read from the family's `configuration_<model_type>.py` and `modeling_<model_type>.py`
in huggingface/transformers 5.23 (`models/<model_type>/`); `python -m benchmarks.families` counts
the parameters of its default configuration there and here.
"""

from dataclasses import replace

from meshplan.costmodels.model import family_rules as rules
from meshplan.costmodels.model import layer_patterns as layers
from meshplan.costmodels.model import recurrent_kinds as recurrent
from meshplan.costmodels.model.family import Family, Routed

# Parts that several families share

LLAMA = Family(mlp_bias=("mlp_bias", False))
MISTRAL = Family(mixers=layers.windowed)
PLAIN = Family(qkv_bias=False, out_bias=False)
GPT = Family(
    gated=False,
    norm="layernorm",
    tied=True,
    ffn=("n_inner",),
    ffn_per_hidden=4,
    kv_heads=("num_key_value_heads",),
    qkv_bias=True,
    out_bias=True,
    mlp_bias=True,
)
GPT_J = replace(
    GPT, parallel=True, norms=1, qkv_bias=False, out_bias=False, head_bias=True, tied=False
)
OPT_LIKE = replace(GPT, ffn=("ffn_dim", "intermediate_size"), ffn_per_hidden=0)
USING_BIAS = Family(
    qkv_bias=("use_bias", False), out_bias=("use_bias", False), mlp_bias=("use_bias", False)
)
DEEPSEEK_EXPERTS = Routed(
    shared=("n_shared_experts",),
    layers=layers.after_leading("first_k_dense_replace", every=("moe_layer_freq",)),
)
MODULES = ("num_nextn_predict_layers", "num_mtp_layers")
DEEPSEEK = Family(
    latent=True, experts=DEEPSEEK_EXPERTS, experts_when=("n_routed_experts",), modules=MODULES
)
CORRECTED = replace(DEEPSEEK, experts=replace(DEEPSEEK_EXPERTS, router_bias=True))
MIXTRAL_EXPERTS = Routed(ffn=("intermediate_size",), layers=layers.all_sparse)
QWEN_EXPERTS = Routed(layers=layers.qwen_sparse)
QWEN3 = Family(head_dim=128, qk_norm="head", mixers=layers.upper_windowed)
GATED_DELTA = Family(
    head_dim=256,
    qk_norm="head",
    gate="full",
    recurrent=recurrent.gated_deltanet,
    mixers=layers.recurrent_but_each(4, "full_attention_interval"),
)
SHARED_GATED = Routed(
    layers=layers.qwen_sparse, shared_width=("shared_expert_intermediate_size",), shared_gate=True
)
COHERE = Family(parallel=True, norms=1, norm="layernorm_without_bias", tied=True)
GRANITE_EXPERTS = Routed(
    ffn=("intermediate_size",), layers=layers.all_sparse, shared_width=("shared_intermediate_size",)
)
GEMMA = Family(head_dim=256, tied=True)
GEMMA4 = Family(
    head_dim=256,
    tied=True,
    norms=4,
    qk_norm="head",
    mixers=layers.gemma4_windows,
    overrides={
        "full": {
            "head_dim": ("global_head_dim",),
            "num_key_value_heads": ("num_global_key_value_heads",),
        }
    },
    adjust=rules.gemma4,
)

FAMILIES: dict[str, Family] = {
    # dense, grouped-query attention
    "llama": LLAMA,
    "internlm3": LLAMA,
    "iquestcoder": LLAMA,
    "emu3_text_model": LLAMA,
    "helium": replace(LLAMA, head_dim=128),
    "arcee": replace(LLAMA, gated=False),
    "granite": LLAMA,
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
    "apertus": Family(gated=False, qk_norm="head", numbers=rules.activation_numbers),
    "exaone4": replace(
        PLAIN, qk_norm="head", mixers=layers.slides_but_each(4, "sliding_window_pattern")
    ),
    "smollm3": replace(LLAMA, tied=True, mixers=layers.windowed_when_told),
    "mistral": MISTRAL,
    "ministral": replace(MISTRAL, qkv_bias=False, out_bias=False),
    "ministral3": replace(MISTRAL, qkv_bias=False, out_bias=False),
    "phi3": MISTRAL,
    "qwen2": Family(qkv_bias=True, out_bias=False, mixers=layers.upper_windowed),
    "qwen3": QWEN3,
    "hunyuan_v1_dense": Family(qk_norm="head"),
    "glm": Family(head_dim=128, qkv_bias=("attention_bias", True), out_bias=False, kv_default=2),
    "glm4": Family(
        head_dim=128, qkv_bias=("attention_bias", True), out_bias=False, kv_default=2, norms=4
    ),
    "ernie4_5": replace(USING_BIAS, head_dim=128, kv_default=2, tied=True),
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
    "gemma4_unified_text": GEMMA4,
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
        adjust=rules.stablelm,
    ),
    "bitnet": Family(gated=True, further_norms=1, numbers=rules.sub_norm),
    "doge": Family(
        mlp_bias=("mlp_bias", False),
        qk_norm="head",
        gate="head",
        further_norms=2,
        numbers=rules.one_per_head,
        adjust=rules.doge,
    ),
    # GPT and its heirs
    "gpt2": replace(GPT, positions=(("n_positions", "n_ctx"), 0)),
    "openai-gpt": replace(GPT, positions=(("n_positions",), 0), final_norm=False),
    "gpt_bigcode": replace(GPT, positions=(("n_positions",), 0), adjust=rules.multi_query),
    "gpt_neo": replace(
        GPT,
        qkv_bias=False,
        ffn=("intermediate_size",),
        listed_as=(),
        positions=(("max_position_embeddings",), 0),
        mixers=layers.neo_attention,
    ),
    "gptj": GPT_J,
    "codegen": GPT_J,
    "ctrl": replace(GPT, ffn=("dff",), head_bias=True),
    "opt": replace(
        OPT_LIKE,
        positions=(("max_position_embeddings",), 2),
        adjust=rules.opt,
        qkv_bias=("enable_bias", True),
        out_bias=("enable_bias", True),
        mlp_bias=("enable_bias", True),
    ),
    "biogpt": replace(OPT_LIKE, positions=(("max_position_embeddings",), 2)),
    "xglm": OPT_LIKE,
    "mpt": replace(GPT, ffn_of=rules.mpt_width, adjust=rules.mpt),
    "bloom": replace(GPT, embedding_norm=True),
    "phi": replace(
        GPT_J,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        ffn=("intermediate_size",),
        qk_norm="head",
        qk_normed=("qk_layernorm", False),
        numbers=rules.query_key_biases_when_told,
    ),
    "persimmon": replace(
        GPT,
        ffn=("intermediate_size",),
        tied=False,
        qk_norm="head",
        qk_normed=("qk_layernorm", True),
        numbers=rules.query_key_biases,
    ),
    "falcon": replace(
        GPT,
        ffn=("ffn_hidden_size",),
        kv_heads=("num_kv_heads", "n_head_kv"),
        qkv_bias=("bias", False),
        out_bias=("bias", False),
        mlp_bias=("bias", False),
        adjust=rules.falcon,
    ),
    "gpt_neox": replace(
        GPT,
        ffn=("intermediate_size",),
        ffn_per_hidden=0,
        tied=False,
        qkv_bias=("attention_bias", True),
        out_bias=("attention_bias", True),
        parallel=("use_parallel_residual", True),
    ),
    "gpt_neox_japanese": replace(
        GPT,
        ffn_of=rules.neox_japanese_width,
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
        adjust=rules.last_output_bias,
    ),
    # latent attention
    "youtu": Family(latent=True, tied=True),
    "minicpm3": Family(latent=True, tied=True),
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": CORRECTED,
    "kimi_k2": CORRECTED,
    "deepseek_v32": replace(DEEPSEEK, indexed=True),
    "glm4_moe_lite": DEEPSEEK,
    "glm_moe_dsa": replace(DEEPSEEK, indexed=True, adjust=rules.shared_choice),
    "dots3_note_text": replace(
        DEEPSEEK,
        indexed=True,
        gate="head",
        numbers=rules.rotary_key_norm,
        modules=(),
        experts=replace(DEEPSEEK_EXPERTS, shared_width=("shared_experts_intermediate_size",)),
    ),
    "axk1": replace(DEEPSEEK, experts=replace(DEEPSEEK_EXPERTS, further_norms=1)),
    # experts
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
    "qwen3_moe": Family(qk_norm="head", mixers=layers.upper_windowed, experts=QWEN_EXPERTS),
    "mellum": Family(
        head_dim=128, qk_norm="head", experts=replace(QWEN_EXPERTS, layers=layers.all_sparse)
    ),
    "olmoe": Family(qk_norm="full", experts=MIXTRAL_EXPERTS),
    "flex_olmo": Family(qk_norm="full", experts=MIXTRAL_EXPERTS),
    "minimax_m2": replace(PLAIN, head_dim=128, qk_norm="full", experts=MIXTRAL_EXPERTS),
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
    ),
    "phimoe": Family(
        norm="layernorm",
        mixers=layers.windowed,
        head_bias=("lm_head_bias", False),
        experts=MIXTRAL_EXPERTS,
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
        experts=Routed(
            experts=("moe_num_experts",),
            top_k=("moe_topk",),
            ffn=("intermediate_size",),
            shared=("moe_num_shared_experts",),
            layers=layers.all_sparse,
        ),
    ),
    "ernie4_5_moe": replace(
        USING_BIAS,
        tied=True,
        experts=Routed(
            experts=("moe_num_experts",),
            top_k=("moe_k",),
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
        experts=Routed(
            shared=("num_shared_experts",),
            layers=layers.after_leading("first_k_dense_replace", default=1),
        ),
    ),
    "glm4_moe": Family(
        floors_head_dim=True,
        qkv_bias=("attention_bias", False),
        out_bias=False,
        qk_norm="head",
        qk_normed=("use_qk_norm", False),
        modules=MODULES,
        experts=DEEPSEEK_EXPERTS,
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
            layers=layers.after_leading("first_k_dense_replace", default=1),
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
            layers=layers.qwen_sparse, shared_width=("shared_expert_intermediate_size",)
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
        gated_output=("gating", True),
        mixers=layers.windowed,
        adjust=rules.laguna,
        experts=Routed(
            shared_width=("shared_expert_intermediate_size",),
            router_bias=True,
            layers=layers.after_leading("first_k_dense_replace", default=1),
        ),
    ),
    "mimo_v2_flash": Family(
        head_dim=192,
        qkv_bias=("attention_bias", False),
        out_bias=False,
        sinks=True,
        sinks_on=("sliding",),
        adjust=rules.twice_the_window_keys,
        mixers=layers.slides_but_each(6),
        overrides={
            "sliding": {
                "num_attention_heads": ("swa_num_attention_heads",),
                "head_dim": ("swa_head_dim",),
                "num_key_value_heads": ("swa_num_key_value_heads",),
                "v_head_dim": ("swa_v_head_dim",),
            }
        },
        experts=Routed(layers=layers.after_leading("first_k_dense_replace", default=1)),
    ),
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
    # a state instead of attention
    "mamba": Family(
        mixers=layers.all_recurrent, recurrent=recurrent.mamba, parts=layers.mixers_only, tied=True
    ),
    "falcon_mamba": Family(recurrent=recurrent.mamba, parts=layers.mixers_only, tied=True),
    "mamba2": Family(recurrent=recurrent.mamba2, parts=layers.mixers_only),
    "rwkv": Family(
        recurrent=recurrent.time_mix,
        mixers=layers.all_recurrent,
        gated=False,
        norm="layernorm",
        ffn_per_hidden=4,
        adjust=rules.rwkv,
    ),
    "xlstm": Family(
        recurrent=recurrent.matrix_lstm, mixers=layers.all_recurrent, ffn_of=rules.xlstm_width
    ),
    # both
    "qwen3_next": replace(GATED_DELTA, experts=SHARED_GATED),
    "qwen3_5_text": GATED_DELTA,
    "qwen3_5_moe_text": replace(
        GATED_DELTA, experts=replace(SHARED_GATED, layers=layers.all_sparse)
    ),
    "olmo_hybrid": Family(
        qk_norm="full", recurrent=recurrent.gated_deltanet, mixers=layers.recurrent_but_each(4)
    ),
    "kimi_linear": replace(
        DEEPSEEK,
        mixers=layers.kimi_attention,
        recurrent=recurrent.kimi_delta,
        experts_when=(),
        experts=Routed(
            shared=("num_shared_experts",),
            layers=layers.after_leading("first_k_dense_replace", every=("moe_layer_freq",)),
        ),
    ),
    "bailing_hybrid": replace(
        DEEPSEEK,
        gate="head",
        mixers=layers.recurrent_but_each(6, "layer_group_size"),
        recurrent=recurrent.wide_kimi_delta,
        experts_when=(),
        experts=Routed(
            shared=("num_shared_experts",), layers=layers.after_leading("first_k_dense_replace")
        ),
    ),
    "minimax": replace(
        PLAIN,
        mixers=layers.minimax_attention,
        recurrent=recurrent.lightning,
        experts=MIXTRAL_EXPERTS,
    ),
    "jamba": replace(
        PLAIN,
        mixers=layers.jamba_attention,
        recurrent=recurrent.normed_mamba,
        experts=Routed(ffn=("intermediate_size",), layers=layers.jamba_sparse),
    ),
    "bamba": Family(
        mixers=layers.attention_at("attn_layer_indices"),
        recurrent=recurrent.mamba2,
        mlp_bias=("mlp_bias", False),
    ),
    "falcon_h1": Family(
        mixers=layers.both_everywhere,
        recurrent=recurrent.plain_mamba2,
        mlp_bias=("mlp_bias", False),
    ),
    "granitemoehybrid": Family(
        mixers=layers.all_recurrent,
        recurrent=recurrent.mamba2,
        experts=replace(GRANITE_EXPERTS, dense_ffn=("shared_intermediate_size",)),
        experts_when=("num_local_experts",),
    ),
    "nemotron_h": Family(
        head_dim=128,
        gated=False,
        recurrent=recurrent.mamba2,
        parts=layers.hybrid_pattern,
        mlp_bias=("mlp_bias", False),
        modules=MODULES,
        experts=Routed(
            shared_width=("moe_shared_expert_intermediate_size",), latent=("moe_latent_size",)
        ),
    ),
    "lfm2": replace(
        PLAIN,
        tied=True,
        qk_norm="head",
        recurrent=recurrent.short_convolution,
        mixers=layers.attention_at("full_attn_idxs", absent="all of them"),
        ffn_of=rules.lfm_width,
    ),
    "lfm2_moe": replace(
        PLAIN,
        tied=True,
        qk_norm="head",
        recurrent=recurrent.short_convolution,
        mixers=layers.attention_at("full_attn_idxs", absent="all of them"),
        experts=Routed(layers=layers.after_leading("num_dense_layers", default=2)),
    ),
    "lfm3": Family(
        tied=True,
        qk_norm="head",
        gate="head",
        gated_output=("use_attention_gate", True),
        more_norms=("use_sandwich_norm", True, 4),
        mixers=layers.lfm3_mixers,
        recurrent=recurrent.short_convolution,
    ),
    "recurrent_gemma": Family(
        qkv_bias=("attention_bias", False),
        out_bias=True,
        mlp_bias=True,
        tied=True,
        listed_as=(),
        mixers=layers.griffin_attention,
        recurrent=recurrent.gated_linear_recurrence,
        ffn_of=rules.griffin_width,
    ),
}
FAMILIES["llama4"] = FAMILIES["llama4_text"]
FAMILIES["gemma3"] = FAMILIES["gemma3_text"]
