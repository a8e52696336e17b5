"""The shape of a transformer, layer kind by layer kind.

A `Model` is a stack of layers, each of one of a few kinds (dense or mixture-of-experts, full or
sliding-window attention), between an embedding and a head. It holds sizes only: what they cost is
said by `blocks`, how many parameters they have by `params`.
"""

from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Literal

from meshplan.costmodels.model.numerics import Numerics


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Grouped-query attention (`kv_lora_rank` 0) or multi-head latent attention (DeepSeek-V2,
    2405.04434).

    heads, kv_heads    query heads and key/value heads (equal: multi-head; 1: multi-query)
    head_dim           query/key width of one head (MLA: nope + rope)
    v_head_dim         value width of one head
    window             tokens each query sees (sliding window), None for all
    chunked            the window does not slide: a query sees its own chunk only (Llama 4)
    q_lora_rank        MLA: rank of the compressed query, 0 when the query is not compressed
    kv_lora_rank       MLA: rank of the compressed key/value, 0 for grouped-query attention
    rope_head_dim      MLA: the width of the shared rotary key
    qkv_bias, out_bias biases of the projections
    qk_norm            "head": a norm over each head; "full": over all heads of q and of k
    sinks              one learned logit per head (gpt-oss)
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
    qk_norm: Literal["none", "head", "full"] = "none"
    sinks: bool = False

    @property
    def is_mla(self) -> bool:
        """Whether keys and values are compressed (multi-head latent attention)."""
        return self.kv_lora_rank > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The feed-forward part of a mixture-of-experts layer.

    experts, top_k   routed experts, and how many of them each token visits
    ffn              intermediate width of one routed expert
    shared_ffn       intermediate width of all shared experts together, 0 for none
    shared_gate      a sigmoid gate (hidden -> 1) on the shared expert (Qwen2-MoE)
    router_bias      one bias per expert in the router (gpt-oss; DeepSeek-V3's correction bias)
    bias             biases in the experts' matrices (gpt-oss)
    """

    experts: int
    top_k: int
    ffn: int
    shared_ffn: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One kind of layer: its attention, and either a dense feed-forward of width `ffn` or
    `experts`.
    """

    attention: Attention
    ffn: int = 0
    experts: Experts | None = None


@dataclass(frozen=True, kw_only=True)
class Model:
    """A decoder-only transformer.

    kinds, pattern      the distinct layers, and for each layer in model order the index of its kind
    gated               SwiGLU/GeGLU (three feed-forward matrices) instead of two
    norm                "rmsnorm" (h weights) or "layernorm" (2h), or "none" (no weights)
    norms_per_layer     hidden-wide norms in each layer: 2, or 4 where outputs are normalised too
                        (Gemma)
    parallel_blocks     attention and feed-forward read the same input (GPT-NeoX)
    bias                biases in the dense feed-forward
    learned_positions   rows of a learned position table, 0 for RoPE or ALiBi
    embedding_norm      a norm right after the embedding (BLOOM)
    final_norm          a norm before the head
    tied                the head reuses the embedding's weights
    mtp_layers          multi-token-prediction modules after the last layer (DeepSeek-V3)
    numerics            what changes neither sizes nor time, and so no comparison of models
    """

    name: str
    hidden: int
    vocab: int
    kinds: tuple[Layer, ...]
    pattern: tuple[int, ...]
    gated: bool = True
    norm: Literal["rmsnorm", "layernorm", "none"] = "rmsnorm"
    norms_per_layer: int = 2
    parallel_blocks: bool = False
    bias: bool = False
    learned_positions: int = 0
    embedding_norm: bool = False
    final_norm: bool = True
    tied: bool = False
    mtp_layers: int = 0
    numerics: Numerics = field(default=Numerics(), compare=False)

    def __post_init__(self) -> None:
        assert self.kinds, f"{self.name}: a model needs layers"
        assert set(self.pattern) == set(range(len(self.kinds))), f"{self.name}: unused layer kind"

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
