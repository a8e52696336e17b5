"""What changes a model's results but not its sizes, in Megatron's names, and back.

    norm_epsilon               norm_epsilon
    init_std                   init_method_std
    rotary base, share         rotary_base, rotary_percent
    rotary scaling             llama3: use_rope_scaling, rope_scaling_factor; linear: rotary_seq_
                               len_interpolation_factor; yarn: rotary_scaling_factor, mscale,
                               mscale_all_dim with latent attention, else position_embedding_type
    layers without rotary      no_rope_freq
    router score, bias         moe_router_score_function, moe_router_enable_expert_bias
    router groups              moe_router_num_groups, moe_router_group_topk
    router scale               moe_router_topk_scaling_factor
    not normalised             moe_router_pre_softmax (a softmax over all experts, not the chosen)

A value that the model's file does not state is listed and left to Megatron's default, never
guessed.

Source: NVIDIA/Megatron-LM@d98e8a64 `megatron/training/arguments.py`,
`megatron/training/argument_utils.py` (yarn), `megatron/core/transformer/transformer_config.py`
(moe_router_*, MLATransformerConfig), `megatron/core/transformer/moe/moe_utils.py`
(topk_routing_with_score_function), `megatron/core/models/common/embeddings/
rotary_pos_embedding.py` (_apply_scaling: llama3's factors 1 and 4, 8192 positions).
"""

from typing import Any

from meshplan.costmodels.model.numerics import Numerics, RotaryScaling, Router
from meshplan.costmodels.model.transformer import Model
from meshplan.executor.frameworks.documents.values import Values
from meshplan.planner.case.reading import CannotSay

_LLAMA3 = {"low_frequency": 1.0, "high_frequency": 4.0, "original_positions": 8192}
_LATENT_YARN = {"original_positions": 4096, "beta_fast": 32.0, "beta_slow": 1.0}
_ACTIVATIONS = {
    "silu": "swiglu",
    "relu2": "squared_relu",
    "gelu": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
}
"""A file's word and Megatron's: the three of GELU differ by less than 16 bits show."""
_NOT_STATED = "the model's file does not state it; Megatron's default stands"

Said = tuple[dict[str, object], list[CannotSay]]


def numeric_settings(model: Model, *, rotates: bool) -> Said:
    """Megatron's settings for the numerics of `model`, and what they leave out.

    rotates  positions are rotary (neither learned nor a bias of the scores)
    """
    n = model.numerics
    settings: dict[str, object] = {}
    unsaid = []
    for name, value, theirs in (
        ("norm_epsilon", n.norm_epsilon, "norm_epsilon"),
        ("init_std", n.init_std, "init_method_std"),
    ):
        if value is None:
            unsaid.append(CannotSay(f"numerics.{name}", "not stated", _NOT_STATED))
        else:
            settings[theirs] = value
    parts = [_activation(model)]
    parts += [_rotary(model)] if rotates else []
    parts += [_router(n.router)] if model.is_moe else []
    for more, left in parts:
        settings |= more
        unsaid += left
    return settings, [*unsaid, *_caps(n)]


def _caps(n: Numerics) -> list[CannotSay]:
    caps = {"attention_softcap": n.attention_softcap, "logit_softcap": n.logit_softcap}
    why = "Megatron has no soft cap"
    return [CannotSay(f"numerics.{name}", value, why) for name, value in caps.items() if value]


def _activation(model: Model) -> Said:
    word = model.numerics.activation
    theirs = _ACTIVATIONS.get(word or "")
    settings: dict[str, object] = {"squared_relu": True} if theirs == "squared_relu" else {}
    written = "swiglu" if model.gated else "gelu"
    if word is None:
        return {}, [CannotSay("numerics.activation", "not stated", f"{written} is written")]
    if theirs not in (("swiglu",) if model.gated else ("gelu", "squared_relu")):
        return {}, [CannotSay("numerics.activation", word, f"{written} is written")]
    return settings, []


def _rotary(model: Model) -> Said:
    rotary, latent = model.numerics.rotary, model.kinds[0].attention.is_mla
    settings: dict[str, object] = {}
    unsaid = []
    if rotary.base is None:
        unsaid.append(CannotSay("numerics.rotary_base", "not stated", _NOT_STATED))
    elif rotary.base.is_integer():
        settings["rotary_base"] = int(rotary.base)
    else:
        unsaid.append(CannotSay("numerics.rotary_base", rotary.base, "it takes a whole number"))
    if rotary.share != 1:
        settings["rotary_percent"] = rotary.share
    if rotary.skips_every:
        settings["no_rope_freq"] = rotary.skips_every
    if rotary.local_base not in (None, rotary.base):
        why = "Megatron rotates all layers by one base"
        unsaid.append(CannotSay("numerics.rotary_local_base", rotary.local_base, why))
    if rotary.scaling is not None:
        scaled, left = _scaling(rotary.scaling, latent=latent)
        return settings | scaled, unsaid + left
    if latent:  # Megatron's own default there is YaRN, and its fusion knows nothing else
        settings |= {"rope_type": "rope", "no_rope_fusion": True}
    return settings, unsaid


def _scaling(scaling: RotaryScaling, *, latent: bool) -> Said:
    kind, factor = scaling.kind, scaling.factor
    left: list[CannotSay] = []
    if factor is None:
        return {}, [CannotSay("numerics.rotary_scaling", kind, "its factor is not stated")]
    if kind == "llama3":
        settings: dict[str, object] = {"use_rope_scaling": True, "rope_scaling_factor": factor}
        return settings, _fixed(scaling, _LLAMA3)
    if kind == "linear" and factor.is_integer():
        return {"rotary_seq_len_interpolation_factor": int(factor)}, left
    if kind == "yarn":
        settings = {"rotary_scaling_factor": factor}
        for ours in ("mscale", "mscale_all_dim"):
            if (value := getattr(scaling, ours)) is not None:
                settings[ours] = value
        if latent:
            return settings | {"rope_type": "yarn"}, _fixed(scaling, _LATENT_YARN)
        return settings | _plain_yarn(scaling), left
    return {}, [CannotSay("numerics.rotary_scaling", kind, "Megatron has llama3, linear and yarn")]


def _fixed(scaling: RotaryScaling, fixed: dict[str, Any]) -> list[CannotSay]:
    """What Megatron has as constants, where the model's are others."""
    return [
        CannotSay(f"numerics.rotary_scaling.{name}", value, f"Megatron has {ours} there")
        for name, ours in fixed.items()
        if (value := getattr(scaling, name)) not in (None, ours)
    ]


def _plain_yarn(scaling: RotaryScaling) -> dict[str, object]:
    names = {
        "yarn_original_max_position_embeddings": scaling.original_positions,
        "yarn_beta_fast": scaling.beta_fast,
        "yarn_beta_slow": scaling.beta_slow,
    }
    settings: dict[str, object] = {"position_embedding_type": "yarn"}
    settings |= {name: value for name, value in names.items() if value is not None}
    if scaling.truncate is not None:
        rounds = "" if scaling.truncate else "no_"
        settings[f"{rounds}yarn_correction_range_round_to_int"] = True
    return settings


def _router(router: Router | None) -> Said:
    if router is None:
        return {}, [CannotSay("numerics.router", "not stated", _NOT_STATED)]
    settings, unsaid = _scores(router)
    grouped, of_groups = _groups(router)
    settings |= grouped
    if router.scale not in (None, 1):
        settings["moe_router_topk_scaling_factor"] = router.scale
    if router.weighs_inputs:
        settings["moe_apply_probs_on_input"] = True
    return settings, unsaid + of_groups


def _scores(router: Router) -> Said:
    """How logits become the scores that experts are chosen and weighed by."""
    settings: dict[str, object] = {"moe_router_score_function": router.score}
    unsaid = []
    if router.score == "sqrtsoftplus":
        why = "whether Megatron has it is not known"
        settings, unsaid = {}, [CannotSay("numerics.router.score", router.score, why)]
    if router.normalised is None:
        unsaid.append(CannotSay("numerics.router.normalised", "not stated", _NOT_STATED))
    elif router.score == "softmax" and not router.normalised:
        settings["moe_router_pre_softmax"] = True
    if router.bias and router.score == "sigmoid":
        settings["moe_router_enable_expert_bias"] = True
    return settings, unsaid


def _groups(router: Router) -> Said:
    """Groups of experts of which a token takes a few."""
    if router.groups is None or router.top_groups is None:
        return {}, [CannotSay("numerics.router.groups", "not stated", _NOT_STATED)]
    if not router.groups:
        return {}, []
    why = "Megatron ranks groups by the sum of their best experts"
    by_best = router.groups_by == "best"
    return {
        "moe_router_num_groups": router.groups,
        "moe_router_group_topk": router.top_groups,
    }, [CannotSay("numerics.router.groups_by", "best", why)] if by_best else []


_BACK = {
    "rms_norm_eps": "norm_epsilon",
    "initializer_range": "init_method_std",
    "routed_scaling_factor": "moe_router_topk_scaling_factor",
}


def numeric_config(values: Values) -> dict[str, Any]:
    """The stated numerics as fields of a Hugging Face configuration."""
    config: dict[str, Any] = {
        ours: fact.value
        for ours, theirs in _BACK.items()
        if (fact := values.num(theirs)) is not None
    }
    score, groups = values.get("moe_router_score_function"), values.count("moe_router_num_groups")
    top = values.count("moe_router_group_topk")
    if groups is not None:
        config |= {"n_group": groups.value, "topk_group": top.value if top else None}
        config["topk_method"] = "group_limited_greedy"
    elif score is not None:
        config |= {"n_group": 1, "topk_group": 1}
    if score is not None:
        config["scoring_func"] = score.value
        config["norm_topk_prob"] = not values.on("moe_router_pre_softmax")
    if values.on("use_rope_scaling"):
        factor = values.num("rope_scaling_factor")
        config["rope_scaling"] = {"rope_type": "llama3", "factor": factor.value if factor else 8.0}
    elif (stretched := values.num("rotary_scaling_factor")) is not None:
        config["rope_scaling"] = {"rope_type": "yarn", "factor": stretched.value}
    return config
