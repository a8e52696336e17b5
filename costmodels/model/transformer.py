"""The shape of a transformer, layer kind by layer kind.

A `Model` is a stack of layers, each of one of a few kinds (dense or mixture-of-experts, attention
of all tokens or of a window, or a recurrent state), between an embedding and a head. It holds sizes
only: what they cost is said by `operations`, how many parameters they have by `parameters`.
"""

from dataclasses import field, replace
from functools import cached_property
from itertools import groupby
from typing import Literal

from meshplan.costmodels.model.compression import (
    AlternatingUpdates,
    Compression,
    Indexer,
    Streams,
)
from meshplan.costmodels.model.ngrams import NGrams
from meshplan.costmodels.model.numerics import Numerics
from meshplan.costmodels.model.recurrent import Recurrent
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.traced_model import TracedLayer

Sense = Literal["vision", "audio"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Grouped-query attention (`kv_lora_rank` 0) or multi-head latent attention (DeepSeek-V2,
    2405.04434).

    heads, kv_heads    query heads and key/value heads (equal: multi-head; 1: multi-query); 0 heads:
                       the layer has no attention (`NO_ATTENTION`)
    head_dim           query/key width of one head (MLA: nope + rope)
    v_head_dim         value width of one head
    window             tokens each query sees (sliding window), None for all
    chunked            the window does not slide: a query sees its own chunk only (Llama 4)
    q_lora_rank        rank of the compressed query, 0 when the query is not compressed
    kv_lora_rank       MLA: rank of the compressed key/value, 0 for grouped-query attention
    rope_head_dim      MLA: the width of the shared rotary key
    qkv_bias, out_bias biases of the projections
    qk_norm            "head": a norm over each head; "full": over all heads of q and of k;
                       "keys": over each head, that of the queries without weights
    v_norm             the values too, by a norm without weights (Gemma 4)
    sinks              one learned logit per head (gpt-oss)
    key_steps          a number for each key head, of all values, masks what is attended to (Doge)
    gate               the output times the sigmoid of a projection of the input, one number for
                       each "head" or "full": for each number of the output (2505.06708)
    latent_gate        queries and gate are of the query's latent, as it is and normed
                       side by side (A.X-K2)
    indexer            what chooses the keys, or of compressed ones which; None: all of them
    compression        keys of many tokens beside those of the window, None: there are none
    out_groups, out_rank
                       groups of heads whose output is projected to so many numbers each before the
                       output projection; 0: it reads the heads
    own_keys           False: keys and values are those of an earlier layer (Gemma 4's last layers)
    convolution        tokens of a causal convolution over keys and over values, 0: none (Inkling)
    relative_rank, relative_extent
                       numbers of each head's query that make a bias for each of the so many nearest
                       keys, in place of rotary positions; 0: none
    own_values         False: the values are the keys, unprojected (Gemma 4)
    causal             False: tokens attend to later ones too (towers, LLaDA)
    """

    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    window: int | None = None
    chunked: bool = False
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    rope_head_dim: int = 0
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: Literal["none", "head", "full", "keys"] = "none"
    v_norm: bool = False
    sinks: bool = False
    key_steps: bool = False
    gate: Literal["none", "head", "full"] = "none"
    latent_gate: bool = False
    indexer: Indexer | None = None
    compression: Compression | None = None
    out_groups: int = 0
    out_rank: int = 0
    convolution: int = 0
    relative_rank: int = 0
    relative_extent: int = 0
    own_keys: bool = True
    own_values: bool = True
    causal: bool = True

    @property
    def is_mla(self) -> bool:
        """Whether keys and values are compressed (multi-head latent attention)."""
        return self.kv_lora_rank > 0

    @property
    def query_rank(self) -> int:
        """Numbers of the latent that queries are a projection of, 0: they are of the input."""
        return self.q_lora_rank * (1 + self.latent_gate)

    @property
    def is_absorbed(self) -> bool:
        """Whether queries meet the compressed keys themselves: each has its own list of them."""
        index = self.indexer
        chosen = index is not None and not index.by_head and self.compression is None
        return self.is_mla and chosen

    @property
    def out_width(self) -> int:
        """Numbers of a token that enter the output projection."""
        return self.out_groups * self.out_rank or self.heads * self.v_head_dim


NO_ATTENTION = Attention(heads=0, kv_heads=0, head_dim=0, v_head_dim=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The feed-forward part of a mixture-of-experts layer.

    experts, top_k   routed experts, and how many of them each token visits
    ffn              intermediate width of one routed expert
    shared_ffn       intermediate width of all shared experts together, 0 for none
    scored_shared    shared experts that the router scores beside the routed ones (Inkling)
    shared_gate      a sigmoid gate (hidden -> 1) on the shared expert (Qwen2-MoE)
    router_bias      one bias per expert in the router (gpt-oss; DeepSeek-V3's correction bias)
    bias             biases in the experts' matrices, and gate and up in turns and clamped (gpt-oss)
    of_images        width of each of as many experts again, with a router of their own, that
                     tokens of images alone visit (ERNIE 4.5 VL): held, and idle in text; 0: none
    latent           width that tokens are projected to before they are sent to experts, and back
                     from after them (LatentMoE, Nemotron 3 Super); 0: the hidden size, unprojected
    """

    experts: int
    top_k: int
    ffn: int
    shared_ffn: int = 0
    scored_shared: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    bias: bool = False
    of_images: int = 0
    latent: int = 0

    @property
    def widths(self) -> tuple[int, ...]:
        """Of text's experts, and of images' where they have some: each set has its own router."""
        return (self.ffn, self.of_images) if self.of_images else (self.ffn,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One kind of layer: what mixes its tokens, then a dense feed-forward of width `ffn` or
    `experts`; any of them may be missing.

    recurrent      beside the attention where there is one (Falcon-H1), else alone
    further_norms  norms or learnt scales of the residual stream beyond the model's
    numbers        learnt numbers that no kernel of its own reads (scales inside an activation)
    thinned        of its feed-forward's gate only a token's highest numbers are not 0 (Gemma 3n)
    norm_gate_rank width of the small feed-forward by whose sigmoid its mixer's norm is multiplied,
                   its experts' norm too (A.X-K2); 0: none
    sums           sums of earlier blocks of layers that each of its halves reads beside the stream,
                   and where there are three, the head after it (Kimi K3's attention residuals);
                   the mean of the layers that are one kind
    output_convolution  tokens of a causal convolution over the output of each half (Inkling)
    ngrams         embeddings of n-grams that it adds to its streams (Qwen4)
    in_16_bit      its products stay in 16 bits where the training is in 8 or 4
    traced         what a trace found of it: then that is all that it costs, and the other fields
                   say only what tensor and expert parallelism must divide
    """

    attention: Attention = NO_ATTENTION
    recurrent: Recurrent | None = None
    ffn: int = 0
    experts: Experts | None = None
    further_norms: int = 0
    numbers: int = 0
    thinned: bool = False
    norm_gate_rank: int = 0
    sums: tuple[float, ...] = ()
    output_convolution: int = 0
    ngrams: NGrams | None = None
    in_16_bit: bool = False
    traced: TracedLayer | None = None

    @property
    def has_mixer(self) -> bool:
        """Whether anything mixes tokens in this layer."""
        return self.attention.heads > 0 or self.recurrent is not None

    @property
    def has_feed_forward(self) -> bool:
        """Whether the layer has a feed-forward part, dense or routed."""
        return self.ffn > 0 or self.experts is not None

    @property
    def divided_by_tp(self) -> dict[str, int]:
        """What tensor parallelism cuts and must divide, by its name; 0: not there."""
        recurrent = self.recurrent.heads if self.recurrent else 0
        whole = {"heads": self.attention.heads, "recurrent heads": recurrent, "ffn": self.ffn,
                 "output groups": self.attention.out_groups}  # fmt: skip
        return whole | (self.traced.divided_by_tp if self.traced else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A linear layer of a tower outside its stack, or a convolution as the product that it is.

    k, n        numbers that one row reads and makes
    merged      encoder tokens for each of its rows
    bias        one for each of the n
    activated   a function of each number follows, whose input is kept
    joins       part of the joiner, which is trained where the tower is frozen
    cut         what tensor parallelism cuts: the n "columns", the k "rows", or nothing
    """

    name: str
    k: int
    n: int
    merged: float = 1.0
    bias: bool = False
    activated: bool = False
    joins: bool = False
    cut: Literal["columns", "rows", "nothing"] = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """What turns patches of images, or frames of sound, into tokens of the language model.

    sense           which of them
    layers          the stack, without vocabulary, head or final norm; None: there is none (Fuyu)
    products        before and after it, in order
    merged          encoder tokens for each token that the language model is given
    tokens_each     of the language model for each image or clip, 0: it depends on its size
    numbers         learnt numbers of no product: positions, class tokens, norms outside the stack,
                    and parts that are there and not used
    joiner_numbers  the same of the joiner
    """

    layers: "Model | None"
    products: tuple[Product, ...]
    merged: float
    tokens_each: int = 0
    numbers: int = 0
    joiner_numbers: int = 0
    sense: Sense = "vision"

    @property
    def words(self) -> str:
        """The tower as messages name it."""
        return f"{self.sense} tower"

    @property
    def divided_by_tp(self) -> dict[str, int]:
        """What tensor parallelism cuts and must divide, by its name."""
        found: dict[str, int] = {}
        for kind in self.layers.kinds if self.layers else ():
            found |= {f"tower's {name}": size for name, size in kind.divided_by_tp.items() if size}
        return found


@dataclass(frozen=True, kw_only=True)
class Model:
    """A decoder-only transformer.

    kinds, pattern      the distinct layers, and for each layer in model order the index of its kind
    gated               SwiGLU/GeGLU (three feed-forward matrices) instead of two
    norm                "rmsnorm" (h weights), "layernorm" (2h; h "without_bias"), or "none" (0)
    norms_per_layer     hidden-wide norms in each layer: 2, or 4 where outputs are normalised too
                        (Gemma), or 1 where both blocks read the same (Cohere), or 0 (`streams`)
    parallel_blocks     attention and feed-forward read the same input (GPT-NeoX)
    bias                biases in the dense feed-forward
    learned_positions   rows of a learned position table, 0 for RoPE or ALiBi
    embedding_norm      a norm right after the embedding (BLOOM)
    final_norm          a norm before the head
    tied                the head reuses the embedding's weights
    head_bias           one bias for each token of the vocabulary
    layer_inputs        width of a second embedding that each layer gates and adds (Gemma 4's
                        per-layer embeddings), 0: none, and `layer_input_vocab` its rows
    other_parameters    beside all that the other fields count, whole on the first stage (a trace's)
    streams             hidden states that each token has, None: one
    alternating         the same where each layer computes one of them alone (Gemma 3n)
    mtp_layers          multi-token-prediction modules after the last layer (DeepSeek-V3)
    module              the layer of each, where it is none like the last
    plain_modules       a module has one hidden state, whatever the layers have (GLM-5.3-Flash)
    tower               what turns images into its tokens, None: it reads text alone, or its tower
                        is not read
    numerics            what changes neither sizes nor time, and so no comparison of models
    expert_groups       of it the router's groups and those that a token's experts are chosen from,
                        which decide on how many ranks they are; (0, 0): any
    """

    name: str
    hidden: int
    vocab: int
    kinds: tuple[Layer, ...]
    pattern: tuple[int, ...]
    gated: bool = True
    norm: Literal["rmsnorm", "layernorm", "layernorm_without_bias", "none"] = "rmsnorm"
    norms_per_layer: int = 2
    parallel_blocks: bool = False
    bias: bool = False
    learned_positions: int = 0
    embedding_norm: bool = False
    final_norm: bool = True
    tied: bool = False
    head_bias: bool = False
    layer_inputs: int = 0
    layer_input_vocab: int = 0
    other_parameters: int = 0
    streams: Streams | None = None
    alternating: AlternatingUpdates | None = None
    mtp_layers: int = 0
    module: Layer | None = None
    plain_modules: bool = False
    tower: Tower | None = None
    numerics: Numerics = field(default=Numerics(), compare=False)
    expert_groups: tuple[int, int] = field(init=False)

    def __post_init__(self) -> None:
        router = self.numerics.router
        groups = (router.groups or 0, router.top_groups or 0) if router else (0, 0)
        object.__setattr__(self, "expert_groups", groups)
        assert self.kinds, f"{self.name}: a model needs layers"
        assert set(self.pattern) == set(range(len(self.kinds))), f"{self.name}: unused layer kind"

    @property
    def stream_width(self) -> int:
        """Numbers of a token between two layers: `hidden` of each stream."""
        several = self.streams or self.alternating
        return self.hidden * (several.count if several else 1)

    @cached_property
    def sent_width(self) -> float:
        """Numbers of a token that cross a cut between two stages; with sums of earlier blocks the
        mean of all cuts, since each later one is crossed by more of them.
        """
        before = [self.kinds[kind].sums[0] for kind in self.pattern[1:] if self.kinds[kind].sums]
        return self.stream_width + self.hidden * sum(before) / max(len(before), 1)

    @property
    def module_layer(self) -> Layer:
        """The layer of a multi-token-prediction module: the last one, its keys not compressed."""
        last = self.module or self.kinds[self.pattern[-1]]
        if last.attention.compression is None:
            return last
        return replace(last, attention=replace(last.attention, compression=None, indexer=None))

    @cached_property
    def of_modules(self) -> "Model":
        """The model as its modules of multi-token prediction are built: of one stream where they
        have no more.
        """
        return replace(self, streams=None) if self.plain_modules else self

    @property
    def num_layers(self) -> int:
        """Layers of the stack, multi-token-prediction modules apart."""
        return len(self.pattern)

    @cached_property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """`pattern` as (kind, how many in a row)."""
        return tuple((kind, len(list(group))) for kind, group in groupby(self.pattern))

    @property
    def is_moe(self) -> bool:
        """Whether any layer routes tokens to experts."""
        return any(kind.experts for kind in self.kinds)

    @property
    def num_experts(self) -> int:
        """Routed experts of the mixture-of-experts layers, 0 for a dense model."""
        return max((kind.experts.experts for kind in self.kinds if kind.experts), default=0)

    @property
    def kind(self) -> str:
        """What errors of prediction are told apart by: layers with a "state" or chosen keys, else
        "experts", else "dense".
        """
        chosen = any(kind.attention.indexer or kind.attention.compression for kind in self.kinds)
        if chosen or any(kind.recurrent for kind in self.kinds):
            return "state"
        if any(kind.traced and kind.traced.mixed_by for kind in self.kinds):
            return "state"
        return "experts" if self.is_moe else "dense"

    @property
    def mixed_by(self) -> tuple[str, ...]:
        """What else than attention mixes tokens of a traced layer, in words: how context-parallel
        ranks would exchange it is not known.
        """
        found = (words for kind in self.kinds if kind.traced for words in kind.traced.mixed_by)
        return tuple(dict.fromkeys(found))
