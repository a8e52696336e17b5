"""A family of models as a few lines of data, and the reader that follows them.

A `Family` says which fields of a `config.json` hold what, what an absent one means, and which parts
its layers have; `read_family` makes the `Model`. Where a value is a pair (field, default), the file
decides; a plain value is fixed in the family's code.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from meshplan.costmodels.model.class_defaults import names_of
from meshplan.costmodels.model.compression import Indexer
from meshplan.costmodels.model.config_fields import Fields
from meshplan.costmodels.model.layer_patterns import (
    FEED_FORWARDS,
    MIXERS,
    Pattern,
    Words,
    after_leading,
    all_full,
    flagged,
    listed,
)
from meshplan.costmodels.model.recurrent import Recurrent
from meshplan.costmodels.model.transformer import (
    NO_ATTENTION,
    Attention,
    Experts,
    Layer,
    Model,
)
from meshplan.hardware_profiles.dataclass import dataclass

AFTER_LEADING = after_leading("first_k_dense_replace")
Flag = bool | tuple[str, bool]
Names = tuple[str, ...]
SHARED_EXPERTS = ("n_shared_experts", "num_shared_experts")
"""Of layers with experts: a family that reads neither refuses them where it has such layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """The experts of a family.

    experts, top_k, ffn   the fields of their number, of those that a token visits, of their width
    of_images     the width is a list of two: of experts of text, and of as many of images
    dense_ffn     the fields of the width of this model's layers without experts
    layers        which layers have them, where no `mlp_layer_types` lists it
    shared        number of shared experts, each as wide as a routed one
    shared_width  or their whole width, each one's where there is a number too; `shared_is_ffn`: as
                  wide as a routed one
    shared_gate   a sigmoid gate (hidden x 1) on the shared experts' output
    latent        the field of the latent width that experts work in
    router_bias   one learnt bias per expert that is a parameter of the module
    bias          biases of the experts' own products
    further_norms   norms of the hidden width that only layers with experts have
    """

    experts: Names = ("n_routed_experts", "num_experts", "num_local_experts")
    top_k: Names = ("num_experts_per_tok", "num_experts_per_token")
    ffn: Names = ("moe_intermediate_size",)
    of_images: bool = False
    layers: Pattern = AFTER_LEADING
    dense_ffn: Names = ("intermediate_size",)
    shared: Names = ()
    shared_width: Names = ()
    shared_is_ffn: bool = False
    shared_gate: bool = False
    router_bias: bool = False
    bias: bool = False
    latent: Names = ()
    further_norms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How one family's configuration becomes a `Model`.

    latent         multi-head latent attention instead of grouped-query attention
    indexed        with the indexer of sparse attention
    head_dim       what an absent field means; None, or the field is null: the hidden size over the
                   heads, which must come out even unless `floors_head_dim`
    own_value_dim  `v_head_dim` may differ from it
    kv_heads, kv_default   the field, and what its absence means; None, or the field is null: as
                   many as query heads
    qkv_bias, out_bias, mlp_bias   biases of the projections
    qk_norm, qk_normed   norms over queries and keys, where `qk_normed`; `v_norm` over values
    gate, sinks    see `Attention`; the gate is there where `gated_output`; `sinks_on` the words of
                   the layers that have sinks
    mixers         which layers slide or have a state, where no list says it
    parts          for each layer its mixer and its feed-forward, where one field says both
    listed_as      the fields of such a list
    window         the field of the window's width
    recurrent      the kind of those with a state
    ffn, ffn_per_hidden   width of the dense feed-forward: the field, and the multiple of the hidden
                   size that its absence means, 0: it must be there
    ffn_of         the width, where it is worked out from several fields
    gated          the feed-forward has a gate (three products instead of two)
    norm, norms    the kind, and how many a layer has; `more_norms` (field, default, number): that
                   number where the field is true
    embedding_norm, final_norm   norms before the first and after the last layer
    parallel       attention and feed-forward read one norm's output (or two norms', `norms` 2)
    positions      the field of the rows of learnt positions, and rows beyond it
    overrides      per attention word, fields that other ones replace (Gemma 4's wider heads)
    further_norms, numbers   see `Layer`
    head_bias      a bias for each token of the vocabulary
    vocab          the field of the embedding's rows
    tied           what an absent `tie_word_embeddings` means; None: never, and true is refused
    experts_when   the field without which, or at 0, no layer has experts
    modules        fields of the number of multi-token-prediction modules
    defaults       what fields mean that a file leaves out, where that is a size
    flattened      sections whose fields are read as if they stood beside them
    adjust         for what no line says: the last word on the model
    """

    latent: bool = False
    indexed: bool = False
    head_dim: int | None = None
    floors_head_dim: bool = False
    own_value_dim: bool = False
    kv_heads: Names = ("num_key_value_heads",)
    kv_default: int | None = None
    qkv_bias: Flag = ("attention_bias", False)
    out_bias: Flag = ("attention_bias", False)
    qk_norm: Literal["none", "head", "full"] = "none"
    qk_normed: Flag = True
    v_norm: bool = False
    gate: Literal["none", "head", "full"] = "none"
    gated_output: Flag = True
    sinks: bool = False
    sinks_on: tuple[str, ...] = ("full", "sliding")
    mixers: Pattern = all_full
    listed_as: Names = ("layer_types", "layers_block_type")
    window: Names = (
        "sliding_window",
        "sliding_window_size",
        "attention_window_size",
        "window_size",
    )
    overrides: dict[str, dict[str, Names]] | None = None
    recurrent: Callable[[Fields], Recurrent] | None = None
    parts: Callable[[Fields], tuple[Words, Words]] | None = None
    ffn: Names = ("intermediate_size",)
    ffn_per_hidden: int = 0
    ffn_of: Callable[[Fields], int] | None = None
    gated: bool = True
    mlp_bias: Flag = False
    experts: Routed | None = None
    experts_when: Names = ()
    norm: Literal["rmsnorm", "layernorm", "layernorm_without_bias", "none"] = "rmsnorm"
    norms: int = 2
    more_norms: tuple[str, bool, int] | None = None
    parallel: Flag = False
    positions: tuple[Names, int] | None = None
    embedding_norm: bool = False
    final_norm: bool = True
    further_norms: int = 0
    numbers: Callable[[Fields], int] | None = None
    head_bias: Flag = False
    tied: bool | None = False
    vocab: Names = ("vocab_size",)
    modules: Names = ()
    defaults: tuple[tuple[str, int], ...] = ()
    flattened: Names = ()
    adjust: Callable[[Fields, Model], Model] | None = None


def read_family(family: Family, f: Fields) -> Model:
    """The model that `f`, a configuration of this family, describes; raises `UnsupportedModel`."""
    left_out = {key: value for key, value in family.defaults if not f.states(*names_of(key))}
    f = f.changed(left_out)
    for name in family.flattened:
        section = f.section(name)
        f = f.changed(section.config) if section else f
    mixers, feed_forwards = _words(family, f)
    layers = _layers(family, f, mixers, feed_forwards)
    kinds = tuple(dict.fromkeys(layers))
    index = {kind: position for position, kind in enumerate(kinds)}
    norms = family.norms
    if family.more_norms and f.flag(*family.more_norms[:2]):
        norms = family.more_norms[2]
    parallel = _flag(f, family.parallel)
    positions = family.positions
    model = Model(
        name=f.name,
        hidden=f.hidden,
        vocab=f.count(*family.vocab),
        kinds=kinds,
        pattern=tuple(index[layer] for layer in layers),
        gated=family.gated,
        norm=family.norm,
        norms_per_layer=norms if parallel or norms > 1 else 2,
        parallel_blocks=parallel,
        bias=_flag(f, family.mlp_bias),
        learned_positions=f.count(*positions[0]) + positions[1] if positions else 0,
        embedding_norm=family.embedding_norm,
        final_norm=family.final_norm and family.norm != "none",
        tied=_tied(family, f),
        head_bias=_flag(f, family.head_bias),
        mtp_layers=f.count(*family.modules, default=0, least=0) if family.modules else 0,
    )
    return family.adjust(f, model) if family.adjust else model


def _words(family: Family, f: Fields) -> tuple[Words, Words]:
    """For each layer what mixes its tokens, and what its feed-forward is."""
    if family.parts:
        return family.parts(f)
    mixers = listed(f, *family.listed_as, words=MIXERS) or family.mixers(f)
    dense = ("dense",) * f.num_layers
    found = f.present(*family.experts_when) if family.experts_when else ("", 1)
    if family.experts is None or found is None or found[1] == 0:
        return mixers, dense
    stated = listed(f, "mlp_layer_types", words=FEED_FORWARDS)
    stated = stated or flagged(f, "moe_layer_freq", "sparse", "dense")
    return mixers, stated or family.experts.layers(f)


_OF_STATES = ("mamba_", "linear_", "ssm_", "conv_")


def _layers(family: Family, f: Fields, mixers: Words, feed_forwards: Words) -> list[Layer]:
    numbers = family.numbers(f) if family.numbers else 0
    experts = _experts(family, f) if "sparse" in feed_forwards else None
    if experts is None:
        f.asked.update(SHARED_EXPERTS)
    further = family.experts.further_norms if family.experts else 0
    recurrent = None
    if {"recurrent", "both"} & set(mixers):
        if family.recurrent is None:
            raise f.refuse(
                "its layer list has layers with a state, which this family does not have"
            )
        recurrent = family.recurrent(f)
    elif family.recurrent is not None:  # what would describe layers that are not there
        f.asked.update(key for key in f.config if key.startswith(_OF_STATES))
    attentions = _attentions(family, f, mixers)
    dense = _dense_width(family, f) if "dense" in feed_forwards else 0
    made = []
    for i, (mixer, feed_forward) in enumerate(zip(mixers, feed_forwards, strict=True)):
        sparse = feed_forward == "sparse"
        made.append(Layer(
            attention=attentions[i],
            recurrent=recurrent if mixer in ("recurrent", "both") else None,
            ffn=dense if feed_forward == "dense" else 0,
            experts=experts if sparse else None,
            further_norms=family.further_norms + (further if sparse else 0),
            numbers=numbers,
        ))  # fmt: skip
    return made


def _attentions(family: Family, f: Fields, mixers: Words) -> list[Attention]:
    """The attention of each layer: by its word, and by what the file states for single layers."""
    by_layer = f.section("per_layer_config")
    known: dict[tuple[str, str], Attention] = {}
    made = []
    for i, word in enumerate(mixers):
        if word in ("recurrent", "none"):
            made.append(NO_ATTENTION)
            continue
        own = (by_layer.section(f"{i:02d}") or by_layer.section(str(i))) if by_layer else None
        key = (word, repr(sorted(own.config.items(), key=str)) if own else "")
        if key not in known:
            fields = f.changed(own.config) if own else f
            fields = fields if by_layer else _overridden(family, f, word)
            known[key] = _attention(family, fields, word)
        made.append(known[key])
    return made


def _overridden(family: Family, f: Fields, word: str) -> Fields:
    found = {
        field: f.present(*names) for field, names in (family.overrides or {}).get(word, {}).items()
    }
    return f.changed({field: each[1] for field, each in found.items() if each})


def _attention(family: Family, f: Fields, word: str) -> Attention:
    base = _latent(f) if family.latent else _grouped(family, f)
    width = f.count(*family.window) if word == "sliding" else None
    if word == "chunked":
        width = f.count("attention_chunk_size")
    gate = family.gate if _flag(f, family.gated_output) else "none"
    normed = _is_normed(family, f)
    index = None
    if family.indexed and word == "full":
        heads, dim = f.count("index_n_heads"), f.count("index_head_dim")
        index = Indexer(heads=heads, head_dim=dim, top_k=f.count("index_topk"))
    return replace(
        base, window=width, chunked=word == "chunked", gate=gate, indexer=index,
        qk_norm=family.qk_norm if normed else "none", v_norm=family.v_norm,
        sinks=family.sinks and word in family.sinks_on,
    )  # fmt: skip


def _is_normed(family: Family, f: Fields) -> bool:
    """Whether queries and keys are; a field that says again what the family's code has must agree.

    `qk_norm_type`: MiniMax's and Molmo's words for a norm of each head or of all of a layer.
    """
    if family.qk_norm == "none":
        return False
    told = family.qk_normed if isinstance(family.qk_normed, tuple) else ("use_qk_norm", True)
    normed = f.flag(*told)
    if not normed and family.qk_normed is True:
        raise f.refuse("use_qk_norm is false, but this family always normalises queries and keys")
    words = {"head": ("per_head", "qwen3"), "full": ("per_layer", "olmo")}[family.qk_norm]
    if f.word("qk_norm_type") not in (None, *words):
        raise f.refuse(f"qk_norm_type is not {words[0]}, which this family has")
    return normed


def _grouped(family: Family, f: Fields) -> Attention:
    heads = f.heads
    told = family.kv_default is None or f.states(*family.kv_heads)
    default = heads if told else family.kv_default
    kv_heads = f.count(*family.kv_heads, default=default)
    f.divide(heads, kv_heads, "query heads over key/value heads")
    if f.present("head_dim", "kv_channels", "attention_head_dim"):
        width = f.count("head_dim", "kv_channels", "attention_head_dim")
    elif family.head_dim is not None and not f.states("head_dim"):
        width = family.head_dim
    elif family.floors_head_dim:
        width = f.hidden // heads
    else:
        width = f.divide(f.hidden, heads, "hidden size over heads, there being no head_dim")
    values = f.count("v_head_dim", default=width)
    if values != width and not family.own_value_dim:
        raise f.refuse(f"v_head_dim {values} is not head_dim {width}, as values of this family are")
    return Attention(
        heads=heads, kv_heads=kv_heads, head_dim=width, v_head_dim=values,
        qkv_bias=_flag(f, family.qkv_bias), out_bias=_flag(f, family.out_bias),
    )  # fmt: skip


def _latent(f: Fields) -> Attention:
    """Multi-head latent attention; an absent `q_lora_rank` means an uncompressed query."""
    if f.flag("attention_bias", False):
        raise f.refuse("attention_bias with latent attention is not priced")
    rope, heads = f.count("qk_rope_head_dim", least=0), f.heads
    width = f.count("qk_nope_head_dim") + rope
    if f.count("qk_head_dim", default=width) != width:
        raise f.refuse(f"qk_head_dim is not qk_nope_head_dim + qk_rope_head_dim = {width}")
    return Attention(
        heads=heads, kv_heads=heads, head_dim=width,
        v_head_dim=f.count("v_head_dim"), q_lora_rank=f.count("q_lora_rank", default=0, least=0),
        kv_lora_rank=f.count("kv_lora_rank"), rope_head_dim=rope,
    )  # fmt: skip


def _dense_width(family: Family, f: Fields) -> int:
    if family.ffn_of:
        return family.ffn_of(f)
    names = family.ffn if family.experts is None else family.experts.dense_ffn
    default = family.ffn_per_hidden * f.hidden or None
    return f.count(*names, default=default)


def _experts(family: Family, f: Fields) -> Experts:
    routed = family.experts
    assert routed is not None
    ffn, of_images = _expert_widths(routed, f)
    number = f.count(*routed.shared, default=0, least=0) if routed.shared else 0
    shared = ffn * number
    if routed.shared_width:
        width = f.count(*routed.shared_width, default=ffn if routed.shared else 0, least=0)
        shared = width * number if routed.shared else width
    experts, top_k = f.count(*routed.experts), f.count(*routed.top_k)
    if top_k > experts:
        raise f.refuse(f"{top_k} experts per token, but only {experts} experts")
    return Experts(
        experts=experts, top_k=top_k, ffn=ffn,
        shared_ffn=ffn if routed.shared_is_ffn else shared,
        shared_gate=routed.shared_gate,
        router_bias=routed.router_bias, bias=routed.bias, of_images=of_images,
        latent=f.count(*routed.latent, default=0, least=0) if routed.latent else 0,
    )  # fmt: skip


def _expert_widths(routed: Routed, f: Fields) -> tuple[int, int]:
    """Of the experts of text and of those of images, 0: there are none."""
    if not routed.of_images:
        return f.count(*routed.ffn), 0
    widths = f.counts(*routed.ffn) or ()
    if len(widths) != 2 or 0 in widths:
        raise f.refuse(f"{routed.ffn[0]} does not list two widths, of text's and images' experts")
    return widths[0], widths[1]


def _tied(family: Family, f: Fields) -> bool:
    told = f.either("tie_word_embeddings", "tie_embedding", default=bool(family.tied))
    if told and family.tied is None:
        raise f.refuse("tie_word_embeddings is true, but the head of this family is not tied")
    return told


def _flag(f: Fields, flag: Flag) -> bool:
    return flag if isinstance(flag, bool) else f.flag(*flag)
