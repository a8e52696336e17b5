"""A Hugging Face `config.json` as a `Model`: one function per family, and a refusal for the rest.

The fields, their names and what an absent one means are those of the families' configuration
classes in huggingface/transformers 5 (`models/<model_type>/configuration_<model_type>.py`); where
the shapes of the weights do not follow from the configuration, those of the `modeling_` file.

What changes neither the sizes nor the time of training noticeably (rotary frequencies, logit
soft-capping, activation kinds) is in `numerics`. Leaves out: the towers of multimodal models, see
`left_out`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from meshplan.costmodels.model.config_fields import Fields, UnsupportedModel
from meshplan.costmodels.model.config_parts import (
    dense_model,
    gqa,
    mla,
    model_of,
    moe_model,
    per_layer,
)
from meshplan.costmodels.model.numerics import numerics_of
from meshplan.costmodels.model.transformer import Attention, Experts, Layer, Model

NOT_PRICED = {
    "an encoder-decoder": ("t5", "mt5", "umt5", "bart", "mbart", "pegasus", "whisper", "t5gemma"),
    "an encoder": ("bert", "roberta", "deberta", "deberta-v2", "modernbert", "distilbert"),
    "state-space layers": ("mamba", "mamba2", "falcon_mamba", "rwkv"),
    "a hybrid of attention with state-space or linear-attention layers": (
        *("jamba", "bamba", "zamba", "zamba2", "nemotron_h", "falcon_h1", "granitemoehybrid"),
        *("recurrent_gemma", "qwen3_next", "qwen3_5", "minimax", "kimi_linear", "lfm2"),
    ),
    "sparse attention": ("deepseek_v32",),
}
TOWERS = ("vision_config", "audio_config")


def model_from_config(config: object, name: str) -> Model:
    """The model that a `config.json`, already parsed, describes.

    Raises `UnsupportedModel` with one line for a family or a feature that is not priced, and for a
    field that is missing, of the wrong type or out of range.
    """
    if not isinstance(config, dict):
        raise UnsupportedModel(f"{name}: a config.json holds an object, not {_kind_of(config)}")
    outer = Fields(config, name)
    if outer.flag("is_encoder_decoder", False):
        raise outer.refuse("an encoder-decoder is not priced; decoder-only models are")
    fields = _text_part(outer)
    model_type = fields.config.get("model_type")
    if not isinstance(model_type, str):
        raise outer.refuse("the field 'model_type' is missing; it says which family this is")
    if model_type not in FAMILIES:
        raise outer.refuse(_why_not(model_type))
    return replace(FAMILIES[model_type](fields), numerics=numerics_of(fields))


def left_out(config: Mapping[str, object]) -> tuple[str, ...]:
    """What the configuration holds that the `Model` does not, in words for a warning."""
    return tuple(
        f"{key.removesuffix('_config')} tower"
        for key in TOWERS
        if isinstance(config.get(key), dict)
    )


def _text_part(outer: Fields) -> Fields:
    """The language model of a multimodal configuration; a flat one is returned as it is."""
    text = outer.section("text_config")
    if text is None:
        return outer
    inherited = {key: outer.config.get(key) for key in ("tie_word_embeddings", "model_type")}
    given = {key: value for key, value in text.config.items() if value is not None}
    return Fields({**inherited, **given}, outer.name)


def _why_not(model_type: str) -> str:
    for reason, types in NOT_PRICED.items():
        if model_type in types:
            return f"model_type {model_type!r} is not priced: {reason}"
    shown = model_type if len(model_type) <= 40 else model_type[:37] + "..."
    return f"model_type {shown!r} is not priced; these are: {', '.join(sorted(FAMILIES))}"


def _kind_of(value: object) -> str:
    return {list: "a list", str: "a text", type(None): "null"}.get(type(value), "a single value")


def _llama(f: Fields) -> Model:
    model = dense_model(f, per_layer(f, gqa(f)))
    return replace(model, bias=f.flag("mlp_bias", False))


def _mistral(f: Fields) -> Model:
    return dense_model(f, per_layer(f, gqa(f), slides=_has_window(f)))


def _mixtral(f: Fields) -> Model:
    experts = Experts(
        experts=f.count("num_local_experts"),
        top_k=f.count("num_experts_per_tok"),
        ffn=f.count("intermediate_size"),
    )
    return moe_model(f, per_layer(f, gqa(f), slides=_has_window(f)), experts)


def _has_window(f: Fields) -> Callable[[int], bool]:
    windowed = f.present("sliding_window") is not None
    return lambda _layer: windowed


def _qwen_layers(f: Fields, attention: Attention) -> list[Attention]:
    """Qwen slides on the layers from `max_window_layers` on, when it is told to slide at all."""
    sliding = f.flag("use_sliding_window", False)
    first = f.count("max_window_layers", default=28, least=0)
    return per_layer(f, attention, slides=lambda layer: sliding and layer >= first)


def _qwen2(f: Fields) -> Model:
    return dense_model(f, _qwen_layers(f, replace(gqa(f), qkv_bias=True)))


def _qwen3(f: Fields) -> Model:
    return dense_model(f, _qwen_layers(f, replace(gqa(f, head_dim=128), qk_norm="head")))


def _qwen_moe(f: Fields, attention: Attention, shared_ffn: int) -> Model:
    """The routed layers are every `decoder_sparse_step`-th, less those of `mlp_only_layers`."""
    step = f.count("decoder_sparse_step", default=1)
    dense = f.counts("mlp_only_layers") or ()
    experts = Experts(
        experts=f.count("num_experts", "num_local_experts"),
        top_k=f.count("num_experts_per_tok"),
        ffn=f.count("moe_intermediate_size"),
        shared_ffn=shared_ffn,
        shared_gate=shared_ffn > 0,
    )
    layers = _qwen_layers(f, attention)
    return moe_model(f, layers, experts, lambda i: i not in dense and (i + 1) % step == 0)


def _qwen2_moe(f: Fields) -> Model:
    attention = replace(gqa(f), qkv_bias=f.flag("qkv_bias", True))
    return _qwen_moe(f, attention, f.count("shared_expert_intermediate_size"))


def _qwen3_moe(f: Fields) -> Model:
    return _qwen_moe(f, replace(gqa(f), qk_norm="head"), shared_ffn=0)


def _deepseek(f: Fields) -> Model:
    """DeepSeek-V2, V3 and Kimi-K2: latent attention, leading dense layers, then routed ones."""
    attentions = [mla(f)] * f.num_layers
    if f.present("n_routed_experts") is None:
        return dense_model(f, attentions)
    ffn = f.count("moe_intermediate_size")
    experts = Experts(
        experts=f.count("n_routed_experts"),
        top_k=f.count("num_experts_per_tok"),
        ffn=ffn,
        shared_ffn=ffn * f.count("n_shared_experts", default=0, least=0),
        router_bias=f.config.get("topk_method", _topk_method(f)) == "noaux_tc",
    )
    first = f.count("first_k_dense_replace", default=0, least=0)
    every = f.count("moe_layer_freq", default=1)
    model = moe_model(f, attentions, experts, lambda i: i >= first and i % every == 0)
    modules = f.count("num_nextn_predict_layers", "num_mtp_layers", default=0, least=0)
    return replace(model, mtp_layers=modules)


def _topk_method(f: Fields) -> str:
    """What an absent field means: V3 always corrects the router's scores by a bias per expert."""
    return "greedy" if f.config.get("model_type") == "deepseek_v2" else "noaux_tc"


def _gpt_oss(f: Fields) -> Model:
    attention = replace(gqa(f, head_dim=64, bias=True), sinks=True)
    experts = Experts(
        experts=f.count("num_local_experts"),
        top_k=f.count("num_experts_per_tok", "experts_per_token"),
        ffn=f.count("intermediate_size"),
        router_bias=True,
        bias=True,
    )
    return moe_model(f, per_layer(f, attention, slides=lambda layer: layer % 2 == 0), experts)


def _llama4(f: Fields) -> Model:
    """Chunked attention but on every fourth layer, one shared expert in each routed layer."""
    step = f.count("interleave_moe_layer_step", default=1)
    interval = f.count("no_rope_layer_interval", default=4)
    rotary = f.counts("no_rope_layers") or ()

    def chunks(layer: int) -> bool:
        return bool(rotary[layer]) if layer < len(rotary) else (layer + 1) % interval != 0

    ffn = f.count("intermediate_size")
    experts = Experts(
        experts=f.count("num_local_experts"),
        top_k=f.count("num_experts_per_tok", default=1),
        ffn=ffn,
        shared_ffn=ffn,
    )
    moe_layers = f.counts("moe_layers")
    attentions = per_layer(f, gqa(f, head_dim=128), slides=chunks, kind="chunked_attention")
    return moe_model(
        f,
        attentions,
        experts,
        lambda i: (i + 1) % step == 0 if moe_layers is None else i in moe_layers,
    )


def _gemma2(f: Fields) -> Model:
    """Every other layer slides, and each block's output is normalised as well as its input."""
    attentions = per_layer(f, gqa(f, head_dim=256), slides=lambda layer: layer % 2 == 0)
    return replace(dense_model(f, attentions, tied=True), norms_per_layer=4)


def _gemma3(f: Fields) -> Model:
    """As Gemma 2, but five layers of six slide. Published files leave out what is the default."""
    defaults = {"vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4}
    given = {key: value for key, value in f.config.items() if value is not None}
    f = Fields({**defaults, **given}, f.name)
    if f.flag("use_bidirectional_attention", False):
        raise f.refuse("use_bidirectional_attention is not priced; causal attention is")
    every = f.count("sliding_window_pattern", "_sliding_window_pattern", default=6)
    attention = replace(gqa(f, head_dim=256), qk_norm="head")
    attentions = per_layer(f, attention, slides=lambda layer: (layer + 1) % every != 0)
    return replace(dense_model(f, attentions, tied=True), norms_per_layer=4)


def _smollm3(f: Fields) -> Model:
    sliding = f.flag("use_sliding_window", False)
    model = dense_model(f, per_layer(f, gqa(f), slides=lambda _layer: sliding), tied=True)
    return replace(model, bias=f.flag("mlp_bias", False))


def _olmo2(f: Fields) -> Model:
    """Norms after the blocks instead of before: as many of them. One norm over all heads."""
    return dense_model(f, per_layer(f, replace(gqa(f), qk_norm="full")))


def _nemotron(f: Fields) -> Model:
    """Squared ReLU without a gate, layer norms with a bias, matrices without."""
    model = dense_model(f, per_layer(f, gqa(f)))
    return replace(model, gated=False, norm="layernorm", bias=f.flag("mlp_bias", False))


def _gpt_block(f: Fields, ffn: int, *, bias: bool, kv_heads: int | None = None) -> Model:
    """Multi-head attention and an ungated feed-forward; norms have a bias when matrices do."""
    attention = replace(gqa(f, kv_heads=kv_heads), qkv_bias=bias, out_bias=bias)
    layers = [Layer(attention=attention, ffn=ffn)] * f.num_layers
    model = replace(model_of(f, layers, tied=True), gated=False, bias=bias)
    return replace(model, norm="layernorm") if bias else model


def _gpt2(f: Fields) -> Model:
    """GPT-2 and GPT-3, whose locally banded layers are priced as full ones."""
    model = _gpt_block(f, f.count("n_inner", default=4 * f.hidden), bias=True)
    return replace(model, learned_positions=f.count("n_positions", "n_ctx"))


def _gpt_neox(f: Fields) -> Model:
    model = _gpt_block(f, f.count("intermediate_size"), bias=f.flag("attention_bias", True))
    return replace(
        model,
        norm="layernorm",
        bias=True,
        parallel_blocks=f.flag("use_parallel_residual", True),
        tied=f.flag("tie_word_embeddings", False),
    )


def _mpt(f: Fields) -> Model:
    """ALiBi unless the file says otherwise; its norms lose their bias with `no_bias`."""
    attention = f.section("attn_config") or Fields({}, f.name)
    if attention.flag("qk_ln", False):
        raise f.refuse("attn_config.qk_ln, a norm over queries and keys, is not priced for MPT")
    multi_query = attention.config.get("attn_type") == "multiquery_attention"
    kv_heads = attention.count("kv_n_heads", default=1 if multi_query else f.heads)
    ffn = f.count("expansion_ratio", default=4) * f.hidden
    model = _gpt_block(f, ffn, bias=not f.flag("no_bias", True), kv_heads=kv_heads)
    learned = f.flag("learned_pos_emb", True) and not attention.flag("alibi", True)
    return replace(model, learned_positions=f.count("max_seq_len") if learned else 0)


def _bloom(f: Fields) -> Model:
    model = _gpt_block(f, 4 * f.hidden, bias=True)
    return replace(model, embedding_norm=True)


FAMILIES: dict[str, Callable[[Fields], Model]] = {
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "phi3": _mistral,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "kimi_k2": _deepseek,
    "gpt_oss": _gpt_oss,
    "llama4": _llama4,
    "llama4_text": _llama4,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma3_text": _gemma3,
    "smollm3": _smollm3,
    "olmo2": _olmo2,
    "nemotron": _nemotron,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "mpt": _mpt,
    "bloom": _bloom,
}
