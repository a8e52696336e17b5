"""Parameters of the vision tower of a multimodal model, and of the share that one rank holds.

An image is cut into patches; a product makes an encoder token of each (the stem), a stack of layers
without a causal mask mixes those of one image, and the joiner brings them, several merged into one,
to the language model's width.

    parameters   layers, k n + n (bias) for each product, and the learnt numbers of no product

Leaves out: video (frames are images), audio.
"""

from collections.abc import Iterable

from meshplan.costmodels.elementwise import Number
from meshplan.costmodels.model.parameters import layer_parameters_per_rank
from meshplan.costmodels.model.transformer import Product, Tower


def tower_parameters(tower: Tower) -> int:
    """Of the tower and its joiner."""
    return round(
        float(own_parameters_per_rank(tower, 1.0) + joiner_parameters_per_rank(tower, 1.0))
    )


def own_parameters_per_rank(tower: Tower, tp: Number) -> Number:
    """Parameters of the tower without its joiner on a rank of the first stage."""
    stacked: Number = 0.0
    if tower.layers:
        for kind in tower.layers.pattern:
            layer = layer_parameters_per_rank(tower.layers, tower.layers.kinds[kind], tp)
            stacked = stacked + layer.dense
    own = (each for each in tower.products if not each.joins)
    return stacked + tower.numbers + _of_products(own, tp)


def joiner_parameters_per_rank(tower: Tower, tp: Number) -> Number:
    """Parameters of the joiner on a rank of the first stage."""
    joins = (each for each in tower.products if each.joins)
    return tower.joiner_numbers + _of_products(joins, tp)


def _of_products(products: Iterable[Product], tp: Number) -> Number:
    """A bias is cut with its columns, and whole where rows are cut."""
    total: Number = 0.0
    for each in products:
        of_k_n = 1.0 if each.cut == "nothing" else tp
        of_bias = tp if each.cut == "columns" else 1.0
        total = total + each.k * each.n / of_k_n + each.bias * each.n / of_bias
    return total
