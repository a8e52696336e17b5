"""The parts that model families share: attention, windows by layer, and the stack of layers."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from meshplan.costmodels.model.config_fields import Fields
from meshplan.costmodels.model.transformer import Attention, Experts, Layer, Model

WINDOW_FIELD = {
    "sliding_attention": "sliding_window",
    "chunked_attention": "attention_chunk_size",
}


def gqa(
    f: Fields, *, head_dim: int | None = None, kv_heads: int | None = None, bias: bool = False
) -> Attention:
    """Grouped-query attention without a window.

    head_dim  what an absent field means; None: the hidden size over the heads
    kv_heads  when the family names them otherwise; absent: as many as query heads
    bias      what an absent `attention_bias` means: biases on all four projections
    """
    heads = f.heads
    kv_heads = kv_heads or f.count("num_key_value_heads", default=heads)
    f.divide(heads, kv_heads, "query heads over key/value heads")
    if head_dim is None and f.present("head_dim") is None:
        head_dim = f.divide(f.hidden, heads, "hidden size over heads, there being no head_dim")
    width = f.count("head_dim", default=head_dim)
    biases = f.flag("attention_bias", bias)
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=width,
        v_head_dim=width,
        qkv_bias=biases,
        out_bias=biases,
    )


def mla(f: Fields) -> Attention:
    """Multi-head latent attention; an absent `q_lora_rank` means an uncompressed query."""
    if f.flag("attention_bias", False):
        raise f.refuse("attention_bias with latent attention is not priced")
    rope = f.count("qk_rope_head_dim")
    return Attention(
        heads=f.heads,
        kv_heads=f.heads,
        head_dim=f.count("qk_nope_head_dim") + rope,
        v_head_dim=f.count("v_head_dim"),
        q_lora_rank=f.count("q_lora_rank", default=0, least=0),
        kv_lora_rank=f.count("kv_lora_rank"),
        rope_head_dim=rope,
    )


def per_layer(
    f: Fields,
    attention: Attention,
    *,
    slides: Callable[[int], bool] = lambda _layer: False,
    kind: Literal["sliding_attention", "chunked_attention"] = "sliding_attention",
) -> list[Attention]:
    """`attention` for each layer, with a window where `layer_types`, or else `slides`, puts one."""
    types = f.texts("layer_types")
    if types is None:
        types = tuple(kind if slides(i) else "full_attention" for i in range(f.num_layers))
    if len(types) != f.num_layers:
        raise f.refuse(f"layer_types names {len(types)} layers of {f.num_layers}")
    by_type = {"full_attention": attention}
    for windowed, field in WINDOW_FIELD.items():
        if windowed in types:
            chunked = windowed == "chunked_attention"
            by_type[windowed] = replace(attention, window=f.count(field), chunked=chunked)
    for unknown in set(types) - set(by_type):
        raise f.refuse(f"layer_types has {unknown[:40]!r}, which is not priced")
    return [by_type[each] for each in types]


def model_of(f: Fields, layers: Sequence[Layer], *, tied: bool = False) -> Model:
    """The layers between an embedding and a head; `tied` is what an absent field means."""
    kinds = tuple(dict.fromkeys(layers))
    index = {kind: position for position, kind in enumerate(kinds)}
    return Model(
        name=f.name,
        hidden=f.hidden,
        vocab=f.count("vocab_size"),
        kinds=kinds,
        pattern=tuple(index[layer] for layer in layers),
        tied=f.flag("tie_word_embeddings", tied),
    )


def dense_model(f: Fields, attentions: Sequence[Attention], *, tied: bool = False) -> Model:
    """Every layer has a dense feed-forward of `intermediate_size`."""
    ffn = f.count("intermediate_size")
    return model_of(f, [Layer(attention=each, ffn=ffn) for each in attentions], tied=tied)


def moe_model(
    f: Fields,
    attentions: Sequence[Attention],
    experts: Experts,
    is_moe: Callable[[int], bool] = lambda _layer: True,
) -> Model:
    """Routed layers where `is_moe`; elsewhere dense ones of the width that the file gives."""
    if experts.top_k > experts.experts:
        raise f.refuse(f"{experts.top_k} experts per token, but only {experts.experts} experts")

    def layer(index: int, attention: Attention) -> Layer:
        if is_moe(index):
            return Layer(attention=attention, experts=experts)
        return Layer(attention=attention, ffn=f.count("intermediate_size_mlp", "intermediate_size"))

    return model_of(f, [layer(index, each) for index, each in enumerate(attentions)])
