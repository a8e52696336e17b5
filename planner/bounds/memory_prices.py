"""The least recomputation of each rank, of all splits of a list at once, by a price of memory.

The knapsack of `planner.bounds.split`, relaxed to fractions of layers, is a linear programme: with
n[k, v] layers of kind k in its chunk v, of which a rank holds q[v] micro-batches, it lacks

    lack = sum over k, v of n[k, v] (q[v] saved[k] + state[k]) - room

and pays for what it saves. Its dual says for any price y of a KiB, in ns,

    paid >= y lack - sum over k, v and segments of n[k, v] ns max(0, y q[v] KiB per ns - 1)

which is a line in n: for all splits together one product of matrices. With the price at which the
knapsack of a split is full the two are equal; here y is that of one split of each layout, by each
cover, and near it for splits like it. Where all layers have one mode there is nothing to pay with:
a rank that lacks memory fits in no way.
"""

import numpy as np

from meshplan.costmodels.layouts import Floats, Ints
from meshplan.planner.bounds.split import BoundedLayouts, layers_of_kind
from meshplan.planner.problem.same_pipeline import SamePipeline

KIB = 1.0  # that a rank may lack by rounding alone


def least_work_ns(same: SamePipeline, like: Ints) -> Floats:
    """[rank, row, split] ns of one micro-batch, by the prices of the split `like` [row]; infinite
    where a rank does not fit in the one mode that there is.
    """
    kinds = layers_of_kind(same.pattern, len(same.kind_counts), same.splits or ())
    # [rank, split, kind, chunk]
    layers = kinds[:, :, np.array(same.chunks_of_rank)].transpose(2, 1, 0, 3)
    alone = len(same.modes) == 1
    lines, fixed = _lacks(same) if alone else _lines(same, layers[:, like].swapaxes(0, 1))
    splits, covers = kinds.shape[1], same.covers.shape[1]
    # [rank, row and cover, ...]
    lines = lines.transpose(2, 0, 1, 3, 4).reshape(same.pp, len(same) * covers, -1)
    paid = lines @ layers.reshape(same.pp, splits, -1).swapaxes(1, 2)
    paid = paid.reshape(same.pp, len(same), covers, splits)
    paid += fixed.transpose(2, 0, 1)[..., None]
    most = paid.max(axis=2)
    found: Floats = np.where(most > KIB, np.inf, 0.0) if alone else np.maximum(most, 0.0)
    return found


def _lacks(same: SamePipeline) -> tuple[Floats, Floats]:
    """[row, cover, rank, kind, chunk] KiB of each layer, and [row, cover, rank] beside them, of
    which the sum is what a rank lacks.
    """
    saved = same.fastest[1][:, None, None, :, None]
    state = same.prices.layer_state_kib[:, None, None, :, None]
    each = saved * same.covers[:, :, :, None] + state
    if same.waits_apart:
        each += same.prices.layer_deferred_kib[:, None, None, :, None] * same.late[:, :, :, None]
    return each, -BoundedLayouts(same).room


def _lines(same: SamePipeline, layers: Floats) -> tuple[Floats, Floats]:
    """[row, cover, rank, kind, chunk] ns of each layer, and [row, cover, rank] beside them, of
    ranks that have the prices of `layers` [row, rank, kind, chunk].
    """
    bounded, covers = BoundedLayouts(same), same.covers
    kib, beside = _lacks(same)
    own = np.broadcast_to(layers[:, None], kib.shape)
    price = _prices_ns(bounded, own, (own * kib).sum(axis=(3, 4)) + beside)
    lines = price[..., None, None] * kib
    for kind, hull in bounded.hulls.items():
        for ns, kib_per_ns in hull:
            gain = price[..., None] * kib_per_ns[:, None, None, None] * covers - 1
            lines[:, :, :, kind] -= np.maximum(gain, 0.0) * ns[:, None, None, None]
    return lines, price * beside


def _prices_ns(bounded: BoundedLayouts, layers: Floats, lacks: Floats) -> Floats:
    """[row, cover, rank] ns of the last KiB that is saved: 0 where nothing is lacking."""
    prices, some = np.zeros(lacks.shape), np.nonzero(lacks > 0)
    prices[some] = bounded.price_ns(some[0], layers[some], bounded.same.covers[some], lacks[some])
    return prices
