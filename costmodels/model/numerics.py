"""What changes a model's results but neither its sizes nor its time: norms, positions, the router.

Prices look at a router's groups only (`Model.expert_groups`); a framework's config and the native
engine look at all of it. A field that the
`config.json` leaves out is None: what it means then is for the reader of the file to say, and is
never guessed. The names are those of the families' configuration classes in
huggingface/transformers 5; transformers 5 writes `rope_parameters` for what `rope_theta` and
`rope_scaling` were before, and both are read.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from meshplan.costmodels.model.config_fields import Fields
from meshplan.hardware_profiles.dataclass import dataclass

Score = Literal["softmax", "sigmoid", "sqrtsoftplus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryScaling:
    """How rotary frequencies are stretched to longer sequences.

    kind                what the file calls it: "llama3", "yarn", "linear", "dynamic", "longrope"
    factor              how much longer the sequences become
    original_positions  the length that the model was trained at before
    low_frequency, high_frequency  where "llama3" begins and ends to interpolate
    beta_fast, beta_slow, mscale, mscale_all_dim, truncate  of YaRN (2309.00071)
    """

    kind: str
    factor: float | None = None
    original_positions: int | None = None
    low_frequency: float | None = None
    high_frequency: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotary:
    """Rotary positions (2104.09864): frequency i of a head of width d is base^(-2i/d).

    share       of a head's width that is rotated
    scaling     None: the frequencies are taken as they are
    local_base  of the layers with a window, where they have their own (Gemma 3)
    skips_every n: each n-th layer is not rotated (2501.18795), 0: all are
    """

    base: float | None = None
    share: float = 1.0
    scaling: RotaryScaling | None = None
    local_base: float | None = None
    skips_every: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """How a token's experts are chosen and weighed.

    score           what turns the router's logits into weights
    normalised      the weights of the chosen experts are made to add up to one
    bias            a bias per expert, learnt from the load, decides on the choice alone
    groups, top_groups  experts are chosen from the best groups only; 0: from all, None: the file
                        leaves it out although its family has groups
    groups_by       a group counts as its best expert ("best", DeepSeek-V2) or the best two
    scale           the weights are multiplied by it
    weighs_inputs   the weight multiplies an expert's input, not its output (Llama 4)
    """

    score: Score
    normalised: bool | None
    bias: bool = False
    groups: int | None = 0
    top_groups: int | None = 0
    groups_by: Literal["best", "two"] = "two"
    scale: float | None = None
    weighs_inputs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """One model's.

    norm_epsilon       added to the mean square (or the variance) of a norm
    activation         of the feed-forward part, in the file's own word
    init_std           standard deviation of the first weights
    attention_softcap, logit_softcap  scores are c tanh(x / c) (Gemma 2), None where they are not
    """

    norm_epsilon: float | None = None
    activation: str | None = None
    init_std: float | None = None
    rotary: Rotary = Rotary()
    router: Router | None = None
    attention_softcap: float | None = None
    logit_softcap: float | None = None


def numerics_of(f: Fields) -> Numerics:
    """The numerics that the text part of a `config.json` states; raises `UnsupportedModel`."""
    router = ROUTERS.get(str(f.config.get("model_type")))
    return Numerics(
        norm_epsilon=f.number("rms_norm_eps", "norm_epsilon", "layer_norm_epsilon",
                              "layer_norm_eps", "layernorm_epsilon", "norm_eps"),
        activation=OWN_ACTIVATIONS.get(str(f.config.get("model_type")))
        or f.word("hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act"),
        init_std=f.number("initializer_range", "init_std"),
        rotary=_rotary(f),
        router=router(f) if router and _routes(f) else None,
        attention_softcap=f.number("attn_logit_softcapping"),
        logit_softcap=f.number("final_logit_softcapping"),
    )  # fmt: skip


def _rotary(f: Fields) -> Rotary:
    """The fields of transformers 4, or `rope_parameters`, which has one part for each kind of
    layer where they differ (Gemma 3)."""
    if f.config.get("model_type") in WITHOUT_POSITIONS:
        return Rotary()
    stated = f.section("rope_parameters")
    local = stated.section("sliding_attention") if stated else None
    full = (stated.section("full_attention") if stated else None) or stated
    place = full or f
    scaling = full or f.section("rope_scaling")
    share = place.number("partial_rotary_factor") or f.number("partial_rotary_factor", "rotary_pct")
    width, rotated = f.number("head_dim"), f.number("rotary_dim")
    if share is None and width and rotated:
        share = rotated / width
    return Rotary(
        base=place.number("rope_theta") or f.number("rope_theta", "rotary_emb_base"),
        share=1.0 if share is None else share,
        scaling=_scaling(scaling) if scaling else None,
        local_base=local.number("rope_theta")
        if local
        else f.number("rope_local_base_freq", "swa_rope_theta"),
        skips_every=_skips_every(f),
    )


def _skips_every(f: Fields) -> int:
    """Of the families that skip layers; `no_rope_layers` has a 0 for each that is skipped."""
    if f.config.get("model_type") not in ("llama4", "llama4_text", "smollm3"):
        return 0
    rotated = f.counts("no_rope_layers") or ()
    first = rotated.index(0) + 1 if 0 in rotated else 4
    return f.count("no_rope_layer_interval", default=first)


def _scaling(f: Fields) -> RotaryScaling | None:
    kind = f.word("rope_type", "type")
    if kind in (None, "default"):
        return None
    return RotaryScaling(
        kind=str(kind),
        factor=f.number("factor"),
        original_positions=_whole(f, "original_max_position_embeddings"),
        low_frequency=f.number("low_freq_factor"),
        high_frequency=f.number("high_freq_factor"),
        beta_fast=f.number("beta_fast"),
        beta_slow=f.number("beta_slow"),
        mscale=f.number("mscale"),
        mscale_all_dim=f.number("mscale_all_dim"),
        truncate=f.flag("truncate", True) if f.present("truncate") else None,
    )


def _whole(f: Fields, *keys: str) -> int | None:
    return f.count(*keys) if f.present(*keys) else None


def _routes(f: Fields) -> bool:
    names = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
    found = f.present(*names)
    return found is not None and found[1] != 0


def _stated_flag(f: Fields, key: str) -> bool | None:
    return f.flag(key, False) if f.present(key) else None


SCORES: dict[str, Score] = {"sigmoid": "sigmoid", "sqrtsoftplus": "sqrtsoftplus"}


def _qwen_router(f: Fields) -> Router:
    return Router(score="softmax", normalised=_stated_flag(f, "norm_topk_prob"))


def _deepseek_router(f: Fields, score: Score, method: str | None = None) -> Router:
    """`score` and `method`: those of a family whose class knows no other (V3: a sigmoid, and a bias
    that corrects the choice)."""
    method = f.word("topk_method") or method
    grouped = method in ("group_limited_greedy", "noaux_tc")
    groups = _whole(f, "n_group") if grouped else 0
    top = _whole(f, "topk_group") if groups != 1 else 0
    return Router(
        score=SCORES.get(f.word("scoring_func") or "", score),
        normalised=_stated_flag(f, "norm_topk_prob"),
        bias=method == "noaux_tc",
        groups=0 if groups == 1 else groups,
        top_groups=top if grouped else 0,
        groups_by="best" if method == "group_limited_greedy" else "two",
        scale=f.number("routed_scaling_factor"),
    )


def _chosen(_f: Fields) -> Router:
    """The softmax is over the chosen experts, or made to add up to one after it: the same."""
    return Router(score="softmax", normalised=True)


def _corrected(score: Score) -> Router:
    """A bias per expert decides on the choice; the weights of the chosen add up to one."""
    return Router(score=score, normalised=True, bias=True)


def _scaled(field: str) -> Callable[[Fields], Router]:
    """The same after a sigmoid; the weights are then multiplied by what `field` says."""
    return lambda f: replace(_corrected("sigmoid"), scale=f.number(field))


def _llama4_router(_f: Fields) -> Router:
    return Router(score="sigmoid", normalised=False, weighs_inputs=True)


def _bailing_router(f: Fields) -> Router:
    """Ling 2.0's is DeepSeek-V3's; the first Ling's has neither groups nor a bias."""
    grouped = f.present("n_group") is not None
    if f.flag("moe_router_enable_expert_bias", grouped) or f.word("score_function") == "sigmoid":
        return _deepseek_router(f, "sigmoid", "noaux_tc")
    return _qwen_router(f)


WITHOUT_POSITIONS = ("nemotron_h",)
"""Families whose attention is told no positions, although their files state a base."""

OWN_ACTIVATIONS = {"gpt_oss": "clamped_swiglu", "xlstm": "silu"}
"""Of families whose code has one whatever the field says (`modeling_gpt_oss.py`: alpha, limit)."""

ROUTERS: dict[str, Callable[[Fields], Any]] = {
    **dict.fromkeys(
        ("deepseek", "deepseek_v2", "deepseek_ocr2_text"),
        lambda f: _deepseek_router(f, "softmax"),
    ),
    "mistral4": lambda f: replace(_deepseek_router(f, "softmax", "noaux_tc"), bias=False),
    "deepseek_v4": lambda f: replace(
        _deepseek_router(f, "sqrtsoftplus", "noaux_tc"), groups=0, top_groups=0
    ),
    **dict.fromkeys(("llama4", "llama4_text"), _llama4_router),
    **dict.fromkeys(
        ("deepseek_v3", "kimi_k2",
         "deepseek_v32", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "solar_open", "dots1",
         "axk1", "axk2", "mimo_v2_flash", "mimo_v2", "kimi_linear", "nemotron_h", "glm4v_moe_text",
         "sarvam_moe", "sarvam_mla", "beam", "bailing_hybrid", "glm5_next_text"),
        lambda f: _deepseek_router(f, "sigmoid", "noaux_tc"),
    ),
    **dict.fromkeys(
        ("qwen2_moe", "qwen3_moe",
         "qwen3_next", "qwen3_omni_moe_text", "qwen3_5_moe_text", "qwen4_exp_text",
         "qwen3_vl_moe_text", "olmoe",
         "flex_olmo", "mellum",
         "flint", "lara_mini"), _qwen_router
    ),
    **dict.fromkeys(("bailing_moe", "bailing_moe_v2", "bailing_moe_linear"), _bailing_router),
    "longcat_flash": lambda f: replace(
        _corrected("softmax"), normalised=False, scale=f.number("routed_scaling_factor")
    ),
    "laguna": _scaled("moe_routed_scaling_factor"),
    **dict.fromkeys(("step3p5", "step3p7"), _scaled("moe_router_scaling_factor")),
    "muse_spark_text": _scaled("routed_scaling_factor"),
    "hy_v3": _scaled("router_scaling_factor"),
    "afmoe": _scaled("route_scale"),
    "minimax_m2": lambda _f: _corrected("sigmoid"),
    "ernie4_5_moe": lambda _f: _corrected("softmax"),
    "ernie4_5_vl_moe_text": lambda _f: _corrected("softmax"),
    "jamba": lambda _f: Router(score="softmax", normalised=False),
    **dict.fromkeys(
        ("mixtral", "gpt_oss", "gemma4", "gemma4_text", "gemma4_unified_text", "phimoe",
         "granitemoe", "granitemoeshared", "granitemoehybrid", "minimax", "hunyuan_v1_moe",
         "hunyuan", "minimax_text_01", "minimax_m1", "MiniMaxText01", "MiniMaxM1"),
        _chosen,
    ),
}  # fmt: skip
"""What is fixed in a family's code (`modeling_<model_type>.py`), and read where it is a field."""
