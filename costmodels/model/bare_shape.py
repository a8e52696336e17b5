"""A model from a bare shape: an inline description, or a row of a table of measured runs.

    layers hidden ffn heads kv_heads head_dim vocab    sizes as in `Model`
    gated tied                                         1/0 or true/false
    experts top_k moe_ffn shared_experts dense_layers  mixture of experts; the dense layers lead
    attention                                          mha, gqa or mla, with a note on windows, or
                                                       for an ungated model on "rotary positions"
    sinks                                              1: attention sinks, and biases of attention
                                                       and experts (gpt-oss)
    qk_norm                                            head: queries and keys normed by head (Qwen3)
    q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim
                                                       latent attention, where it is not DeepSeek's
    seq_len                                            rows of a GPT's learned position table
    params_b                                           stated parameters in 1e9, to check against

What a shape does not say is filled in from its kind. Gated models are Llama-like: RMSNorm, no
biases, RoPE, an untied head. Ungated ones are GPT-like: LayerNorm, biases everywhere, learned
positions, a tied head. Latent attention has DeepSeek-V3's ranks (arXiv 2412.19437 section 4.2:
query 1536, key/value 512, heads 128 + 64 rotary, values 128), but an uncompressed query up to
hidden 2048, as DeepSeek-V2-Lite (arXiv 2405.04434 appendix B).
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from meshplan.costmodels.model.config_fields import Fields
from meshplan.costmodels.model.parameters import model_parameters
from meshplan.costmodels.model.transformer import Attention, Experts, Layer, Model

SIZES = ("layers", "hidden", "ffn", "heads", "kv_heads", "head_dim", "vocab")
MOE_SIZES = ("experts", "top_k", "moe_ffn", "shared_experts", "dense_layers")
LATENT_SIZES = (
    *("q_lora_rank", "kv_lora_rank"),
    *("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
)
NUMBERS = (*SIZES, *MOE_SIZES, *LATENT_SIZES, "seq_len")
FLAGS = ("gated", "gated_mlp", "tied", "sinks")
SHAPE_FIELDS = (*NUMBERS, *FLAGS, "attention", "qk_norm", "params_b")

PARAMS_TOLERANCE = 0.1
"""A stated size further off, with and without the vocabulary, belongs to another model."""

UNCOMPRESSED_QUERY_HIDDEN = 2048
ROTARY = "rotary positions"
MOST_LAYERS = 10_000  # each is listed


def model_from_shape(shape: Mapping[str, object], name: str) -> Model:
    """The model of a shape whose values are numbers, flags or their texts ("" counts as absent).

    Keys other than `SHAPE_FIELDS` are ignored, so that a whole row of a table can be passed. Raises
    `UnsupportedModel` with one line that names a field that is missing, malformed or not priced, or
    that says how far the stated number of parameters is off.
    """
    f = _typed(shape, name)
    gated = f.flag("gated", f.flag("gated_mlp", True))
    attentions = _attentions(f, bias=not gated or f.flag("sinks", False))
    layers = _layers(f, attentions)
    kinds = tuple(dict.fromkeys(layers))
    model = Model(
        name=name,
        hidden=f.count("hidden"),
        vocab=f.count("vocab"),
        kinds=kinds,
        pattern=tuple(kinds.index(layer) for layer in layers),
        gated=gated,
        norm="rmsnorm" if gated else "layernorm",
        bias=not gated,
        learned_positions=0 if gated or _rotates(f) else f.count("seq_len", default=0, least=0),
        tied=f.flag("tied", not gated),
    )
    _check_stated_size(f, model)
    return model


def _typed(shape: Mapping[str, object], name: str) -> Fields:
    """The shape's own fields, with texts read as the numbers and flags that they spell."""
    raw = {key: shape[key] for key in SHAPE_FIELDS if shape.get(key) not in (None, "")}
    texts = {key: value.strip() for key, value in raw.items() if isinstance(value, str)}
    numbers = {k: int(v) for k, v in texts.items() if k in NUMBERS and re.fullmatch(r"\d{1,12}", v)}
    spelled = {"0": False, "1": True, "false": False, "true": True}
    flags = {k: spelled[v.lower()] for k, v in texts.items() if k in FLAGS and v.lower() in spelled}
    bits = {k: bool(v) for k, v in raw.items() if k in FLAGS and v in (0, 1)}
    return Fields({**raw, **texts, **numbers, **bits, **flags}, name)


def _attentions(f: Fields, *, bias: bool) -> list[Attention]:
    """The attention of each layer, from the words of `attention`."""
    layers = f.count("layers")
    if layers > MOST_LAYERS:
        raise f.refuse(f"layers is {layers}, more than {MOST_LAYERS}")
    words = f.present("attention")
    text = words[1] if words else "mha" if f.present("kv_heads") is None else "gqa"
    match = re.fullmatch(r"(mha|gqa|mqa|mla)(?: \((.*)\))?", str(text).strip())
    if match is None:
        raise f.refuse(f"attention {str(text)[:60]!r} is not priced; mha, gqa, mqa and mla are")
    kind, note = match.groups()
    attention = _latent(f) if kind == "mla" else _grouped(f, kind, bias=bias)
    if note in (None, ROTARY):
        return [attention] * layers
    if found := re.fullmatch(r"alternating (\d{1,9})-token sliding window", note):
        windowed = replace(attention, window=int(found[1]))
        return [attention if layer % 2 else windowed for layer in range(layers)]
    if found := re.fullmatch(r"(\d{1,4}) of (\d{1,4}) layers chunked (\d{1,9})", note):
        chunked, period = int(found[1]), int(found[2])
        windowed = replace(attention, window=int(found[3]), chunked=True)
        return [windowed if i % max(period, 1) < chunked else attention for i in range(layers)]
    raise f.refuse(f"attention {str(text)[:60]!r} has a note that is not understood")


def _rotates(f: Fields) -> bool:
    words = f.present("attention")
    return words is not None and str(words[1]).strip().endswith(f"({ROTARY})")


def _grouped(f: Fields, kind: str, *, bias: bool) -> Attention:
    heads = f.count("heads")
    usual = {"mha": heads, "mqa": 1}
    kv_heads = f.count("kv_heads", default=usual.get(kind))
    f.divide(heads, kv_heads, "query heads over key/value heads")
    if f.present("head_dim") is None:
        head_dim = f.divide(f.count("hidden"), heads, "hidden over heads, there being no head_dim")
    else:
        head_dim = f.count("head_dim")
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=head_dim,
        qkv_bias=bias,
        out_bias=bias,
        sinks=f.flag("sinks", False),
        qk_norm=_qk_norm(f),
    )


def _qk_norm(f: Fields) -> Literal["none", "head"]:
    found = f.present("qk_norm")
    if found is None or found[1] == "none":
        return "none"
    if found[1] != "head":
        raise f.refuse(f"qk_norm is {str(found[1])[:40]!r}; known: head, none")
    return "head"


def _latent(f: Fields) -> Attention:
    heads, rope = f.count("heads"), f.count("qk_rope_head_dim", default=64)
    compressed = f.count("hidden") > UNCOMPRESSED_QUERY_HIDDEN
    return Attention(
        heads=heads,
        kv_heads=heads,
        head_dim=f.count("qk_nope_head_dim", default=128) + rope,
        v_head_dim=f.count("v_head_dim", default=128),
        q_lora_rank=f.count("q_lora_rank", default=1536 if compressed else 0, least=0),
        kv_lora_rank=f.count("kv_lora_rank", default=512),
        rope_head_dim=rope,
    )


def _layers(f: Fields, attentions: list[Attention]) -> list[Layer]:
    """Dense layers, or `dense_layers` of them and then mixture-of-experts layers."""
    routed = f.count("experts", default=0, least=0)
    dense = f.count("dense_layers", default=0, least=0) if routed else len(attentions)
    experts = _experts(f, routed) if dense < len(attentions) else None
    return [
        Layer(attention=each, ffn=f.count("ffn"))
        if i < dense
        else Layer(attention=each, experts=experts)
        for i, each in enumerate(attentions)
    ]


def _experts(f: Fields, routed: int) -> Experts:
    top_k, ffn = f.count("top_k"), f.count("moe_ffn")
    if top_k > routed:
        raise f.refuse(f"top_k {top_k} of {routed} experts: a token visits at most all of them")
    shared = f.count("shared_experts", default=0, least=0)
    bias = f.flag("sinks", False)
    return Experts(experts=routed, top_k=top_k, ffn=ffn, shared_ffn=shared * ffn, bias=bias)


def _check_stated_size(f: Fields, model: Model) -> None:
    found = f.present("params_b")
    if found is None:
        return
    try:
        stated = float(str(found[1])) * 1e9
    except ValueError as error:
        raise f.refuse(f"params_b is {str(found[1])[:40]!r}, not a number") from error
    count = model_parameters(model)
    counted, without_ends = count.without_mtp, count.without_mtp - count.embedding - count.head
    if min(abs(stated / counted - 1), abs(stated / without_ends - 1)) <= PARAMS_TOLERANCE:
        return
    raise f.refuse(
        f"the shape has {counted / 1e9:.4g}e9 parameters, but {stated / 1e9:.4g}e9 are stated; "
        "it is described incompletely"
    )
