"""A model file: what a trace found of a model that no family describes (`models --trace`).

Every number is what one token costs in one layer of its kind, in 16 bits.

`split` of `groups` products of rows x k by k x n:

    column   its n columns are cut over tensor-parallel ranks (into a mixer or feed-forward)
    row      its k rows are: the ranks' outputs are added up (out of it)
    narrow   its k rows are, its input being cut, and its output is whole (a selection)
    whole    every rank has all of it, for all tokens of its group (latents)
    own      the same, for the tokens of the stream that it holds (routers, gates of one number)
    expert_in, expert_out
             the rows of a token's experts, spread over `groups`: cut over expert-parallel ranks,
             and as column and row within

Where a number of bytes is, of what part of a layer it is:

    stream   the residual stream, as wide as the model: cut by sequence parallelism
    whole    all of a token on each tensor-parallel rank
    cut      between column and row: cut over tensor-parallel ranks
    copies   tokens as experts have them

`saved`, `moved` and `kernels` are those of the module as it runs, kernel by kernel; `fused_...`
those where each chain of kernels between two products is one kernel, which keeps and moves its
ends; the rows of routed experts are moved as in layers with experts that are no trace's.
"""

from math import gcd
from typing import Annotated, Literal

from pydantic import Field

from meshplan.hardware_profiles.frozen import Frozen

TRACE_VERSION = 1
MOST_KINDS = 1000

Size = Annotated[int, Field(ge=0, le=2**40)]
Width = Annotated[int, Field(ge=1, le=2**31 - 1)]
Amount = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]
Words = Annotated[str, Field(max_length=500)]
Split = Literal["column", "row", "narrow", "whole", "own", "expert_in", "expert_out"]


class TracedProduct(Frozen):
    """Products with one weight, `rows` of each group for each token (experts: of all groups)."""

    name: Words
    n: Width
    k: Width
    groups: Width = 1
    rows: Width = 1
    split: Split


class TracedAttention(Frozen):
    """A call of softmax attention; `window` None: each token meets all that come before it."""

    heads: Width
    kv_heads: Width
    head_dim: Width
    v_head_dim: Width
    window: Width | None = None


class TracedBytes(Frozen):
    """Bytes for each token, apart by the part of the layer that they are in."""

    stream: Amount = 0.0
    whole: Amount = 0.0
    cut: Amount = 0.0
    copies: Amount = 0.0


class TracedExperts(Frozen):
    """Routed experts, how many of them a token visits, and their width inside and outside."""

    experts: Width
    top_k: Width
    ffn: Width
    outer: Width


class TracedLayer(Frozen):
    """One kind of layer.

    parameters       all of them, of which `cut_parameters` are cut over tp, `routed_parameters`
                     over ep and etp; the rest is whole on each rank
    entries          tensors of the stream that are gathered for products of all tokens
    state_flops      for each token, forward: of products between activations that are no attention
    state_flops_per_key
                     the same for each pair of a token and one of the sequence
    mixed_by         what else mixes tokens: such layers are not split over context-parallel ranks
    saved_per_key    bytes for each pair of a token and one of the sequence
    """

    name: Words
    layers: Width
    parameters: Size
    cut_parameters: Size
    routed_parameters: Size
    products: tuple[TracedProduct, ...] = Field(max_length=MOST_KINDS)
    attention: tuple[TracedAttention, ...] = Field(default=(), max_length=16)
    experts: TracedExperts | None = None
    entries: int = Field(default=1, ge=0, le=64)
    state_flops: Amount = 0.0
    state_flops_per_key: Amount = 0.0
    mixed_by: tuple[Words, ...] = Field(default=(), max_length=64)
    saved: TracedBytes
    saved_per_key: Amount = 0.0
    fused_saved: TracedBytes
    moved: TracedBytes
    fused_moved: TracedBytes
    kernels: int = Field(ge=0, le=10**6)
    fused_kernels: int = Field(ge=0, le=10**6)

    @property
    def divided_by_tp(self) -> dict[str, int]:
        """What tensor parallelism cuts: heads of keys, columns and rows of products."""
        cut = [each.n if each.split == "column" else each.k
               for each in self.products if each.split in ("column", "row", "narrow")]  # fmt: skip
        heads = [each.kv_heads for each in self.attention]
        return {"key/value heads": gcd(*heads), "traced columns": gcd(*cut)}


class TracedModel(Frozen):
    """The file: the layers in their order, both ends, and what the trace does not say.

    pattern           for each layer the index of its kind
    final_norm        of the norm before the head; "none": it has no weights of a known form
    other_parameters  beside layers, embedding, head and final norm: whole on the first stage
    assumed, not_attributed
                      in words: what was taken to be so, and what is in no number of this file
    """

    trace_version: Literal[1]
    name: Words
    model_type: Words
    source: Words
    parameters: Size
    hidden: Width
    vocab: Width
    tied: bool
    head_bias: bool = False
    final_norm: Literal["rmsnorm", "layernorm", "none"]
    other_parameters: Size = 0
    max_position_embeddings: Width | None = None
    pattern: tuple[Annotated[int, Field(ge=0, lt=MOST_KINDS)], ...] = Field(
        min_length=1, max_length=10_000
    )
    kinds: tuple[TracedLayer, ...] = Field(min_length=1, max_length=MOST_KINDS)
    assumed: tuple[Words, ...] = Field(default=(), max_length=100)
    not_attributed: tuple[Words, ...] = Field(default=(), max_length=100)
