"""Rules of Inkling: convolutions in its attention and after both halves of a layer, biases by
distance, shared experts that the router scores.

Source: transformers 5.24 `configuration_inkling.py` and `modeling_inkling.py`. Its modules of
multi-token prediction are in the checkpoint and not in that code: they are not read.
"""

from dataclasses import replace

from meshplan.costmodels.model.config_fields import Fields
from meshplan.costmodels.model.layer_patterns import Words, by_rule
from meshplan.costmodels.model.rules.family import layers_of, of_layers
from meshplan.costmodels.model.transformer import Layer, Model


def inkling_windows(f: Fields) -> Words:
    """`local_layer_ids` names the layers with a window; absent, all but each sixth."""
    named = f.counts("local_layer_ids")
    if named is None:
        return by_rule(f, lambda i: (i + 1) % 6 != 0, "sliding", "full")
    return by_rule(f, lambda i: i in named, "sliding", "full")


def inkling(f: Fields, model: Model) -> Model:
    """Each layer's convolutions and biases; a scale of each feed-forward, dense or routed."""
    kernel = f.count("conv_kernel_size", "sconv_kernel_size", default=4)
    rank, extent = f.count("d_rel", default=16), f.count("rel_extent", default=1024)
    shared = f.count("n_shared_experts", default=2)
    made = []
    for layer in layers_of(_of_released_widths(f, model)):
        at = replace(
            layer.attention, convolution=kernel, relative_rank=rank,
            relative_extent=layer.attention.window or extent,
        )  # fmt: skip
        experts = layer.experts and replace(layer.experts, scored_shared=shared)
        made.append(replace(
            layer, attention=at, experts=experts, output_convolution=kernel, numbers=1
        ))  # fmt: skip
    return of_layers(model, made)


def _of_released_widths(f: Fields, model: Model) -> Model:
    """A file with `dense_intermediate_size` means an expert's width by `intermediate_size`."""
    if not f.present("dense_intermediate_size"):
        return model
    dense, routed = f.count("dense_intermediate_size"), f.count("intermediate_size")
    return of_layers(model, [_widened(layer, dense, routed) for layer in layers_of(model)])


def _widened(layer: Layer, dense: int, routed: int) -> Layer:
    experts = layer.experts
    if experts is None:
        return replace(layer, ffn=dense)
    number = experts.shared_ffn // experts.ffn
    return replace(layer, experts=replace(experts, ffn=routed, shared_ffn=number * routed))
