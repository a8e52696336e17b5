"""A recurrent state instead of attention, or beside it."""

from dataclasses import replace

from meshplan.costmodels.model import layer_patterns as layers
from meshplan.costmodels.model import recurrent_kinds as recurrent
from meshplan.costmodels.model.families.experts import BAILING
from meshplan.costmodels.model.families.parts import (
    DEEPSEEK,
    GRANITE_EXPERTS,
    MIXTRAL_EXPERTS,
    MODULES,
    PLAIN,
    SHARED_GATED,
)
from meshplan.costmodels.model.family import Family, Routed
from meshplan.costmodels.model.rules import family as rules
from meshplan.costmodels.model.rules.hybrid import glm5_next, kimi
from meshplan.costmodels.model.rules.qwen4 import qwen4

GATED_DELTA = Family(
    head_dim=256,
    qk_norm="head",
    gate="full",
    qkv_bias=False,
    out_bias=False,
    recurrent=recurrent.gated_deltanet,
    mixers=layers.recurrent_but_each(4, "full_attention_interval"),
)

RECURRENT: dict[str, Family] = {
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
        recurrent=recurrent.matrix_lstm,
        mixers=layers.all_recurrent,
        ffn_of=rules.xlstm_width,
        tied=None,
    ),
    # both
    "qwen3_next": replace(GATED_DELTA, experts=SHARED_GATED),
    "qwen3_5_text": replace(GATED_DELTA, modules=("mtp_num_hidden_layers",)),
    "qwen3_5_moe_text": replace(
        GATED_DELTA,
        modules=("mtp_num_hidden_layers",),
        experts=replace(SHARED_GATED, layers=layers.all_sparse),
    ),
    "qwen4_exp_text": replace(
        GATED_DELTA,
        modules=("mtp_num_hidden_layers",),
        experts=replace(SHARED_GATED, layers=layers.all_sparse),
        final_norm=False,
        adjust=qwen4,
    ),
    "lara_mini": Family(
        head_dim=128,
        tied=True,
        qk_norm="head",
        recurrent=recurrent.gated_deltanet,
        mixers=layers.lara_attention,
        experts=Routed(shared_width=("shared_expert_intermediate_size",), layers=layers.all_sparse),
    ),
    "olmo_hybrid": Family(
        qk_norm="full", recurrent=recurrent.gated_deltanet, mixers=layers.recurrent_but_each(4)
    ),
    "kimi_linear": replace(
        DEEPSEEK,
        tied=None,
        gate="full",
        gated_output=("mla_use_output_gate", False),
        mixers=layers.kimi_attention,
        recurrent=recurrent.kimi_delta,
        adjust=kimi,
        experts_when=(),
        experts=Routed(
            shared=("num_shared_experts",),
            latent=("routed_expert_hidden_size",),
            layers=layers.after_leading("first_k_dense_replace", every=("moe_layer_freq",)),
        ),
    ),
    "glm5_next_text": replace(
        DEEPSEEK,
        indexed=True,
        mixers=layers.recurrent_but_each(4),
        recurrent=recurrent.kimi_delta,
        experts_when=(),
        adjust=glm5_next,
    ),
    "bailing_hybrid": replace(
        DEEPSEEK,
        tied=None,
        gate="head",
        mixers=layers.recurrent_but_each(6, "layer_group_size"),
        recurrent=recurrent.wide_kimi_delta,
        experts_when=(),
        experts=Routed(
            shared=("num_shared_experts",),
            shared_width=("moe_shared_expert_intermediate_size",),
            layers=layers.after_leading("first_k_dense_replace"),
        ),
    ),
    "bailing_moe_linear": replace(
        BAILING,
        mixers=layers.recurrent_in_groups,
        recurrent=recurrent.bailing_lightning,
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
        qkv_bias=False,
        out_bias=False,
        tied=None,
        recurrent=recurrent.unbiased_mamba2,
        parts=layers.hybrid_pattern,
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
