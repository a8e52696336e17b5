"""Parts that vision towers have in common: a stack of layers, what reads patches, what joins."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from meshplan.costmodels.model.config_fields import MAX_LAYERS, Fields
from meshplan.costmodels.model.rules.family import of_layers
from meshplan.costmodels.model.transformer import Attention, Layer, Model, Product

BIASED: dict[str, Any] = {"gated": False, "norm": "layernorm", "bias": True}


def stack_of(
    v: Fields, hidden: int, layers: int, ffn: int, *, qkv_bias: bool = True, out_bias: bool = True,
    more: Layer | None = None, **shape: Any,
) -> Model:  # fmt: skip
    """`layers` equal ones, whose tokens attend to all of their image."""
    if layers > MAX_LAYERS:
        raise v.refuse(f"{layers} layers of the vision tower; at most {MAX_LAYERS} are priced")
    heads = v.count("num_attention_heads", "num_heads")
    width = v.divide(hidden, heads, "vision hidden size over heads")
    attention = Attention(
        heads=heads, kv_heads=heads, head_dim=width, v_head_dim=width, qkv_bias=qkv_bias,
        out_bias=out_bias, causal=False,
    )  # fmt: skip
    kind = replace(more or Layer(), attention=attention, ffn=ffn)
    return Model(
        name="vision tower", hidden=hidden, vocab=0, kinds=(kind,), pattern=(0,) * layers,
        final_norm=False, **shape,
    )  # fmt: skip


def with_windows(stack: Model, tokens: int, full: Sequence[int], numbers: Sequence[int]) -> Model:
    """Windows of `tokens` on all layers but the `full` ones; `numbers` of a windowed, a full one.

    A window that does not slide: the tokens in it attend to each other.
    """
    kind = stack.kinds[0]
    near = replace(kind.attention, window=tokens, chunked=True)
    layers = [
        replace(kind, numbers=numbers[1])
        if i in full
        else replace(kind, attention=near, numbers=numbers[0])
        for i in range(stack.num_layers)
    ]
    return of_layers(stack, layers)


def with_normed_heads(stack: Model) -> Model:
    """Norms over the queries and keys of each head."""
    kind = stack.kinds[0]
    return replace(stack, kinds=(replace(kind, attention=replace(kind.attention, qk_norm="head")),))


def patches_of(v: Fields) -> int:
    """Patches of an image of the size that the configuration states."""
    size, patch = v.count("image_size"), v.count("patch_size")
    if size < patch:
        raise v.refuse(f"the vision tower's image_size {size} is less than its patch_size {patch}")
    return (size // patch) ** 2


def stem_of(v: Fields, hidden: int, *, bias: bool, frames: int = 1, merged: float = 1.0) -> Product:
    channels = v.count("num_channels", "in_channels", "in_chans", default=3)
    pixels = channels * frames * v.count("patch_size") ** 2
    return Product(name="patch_embedding", k=pixels, n=hidden, bias=bias, merged=merged)


def tokens_merged(f: Fields, key: str) -> float:
    """Tokens that become one, of the share of each side that is left."""
    share = f.number(key) or 0.5
    if not 1e-3 <= share <= 1:
        raise f.refuse(f"{key} is {share}, not between 0.001 and 1")
    return 1 / share**2


def with_class_token(patches: int) -> float:
    """Tokens of the stack for each patch, where a class token is among those of an image."""
    return (patches + 1) / patches


def joined(name: str, sizes: Sequence[int], merged: float, *, bias: bool) -> tuple[Product, ...]:
    """A chain of products of these widths, a function of each number between them."""
    pairs = list(pairwise(sizes))
    return tuple(
        Product(
            name=f"{name}_{i}", k=k, n=n, merged=merged, bias=bias, joins=True,
            activated=i + 1 < len(pairs), cut="columns" if i % 2 == 0 else "rows",
        )
        for i, (k, n) in enumerate(pairs)
    )  # fmt: skip
