"""What each rank of every split must recompute at least, all splits of a list at once.

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

KIB = 1.0  # of rounding


def least_work_ns(same: SamePipeline, like: Ints) -> Floats:
    """[row, split, rank] ns of one micro-batch, by the prices of the split `like` [row]; infinite
    where a rank does not fit in the one mode that there is.
    """
    bounded, kinds = BoundedLayouts(same), layers_of_kind(same.pattern, *_list_of(same))
    found = np.zeros((len(same), kinds.shape[1], same.pp))
    for rank, chunks in enumerate(same.chunks_of_rank):
        layers = kinds[:, :, list(chunks)].swapaxes(0, 1)  # [split, kind, chunk]
        alone = len(same.modes) == 1
        lines, fixed = _lacks(bounded, rank)[:2] if alone else _lines(bounded, rank, layers[like])
        paid = lines.reshape(len(lines), -1) @ layers.reshape(len(layers), -1).T + fixed[:, None]
        most = paid.reshape(-1, len(same), kinds.shape[1]).max(axis=0)
        found[:, :, rank] = np.where(most > KIB, np.inf, 0.0) if alone else np.maximum(most, 0.0)
    return found


def _list_of(same: SamePipeline) -> tuple[int, tuple[tuple[int, ...], ...]]:
    return len(same.kind_counts), same.splits or ()


def _lacks(bounded: BoundedLayouts, rank: int) -> tuple[Floats, Floats, Ints, Floats]:
    """[cover and row, kind, chunk] KiB of each layer, and [cover and row] beside them, of which the
    sum is what a rank lacks; the row of each, and how many micro-batches [.., chunk] it holds.
    """
    same = bounded.same
    row = np.tile(np.arange(len(same)), same.covers.shape[1])
    held = same.covers[:, :, rank].swapaxes(0, 1).reshape(-1, same.vpp)
    saved, state = same.fastest[1][row], same.prices.layer_state_kib[row]
    kib = saved[:, :, None] * held[:, None] + state[:, :, None]
    return kib, -bounded.room[:, :, rank].T.reshape(-1), row, held


def _lines(bounded: BoundedLayouts, rank: int, layers: Floats) -> tuple[Floats, Floats]:
    """[cover and row, kind, chunk] ns of each layer, and [cover and row] beside them, of a rank
    that has the prices of `layers` [row, kind, chunk].
    """
    kib, beside, row, held = _lacks(bounded, rank)
    own = layers[row]
    price = bounded.price_ns(row, own, held, (own * kib).sum(axis=(1, 2)) + beside)
    lines = price[:, None, None] * kib
    for kind, hull in bounded.hulls.items():
        for ns, kib_per_ns in hull:
            gain = (price * kib_per_ns[row])[:, None] * held - 1
            lines[:, kind] -= np.maximum(gain, 0.0) * ns[row, None]
    return lines, price * beside
