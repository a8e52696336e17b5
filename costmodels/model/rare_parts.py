"""Parts of a model that training frameworks do not have in common, in words: where they are not
built or written, that is said with these.
"""

from meshplan.costmodels.model.transformer import Layer, Model


def rare_parts(model: Model) -> tuple[str, ...]:
    """Those of this model, each once."""
    found = [f"{kind.recurrent.kind} layers" for kind in model.kinds if kind.recurrent]
    if any(kind.traced for kind in model.kinds):
        return (*found, "layers known by a trace alone")
    if len({kind.ffn for kind in model.kinds if kind.ffn}) > 1:
        found.append("dense feed-forwards of several widths")
    for kind in model.kinds:
        present = _of_attention(kind) | _of_layer(model, kind)
        found += [words for words, there in present.items() if there]
    return tuple(dict.fromkeys(found))


def _of_attention(kind: Layer) -> dict[str, bool]:
    at, experts = kind.attention, kind.experts
    return {
        "experts in a latent width": experts is not None and experts.latent > 0,
        "experts that tokens of images alone visit": experts is not None and experts.of_images > 0,
        "attention to later tokens": not at.causal,
        "a gate on the attention's output": at.gate != "none",
        "sparse attention with an indexer": at.indexer is not None,
        "compressed keys": at.compression is not None,
        "a mask by the values": at.key_steps,
        "convolutions of keys and outputs": at.convolution + kind.output_convolution > 0,
        "biases of attention by distance": at.relative_rank > 0,
        "an output projection in groups": at.out_groups > 0,
    }


def _of_layer(model: Model, kind: Layer) -> dict[str, bool]:
    at = kind.attention
    return {
        "several streams of hidden states": bool(model.streams or model.alternating),
        "a feed-forward of few numbers": kind.thinned,
        "gates on norms": kind.norm_gate_rank > 0,
        "embeddings of n-grams": kind.ngrams is not None,
        "attention to the sums of earlier layers": bool(kind.sums),
        "keys or values shared between layers or with each other": not (
            at.own_keys and at.own_values
        ),
        "layers of one part alone": not (kind.has_mixer and kind.has_feed_forward),
        "further norms or learnt scales": bool(kind.further_norms or kind.numbers),
        "a bias in the head": model.head_bias,
        "a second embedding for the layers": model.layer_inputs > 0,
        "one norm for both halves of a layer": model.norms_per_layer == 1,
        "layer norms without a bias": model.norm == "layernorm_without_bias",
    }
