"""A Hugging Face configuration of the shape that Megatron's sizes and switches give.

A configuration names a family: latent attention -> deepseek_v3, experts -> qwen3_moe, qwen2_moe or
mixtral, gated -> llama, qwen2 or qwen3, plain -> nemotron, gpt_neox, bloom (a norm behind the
embedding) or gpt2; shared experts that no gate weighs, or modules of multi-token prediction ->
glm4_moe; ungated experts -> a family of Megatron's own (`plain_experts`).

Source: NVIDIA/Megatron-LM@d98e8a64 `megatron/training/arguments.py` (network size, moe, mla) and
`megatron/core/transformer/transformer_config.py`.
What changes no sizes is in `numerics`. Leaves out: dropout.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

from meshplan.costmodels.model.class_defaults import nothing_left_out
from meshplan.executor.frameworks.documents.values import Values, shown
from meshplan.executor.frameworks.megatron.hybrid import PATTERNS, hybrid_config
from meshplan.executor.frameworks.megatron.numerics import numeric_config
from meshplan.executor.frameworks.megatron.plain_experts import (
    learns_positions,
    plain_expert_config,
    plain_experts_unread,
)
from meshplan.planner.case.reading import Fact, UnreadableConfig

MAX_LAYERS = 100_000
_GATED = ("swiglu", "quick_geglu", "geglu")
_UNTIED = ("untie_embeddings_and_output_weights", "no_tie_embed_logits")
SHAPE = (
    *("ffn_hidden_size", "kv_channels", "num_query_groups", "group_query_attention", "swiglu"),
    *("vocab_size", "rotary_base", "num_experts", "moe_router_topk", "moe_ffn_hidden_size"),
    *(*_UNTIED, "multi_latent_attention", "q_lora_rank", "kv_lora_rank", "qk_head_dim"),
    *("qk_pos_emb_head_dim", "v_head_dim", "moe_shared_expert_intermediate_size"),
    *("moe_layer_freq", "num_attention_heads_kv", "num_key_value_heads", "glu_activation"),
)
_VOCAB = ("padded_vocab_size", "pad_vocab_size_to", "vocab_size")
_BROUGHT_ALONG = {
    "multi_latent_attention": ("num_query_groups", "group_query_attention", "kv_channels"),
}
"""Flags that the one before them makes idle."""


def model_config_of(values: Values, left: Collection[str] = frozenset()) -> dict[str, Any] | None:
    """The model's shape as a Hugging Face configuration, None when the file does not state it, or
    leaves one of its sizes (`left`) to who starts it: a default would be another model.

    `vocab_size` is often absent: Megatron takes it from the tokenizer.
    """
    config = _stated_config(values, left)
    return nothing_left_out(config) if config else None


def _stated_config(values: Values, left: Collection[str]) -> dict[str, Any] | None:
    layers, hidden, heads = (
        values.count(name) for name in ("num_layers", "hidden_size", "num_attention_heads")
    )
    if left or layers is None or hidden is None or heads is None:
        values.asked |= set(SHAPE)  # the whole shape is missing, and is said to be
        return None
    gated, ffn = _gated(values), values.count("ffn_hidden_size")
    config: dict[str, Any] = {
        "num_hidden_layers": layers.value,
        "hidden_size": hidden.value,
        "num_attention_heads": heads.value,
        "intermediate_size": ffn.value if ffn else default_ffn(hidden.value, gated=gated),
        "tie_word_embeddings": not any([values.on(name) for name in _UNTIED]),
    }
    for ours, theirs in (("vocab_size", _VOCAB), ("rope_theta", ("rotary_base",))):
        if (fact := values.count(*theirs)) is not None:
            config[ours] = fact.value
    config |= numeric_config(values)
    for switch, idle in _BROUGHT_ALONG.items():
        values.asked |= set(idle) if values.on(switch) else set()
    if values.on("multi_latent_attention"):
        return config | _latent_config(values, layers.value, hidden.value)
    head_dim = values.count("kv_channels")
    config["head_dim"] = head_dim.value if head_dim else hidden.value // heads.value
    config["num_key_value_heads"] = _key_value_heads(values, heads.value)
    if hybrid := hybrid_config(values, config, gated=gated):
        return hybrid
    return config | (
        _expert_config(values, config, gated=gated) or _dense_config(values, config, gated=gated)
    )


def _key_value_heads(values: Values, heads: int) -> int:
    groups = values.count("num_query_groups")
    grouped = values.on("group_query_attention")
    forks = values.count("num_attention_heads_kv", "num_key_value_heads")  # need no switch
    multi = values.get("attention_head_type")  # bigcode's
    if multi is not None and multi.value == "multiquery":
        return 1
    if grouped:
        return groups.value if groups else 1  # Megatron's own default beside the switch
    return forks.value if forks else heads


def _gated(values: Values) -> bool:
    stated = [values.on(name) for name in _GATED]
    return any(stated) or values.get("glu_activation") is not None


def plain_experts(values: Values) -> list[Fact]:
    """What of experts that no flag gives a gate is not modelled; a hybrid says its own."""
    hybrid = PATTERNS[0] in values.asked
    return [] if hybrid else plain_experts_unread(values, gated=_gated(values))


def ungrouped(values: Values) -> list[str]:
    """That experts are multiplied one after the other, where Megatron-Core is not told otherwise
    (NVIDIA/Megatron-LM@d98e8a64 megatron/core/transformer/moe/experts.py, SequentialMLP).
    """
    experts = values.count("num_experts")
    if experts is None or values.on("moe_grouped_gemm") or values.on("deepspeed"):
        return []
    said = "experts are priced as one grouped product, and without --moe-grouped-gemm"
    return [f"line {experts.line}: {said} Megatron multiplies one after the other, which is slower"]


def routing_assumed(values: Values) -> list[str]:
    """That nothing says to how many experts a token goes: two by Megatron-Core's default, one in
    releases before its router (NVIDIA/Megatron-LM core_v0.4.0 megatron/model/transformer.py,
    SwitchMLP; core_v0.5.0 megatron/training/arguments.py).
    """
    experts = values.count("num_experts")
    if experts is None or values.get("moe_router_topk") or values.on("deepspeed"):
        return []
    said = "--moe-router-topk is not stated: 2 experts for each token, Megatron-Core's default"
    return [f"line {experts.line}: {said}; releases before 0.5 and some forks take 1"]


_WORDS = {
    "normalization": ("LayerNorm", "RMSNorm"),
    "position_embedding_type": (
        "learned_absolute", "rope", "mrope", "yarn", "relative", "none", "rotary", "alibi",
        "absolute",
    ),
    "moe_router_score_function": ("softmax", "sigmoid", "sqrtsoftplus"),
}  # fmt: skip
"""Megatron's words for what changes no size: another one stops the program (NVIDIA/Megatron-LM
megatron/training/arguments.py). Of positions forks' words too (bigcode-project/Megatron-LM).
"""


def other_words(values: Values) -> list[str]:
    """A note for each word that is none of Megatron's: a fork's, or one that stops the program."""
    notes = []
    for name, known in _WORDS.items():
        fact = values.found.get(name)
        if fact is None or "$" in str(fact.value):  # which the script leaves open
            continue
        if str(fact.value).lower() not in map(str.lower, known):
            said = f"line {fact.line}: {name.replace('_', '-')} {shown(fact.value)}"
            notes.append(f"{said} is none of Megatron's words ({', '.join(known)}): not priced")
    return notes


def model_unread(values: Values) -> list[Fact]:
    """What of the model's shape is stated but not taken, for a reason that no list of flags has."""
    unread = []
    groups = values.found.get("num_query_groups")
    if groups is not None and not values.on("group_query_attention"):
        values.asked.add("num_query_groups")  # idle without the switch, as Megatron has it
    glu, ffn = values.get("glu_activation"), values.get("ffn_hidden_size")
    if glu is not None and ffn is None:
        why = "the width is not stated, and forks differ in its default"
        unread.append(Fact(f"--glu-activation ({why})", glu.line))
    return unread


def default_ffn(hidden: int, *, gated: bool) -> int:
    """Megatron's feed-forward width when none is given: 4h, or 8h/3 in multiples of 64 if gated."""
    return int((4 * hidden * 2 / 3) / 64) * 64 if gated else 4 * hidden


def _dense_config(values: Values, sizes: Mapping[str, Any], *, gated: bool) -> dict[str, Any]:
    biased = not values.on("disable_bias_linear") and values.flag("add_bias_linear") is None
    biased = biased or values.on("add_bias_linear")
    if gated and not biased and _has_modules(values):
        routed = [0] * min(sizes["num_hidden_layers"], MAX_LAYERS)
        return _with_modules(values, 0, sizes["intermediate_size"], routed)
    if gated:
        family = "qwen2" if values.on("add_qkv_bias") else "llama"
        family = "qwen3" if values.on("qk_layernorm") else family
        return {"model_type": family, "mlp_bias": biased, "attention_bias": biased}
    learned = learns_positions(values)
    if not biased:
        return {"model_type": "nemotron"}
    if not learned and values.on("embed_layernorm"):
        return {"model_type": "bloom", "n_inner": sizes["intermediate_size"]}
    if not learned:
        return {"model_type": "gpt_neox", "use_parallel_residual": False, "attention_bias": True}
    positions, ffn = values.count("max_position_embeddings"), values.count("ffn_hidden_size")
    return {
        "model_type": "gpt2",
        "n_embd": sizes["hidden_size"],
        "n_head": sizes["num_attention_heads"],
        "n_layer": sizes["num_hidden_layers"],
        "n_inner": ffn.value if ffn else 4 * sizes["hidden_size"],
        "n_positions": positions.value if positions else 1024,
    }


def _routed(values: Values, names: Mapping[str, str]) -> dict[str, Any]:
    found = {
        ours: values.count(theirs, least=int(theirs != "mtp_num_layers"))  # 0: no module
        for ours, theirs in names.items()
    }
    return {ours: fact.value for ours, fact in found.items() if fact is not None}


def _expert_config(
    values: Values, sizes: Mapping[str, Any], *, gated: bool
) -> dict[str, Any] | None:
    experts = values.count("num_experts", "num_moe_experts")
    if experts is None:
        return None
    routed = layer_pattern(values.get("moe_layer_freq"), sizes["num_hidden_layers"])
    if not gated:
        return plain_expert_config(values, sizes, routed)
    width = values.count("moe_ffn_hidden_size", "ffn_hidden_size")
    common = {"num_experts_per_tok": 2} | _routed(
        values, {"num_experts_per_tok": "moe_router_topk"}
    )
    shared = values.count("moe_shared_expert_intermediate_size")
    modules = _has_modules(values)
    if modules and width and not shared:
        return _with_modules(values, 0, width.value, routed) | common
    if shared is None and not values.on("qk_layernorm") and all(routed):
        config = {"model_type": "mixtral", "num_local_experts": experts.value, **common}
        return config | ({"intermediate_size": width.value} if width else {})
    family: dict[str, Any] = {"model_type": "qwen3_moe"}
    if (
        shared is not None
        and width
        and not (values.on("moe_shared_expert_gate") or shared.value % width.value)
    ):
        return _with_modules(values, shared.value // width.value, width.value, routed) | common
    if shared is not None:
        family = {
            "model_type": "qwen2_moe",
            "shared_expert_intermediate_size": shared.value,
            "qkv_bias": values.on("add_qkv_bias"),
        }
    dense = [layer for layer, moe in enumerate(routed) if not moe]
    inner = {"moe_intermediate_size": width.value} if width else {}
    return {**family, **common, **inner, "num_experts": experts.value, "mlp_only_layers": dense}


def _has_modules(values: Values) -> bool:
    """Whether modules of multi-token prediction are stated; reads nothing."""
    stated = values.found.get("mtp_num_layers")
    return stated is not None and str(stated.value) != "0"


def _with_modules(values: Values, shared: int, width: int, routed: list[int]) -> dict[str, Any]:
    """Grouped-query attention, shared experts that no gate weighs (none: 0), dense layers where
    `routed` has 0, and modules of multi-token prediction, each with a layer like the last.
    """
    experts = values.count("num_experts", "num_moe_experts")
    groups, top = values.count("moe_router_num_groups"), values.count("moe_router_group_topk")
    modules = values.count("mtp_num_layers", least=0)
    return {
        "model_type": "glm4_moe",
        "num_nextn_predict_layers": modules.value if modules else 0,
        "n_routed_experts": experts.value if experts else 1,
        "n_shared_experts": shared,
        "moe_intermediate_size": width,
        "mlp_layer_types": ["sparse" if each else "dense" for each in routed],
        "use_qk_norm": values.on("qk_layernorm"),
        "attention_bias": values.on("add_qkv_bias"),
        "n_group": groups.value if groups else 1,
        "topk_group": top.value if top else 1,
    }


def _latent_config(values: Values, layers: int, hidden: int) -> dict[str, Any]:
    names = {
        "q_lora_rank": "q_lora_rank",
        "kv_lora_rank": "kv_lora_rank",
        "qk_nope_head_dim": "qk_head_dim",
        "qk_rope_head_dim": "qk_pos_emb_head_dim",
        "v_head_dim": "v_head_dim",
        "num_nextn_predict_layers": "mtp_num_layers",
        "n_routed_experts": "num_experts",
        "num_experts_per_tok": "moe_router_topk",
        "moe_intermediate_size": "moe_ffn_hidden_size",
    }
    defaults = {
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    }
    config = {"model_type": "deepseek_v3", **defaults} | _routed(values, names)
    if "n_routed_experts" not in config:
        return config
    shared = values.count("moe_shared_expert_intermediate_size")
    width = config.setdefault("moe_intermediate_size", hidden * 4)
    config["n_shared_experts"] = shared.value // width if shared else 0
    routed = layer_pattern(values.get("moe_layer_freq"), layers)
    config["first_k_dense_replace"] = routed.index(1) if 1 in routed else len(routed)
    if values.on("moe_router_enable_expert_bias"):
        return config | {"topk_method": "noaux_tc"}
    return config | {"model_type": "deepseek_v2"}


def layer_pattern(frequency: Fact | None, num_layers: int) -> list[int]:
    """1 for each routed layer: a whole number N is every N-th, else `[0]*3+[1]*58` and the like.

    Read term by term instead of evaluated, because it comes from a file.
    """
    if frequency is None:
        return [1] * min(num_layers, MAX_LAYERS)
    text = str(frequency.value).replace(" ", "").strip("\"'")
    if text.isdecimal():
        every = max(1, int(text[:9]))
        return [int(layer % every == 0) for layer in range(min(num_layers, MAX_LAYERS))]
    pattern: list[int] = []
    for part in re.split(r"\+(?=[\[(])", text.strip("()")):
        term = re.fullmatch(r"\(?\[([01](?:,[01])*)\]\)?(?:\*(\d{1,5}))?", part)
        if term is None:
            raise UnreadableConfig(
                "moe_layer_freq must be a number or a sum of lists such as [0]*3+[1]*58",
                frequency.line,
            )
        part_layers, times = term[1].split(","), int(term[2] or 1)
        if len(pattern) + len(part_layers) * times > num_layers:
            raise UnreadableConfig(
                f"moe_layer_freq names more than {num_layers} layers", frequency.line
            )
        pattern += [int(each) for each in part_layers] * times
    if len(pattern) != num_layers:
        raise UnreadableConfig(
            f"moe_layer_freq names {len(pattern)} layers of {num_layers}", frequency.line
        )
    return pattern
