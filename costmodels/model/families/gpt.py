"""GPT and its heirs: multi-head or multi-query attention, mostly ungated, with biases."""

from dataclasses import replace

from meshplan.costmodels.model import layer_patterns as layers
from meshplan.costmodels.model.family import Family
from meshplan.costmodels.model.rules import family as rules

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

GPT_LIKE: dict[str, Family] = {
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
}
