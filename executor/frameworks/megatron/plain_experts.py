"""Megatron's experts of two matrices: of a GPT whose feed-forward has no gate.

    num_experts, moe_router_topk (2)    num_experts, num_experts_per_tok
    moe_ffn_hidden_size, else ffn_hidden_size, else 4h    moe_intermediate_size
    moe_layer_freq                      mlp_layer_types
    moe_shared_expert_intermediate_size    shared_expert_intermediate_size
    max_position_embeddings, where positions are learnt    n_positions

Source: NVIDIA/Megatron-LM@d98e8a64 `megatron/core/transformer/moe/experts.py` (`fc1` is twice as
wide only with `gated_linear_unit`), `shared_experts.py`, `megatron/training/arguments.py`.
Leaves out, and names: biases of the experts, a gate on shared ones, latent attention, modules of
multi-token prediction.
"""

from collections.abc import Mapping
from typing import Any

from meshplan.executor.frameworks.documents.values import Values
from meshplan.planner.case.reading import Fact

FAMILY = "megatron_plain_experts"
_NOT_MODELLED = {
    "multi_latent_attention": "latent attention",
    "moe_shared_expert_gate": "a gate on shared experts",
    "embed_layernorm": "a norm behind the embedding",
}


def plain_expert_config(
    values: Values, sizes: Mapping[str, Any], routed: list[int]
) -> dict[str, Any]:
    """What `FAMILY` reads beside `sizes`; `routed` has 1 for each layer with experts."""
    counts = {
        "num_experts": values.count("num_experts", "num_moe_experts"),
        "num_experts_per_tok": values.count("moe_router_topk"),
        "moe_intermediate_size": values.count("moe_ffn_hidden_size", "ffn_hidden_size"),
        "shared_expert_intermediate_size": values.count("moe_shared_expert_intermediate_size"),
    }
    config: dict[str, Any] = {
        "model_type": FAMILY,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": sizes["intermediate_size"],
        "mlp_layer_types": ["sparse" if each else "dense" for each in routed],
        "use_qk_norm": values.on("qk_layernorm"),
        "attention_bias": values.on("add_qkv_bias"),
        **{name: fact.value for name, fact in counts.items() if fact is not None},
    }
    if learns_positions(values):
        rows = values.count("max_position_embeddings")
        config["n_positions"] = rows.value if rows else 0
    return config


def learns_positions(values: Values) -> bool:
    """Whether a table of positions is added to the embedding. The two switches of older releases
    take it away (microsoft/Megatron-DeepSpeed megatron/arguments.py, add_position_embedding;
    NVIDIA/Megatron-LM megatron/training/arguments.py, "Legacy RoPE arguments").
    """
    kind = values.get("position_embedding_type")
    without = [
        values.on("use_rotary_position_embeddings"), values.on("no_position_embedding")
    ]  # fmt: skip
    return not any(without) and (kind is None or kind.value == "learned_absolute")


def plain_experts_unread(values: Values, *, gated: bool) -> list[Fact]:
    """What of ungated experts no price holds, with its reason."""
    experts, layers = values.count("num_experts"), values.count("num_layers")
    if experts is None or layers is None or gated:
        return []
    why = [what for name, what in _NOT_MODELLED.items() if values.on(name)]
    if not values.on("disable_bias_linear") and values.flag("add_bias_linear") is None:
        why.append("biases, without --disable-bias-linear")
    modules = values.found.get("mtp_num_layers")
    if modules is not None and str(modules.value) != "0":
        why.append("modules of multi-token prediction")
    said = f"without --swiglu: beside experts of two matrices not modelled: {', '.join(why)}"
    return [Fact(f"--num-experts ({said})", experts.line)] if why else []
