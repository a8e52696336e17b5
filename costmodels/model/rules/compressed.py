"""Rules of families with several streams of hidden states or chosen blocks of keys: DeepSeek-V4,
HYV4, MiniMax-M3, Gemma 3n, Mistral Large 4 and A.X-K2.

Source: transformers 5.24 `configuration_` and `modeling_` of `deepseek_v4`, `hy_v4`, `gemma3n`,
`minimax_m3_vl`, `mistral_large4` and `axk2`; modules of multi-token prediction (the layer's keys
are not compressed, each stream is projected, a head of its own for the streams): DeepSeek-V4's
`inference/model.py`, `MTPBlock`.
"""

from dataclasses import replace

from meshplan.costmodels.model.compression import (
    AlternatingUpdates,
    Compression,
    Indexer,
    Streams,
)
from meshplan.costmodels.model.config_fields import Fields
from meshplan.costmodels.model.layer_patterns import flagged, listed
from meshplan.costmodels.model.rules.family import layers_of, of_layers, shared_choice
from meshplan.costmodels.model.transformer import Attention, Model

SPARSE, HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
WORDS = {word: word for word in ("sliding_attention", SPARSE, HEAVY)}
RATES = {SPARSE: 4, HEAVY: 128}
CHOSEN = "minimax_m3_sparse"
MINIMAX_WORDS = {"full_attention": "full", CHOSEN: CHOSEN}
BY_RATIO = {0: "sliding_attention", 4: SPARSE, 128: HEAVY}


def deepseek_v4(f: Fields, model: Model) -> Model:
    """One head of keys that are the values too, beside the window's their compressed ones; queries
    of low rank, and outputs through groups of heads.
    """
    if f.count("num_key_value_heads", default=1) != 1:
        raise f.refuse("num_key_value_heads other than 1 is not priced for DeepSeek-V4")
    if f.count("n_shared_experts", default=1, least=0) != 1:
        raise f.refuse("n_shared_experts other than 1 is not priced for DeepSeek-V4")
    groups, rank = f.count("o_groups"), f.count("o_lora_rank")
    f.divide(f.heads, groups, "query heads over o_groups")
    plain = replace(
        model.kinds[0].attention, kv_heads=1, own_values=False, qk_norm="keys",
        q_lora_rank=f.count("q_lora_rank"), out_groups=groups, out_rank=rank,
    )  # fmt: skip
    made = [
        replace(layer, attention=_with_compression(f, plain, word))
        for layer, word in zip(layers_of(model), _attention_words(f), strict=True)
    ]
    streams = Streams(count=f.count("hc_mult"), mixed=True)
    return replace(of_layers(model, made), streams=streams)


def _attention_words(f: Fields) -> tuple[str, ...]:
    """By `layer_types`, by a ratio for each layer (and each module), or by the class's rule: two of
    the heavy ones, then in turns."""
    words = listed(f, "layer_types", words=WORDS)
    ratios = f.counts("compress_ratios")
    if words is not None:
        return words
    if ratios is None:
        turns = tuple(SPARSE if i % 2 else HEAVY for i in range(f.num_layers - 2))
        return (HEAVY, HEAVY, *turns)[: f.num_layers]
    if len(ratios) < f.num_layers or any(ratios[f.num_layers :]):
        raise f.refuse(f"compress_ratios is not {f.num_layers} layers' ratios and 0 for modules")
    for unknown in sorted(set(ratios) - set(BY_RATIO)):
        raise f.refuse(f"compress_ratios has {unknown}, which is none of 0, 4 and 128")
    return tuple(BY_RATIO[ratio] for ratio in ratios[: f.num_layers])


def _with_compression(f: Fields, plain: Attention, word: str) -> Attention:
    if word not in RATES:
        return plain
    rates = f.section("compress_rates") or Fields({}, f.name)
    older = {SPARSE: "compress_rate_csa", HEAVY: "compress_rate_hca"}[word]
    ratio = f.count(older, default=rates.count(word, default=RATES[word]))
    if word == HEAVY:
        return replace(plain, compression=Compression(ratio=ratio))
    index = Indexer(
        heads=f.count("index_n_heads"), head_dim=f.count("index_head_dim"),
        top_k=f.count("index_topk"),
    )  # fmt: skip
    return replace(plain, compression=Compression(ratio=ratio, overlaps=True), indexer=index)


def hy_v4(f: Fields, model: Model) -> Model:
    """Streams that are added to and not mixed; indexers as in GLM-5, by default one in four."""
    if f.present("indexer_types") is None:
        types = ["full" if i == 0 or (i - 1) % 4 == 0 else "shared" for i in range(f.num_layers)]
        f = f.changed({"indexer_types": types})
    streams = Streams(count=f.count("hc_mult"), mixed=False)
    return replace(shared_choice(f, model), streams=streams)


def gated_norms(f: Fields, model: Model) -> Model:
    """A.X-K2: gates of low rank on norms; queries and the output's gate of one pair of latents."""
    if not f.present("q_lora_rank"):
        raise f.refuse("q_lora_rank is missing, of which this family's gates are made")
    rank = f.count("gated_norm_rank", default=16)
    return of_layers(model, [
        replace(layer, norm_gate_rank=rank, attention=replace(layer.attention, latent_gate=True))
        for layer in layers_of(model)
    ])  # fmt: skip


def mistral_large4(f: Fields, model: Model) -> Model:
    """GLM-5's indexers over queries of full rank. Each head's queries have a scale and a bias, the
    indexer's too, which reads a normed input; some layers rotate no keys; the frequencies are
    learnt.
    """
    if f.present("q_lora_rank"):
        raise f.refuse("q_lora_rank is stated, but this family's queries are of full rank")
    if f.counts("kv_source_layers") not in (None, tuple(range(model.num_layers))):
        raise f.refuse("kv_source_layers, latents of an earlier layer, is not priced")
    rotates, h = _rotating(f), model.hidden
    frequencies = f.count("qk_rope_head_dim") // 2
    made = []
    for layer, rotated in zip(layers_of(shared_choice(f, model)), rotates, strict=True):
        at = layer.attention if rotated else replace(layer.attention, rope_head_dim=0)
        own = at.indexer.heads if at.indexer else 0
        numbers = 2 * at.heads + (2 * own + 2 * h if own else 0)
        made.append(replace(layer, attention=at, numbers=numbers))
    return replace(of_layers(model, made), other_parameters=frequencies)


def _rotating(f: Fields) -> tuple[bool, ...]:
    """Of each layer whether it rotates keys: `no_rope_layers` has a 0 where it does not."""
    every = f.count("no_rope_layer_interval", default=4)
    stated = f.counts("no_rope_layers")
    if stated is None:
        return tuple((i + 1) % every != 0 for i in range(f.num_layers))
    if len(stated) < f.num_layers:
        raise f.refuse(f"no_rope_layers names {len(stated)} layers of {f.num_layers}")
    return tuple(bool(each) for each in stated[: f.num_layers])


def minimax_m3(f: Fields, model: Model) -> Model:
    """Layers whose indexer chooses blocks of keys, for each head of it its own; older files state
    them in a section of their own.
    """
    older = f.section("sparse_attention_config") or Fields({}, f.name)
    words = listed(f, "layer_types", words=MINIMAX_WORDS)
    words = words or flagged(
        replace(older, config={**f.config, **older.config}), "sparse_attention_freq", CHOSEN, "full"
    )
    valued = older.counts("sparse_disable_index_value") or ()
    if any(word == CHOSEN and not off for word, off in zip(words or (), valued, strict=False)):
        raise f.refuse("sparse_disable_index_value 0, values of the indexer's own, is not priced")
    index = Indexer(
        heads=older.count("sparse_num_index_heads", default=f.count("index_n_heads", default=4)),
        head_dim=older.count("sparse_index_dim", default=f.count("index_head_dim", default=128)),
        top_k=older.count("sparse_topk_blocks", default=f.count("index_topk_blocks", default=16))
        * older.count("sparse_block_size", default=f.count("index_block_size", default=128)),
        by_head=True,
    )  # fmt: skip
    made = [
        replace(layer, attention=replace(
            layer.attention, indexer=index if word == CHOSEN else None))
        for layer, word in zip(layers_of(model), words or ("full",) * f.num_layers, strict=True)
    ]  # fmt: skip
    return of_layers(model, made)


def widest_of_layers(f: Fields) -> int:
    """Of a width for each layer, or the one of all (Gemma 3n)."""
    return max(f.each_layers("intermediate_size"))


def gemma3n(f: Fields, model: Model) -> Model:
    """Alternating updates and residuals of low rank; layers' own inputs, widths, thinned gates, and
    for the last ones the keys of an earlier layer.
    """
    f.flag("altup_correct_scale", True)  # its weights are there and computed with all the same
    if f.count("altup_active_idx", default=0, least=0) >= f.count("altup_num_inputs", default=4):
        raise f.refuse("altup_active_idx is not one of altup_num_inputs")
    shared = f.count("num_kv_shared_layers", default=15, least=0)
    own = model.num_layers - shared
    widths, shares = f.each_layers("intermediate_size"), _thinned(f)
    made = [
        replace(
            layer, ffn=widths[i], thinned=shares[i],
            attention=replace(layer.attention, own_keys=i < own),
        )
        for i, layer in enumerate(layers_of(model))
    ]  # fmt: skip
    updates = AlternatingUpdates(
        count=f.count("altup_num_inputs", default=4), rank=f.count("laurel_rank", default=64)
    )
    return replace(
        of_layers(model, made), alternating=updates,
        layer_inputs=f.count("hidden_size_per_layer_input", default=256),
        layer_input_vocab=f.count("vocab_size_per_layer_input", default=262144),
    )  # fmt: skip


def _thinned(f: Fields) -> tuple[bool, ...]:
    """Layers of which only a share of the gate's numbers is left; by default the first ten."""
    told = f.present("activation_sparsity_pattern")
    if told is None:
        return tuple(i < 10 < f.num_layers for i in range(f.num_layers))
    shares = told[1]
    if not isinstance(shares, list) or len(shares) != f.num_layers:
        raise f.refuse(
            f"activation_sparsity_pattern is not a list of {f.num_layers} layers' shares"
        )
    if not all(type(each) in (int, float) and 0 <= each < 1 for each in shares):
        raise f.refuse("activation_sparsity_pattern has shares that are not from 0 to below 1")
    return tuple(each > 0 for each in shares)
