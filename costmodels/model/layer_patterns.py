"""Which of a model's layers are which: a word for each layer, from a list or from a rule.

    full        attention of all tokens            recurrent  no attention, a state
    sliding     attention of a window              both       attention and a state side by side
    chunked     attention of the own chunk         none       nothing mixes tokens

    dense, sparse   a feed-forward of one width, or of routed experts; none: there is none

Field names: huggingface/transformers 5.24, the families' configuration classes, which fill the
lists where a file states only the rule.
"""

from collections.abc import Callable

from meshplan.costmodels.model.config_fields import MAX_LAYERS, Fields

Words = tuple[str, ...]
Pattern = Callable[[Fields], Words]

MIXERS = {
    "full_attention": "full", "attention": "full", "indexed_attention": "full", "global": "full",
    "deepseek_sparse_attention": "full",
    "sliding_attention": "sliding", "sliding_window": "sliding", "local": "sliding",
    "chunked_attention": "chunked", "linear_attention": "recurrent", "mamba": "recurrent",
    "mamba2": "recurrent", "recurrent": "recurrent", "conv": "recurrent", "hybrid": "full",
    "hybrid_sliding": "sliding",
}  # fmt: skip
FEED_FORWARDS = {"dense": "dense", "sparse": "sparse", "moe": "sparse", "hash_moe": "sparse"}
HYBRID_LETTERS = {"M": ("recurrent", "none"), "*": ("full", "none"), "-": ("none", "dense"),
                  "E": ("none", "sparse")}  # fmt: skip


def listed(f: Fields, *keys: str, words: dict[str, str]) -> Words | None:
    """The list of the first of `keys` that the file has, translated; None where it has none.

    A short list is the pattern that repeats (RecurrentGemma); a longer one goes on with the modules
    of multi-token prediction (Step 3.5).
    """
    for key in keys:
        types = f.texts(key)
        if types is None:
            continue
        for unknown in sorted(set(types) - set(words)):
            raise f.refuse(f"{key} has {unknown[:40]!r}, which is not priced")
        if key == "block_types":
            types = (types * f.num_layers)[: f.num_layers]
        modules = f.count("num_nextn_predict_layers", default=0, least=0)
        if len(types) not in (f.num_layers, f.num_layers + modules):
            raise f.refuse(f"{key} names {len(types)} layers of {f.num_layers}")
        return tuple(words[each] for each in types[: f.num_layers])
    return None


def flagged(f: Fields, key: str, yes: str, no: str) -> Words | None:
    """A list of 1 and 0 for each layer; None where the field is absent or is one number."""
    if not isinstance(f.config.get(key), list):
        return None
    flags = f.counts(key) or ()
    if len(flags) != f.num_layers or not set(flags) <= {0, 1}:
        raise f.refuse(f"{key} is not a list of {f.num_layers} layers' 1 or 0")
    return tuple(yes if flag else no for flag in flags)


def by_rule(f: Fields, rule: Callable[[int], bool], yes: str, no: str) -> Words:
    """`yes` for the layers of which the rule holds, counted from 0."""
    return tuple(yes if rule(i) else no for i in range(f.num_layers))


def everywhere(word: str) -> Pattern:
    """The same on every layer."""
    return lambda f: (word,) * f.num_layers


all_full, all_sliding, all_recurrent = map(everywhere, ("full", "sliding", "recurrent"))
both_everywhere, all_sparse = everywhere("both"), everywhere("sparse")


def windowed(f: Fields) -> Words:
    """A window on every layer, where the file states one."""
    return ("sliding" if f.present("sliding_window") else "full",) * f.num_layers


def windowed_when_told(f: Fields) -> Words:
    """A window on every layer only where `use_sliding_window` says so (SmolLM3)."""
    told = f.flag("use_sliding_window", False)
    return ("sliding" if told else "full",) * f.num_layers


def upper_windowed(f: Fields) -> Words:
    """Qwen: a window from `max_window_layers` on, when told to slide at all."""
    told = f.flag("use_sliding_window", False)
    first = f.count("max_window_layers", default=28, least=0)
    return by_rule(f, lambda i: told and i >= first, "sliding", "full")


def slides_but_each(every: int, *keys: str, first: bool = False) -> Pattern:
    """Windows on all layers but each `every`-th (or as `keys` say): the last of so many, or the
    first.
    """

    def pattern(f: Fields) -> Words:
        letters = f.config.get(keys[0]) if keys else None
        if isinstance(letters, str):
            return _lettered(f, keys[0])
        period = f.count(*keys, default=every, least=0) if keys else every
        if not period or f.present("sliding_window", "sliding_window_size") is None:
            return all_full(f)
        at = 0 if first else period - 1
        return by_rule(f, lambda i: i % period != at, "sliding", "full")

    return pattern


def _lettered(f: Fields, key: str) -> Words:
    """A text that repeats, with an L for a window and a G for all tokens (EXAONE 4); the last layer
    sees all whatever it says.
    """
    letters = f.word(key) or ""
    if not letters or set(letters) - set("LG"):
        raise f.refuse(f"{key} has another letter than L and G")
    words = {"L": "sliding", "G": "full"}
    found = tuple(words[letters[i % len(letters)]] for i in range(f.num_layers))
    return (*found[:-1], "full")


def slides_to_the_last(f: Fields) -> Words:
    """Windows on all layers but each fourth, counted from the last, which sees all (Muse)."""
    last = f.num_layers - 1
    slides = f.present("sliding_window") is not None
    return by_rule(f, lambda i: slides and (last - i) % 4 != 0, "sliding", "full")


def mimo_windows(f: Fields) -> Words:
    """`hybrid_layer_pattern` has a 1 for a window; absent, all slide but the first and each sixth
    (MiMo-V2-Flash)."""
    stated = flagged(f, "hybrid_layer_pattern", "sliding", "full")
    return stated or by_rule(f, lambda i: i > 0 and (i + 1) % 6 != 0, "sliding", "full")


def recurrent_but_each(every: int, *keys: str) -> Pattern:
    """A state on all layers but each `every`-th, which has attention of all tokens."""

    def pattern(f: Fields) -> Words:
        period = f.count(*keys, default=every) if keys else every
        return by_rule(f, lambda i: (i + 1) % period != 0, "recurrent", "full")

    return pattern


def recurrent_in_groups(f: Fields) -> Words:
    """A state on all layers but the last of each group; layers behind the last whole group have
    attention of all tokens.
    """
    group = f.count("layer_group_size", default=1)
    whole = f.num_layers // group * group
    return by_rule(f, lambda i: (i + 1) % group != 0 and i < whole, "recurrent", "full")


def attention_at(*keys: str, absent: str = "none of them") -> Pattern:
    """Attention on the layers whose numbers (from 0) a field lists, a state on the others."""

    def pattern(f: Fields) -> Words:
        found = next((f.counts(key) for key in keys if f.counts(key) is not None), None)
        if found is None:
            return all_full(f) if absent == "all of them" else all_recurrent(f)
        return by_rule(f, lambda i: i in found, "full", "recurrent")

    return pattern


def jamba_attention(f: Fields) -> Words:
    """Attention once in `attn_layer_period` layers."""
    period = f.count("attn_layer_period", default=8)
    offset = f.count("attn_layer_offset", default=4, least=0)
    return by_rule(f, lambda i: i % period == offset, "full", "recurrent")


def minimax_attention(f: Fields) -> Words:
    """`attn_type_list` has a 1 for attention of all tokens; absent, every other layer has it."""
    types = f.counts("attn_type_list")
    if types is None:
        return by_rule(f, lambda i: i % 2 == 0, "full", "recurrent")
    if len(types) != f.num_layers:
        raise f.refuse(f"attn_type_list names {len(types)} layers of {f.num_layers}")
    return tuple("full" if each else "recurrent" for each in types)


def kimi_attention(f: Fields) -> Words:
    """`linear_attn_config` lists, from 1, the layers with Kimi Delta Attention."""
    nested = f.section("linear_attn_config")
    linear = nested.counts("kda_layers") if nested else None
    if linear is None:
        raise f.refuse(
            "neither layer_types nor linear_attn_config.kda_layers says which layers are which"
        )
    return by_rule(f, lambda i: i + 1 in linear, "recurrent", "full")


def neo_attention(f: Fields) -> Words:
    """GPT-Neo: `attention_layers` in full, or `attention_types` as [[pattern, repeats], ...]."""
    found = listed(f, "attention_layers", words=MIXERS)
    if found is not None:
        return found
    stated = f.present("attention_types")
    pairs = stated[1] if stated else None
    if not isinstance(pairs, list) or not all(_is_repeated(pair) for pair in pairs):
        raise f.refuse("neither attention_layers nor attention_types lists global and local layers")
    types = [word for words, times in pairs for word in words * times]
    return listed(f.changed({"attention_layers": types}), "attention_layers", words=MIXERS) or ()


def _is_repeated(pair: object) -> bool:
    """Whether it is a list of words and how often they come."""
    return (
        isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], list)
        and type(pair[1]) is int and 0 <= pair[1] <= MAX_LAYERS
    )  # fmt: skip


def hybrid_pattern(f: Fields) -> tuple[Words, Words]:
    """Nemotron-H: each layer is one part. `hybrid_override_pattern` has a letter for each, else
    `layers_block_type` a word.
    """
    letters = f.word("hybrid_override_pattern")
    if letters is not None:
        if f.present("num_hidden_layers") and f.num_layers != len(letters):
            raise f.refuse(
                f"hybrid_override_pattern has {len(letters)} letters for {f.num_layers} layers "
                "(num_hidden_layers); each layer is one letter"
            )
        for unknown in sorted(set(letters) - set(HYBRID_LETTERS)):
            raise f.refuse(f"hybrid_override_pattern has {unknown!r}; M, E, * and - are priced")
        pairs = [HYBRID_LETTERS[letter] for letter in letters]
    else:
        types = f.texts("layers_block_type") or f.texts("layer_types") or ()
        known = {"linear_attention": "M", "mamba": "M", "full_attention": "*", "attention": "*",
                 "moe": "E", "mlp": "-"}  # fmt: skip
        for unknown in sorted(set(types) - set(known)):
            raise f.refuse(f"layers_block_type has {unknown[:40]!r}, which is not priced")
        pairs = [HYBRID_LETTERS[known[each]] for each in types]
    if not pairs:
        raise f.refuse("neither hybrid_override_pattern nor layers_block_type lists the layers")
    return tuple(mixer for mixer, _ in pairs), tuple(ffn for _, ffn in pairs)


# Which layers have experts


def after_leading(*keys: str, default: int = 0, every: tuple[str, ...] = ()) -> Pattern:
    """Routed from the layer that a field names on (and each `every`-th), dense before."""

    def pattern(f: Fields) -> Words:
        first = f.count(*keys, default=default, least=0)
        step = f.count(*every, default=1) if every else 1
        return by_rule(f, lambda i: i >= first and i % step == 0, "sparse", "dense")

    return pattern


def exaone_sparse(f: Fields) -> Words:
    """`is_moe_layer` says it of each layer; absent, after the leading ones (K-EXAONE)."""
    told = f.present("is_moe_layer")
    if told is None:
        return after_leading("first_k_dense_replace", default=1)(f)
    value = told[1]
    flags = isinstance(value, list) and all(isinstance(each, bool) for each in value)
    if not isinstance(value, list) or not flags or len(value) != f.num_layers:
        raise f.refuse(f"is_moe_layer is not a list of {f.num_layers} layers' true or false")
    return tuple("sparse" if routed else "dense" for routed in value)


def sparse_but(*absent: int) -> Pattern:
    """Every `decoder_sparse_step`-th layer, less those of `mlp_only_layers`, or these if absent."""

    def pattern(f: Fields) -> Words:
        step, dense = f.count("decoder_sparse_step", default=1), f.counts("mlp_only_layers")
        dense = absent if dense is None else dense
        return by_rule(f, lambda i: i not in dense and (i + 1) % step == 0, "sparse", "dense")

    return pattern


qwen_sparse = sparse_but()


def jamba_sparse(f: Fields) -> Words:
    """Once in `expert_layer_period` layers; none where there is one expert."""
    period = f.count("expert_layer_period", default=2)
    offset = f.count("expert_layer_offset", default=1, least=0)
    several = f.count("num_experts", default=16) > 1
    return by_rule(f, lambda i: several and i % period == offset, "sparse", "dense")


def step_sparse(f: Fields) -> Words:
    """`moe_layers_enum` numbers them, in a text with commas or a list; absent, all but three."""
    told = f.present("moe_layers_enum")
    if told is None:
        return by_rule(f, lambda i: i >= 3, "sparse", "dense")
    texts = told[1].split(",") if isinstance(told[1], str) else told[1]
    if not isinstance(texts, list) or not all(str(each).strip().isdecimal() for each in texts):
        raise f.refuse("moe_layers_enum is no list of layers' numbers")
    routed = {int(each) for each in texts}
    return by_rule(f, lambda i: i in routed, "sparse", "dense")


def ernie_sparse(f: Fields) -> Words:
    """Between `moe_layer_start_index` and `moe_layer_end_index`, every `moe_layer_interval`-th."""
    first = f.count("moe_layer_start_index", default=1, least=0)
    step = f.count("moe_layer_interval", default=1)
    last = f.whole("moe_layer_end_index", default=-1)
    last = f.num_layers - 1 if last == -1 else last
    return by_rule(f, lambda i: first <= i <= last and (i + 1) % step == 0, "sparse", "dense")


def llama4_sparse(f: Fields) -> Words:
    """`moe_layers`, or each `interleave_moe_layer_step`-th; none where that is 0."""
    step, stated = f.count("interleave_moe_layer_step", default=1, least=0), f.counts("moe_layers")
    every = range(step - 1, f.num_layers, step) if step else ()
    return by_rule(f, lambda i: i in (every if stated is None else stated), "sparse", "dense")


def llama4_chunks(f: Fields) -> Words:
    """Chunked attention but on every fourth layer, which has no rotary positions either."""
    interval = f.count("no_rope_layer_interval", default=4)
    rotary = f.counts("no_rope_layers") or ()

    def chunks(layer: int) -> bool:
        return bool(rotary[layer]) if layer < len(rotary) else (layer + 1) % interval != 0

    return by_rule(f, chunks, "chunked", "full")


def griffin_attention(f: Fields) -> Words:
    """RecurrentGemma: `block_types` repeats, and its attention always has a window."""
    found = listed(f, "block_types", words={"recurrent": "recurrent", "attention": "sliding"})
    return found or by_rule(f, lambda i: i % 3 != 2, "recurrent", "sliding")


def lfm3_mixers(f: Fields) -> Words:
    """Full attention once in four layers, a window two layers on, short convolutions between."""
    words = {2: "full", 0: "sliding"}
    return tuple(words.get(i % 4, "recurrent") if i else "recurrent" for i in range(f.num_layers))


def lara_attention(f: Fields) -> Words:
    """Of five layers the second and the last slide, the fourth sees all, the others have a state
    (Lara Mini)."""
    words = ("recurrent", "sliding", "recurrent", "full", "sliding")
    return tuple(words[i % 5] for i in range(f.num_layers))


def mixers_only(f: Fields) -> tuple[Words, Words]:
    """A state in every layer and no feed-forward (Mamba)."""
    return all_recurrent(f), ("none",) * f.num_layers


def gemma4_windows(f: Fields) -> Words:
    """Five layers of six slide; the last never does."""
    found = by_rule(f, lambda i: (i + 1) % 6 != 0, "sliding", "full")
    return (*found[:-1], "full")


def nas_parts(f: Fields) -> tuple[Words, Words]:
    """Which parts the blocks of `block_configs` have (Llama-Nemotron, found by a search)."""
    blocks = f.sections("block_configs")
    if len(blocks) != f.num_layers:
        raise f.refuse(f"block_configs names {len(blocks)} layers of {f.num_layers}")
    mixers: list[str] = []
    feed_forwards: list[str] = []
    for block in blocks:
        for name, words, said in (("attention", mixers, "full"), ("ffn", feed_forwards, "dense")):
            part = block.section(name) or block
            if any(part.present(key) for key in ("sparsify", "window_length", "num_sink_tokens")):
                raise f.refuse("block_configs has a window, sinks or a sparse part; not priced")
            if part.flag("replace_with_linear", False) or part.flag("unshifted_sink", False):
                raise f.refuse("block_configs has a linear layer in place of a part; not priced")
            words.append("none" if part.flag("no_op", False) else said)
    return tuple(mixers), tuple(feed_forwards)


def pairs_around_experts(f: Fields) -> tuple[Words, Words]:
    """LongCat-Flash: a layer of its file is two attentions and two dense feed-forwards, with
    experts beside the first: two layers here.
    """
    count = f.num_layers
    return ("full",) * (2 * count), ("sparse", "dense") * count
