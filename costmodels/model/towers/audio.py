"""The audio towers that are read: Whisper's encoder (2212.04356) and what joins it.

Frames of a spectrogram (100 a second) pass two convolutions, of which the second halves them; a
stack of layers without a causal mask mixes those of a clip of 30 seconds, and the joiner brings
several at a time to the language model's width.

Fields and shapes: `configuration_` and `modeling_<model_type>.py` of `qwen2_audio` and `voxtral` in
huggingface/transformers 5.24, whose modules on the meta device the tests compare with. Leaves out:
that its table of positions is not trained, and clips shorter than 30 seconds, which are filled up.
"""

from collections.abc import Callable

from meshplan.costmodels.model.config_fields import Fields
from meshplan.costmodels.model.towers.parts import BIASED, joined, stack_of
from meshplan.costmodels.model.transformer import Layer, Product, Tower

WIDTH = 3
"""Frames that a convolution reads."""


def _whisper(a: Fields, ffn: str, heads: str, layers: str, joiner: tuple[Product, ...]) -> Tower:
    """The encoder of these fields; its keys alone have no bias."""
    wide, bins = a.count("d_model", "hidden_size"), a.count("num_mel_bins", default=128)
    frames = a.count("max_source_positions", default=1500)
    stack = stack_of(
        a.renamed({heads: "num_attention_heads"}), wide, a.count(layers), a.count(ffn),
        qkv_bias=False, more=Layer(numbers=2 * wide), **BIASED,
    )  # fmt: skip
    merged = joiner[0].merged
    heard = (
        Product(name="frames_0", k=WIDTH * bins, n=wide, bias=True, merged=0.5, activated=True),
        Product(name="frames_1", k=WIDTH * wide, n=wide, bias=True, activated=True),
    )
    return Tower(
        sense="audio", layers=stack, products=(*heard, *joiner), merged=merged,
        tokens_each=round(frames / merged), numbers=frames * wide + 2 * wide,
    )  # fmt: skip


def qwen2_audio(a: Fields, hidden: int) -> Tower:
    """Two frames are averaged to one token and projected."""
    join = joined("joiner", (a.count("d_model"), hidden), 2.0, bias=True)
    return _whisper(a, "encoder_ffn_dim", "encoder_attention_heads", "encoder_layers", join)


def voxtral(a: Fields, hidden: int) -> Tower:
    """As many frames as fill the feed-forward's width are one token, projected twice."""
    wide, joins = a.count("hidden_size"), a.count("intermediate_size")
    together = a.divide(joins, wide, "intermediate_size over hidden_size, which it joins")
    join = joined("joiner", (joins, hidden, hidden), float(together), bias=False)
    return _whisper(a, "intermediate_size", "num_attention_heads", "num_hidden_layers", join)


AUDIO_TOWERS: dict[str, Callable[[Fields, int], Tower]] = {
    "qwen2_audio": qwen2_audio,
    "voxtral": voxtral,
}
"""By the `model_type` of the whole configuration."""
