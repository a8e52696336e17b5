"""The vision towers that are read, each from its part of a `config.json`.

Fields, what an absent one means, and the shapes: `configuration_` and `modeling_<model_type>.py` of
each family in huggingface/transformers 5.24, whose modules on the meta device the tests compare
the parameters with. The whole configuration's `model_type` says which tower it is.
"""

import math
from collections.abc import Callable
from dataclasses import replace

from meshplan.costmodels.model.config_fields import Fields, shown
from meshplan.costmodels.model.towers.audio import AUDIO_TOWERS
from meshplan.costmodels.model.towers.parts import (
    BIASED,
    joined,
    patches_of,
    stack_of,
    stem_of,
    tokens_merged,
    with_class_token,
    with_normed_heads,
    with_windows,
)
from meshplan.costmodels.model.transformer import Layer, Product, Tower
from meshplan.costmodels.model.unread_fields import refuse_unread_of_tower

Reader = Callable[[Fields, Fields, int], Tower]
"""Of the whole configuration, its vision part, and the language model's hidden size."""


def _siglip(v: Fields) -> Tower:
    """SigLIP (2303.15343): a table of positions, and a head over all tokens that is not used."""
    hidden, ffn = v.count("hidden_size"), v.count("intermediate_size")
    head = 4 * hidden * (hidden + 1) + 2 * hidden * ffn + ffn + hidden + 3 * hidden
    unused = head if v.flag("vision_use_head", True) else 0
    return Tower(
        layers=stack_of(v, hidden, v.num_layers, ffn, **BIASED),
        products=(stem_of(v, hidden, bias=True),), merged=1.0,
        numbers=patches_of(v) * hidden + 2 * hidden + unused,
    )  # fmt: skip


def gemma3(o: Fields, v: Fields, hidden: int) -> Tower:
    """Patches are averaged to `mm_tokens_per_image`, normed and projected."""
    plain = _encoder(v, "siglip_vision_model")
    patches, each = patches_of(v), o.count("mm_tokens_per_image", default=256)
    wide, merged = v.count("hidden_size"), patches / each
    return replace(
        plain, merged=merged, tokens_each=each, joiner_numbers=wide,
        products=(*plain.products, *joined("joiner", (wide, hidden), merged, bias=False)),
    )  # fmt: skip


def _clip(v: Fields) -> Tower:
    """CLIP (2103.00020): a class token, a table of positions, norms before and after."""
    wide, patches = v.count("hidden_size"), patches_of(v)
    tokens = with_class_token(patches)
    return Tower(
        layers=stack_of(v, wide, v.num_layers, v.count("intermediate_size"), **BIASED),
        products=(stem_of(v, wide, bias=False, merged=tokens),), merged=tokens,
        tokens_each=patches, numbers=(patches + 2) * wide + 4 * wide,
    )  # fmt: skip


def _pixtral(v: Fields) -> Tower:
    """Pixtral (2410.07073): rotary positions in two directions, layers as a language model's."""
    wide = v.count("hidden_size")
    layers = stack_of(
        v, wide, v.num_layers, v.count("intermediate_size"), qkv_bias=False, out_bias=False
    )
    head_dim = layers.kinds[0].attention.head_dim
    if v.count("head_dim", default=head_dim) != head_dim:
        raise v.refuse("head_dim of the vision tower is not its hidden_size over its heads")
    return Tower(
        layers=layers, products=(stem_of(v, wide, bias=False),), merged=1.0, numbers=wide
    )  # fmt: skip


ENCODERS = {"clip_vision_model": _clip, "siglip_vision_model": _siglip, "pixtral": _pixtral}


def _encoder(v: Fields, default: str) -> Tower:
    """The encoder that `model_type` of a vision part names, without what joins it."""
    name = v.word("model_type") or default
    if name not in ENCODERS:
        raise v.refuse(f"model_type {shown(name)} of vision_config is not priced")
    return ENCODERS[name](v)


def llava(o: Fields, v: Fields, hidden: int) -> Tower:
    """An encoder, CLIP where the file names none, and two projections."""
    if not isinstance(o.config.get("vision_feature_layer", -2), int):
        raise o.refuse("vision_feature_layer lists several layers, which is not priced")
    o.present("vision_feature_layer")
    plain, bias = _encoder(v, "clip_vision_model"), o.flag("multimodal_projector_bias", True)
    join = joined("joiner", (v.count("hidden_size"), hidden, hidden), plain.merged, bias=bias)
    return replace(plain, products=(*plain.products, *join))


def llama4(o: Fields, v: Fields, hidden: int) -> Tower:
    """A class token, four tokens shuffled into one, an adapter, and one projection."""
    wide, patches = v.count("hidden_size"), patches_of(v)
    ffn, merged = v.count("intermediate_size"), tokens_merged(v, "pixel_shuffle_ratio")
    middle, out = v.count("projector_input_dim"), v.count("projector_output_dim")
    if middle != out:
        raise v.refuse(f"projector_input_dim {middle} and projector_output_dim {out} differ")
    tokens = with_class_token(patches)
    shuffled = tokens * merged
    adapter = (
        Product(name="adapter_0", k=ffn, n=middle, merged=shuffled, activated=True, cut="columns"),
        Product(name="adapter_1", k=middle, n=out, merged=shuffled, activated=True, cut="rows"),
    )
    join = joined("joiner", (v.count("vision_output_dim"), hidden), shuffled, bias=False)
    return Tower(
        layers=stack_of(v, wide, v.num_layers, ffn, **BIASED),
        products=(stem_of(v, wide, bias=False, merged=tokens), *adapter, *join),
        merged=shuffled, tokens_each=round(patches / merged),
        numbers=(patches + 2) * wide + 4 * wide,
    )  # fmt: skip


def mistral3(o: Fields, v: Fields, hidden: int) -> Tower:
    """Pixtral; tokens are merged by a product."""
    if not isinstance(o.config.get("vision_feature_layer", -1), int):
        raise o.refuse("vision_feature_layer lists several layers, which is not priced")
    o.present("vision_feature_layer")
    wide, merged = v.count("hidden_size"), o.count("spatial_merge_size", default=2) ** 2
    bias = o.flag("multimodal_projector_bias", False)
    plain = _encoder(v, "pixtral")
    merging = Product(name="merging", k=wide * merged, n=wide, merged=merged, joins=True)
    join = joined("joiner", (wide, hidden, hidden), merged, bias=bias)
    products = (*plain.products, merging, *join)
    return replace(plain, products=products, merged=merged, joiner_numbers=wide)


def qwen2_vl(o: Fields, v: Fields, hidden: int) -> Tower:
    """Qwen2-VL (2409.12191): patches of two frames, rotary positions, two by two merged."""
    wide, merged = v.count("embed_dim"), v.count("spatial_merge_size", default=2) ** 2
    ffn = int(wide * (v.number("mlp_ratio") or 4))
    return Tower(
        layers=stack_of(v, wide, v.count("depth"), ffn, **BIASED),
        products=(
            stem_of(v, wide, bias=False, frames=v.count("temporal_patch_size", default=2)),
            *joined("joiner", (wide * merged, wide * merged, v.count("hidden_size")), merged,
                     bias=True),
        ),
        merged=merged, joiner_numbers=2 * wide,
    )  # fmt: skip


def qwen2_5_vl(o: Fields, v: Fields, hidden: int) -> Tower:
    """Qwen2.5-VL (2502.13923): windows on all layers but a few, a gated feed-forward."""
    wide, merged = v.count("hidden_size"), v.count("spatial_merge_size", default=2) ** 2
    window = v.count("window_size", default=112) // v.count("patch_size")
    stack = stack_of(v, wide, v.count("depth"), v.count("intermediate_size"), bias=True)
    full = v.counts("fullatt_block_indexes") or (7, 15, 23, 31)
    return Tower(
        layers=with_windows(stack, window**2, full, (0, 0)),
        products=(
            stem_of(v, wide, bias=False, frames=v.count("temporal_patch_size", default=2)),
            *joined("joiner", (wide * merged, wide * merged, v.count("out_hidden_size")), merged,
                     bias=True),
        ),
        merged=merged, joiner_numbers=wide,
    )  # fmt: skip


def qwen3_vl(o: Fields, v: Fields, hidden: int) -> Tower:
    """A table of positions, and a joiner more for each layer whose output enters a layer of the
    language model (`deepstack_visual_indexes`).
    """
    wide, merged = v.count("hidden_size"), v.count("spatial_merge_size", default=2) ** 2
    entered = v.counts("deepstack_visual_indexes")
    out, deep = v.count("out_hidden_size"), 3 if entered is None else len(entered)
    joiners = (1 + deep) * joined("joiner", (wide * merged, wide * merged, out), merged, bias=True)
    positions = v.count("num_position_embeddings", default=2304)
    return Tower(
        layers=stack_of(v, wide, v.count("depth"), v.count("intermediate_size"), **BIASED),
        products=(
            stem_of(v, wide, bias=True, frames=v.count("temporal_patch_size", default=2)), *joiners,
        ),
        merged=merged, numbers=positions * wide, joiner_numbers=2 * wide * (1 + deep * merged),
    )  # fmt: skip


def qwen3_5(o: Fields, v: Fields, hidden: int) -> Tower:
    """Qwen3-VL's, of which only the last layer's output enters the language model."""
    if v.counts("deepstack_visual_indexes"):
        raise v.refuse("deepstack_visual_indexes is not empty, but no inner layer's output is used")
    return qwen3_vl(o, v.changed({"deepstack_visual_indexes": []}), hidden)


def glm4v(o: Fields, v: Fields, hidden: int) -> Tower:
    """GLM-4.1V (2507.01006): its feed-forward is as wide as its output; a gated joiner."""
    wide, merged = v.count("hidden_size"), v.count("spatial_merge_size", default=2) ** 2
    out, inner = v.count("out_hidden_size"), v.count("intermediate_size")
    stack = stack_of(
        v, wide, v.count("depth"), out, qkv_bias=v.flag("attention_bias", False), out_bias=False
    )
    stem = stem_of(v, wide, bias=True, frames=v.count("temporal_patch_size", default=2))
    return Tower(
        layers=stack, products=(stem, *_downsampled(wide, out, inner, merged)), merged=merged,
        numbers=patches_of(v) * wide + 2 * wide, joiner_numbers=2 * out,
    )  # fmt: skip


def _downsampled(wide: int, out: int, inner: int, merged: int) -> tuple[Product, ...]:
    """Tokens merged by a product, and GLM's gated joiner."""
    return (
        Product(name="downsample", k=wide * merged, n=out, merged=merged, bias=True),
        Product(name="joiner_in", k=out, n=out, merged=merged, activated=True, joins=True),
        Product(name="joiner_up", k=out, n=2 * inner, merged=merged, activated=True, joins=True,
                cut="columns"),
        Product(name="joiner_down", k=inner, n=out, merged=merged, joins=True, cut="rows"),
    )  # fmt: skip


def glm_ocr(o: Fields, v: Fields, hidden: int) -> Tower:
    """GLM-OCR and GLM-5.3-Flash: rotary positions alone, norms of queries and keys."""
    wide, merged = v.count("hidden_size"), v.count("spatial_merge_size", default=2) ** 2
    out, bias = v.count("out_hidden_size"), v.flag("attention_bias", True)
    inner = v.count("projection_intermediate_size", default=out * v.count("in_channels", default=3))
    depth, ffn = v.count("depth"), v.count("intermediate_size")
    stack = stack_of(v, wide, depth, ffn, qkv_bias=bias, out_bias=bias, bias=bias)
    stem = stem_of(v, wide, bias=True, frames=v.count("temporal_patch_size", default=2))
    return Tower(
        layers=with_normed_heads(stack), merged=merged,
        products=(stem, *_downsampled(wide, out, inner, merged)), numbers=wide,
        joiner_numbers=2 * out,
    )  # fmt: skip


def internvl(o: Fields, v: Fields, hidden: int) -> Tower:
    """InternViT (2312.14238): a class token, learnt scales of both halves of a layer."""
    if v.flag("use_qk_norm", False) or v.flag("use_mask_token", False):
        raise v.refuse("use_qk_norm and use_mask_token of the vision tower are not priced")
    if not v.flag("use_mean_pooling", True) or not v.flag("use_absolute_position_embeddings", True):
        raise v.refuse("the vision tower's use_mean_pooling or position embeddings are not priced")
    wide, patches = v.count("hidden_size"), patches_of(v)
    shuffled, tokens = round(tokens_merged(o, "downsample_ratio")), with_class_token(patches)
    merged = shuffled * tokens
    rms = v.word("norm_type") == "rms_norm"
    stack = stack_of(
        v, wide, v.num_layers, v.count("intermediate_size"), gated=False, bias=True,
        norm="rmsnorm" if rms else "layernorm", qkv_bias=v.flag("attention_bias", False),
        more=Layer(further_norms=2),
    )  # fmt: skip
    join = joined("joiner", (wide * shuffled, hidden, hidden), merged, bias=True)
    return Tower(
        layers=stack, products=(stem_of(v, wide, bias=True, merged=tokens), *join),
        merged=merged, tokens_each=patches // shuffled,
        numbers=(patches + 2) * wide, joiner_numbers=2 * wide * shuffled,
    )  # fmt: skip


MOONVIT = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers")
"""Fields that files of Kimi K2.5 and later begin with `vt_`."""


def kimi(o: Fields, v: Fields, hidden: int) -> Tower:
    """MoonViT (2504.07491): learnt and rotary positions, two by two merged."""
    v = v.renamed({f"vt_{key}": key for key in MOONVIT})
    wide, sides = v.count("hidden_size"), v.counts("merge_kernel_size") or (2, 2)
    for key, size in (("mm_hidden_size", wide), ("text_hidden_size", hidden)):
        if v.count(key, default=size) != size:
            raise v.refuse(f"{key} of vision_config is not {size}, the width that it joins")
    if o.count("projection_hidden_size", default=wide) != wide:
        raise o.refuse("projection_hidden_size is not the hidden_size of vision_config")
    for key, known in (("merge_type", "sd2_tpool"), ("mm_projector_type", "patchmerger")):
        if v.word(key) not in (None, known):
            raise v.refuse(f"{key} of vision_config is not {known!r}, which is priced")
    merged = math.prod(sides)
    rows = math.prod(
        v.count(f"pos_emb_{way}", f"init_pos_emb_{way}", default=64) for way in ("height", "width")
    )
    join = joined("joiner", (wide * merged, wide * merged, hidden), merged, bias=True)
    return Tower(
        layers=stack_of(v, wide, v.num_layers, v.count("intermediate_size"), **BIASED),
        products=(stem_of(v, wide, bias=True), *join), merged=merged,
        numbers=rows * wide + 2 * wide, joiner_numbers=2 * wide,
    )  # fmt: skip


def got_ocr2(o: Fields, v: Fields, hidden: int) -> Tower:
    """SAM's encoder (2304.02643): windows but on a few layers, relative positions in each, and two
    convolutions that halve each side. Leaves out: that relative positions need the scores, and
    the tokens that fill windows up (64 patches of a side to 70).
    """
    wide, out = v.count("hidden_size"), v.count("output_channels", default=256)
    if not (v.flag("use_rel_pos", True) and v.flag("use_abs_pos", True)):
        raise v.refuse("use_rel_pos or use_abs_pos false of the vision tower is not priced")
    window, side = v.count("window_size", default=14), round(patches_of(v) ** 0.5)
    stack = stack_of(v, wide, v.num_layers, v.count("mlp_dim"), qkv_bias=v.flag("qkv_bias", True),
                   **BIASED)  # fmt: skip
    relative = [2 * (2 * each - 1) * stack.kinds[0].attention.head_dim for each in (window, side)]
    full = v.counts("global_attn_indexes") or ()
    neck = (
        Product(name="neck_0", k=wide, n=out), Product(name="neck_1", k=9 * out, n=out),
        Product(name="halved_0", k=9 * out, n=2 * out, merged=4, joins=True),
        Product(name="halved_1", k=18 * out, n=hidden, merged=16, joins=True),
        Product(name="joiner", k=hidden, n=hidden, merged=16, joins=True, bias=True),
    )  # fmt: skip
    return Tower(
        layers=with_windows(stack, window**2, full, relative),
        products=(stem_of(v, wide, bias=True), *neck), merged=16.0, tokens_each=side**2 // 16,
        numbers=side**2 * wide + 4 * out,
    )  # fmt: skip


def gemma4(o: Fields, v: Fields, hidden: int) -> Tower:
    """Layers as the language model's, a table of positions for each direction, an average of three
    by three.
    """
    if v.flag("use_clipped_linears", False):
        raise v.refuse("use_clipped_linears of the vision tower is not priced")
    wide, merged = v.count("hidden_size"), v.count("pooling_kernel_size", default=3) ** 2
    rows = v.count("position_embedding_size", default=10240)
    stack = stack_of(
        v, wide, v.num_layers, v.count("intermediate_size"), qkv_bias=False, out_bias=False,
        norms_per_layer=4,
    )  # fmt: skip
    plain = stack.kinds[0].attention
    width = v.count("head_dim", default=64)
    if v.count("global_head_dim", default=width) != width:
        raise v.refuse(f"global_head_dim of vision_config is not its head_dim, {width}")
    kv_heads = v.count("num_key_value_heads", default=12)
    own = replace(plain, qk_norm="head", kv_heads=kv_heads, head_dim=width, v_head_dim=width)
    return Tower(
        layers=replace(stack, kinds=(replace(stack.kinds[0], attention=own),)),
        products=(
            stem_of(v, wide, bias=False),
            *joined("joiner", (wide, hidden), merged, bias=False),
        ),
        merged=merged, numbers=2 * rows * wide,
    )  # fmt: skip


def fuyu(o: Fields, v: Fields, hidden: int) -> Tower:
    """A projection of the pixels, and nothing else; it has no vision part."""
    stem = replace(stem_of(o, hidden, bias=True), joins=True)
    return Tower(layers=None, products=(stem,), merged=1.0)


TOWERS: dict[str, Reader] = {
    "gemma3": gemma3,
    "shieldgemma2": gemma3,
    "llava": llava,
    "llama4": llama4,
    **dict.fromkeys(("mistral3", "mistral_large4"), mistral3),
    "qwen2_vl": qwen2_vl,
    **dict.fromkeys(("qwen2_5_vl", "qwen2_5_omni_thinker"), qwen2_5_vl),
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_moe", "qwen3_omni_moe_thinker"), qwen3_vl),
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe", "qwen4_exp"), qwen3_5),
    **dict.fromkeys(("glm4v", "glm46v", "glmga", "glm4v_moe"), glm4v),
    **dict.fromkeys(("glm_ocr", "glm5_next"), glm_ocr),
    "internvl": internvl,
    **dict.fromkeys(("kimi_k25", "kimi_vl"), kimi),
    "gemma4": gemma4,
    **dict.fromkeys(("got_ocr2", "pp_chart2table"), got_ocr2),
}
"""By the `model_type` of the whole configuration."""


def tower_of(outer: Fields, hidden: int) -> Tower | None:
    """The vision tower that the whole configuration describes, or where it has none its audio
    tower; None where it has neither.

    Raises `UnsupportedModel` for one that is not read, or not wholly.
    """
    model_type = str(outer.config.get("model_type"))
    audio = outer.section("audio_config")
    if audio is not None and model_type in AUDIO_TOWERS:
        heard = AUDIO_TOWERS[model_type](audio, hidden)
        refuse_unread_of_tower(audio, "audio_config")
        return heard
    if model_type == "fuyu":
        return fuyu(outer, Fields({}, outer.name), hidden)
    vision = outer.section("vision_config")
    if vision is None or not vision.config:
        return None
    if model_type not in TOWERS:
        raise outer.refuse(f"the vision tower of model_type {shown(model_type)} is not priced")
    tower = TOWERS[model_type](outer, vision, hidden)
    refuse_unread_of_tower(vision)
    return tower
