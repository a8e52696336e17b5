"""Latent attention (MLA) and what DeepSeek-V4 has in its place, with experts and without."""

from dataclasses import replace

from meshplan.costmodels.model import layer_patterns as layers
from meshplan.costmodels.model.families.parts import (
    DEEPSEEK,
    DEEPSEEK_EXPERTS,
    MODULES,
    SARVAM_EXPERTS,
)
from meshplan.costmodels.model.family import Family, Routed
from meshplan.costmodels.model.rules import compressed as compressed
from meshplan.costmodels.model.rules import family as rules

CORRECTED = replace(DEEPSEEK, experts=replace(DEEPSEEK_EXPERTS, router_bias=True))

HY_V4 = replace(
    DEEPSEEK,
    indexed=True,
    gate="full",
    sinks=True,
    adjust=compressed.hy_v4,
    experts=replace(
        DEEPSEEK_EXPERTS, layers=layers.after_leading("first_k_dense_replace", default=1)
    ),
)

LATENT: dict[str, Family] = {
    "youtu": Family(latent=True, tied=True),
    "minicpm3": Family(latent=True, tied=True),
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": CORRECTED,
    "kimi_k2": CORRECTED,
    "sarvam_mla": replace(
        DEEPSEEK, experts=SARVAM_EXPERTS, experts_when=("n_routed_experts", "num_experts")
    ),
    "deepseek_v32": replace(DEEPSEEK, indexed=True),
    "glm4_moe_lite": DEEPSEEK,
    "mistral4": DEEPSEEK,
    "glm_moe_dsa": replace(DEEPSEEK, indexed=True, adjust=rules.shared_choice),
    "mistral_large4_text": replace(
        DEEPSEEK, indexed=True, modules=(), adjust=compressed.mistral_large4
    ),
    "dots3_note_text": replace(
        DEEPSEEK,
        indexed=True,
        gate="head",
        adjust=rules.rotary_key_norms,
        modules=(),
        experts=replace(DEEPSEEK_EXPERTS, shared_width=("shared_experts_intermediate_size",)),
    ),
    "hy_v4": HY_V4,
    "hy_v4_vl_text": HY_V4,
    "deepseek_v4": Family(
        qkv_bias=False,
        out_bias=False,
        sinks=True,
        mixers=layers.all_sliding,
        listed_as=(),
        experts=Routed(layers=layers.all_sparse, shared=("n_shared_experts",)),
        experts_when=("n_routed_experts",),
        modules=MODULES,
        adjust=compressed.deepseek_v4,
    ),
    "axk2": replace(
        DEEPSEEK,
        indexed=True,
        gate="full",
        modules=(),
        adjust=compressed.gated_norms,
    ),
    "axk1": replace(DEEPSEEK, experts=replace(DEEPSEEK_EXPERTS, further_norms=1)),
}
