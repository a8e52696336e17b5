"""The model's shape in Megatron's names, which build a GPT from sizes and switches.

Source: NVIDIA/Megatron-LM@d98e8a64 `megatron/training/arguments.py` (network size, moe, mla) and
`megatron/core/transformer/transformer_config.py`.
What changes no sizes is in `numerics`. Leaves out: dropout.
"""

from meshplan.costmodels.model.config_fields import UnsupportedModel
from meshplan.costmodels.model.transformer import Experts, Model
from meshplan.executor.frameworks.export_notes import Answer, unwritten_parts
from meshplan.executor.frameworks.megatron.numerics import numeric_settings
from meshplan.planner.case.reading import CannotSay

_ALIBI = ("bloom", "mpt")


def model_settings(answer: Answer) -> tuple[dict[str, object], list[CannotSay]]:
    """Megatron's settings for the model, and what of it they cannot say.

    Raises `UnsupportedModel` where the first layer has no attention heads to state.
    """
    model, attention = answer.model, answer.model.kinds[0].attention
    if not attention.heads:
        raise UnsupportedModel(
            f"{model.name}: the arguments of pretrain_gpt.py written here state layers of softmax "
            "attention, and the first has none; export it --to bridge: a recipe states the model"
        )
    dense = next((kind.ffn for kind in model.kinds if kind.ffn), 0)
    experts = next((kind.experts for kind in model.kinds if kind.experts), None)
    settings: dict[str, object] = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden,
        "ffn_hidden_size": dense or (experts.ffn if experts else 0),
        "num_attention_heads": attention.heads,
        "max_position_embeddings": max(model.learned_positions, answer.training.seq_len),
        "vocab_size": model.vocab,
        "normalization": "LayerNorm" if model.norm == "layernorm" else "RMSNorm",
        "swiglu": model.gated,
        "untie_embeddings_and_output_weights": not model.tied,
        "add_bias_linear": model.bias,
        "add_qkv_bias": attention.qkv_bias and not model.bias,
        # latent attention norms its latents, which Megatron does when told so only
        "qk_layernorm": attention.qk_norm != "none" or attention.is_mla,
    }
    position = _position(answer)
    settings["position_embedding_type"] = position
    settings |= _latent_settings(model) if attention.is_mla else _grouped_settings(model)
    if experts:
        settings |= _expert_settings(model, experts)
    if model.mtp_layers:
        settings["mtp_num_layers"] = model.mtp_layers
    numerics, unsaid = numeric_settings(model, rotates=position == "rope")
    said = {name: value for name, value in (settings | numerics).items() if value is not False}
    return said, [*_unsaid(answer), *_longer_table(answer), *unsaid]


def _longer_table(answer: Answer) -> list[CannotSay]:
    """Learned positions for sequences that are longer than the model has: the script adds rows."""
    rows, seq_len = answer.model.learned_positions, answer.training.seq_len
    if not 0 < rows < seq_len:
        return []
    why = f"sequences of {seq_len} need as many: the table has {seq_len} rows"
    return [CannotSay("model.learned_positions", rows, why)]


def _position(answer: Answer) -> str:
    if answer.model.learned_positions:
        return "learned_absolute"
    return "none" if answer.config.get("model_type") in _ALIBI else "rope"


def _latent_settings(model: Model) -> dict[str, object]:
    attention = model.kinds[0].attention
    return {
        "multi_latent_attention": True,
        "q_lora_rank": attention.q_lora_rank or False,
        "kv_lora_rank": attention.kv_lora_rank,
        "qk_head_dim": attention.head_dim - attention.rope_head_dim,
        "qk_pos_emb_head_dim": attention.rope_head_dim,
        "v_head_dim": attention.v_head_dim,
    }


def _grouped_settings(model: Model) -> dict[str, object]:
    attention = model.kinds[0].attention
    settings: dict[str, object] = {"kv_channels": attention.head_dim}
    if attention.kv_heads != attention.heads:
        settings |= {"group_query_attention": True, "num_query_groups": attention.kv_heads}
    return settings


def _expert_settings(model: Model, experts: Experts) -> dict[str, object]:
    routed = [int(model.kinds[kind].experts is not None) for kind in model.pattern]
    return {
        "num_experts": experts.experts,
        "moe_router_topk": experts.top_k,
        "moe_ffn_hidden_size": experts.ffn,
        "moe_shared_expert_intermediate_size": experts.shared_ffn or False,
        "moe_shared_expert_gate": experts.shared_gate,
        "moe_layer_freq": False if all(routed) else _pattern(routed),
        "moe_grouped_gemm": True,
        "moe_token_dispatcher_type": "alltoall",
    }


def _pattern(routed: list[int]) -> str:
    """A list of 0 and 1 as the expression that Megatron evaluates: `[0]*3+[1]*58`."""
    runs: list[list[int]] = []
    for each in routed:
        if runs and runs[-1][0] == each:
            runs[-1][1] += 1
        else:
            runs.append([each, 1])
    return "+".join(f"[{each}]*{count}" for each, count in runs)


def _unsaid(answer: Answer) -> list[CannotSay]:
    model = answer.model
    found = {
        "model.alibi": answer.config.get("model_type") in _ALIBI,
        "model.window": any(kind.attention.window for kind in model.kinds),
        "model.norms_per_layer": model.norms_per_layer != 2,
        "model.parallel_blocks": model.parallel_blocks,
        "model.embedding_norm": model.embedding_norm,
        "model.qk_norm": any(kind.attention.qk_norm == "full" for kind in model.kinds),
        "model.sinks": any(kind.attention.sinks for kind in model.kinds),
        "model.mtp_layers": model.mtp_layers * (not _reads_modules(model)),
        "model.router_bias": any(
            kind.experts and kind.experts.router_bias and not kind.attention.is_mla
            for kind in model.kinds
        ),
    }
    why = "the arguments written here build plain pre-norm blocks with full attention"
    unsaid = [CannotSay(name, value, why) for name, value in found.items() if value]
    return unsaid + unwritten_parts(model)


def _reads_modules(model: Model) -> bool:
    """Whether a family with these layers is read with modules of multi-token prediction."""
    experts = model.kinds[-1].experts
    plain = model.gated and not model.bias if experts is None else not experts.shared_gate
    return model.kinds[0].attention.is_mla or plain
