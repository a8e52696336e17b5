"""Megatron's hybrids of Mamba-2, attention, feed-forwards and experts as Nemotron-H's files.

    hybrid_override_pattern, hybrid_layer_pattern   hybrid_override_pattern: M, *, - and E
    mamba_num_heads (2 h / head dim), mamba_head_dim (64), mamba_state_dim (128),
    mamba_num_groups (8)                            mamba_num_heads, mamba_head_dim, ssm_state_size,
                                                    n_groups

Source: NVIDIA/Megatron-LM@d98e8a64 `megatron/training/arguments.py`, `megatron/core/ssm/
mamba_hybrid_layer_allocation.py` (letters), `megatron/core/ssm/mamba_mixer.py` (sizes and their
defaults). Leaves out: gated feed-forwards, biases, and patterns with stages (`|`) or modules of
multi-token prediction (`/`), which stay named.
"""

import re
from collections.abc import Mapping
from typing import Any

from meshplan.executor.frameworks.documents.values import Values
from meshplan.planner.case.reading import Fact

PATTERNS = ("hybrid_override_pattern", "hybrid_layer_pattern")
_LETTERS = re.compile(r"[M*E-]{1,1000}")
_SIZES = {
    "mamba_head_dim": ("mamba_head_dim", 64),
    "ssm_state_size": ("mamba_state_dim", 128),
    "n_groups": ("mamba_num_groups", 8),
}
_SAID_BY_PATTERN = ("is_hybrid_model", "spec", "hybrid_attention_ratio", "hybrid_mlp_ratio")
"""Flags that a pattern makes idle; `spec` names the layers' module."""


def has_pattern(found: Mapping[str, Fact]) -> bool:
    """Whether the arguments state which layer is of which kind."""
    return any(name in found for name in PATTERNS)


def hybrid_config(values: Values, sizes: Mapping[str, Any], *, gated: bool) -> dict[str, Any]:
    """The configuration, `sizes` with what makes it a hybrid; empty where no pattern is read."""
    stated = next((values.found[name] for name in PATTERNS if name in values.found), None)
    letters = str(stated.value).strip("\"'") if stated else ""
    if gated or not values.on("disable_bias_linear") or not _LETTERS.fullmatch(letters):
        return {}
    if len(letters) != sizes["num_hidden_layers"]:
        return {}
    values.asked |= {*PATTERNS, *_SAID_BY_PATTERN}
    found = {ours: values.count(theirs) for ours, (theirs, _) in _SIZES.items()}
    mamba = {ours: fact.value if fact else _SIZES[ours][1] for ours, fact in found.items()}
    heads = values.count("mamba_num_heads")
    usual = 2 * sizes["hidden_size"] // mamba["mamba_head_dim"]
    return {
        **sizes, **mamba, **(_experts(values) if "E" in letters else {}),
        "model_type": "nemotron_h",
        "hybrid_override_pattern": letters,
        "mamba_num_heads": heads.value if heads else usual,
        "conv_kernel": 4, "chunk_size": 128,
        "mlp_bias": False, "attention_bias": False, "use_bias": False, "use_conv_bias": True,
    }  # fmt: skip


def _experts(values: Values) -> dict[str, Any]:
    width = values.count("moe_ffn_hidden_size", "ffn_hidden_size")
    shared = values.count("moe_shared_expert_intermediate_size")
    latent = values.count("moe_latent_size")
    named = {
        "n_routed_experts": values.count("num_experts"),
        "num_experts_per_tok": values.count("moe_router_topk") or Fact(2, 1),
        "moe_intermediate_size": width,
        "moe_shared_expert_intermediate_size": shared,
        "moe_latent_size": latent,
    }
    stated = {name: fact.value for name, fact in named.items() if fact is not None}
    return stated | {"n_shared_experts": int(shared is not None)}
