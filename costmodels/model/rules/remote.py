"""What no line of `families.remote` says: widths and layers of single families.

Sources are in that file.
"""

from dataclasses import replace

from meshplan.costmodels.model.config_fields import Fields
from meshplan.costmodels.model.layer_patterns import Words, by_rule
from meshplan.costmodels.model.rules.family import layers_of, of_layers, with_attention
from meshplan.costmodels.model.transformer import Model


def rwkv7_width(f: Fields) -> int:
    """Of the channel mix: `hidden_ratio` times the hidden size where nothing states it, up to the
    next multiple of 32.
    """
    wanted = int(f.hidden * (f.number("hidden_ratio") or 4.0))
    return f.count("intermediate_size", default=-(-wanted // 32) * 32)


def rwkv7(f: Fields, model: Model) -> Model:
    """The first layer's values are those that later ones mix in: it has no gate for them."""
    if f.present("attn"):
        raise f.refuse("attn, layers of attention between those with a state, is not priced")
    if not f.flag("norm_bias", True) or not f.flag("norm_first", True):
        raise f.refuse("norm_bias or norm_first false is not priced")
    first, *others = layers_of(model)
    mixer = first.recurrent
    assert mixer is not None
    decay, step, _, gate = mixer.low_rank
    changed = replace(
        mixer, low_rank=(decay, step, gate), numbers=mixer.numbers - mixer.inner
    )  # without what mixes the first layer's values in, and its bias
    return of_layers(model, [replace(first, recurrent=changed), *others])


def hunyuan_sparse(f: Fields) -> Words:
    """All layers but the first `moe_layer_num_skipped`; none where there is one expert."""
    skipped = f.count("moe_layer_num_skipped", default=0, least=0)
    several = f.count("num_experts", default=1) > 1
    return by_rule(f, lambda i: several and i >= skipped, "sparse", "dense")


def hunyuan(f: Fields, model: Model) -> Model:
    """With `use_cla` one layer in `cla_share_factor` has keys and values of its own."""
    every = f.count("cla_share_factor", default=1)
    if not f.flag("use_cla", False) or every == 1:
        return model
    made = [
        replace(layer, attention=replace(layer.attention, own_keys=i % every == 0))
        for i, layer in enumerate(layers_of(model))
    ]
    return of_layers(model, made)


def step3_queries(f: Fields, model: Model) -> Model:
    """Queries through `share_q_dim` numbers, and a norm over them."""
    rank = f.count("share_q_dim")
    made = [
        replace(layer, attention=replace(layer.attention, q_lora_rank=rank))
        for layer in layers_of(model)
    ]
    return of_layers(model, made)


def half_width(f: Fields) -> int:
    """Half of `intermediate_size`, which counts the gate too."""
    return f.divide(f.count("intermediate_size"), 2, "intermediate_size, gate and gated, over 2")


def qwen(f: Fields, model: Model) -> Model:
    """The first Qwen: no biases but those of queries, keys and values."""
    if not f.flag("no_bias", True):
        raise f.refuse("no_bias false, biases in all products, is not priced")
    return model


def bias_of_output(f: Fields) -> int:
    """Of the feed-forward's last product, whose others have none (TeleChat)."""
    return f.hidden


def sees_later_tokens(f: Fields, model: Model) -> Model:
    """A denoiser of whole sequences: each token attends to all of them."""
    return with_attention(model, causal=False)


def llada(f: Fields, model: Model) -> Model:
    """The same, by fields that OLMo's first code has: one key head, or as many as are stated."""
    one = f.flag("multi_query_attention", False) and not f.present("n_kv_heads")
    kv_heads = 1 if one else model.kinds[0].attention.kv_heads
    tied = f.flag("weight_tying", True)
    return with_attention(replace(model, tied=tied), kv_heads=kv_heads, causal=False)
