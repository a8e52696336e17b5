"""Rules of Qwen4: gated streams, blocks of chosen keys, embeddings of n-grams.

Source: transformers 5.24 `configuration_qwen4_exp.py` and `modeling_qwen4_exp.py`; the module of
multi-token prediction (a layer with attention and no n-grams, projections of the embedding and of
each stream, norms of both, a mixer of its own): vllm-project/vllm `models/qwen4_exp`, which a count
of the published file's tensors bears out (2,607,150,848 of Qwen3.8-Flash-Next).
"""

from dataclasses import replace

from meshplan.costmodels.model.compression import Indexer, Streams
from meshplan.costmodels.model.config_fields import Fields
from meshplan.costmodels.model.ngrams import NGrams, hashed_rows
from meshplan.costmodels.model.rules.family import layers_of, of_layers
from meshplan.costmodels.model.transformer import Layer, Model

MAX_HEADS = 4096  # of n-grams, each with a prime number of rows to be found


def qwen4(f: Fields, model: Model) -> Model:
    """Every layer with attention has an indexer; the streams' gates have the layers' norms."""
    layers, ngrams = layers_of(model), _ngrams(f)
    attending = [i for i, layer in enumerate(layers) if layer.attention.heads]
    index = _indexer(f) if attending else None
    for i in attending:
        layers[i] = replace(layers[i], attention=replace(layers[i].attention, indexer=index))
    for i, table in ngrams.items():
        if i in attending:
            raise f.refuse(f"ple_layer_ids names layer {i + 1}, which has attention and no state")
        layers[i] = replace(layers[i], ngrams=table)
    streams = Streams(
        count=f.count("hc_count", default=4, least=2), mixed=False,
        rank=f.count("hc_lowrank", default=320),
    )  # fmt: skip
    return replace(
        of_layers(model, layers), streams=streams, norms_per_layer=0,
        module=_module(f, model, layers, attending),
    )  # fmt: skip


def _module(f: Fields, model: Model, layers: list[Layer], attending: list[int]) -> Layer | None:
    """The layer of a module: one with attention, as the section `mtp` of files says again."""
    if not model.mtp_layers:
        return None
    own = f.section("mtp") or Fields({}, f.name)
    said = own.texts("layer_types") or ("full_attention",) * model.mtp_layers
    if said != ("full_attention",) * own.count("num_hidden_layers", default=model.mtp_layers):
        raise f.refuse("the section mtp has other layers than those with attention")
    if len(said) != model.mtp_layers:
        raise f.refuse(
            f"mtp_num_hidden_layers is {model.mtp_layers}, but mtp has {len(said)} layers"
        )
    if not attending:
        raise f.refuse("its module has attention, but no layer of layer_types does")
    return layers[attending[-1]]


def _indexer(f: Fields) -> Indexer:
    if f.count("indexer_kv_heads") != 1:
        raise f.refuse("indexer_kv_heads is not 1, as in this family")
    budget, block = f.count("indexer_budget"), f.count("indexer_compress_ratio")
    f.divide(budget, block, "indexer_budget over indexer_compress_ratio")
    return Indexer(
        heads=f.count("indexer_n_heads"), head_dim=f.count("indexer_head_dim"), top_k=budget,
        weighed=False, block=block,
    )  # fmt: skip


def _ngrams(f: Fields) -> dict[int, NGrams]:
    """By the layer that has them; `ple_layer_ids` counts from 1."""
    named = sorted(set(f.counts("ple_layer_ids") or ()))
    heads = (f.count("ngram_size", default=3) - 1) * f.count("heads_per_ngram", default=8)
    width = f.count("ple_embed_dim", default=f.hidden)
    base = f.count("ngram_vocab_size_base", default=20_000_000)
    multiple = f.count("make_ngram_vocab_size_divisible_by", default=128)
    convolution = f.count("ple_conv_kernel_size", default=4)
    if not named:
        return {}
    if not 1 <= named[0] <= named[-1] <= f.num_layers:
        raise f.refuse(f"ple_layer_ids names layers that are not from 1 to {f.num_layers}")
    if not 0 < heads * len(named) <= MAX_HEADS:
        raise f.refuse(f"{heads * len(named)} heads of n-grams are not between 1 and {MAX_HEADS}")
    f.divide(width, heads, "ple_embed_dim over heads of n-grams")
    return {
        layer - 1: NGrams(
            rows=hashed_rows(base, heads, place, multiple), heads=heads, width=width,
            convolution=convolution,
        )
        for place, layer in enumerate(named)
    }  # fmt: skip
