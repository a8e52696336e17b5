"""What single families do beyond the vocabulary of `family.Family`: widths that are worked out, and
the last word on a model.

Source: the families' `configuration_` and `modeling_` files in huggingface/transformers 5.24.
"""

from dataclasses import replace
from typing import Any

from meshplan.costmodels.model.config_fields import Fields
from meshplan.costmodels.model.transformer import Experts, Layer, Model


def activation_numbers(f: Fields) -> int:
    """Two learnt numbers in each layer's activation (xIELU)."""
    return 2


def query_key_biases(f: Fields) -> int:
    """Biases of the layer norms over queries and keys."""
    wanted = f.flag("qk_layernorm", True)
    return 2 * f.count("head_dim", default=f.hidden // f.heads) * wanted


def sub_norm(f: Fields) -> int:
    """BitNet's norm over the feed-forward's inner width."""
    return f.count("intermediate_size")


def one_per_head(f: Fields) -> int:
    """One learnt number for each query head of a layer."""
    return f.heads


def lfm_width(f: Fields) -> int:
    """LFM2 shrinks the stated width by a third, times a multiplier, up to a multiple."""
    width = f.count("intermediate_size", "block_ff_dim")
    if not f.flag("block_auto_adjust_ff_dim", True):
        return width
    multiplier = f.number("block_ffn_dim_multiplier")
    multiple = f.count("block_multiple_of", default=256)
    width = int(2 * width / 3)
    width = width if multiplier is None else int(multiplier * width)
    return multiple * -(-width // multiple)


def xlstm_width(f: Fields) -> int:
    multiple = f.count("ffn_round_up_to_multiple_of", default=64)
    width = int(f.hidden * (f.number("ffn_proj_factor") or 2.667))
    return multiple * -(-width // multiple)


def griffin_width(f: Fields) -> int:
    return f.count("intermediate_size") // 2


def last_output_bias(f: Fields, model: Model) -> Model:
    """GPT-NeoX Japanese has a bias after the attention of its last layer only."""
    *others, last = layers_of(model)
    return of_layers(model, [*others, replace(last, numbers=model.hidden)])


def rwkv(f: Fields, model: Model) -> Model:
    return replace(model, embedding_norm=True)


def opt(f: Fields, model: Model) -> Model:
    if f.count("word_embed_proj_dim", default=f.hidden) != f.hidden:
        raise f.refuse("word_embed_proj_dim, an embedding of another width, is not priced")
    if not f.flag("do_layer_norm_before", True):
        raise f.refuse("do_layer_norm_before false, norms after the blocks, is not priced")
    if f.flag("_remove_final_layer_norm", False):
        raise f.refuse("_remove_final_layer_norm, no norm before the head, is not priced")
    if not f.flag("layer_norm_elementwise_affine", True):
        raise f.refuse("layer_norm_elementwise_affine false is not priced")
    return model


def falcon(f: Fields, model: Model) -> Model:
    """Grouped heads and two norms in the new architecture; one key head and one norm in the old."""
    new, parallel = f.flag("new_decoder_architecture", False), f.flag("parallel_attn", True)
    one = f.flag("multi_query", True) and not new
    kv_heads = 1 if one else f.count("num_kv_heads", "n_head_kv", default=f.heads)
    two = f.count("num_ln_in_parallel_attn", default=2 if new else 1) == 2
    kinds = tuple(
        replace(kind, attention=replace(kind.attention, kv_heads=kv_heads)) for kind in model.kinds
    )
    return replace(
        model, kinds=kinds, parallel_blocks=parallel or new,
        norms_per_layer=2 if two or not (parallel or new) else 1,
    )  # fmt: skip


def stablelm(f: Fields, model: Model) -> Model:
    return replace(model, norms_per_layer=1 if model.parallel_blocks else 2)


BETWEEN_IMAGE_TOKENS = tuple(("use_bidirectional_attention", said) for said in (False, "vision"))


def gemma4(f: Fields, model: Model) -> Model:
    """Layers' own inputs, keys that are values too or those of an earlier layer, and experts beside
    the dense feed-forward."""
    if f.flag("use_double_wide_mlp", False):
        raise f.refuse("use_double_wide_mlp is not priced")
    if f.present("use_bidirectional_attention") not in (None, *BETWEEN_IMAGE_TOKENS):
        raise f.refuse("use_bidirectional_attention is not priced; causal attention is")
    if f.flag("enable_moe_block", False):
        model = _beside_dense(f, model)
    same = f.flag("attention_k_eq_v", False)
    shared = f.count("num_kv_shared_layers", default=0, least=0)
    made: list[Layer] = []
    for i, layer in enumerate(layers_of(model)):
        attention = layer.attention
        if attention.window is not None and i == model.num_layers - 1:
            raise f.refuse("the last layer has a window, but Gemma 4's module lets it see all")
        if attention.window is None and same:
            attention = replace(attention, own_values=False)
        elif attention.window is None and not f.states("per_layer_config"):
            kv_heads = f.count("num_key_value_heads", default=attention.kv_heads)
            attention = replace(attention, kv_heads=kv_heads)
        if i >= model.num_layers - shared:
            attention = replace(attention, own_keys=False)
        made.append(replace(layer, attention=attention))
    inputs = f.count("hidden_size_per_layer_input", default=0, least=0)
    rows = f.count("vocab_size_per_layer_input", default=model.vocab)
    return replace(
        of_layers(model, made), layer_inputs=inputs, layer_input_vocab=rows if inputs else 0,
    )  # fmt: skip


def gemma4_without_experts(f: Fields, model: Model) -> Model:
    """The unified Gemma 4, whose module builds no experts whatever its file says."""
    if f.flag("enable_moe_block", False):
        raise f.refuse("enable_moe_block is true, but this family has no experts")
    return gemma4(f, model)


def _beside_dense(f: Fields, model: Model) -> Model:
    """Gemma 4's experts: the dense feed-forward is the expert that each token visits. Three norms
    more, a scale of what the router reads, and one of each expert's weight.
    """
    number, ffn = f.count("num_experts"), f.count("moe_intermediate_size")
    top_k = f.count("top_k_experts")
    return of_layers(model, [
        replace(
            layer, ffn=0, further_norms=layer.further_norms + 4, numbers=layer.numbers + number,
            experts=Experts(experts=number, top_k=top_k, ffn=ffn, shared_ffn=layer.ffn),
        )
        for layer in layers_of(model)
    ])  # fmt: skip


def bidirectional(f: Fields, model: Model) -> Model:
    if f.flag("use_bidirectional_attention", False):
        raise f.refuse("use_bidirectional_attention is not priced; causal attention is")
    return model


def multi_query(f: Fields, model: Model) -> Model:
    kv_heads = 1 if f.flag("multi_query", True) else f.heads
    return with_attention(model, kv_heads=kv_heads)


def laguna(f: Fields, model: Model) -> Model:
    """`gating` true gates whole heads, anything else each number; layers may differ in their number
    of query heads.
    """
    if set(f.texts("gating_types") or ("per_head",)) != {"per_head"}:
        raise f.refuse("gating_types other than per_head is not priced")
    gating = f.present("gating")
    if gating and gating[1] not in (True, "per-head"):
        model = with_attention(model, gate="full")
    heads = f.counts("num_attention_heads_per_layer")
    if heads is None:
        return model
    if len(heads) != model.num_layers:
        raise f.refuse(
            f"num_attention_heads_per_layer names {len(heads)} layers of {model.num_layers}"
        )
    return of_layers(model, [
        replace(layer, attention=replace(layer.attention, heads=each))
        for layer, each in zip(layers_of(model), heads, strict=True)
    ])  # fmt: skip


def query_key_biases_when_told(f: Fields) -> int:
    """The same where `qk_layernorm` says that they are there (Phi)."""
    return query_key_biases(f) if f.flag("qk_layernorm", False) else 0


def neox_japanese_width(f: Fields) -> int:
    """`intermediate_multiple_size` times the hidden size."""
    return f.count("intermediate_multiple_size", default=4) * f.hidden


def mpt_width(f: Fields) -> int:
    """`expansion_ratio` times the hidden size."""
    return f.count("expansion_ratio", default=4) * f.hidden


def mpt(f: Fields, model: Model) -> Model:
    """ALiBi unless the file says otherwise; its norms lose their bias with `no_bias`."""
    stated = f.section("attn_config") or Fields({}, f.name)
    if stated.flag("qk_ln", False):
        raise f.refuse("attn_config.qk_ln, a norm over queries and keys, is not priced for MPT")
    multi_query = stated.word("attn_type") == "multiquery_attention"
    kv_heads = stated.count("kv_n_heads", default=1 if multi_query else f.heads)
    bias = not f.flag("no_bias", True)
    attention = replace(model.kinds[0].attention, kv_heads=kv_heads, qkv_bias=bias, out_bias=bias)
    learned = f.flag("learned_pos_emb", True) and not stated.flag("alibi", True)
    return replace(
        model, kinds=(replace(model.kinds[0], attention=attention),), bias=bias,
        norm="layernorm" if bias else "rmsnorm",
        learned_positions=f.count("max_seq_len") if learned else 0,
    )  # fmt: skip


def shared_choice(f: Fields, model: Model) -> Model:
    """GLM-5: layers of type "shared" attend to the keys that an earlier layer's indexer chose."""
    by_rule = _indexer_types(f)
    types = f.texts("indexer_types") or by_rule
    if len(types) != model.num_layers:
        raise f.refuse(f"indexer_types names {len(types)} layers of {model.num_layers}")
    made = []
    for layer, each in zip(layers_of(model), types, strict=True):
        index = layer.attention.indexer
        if index and each == "shared":
            index = replace(index, heads=0, head_dim=0)
        made.append(replace(layer, attention=replace(layer.attention, indexer=index)))
    return of_layers(model, made)


def _indexer_types(f: Fields) -> tuple[str, ...]:
    """A letter for each layer, or one layer in `index_topk_freq` that has its own indexer."""
    letters = f.word("index_topk_pattern")
    every = f.count("index_topk_freq", default=1)
    last = f.count("index_skip_topk_offset", default=2, least=0)
    if letters is not None:
        if set(letters) - set("FS"):
            raise f.refuse("index_topk_pattern has another letter than F and S")
        return tuple("full" if letter == "F" else "shared" for letter in letters)
    return tuple("shared" if max(i - last + 1, 0) % every else "full" for i in range(f.num_layers))


def minimax_modules(f: Fields, model: Model) -> Model:
    """`use_mtp` false leaves out the modules of multi-token prediction; each has one layer."""
    if f.count("mtp_transformer_layers", default=1) != 1:
        raise f.refuse("mtp_transformer_layers other than 1 is not priced")
    return model if f.flag("use_mtp", True) else replace(model, mtp_layers=0)


def exaone_modules(f: Fields, model: Model) -> Model:
    """EXAONE 4.5: several modules of multi-token prediction may be one, used again."""
    if f.flag("mtp_share_layers", False) and model.mtp_layers > 1:
        raise f.refuse(f"mtp_share_layers: {model.mtp_layers} modules of one are not priced")
    return model


def mimo(f: Fields, model: Model) -> Model:
    """MiMo-V2: which layers have sinks is told of layers with a window and of the others."""
    slides = f.flag("add_swa_attention_sink_bias", True)
    sees_all = f.flag("add_full_attention_sink_bias", False)
    made = [
        replace(layer, attention=replace(
            layer.attention, sinks=slides if layer.attention.window else sees_all
        ))
        for layer in layers_of(twice_the_window_keys(f, model))
    ]  # fmt: skip
    return of_layers(model, made)


def twice_the_window_keys(f: Fields, model: Model) -> Model:
    """MiMo-V2: layers with a window have twice the key/value heads of the others."""
    if f.present("swa_num_key_value_heads"):
        return model
    made = []
    for layer in layers_of(model):
        at = layer.attention
        wider = replace(at, kv_heads=2 * at.kv_heads) if at.window else at
        made.append(replace(layer, attention=wider))
    return of_layers(model, made)


def positions_if_stated(f: Fields, model: Model) -> Model:
    """Learnt positions where the configuration has rows of them, else rotary ones or none."""
    return replace(model, learned_positions=f.count("n_positions", default=0, least=0))


def doge(f: Fields, model: Model) -> Model:
    """Two learnt scales of the residual stream; a step per key head chooses what is attended to."""
    if f.flag("is_moe", False):
        raise f.refuse("is_moe, Doge's experts by product keys, is not priced")
    return with_attention(model, key_steps=True)


def doge_numbers(f: Fields) -> int:
    """A decay for each key head, and the bias of what it is worked out by."""
    keys = f.count("num_key_value_heads", default=f.heads)
    return keys * (1 + f.flag("attention_bias", False)) + 2 * f.hidden


def rotary_key_norms(f: Fields, model: Model) -> Model:
    """A norm over the shared rotary key of each layer."""
    return of_layers(model, [
        replace(layer, numbers=layer.attention.rope_head_dim) for layer in layers_of(model)
    ])  # fmt: skip


def hy_v3(f: Fields, model: Model) -> Model:
    if f.count("num_shared_experts", default=1, least=0) == 0:
        raise f.refuse("num_shared_experts 0, for which it builds a dense one, is not priced")
    f.count("moe_intermediate_size", "expert_hidden_dim")
    return model


def internlm3(f: Fields, model: Model) -> Model:
    """Biases everywhere or nowhere, under two names each."""
    names = ("attention_bias", "qkv_bias", "mlp_bias", "bias")
    told = {f.flag(name, False) for name in names if f.states(name)}
    if len(told) > 1:
        raise f.refuse(f"{', '.join(names)} are true and false, which is not priced")
    biased = True in told
    return with_attention(replace(model, bias=biased), qkv_bias=biased, out_bias=biased)


def chatglm(f: Fields, model: Model) -> Model:
    """ChatGLM2, ChatGLM3 and GLM-4 of their own code (zai-org/chatglm3-6b modeling_chatglm.py):
    what is true in all of their files, and what none of them has.
    """
    for name in ("multi_query_attention", "rmsnorm", "post_layer_norm"):
        if not f.flag(name, name != "multi_query_attention"):
            raise f.refuse(f"{name} is false, which none of ChatGLM's files is")
    if f.flag("add_bias_linear", False) or f.count("pre_seq_len", default=0, least=0):
        raise f.refuse("add_bias_linear and pre_seq_len are not priced")
    return model


def two_experts(f: Fields, model: Model) -> Model:
    """Phi-3.5-MoE's router chooses one expert, then another, whatever its file says."""
    chosen = f.count("num_experts_per_tok")
    if chosen != 2:
        raise f.refuse(f"num_experts_per_tok is {chosen}, but Phi-3.5-MoE's router chooses 2")
    return model


def helium(f: Fields, model: Model) -> Model:
    """Its output projection has the hidden size on both sides."""
    width = model.kinds[0].attention.heads * model.kinds[0].attention.head_dim
    if width != model.hidden:
        raise f.refuse(f"heads x head_dim is {width}, but Helium's hidden_size is {model.hidden}")
    return model


def zero_experts(f: Fields, model: Model) -> Model:
    """Some of the experts that a token may choose return it as it is: only the share of its choices
    that the others have is computed, as many as there are of them.
    """
    zero = f.count("zero_expert_num", default=0, least=0)
    made = []
    for layer in layers_of(model):
        experts = layer.experts
        if experts and zero:
            share = experts.experts / (experts.experts + zero)
            experts = replace(experts, top_k=max(1, round(experts.top_k * share)))
            layer = replace(layer, experts=experts, numbers=zero * model.hidden)
        made.append(layer)
    return of_layers(model, made)


# How a rule changes single layers


def layers_of(model: Model) -> list[Layer]:
    """The layers in model order."""
    return [model.kinds[kind] for kind in model.pattern]


def of_layers(model: Model, layers: list[Layer]) -> Model:
    """The same model of other layers."""
    kinds = tuple(dict.fromkeys(layers))
    index = {kind: position for position, kind in enumerate(kinds)}
    return replace(model, kinds=kinds, pattern=tuple(index[layer] for layer in layers))


def with_16_bit_ends(model: Model, first: int, last: int) -> Model:
    """The same model, whose `first` and `last` layers keep their products in 16 bits."""
    inner = range(first, model.num_layers - last)
    return of_layers(model, [
        replace(layer, in_16_bit=i not in inner) for i, layer in enumerate(layers_of(model))
    ])  # fmt: skip


def with_attention(model: Model, **changes: Any) -> Model:
    """The same model, but for these sizes of every layer's attention."""
    return of_layers(model, [
        replace(layer, attention=replace(layer.attention, **changes)) for layer in layers_of(model)
    ])  # fmt: skip
