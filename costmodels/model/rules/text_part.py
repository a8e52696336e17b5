"""Rules of families that are text parts of multimodal models (Molmo 2, Muse Spark, Step 3.5), and
of Llama-Nemotron.

Source: transformers 5.24, `modeling_` of `molmo2`, `muse_spark` and `step3p7`; `modeling_decilm`
beside nvidia/Llama-3_3-Nemotron-Super-49B-v1's weights.
"""

from dataclasses import replace

from meshplan.costmodels.model.config_fields import Fields
from meshplan.costmodels.model.rules.family import layers_of, of_layers
from meshplan.costmodels.model.transformer import Model


def molmo(f: Fields, model: Model) -> Model:
    """Molmo 2: further rows of the embedding that the head has not."""
    if f.flag("norm_after", False):
        raise f.refuse("norm_after, norms of the outputs alone, is not priced")
    rows = f.count("additional_vocab_size", default=128, least=0)
    return replace(model, other_parameters=rows * model.hidden)


def muse_spark(f: Fields, model: Model) -> Model:
    """Muse Spark: norms of the width that its experts work in, before and after them."""
    width = f.count("moe_hidden_size")
    return of_layers(model, [
        replace(layer, numbers=2 * width) if layer.experts else layer for layer in layers_of(model)
    ])  # fmt: skip


def _block_width(f: Fields, block: Fields) -> int:
    """`ffn_mult` of two thirds of the hidden size, up to a multiple of 256."""
    share = (block.section("ffn") or block).number("ffn_mult") or 0.0
    return 256 * -(-int(2 * share * f.hidden / 3) // 256)


def nemotron_nas(f: Fields, model: Model) -> Model:
    """Llama-Nemotron: each block has its own share of key heads and width of feed-forward."""
    made = []
    for block, layer in zip(f.sections("block_configs"), layers_of(model), strict=True):
        at, ffn = layer.attention, layer.ffn
        if at.heads:
            queries = (block.section("attention") or block).count("n_heads_in_group")
            at = replace(at, kv_heads=f.divide(at.heads, queries, "heads over n_heads_in_group"))
        ffn = ffn and _block_width(f, block)
        made.append(replace(layer, attention=at, ffn=ffn))
    return of_layers(model, made)


def step3(f: Fields, model: Model) -> Model:
    """Step 3.5: layers with a window may have another number of query heads."""
    older = f.section("attention_other_setting") or Fields({}, f.name)
    heads = older.count("num_attention_heads", default=f.heads)
    heads = f.count("num_sliding_attention_heads", default=heads)
    kv_heads = older.count("num_attention_groups", "num_key_value_heads", default=0)
    if older.count("head_dim", default=128) != model.kinds[0].attention.head_dim:
        raise f.refuse("attention_other_setting with another head_dim is not priced")
    if f.states("per_layer_config"):
        return _with_dense_modules(f, model)
    made = []
    for layer in layers_of(model):
        at = layer.attention
        if at.window:
            at = replace(at, heads=heads, kv_heads=kv_heads or at.kv_heads)
        made.append(replace(layer, attention=at))
    return _with_dense_modules(f, of_layers(model, made))


def _with_dense_modules(f: Fields, model: Model) -> Model:
    """Step 3.5's modules of multi-token prediction are not among the layers that have experts;
    `layer_types` goes on with what they attend to.
    """
    words = (f.texts("layer_types") or ())[model.num_layers :]
    made = layers_of(model)
    slides = bool(words) and words[0] == "sliding_attention"
    alike = [layer for layer in made if (layer.attention.window is not None) == slides]
    like = (alike or made)[-1]
    return replace(model, module=replace(like, experts=None, ffn=f.count("intermediate_size")))


def dense_modules(f: Fields, model: Model) -> Model:
    """ERNIE 4.5: a module of multi-token prediction has a layer without experts, of the width of
    the dense ones (vllm-project/vllm vllm/model_executor/models/ernie_mtp.py, `mtp_block`).
    """
    if not model.mtp_layers:
        return model
    last = model.kinds[model.pattern[-1]]
    ffn = f.count("intermediate_size")
    return replace(model, module=replace(last, experts=None, ffn=ffn))
