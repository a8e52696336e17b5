"""Parts that families of several groups share."""

from dataclasses import replace

from meshplan.costmodels.model import layer_patterns as layers
from meshplan.costmodels.model.family import Family, Routed

LLAMA = Family(mlp_bias=("mlp_bias", False))
MISTRAL = Family(mixers=layers.windowed)
PLAIN = Family(qkv_bias=False, out_bias=False)
USING_BIAS = Family(
    qkv_bias=("use_bias", False), out_bias=("use_bias", False), mlp_bias=("use_bias", False)
)
DEEPSEEK_EXPERTS = Routed(
    shared=("n_shared_experts",),
    layers=layers.after_leading("first_k_dense_replace", every=("moe_layer_freq",)),
)
SARVAM_EXPERTS = replace(DEEPSEEK_EXPERTS, shared=("n_shared_experts", "num_shared_experts"))
MODULES = ("num_nextn_predict_layers", "num_mtp_layers")
DEEPSEEK = Family(
    latent=True, experts=DEEPSEEK_EXPERTS, experts_when=("n_routed_experts",), modules=MODULES
)
MIXTRAL_EXPERTS = Routed(ffn=("intermediate_size",), layers=layers.all_sparse)
SHARED_GATED = Routed(
    layers=layers.qwen_sparse, shared_width=("shared_expert_intermediate_size",), shared_gate=True
)
MUSE = Family(
    head_dim=128,
    norms=4,
    gate="full",
    qkv_bias=("attention_bias", False),
    out_bias=("attention_bias", False),
    mixers=layers.slides_to_the_last,
)
COHERE = Family(parallel=True, norms=1, norm="layernorm_without_bias", tied=True)
GRANITE_EXPERTS = Routed(
    ffn=("intermediate_size",), layers=layers.all_sparse, shared_width=("shared_intermediate_size",)
)
