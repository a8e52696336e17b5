"""Whether ranks can hold all layers in a given time, counted in whole layers of each kind.

Every rank does all its work, whatever the order. Where kinds of layers differ as those with full
attention and with a window do in long sequences, some ranks hold one of the slow ones more than
others, and a mean of ranks does not show it. So kinds are parted in two, the slower and the faster
ones, each as fast as its fastest; with a layers of one part on a rank

    so many of the other = floor((room - a x seconds of the one) / seconds of the other)

fit, and the most of the other beside all of the one, over all ranks, is found rank after rank
(dynamic programming). Nothing is said of the order of layers, nor of memory.
"""

from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layouts import Bools, Floats, Ints

WHOLE = 1e-9  # rounding of a number of layers
MOST = 24  # layers of the part that has fewer: ranks hold nearly equal parts of more


def dearer(each: Floats, counts: Floats) -> list[tuple[Ints, float]]:
    """All kinds, and what is left of them without the cheapest one, the two cheapest ones, ...: the
    kinds, and how many layers the model has of them. `each`: [..., kind] what a layer takes, of
    things that may differ in unit.
    """
    share = each / each.mean(axis=-1, keepdims=True)
    order = np.argsort(share.reshape(-1, len(counts)).mean(axis=0), kind="stable")
    return [(order[first:], float(counts[order[first:]].sum())) for first in range(len(order))]


class _Part(NamedTuple):
    """Kinds that count as one: [row] seconds of a layer at least, and how many layers there are."""

    layer_s: Floats
    number: int


def can_hold_whole(layer_s: Floats, counts: Floats, room_s: Floats) -> Bools:
    """[row] whether ranks hold all layers, `counts` [kind]; `layer_s`: [row, kind] a layer takes in
    all of a step at least; `room_s`: [row, rank] the time for layers.
    """
    slowest_last = np.argsort(layer_s.mean(axis=0), kind="stable")
    every = layer_s.min(axis=1)[:, None]
    found: Bools = _fit(room_s, every).sum(axis=1) >= counts.sum()
    for first in range(1, len(counts)):
        parts = [
            _Part(layer_s[:, kinds].min(axis=1), int(counts[kinds].sum()))
            for kinds in (slowest_last[:first], slowest_last[first:])
        ]
        one, other = sorted(parts, key=lambda part: part.number)
        left = np.flatnonzero(found)
        if one.number <= MOST and len(left):
            some, others = (_Part(part.layer_s[left], part.number) for part in (one, other))
            found[left] = _most_beside(some, others, room_s[left]) >= other.number
    return found


def _most_beside(one: _Part, other: _Part, room_s: Floats) -> Floats:
    """[row] the most layers of the `other` part that ranks hold beside all of `one`; below 0 where
    they do not hold these.
    """
    found = np.full((len(room_s), one.number + 1), -np.inf)
    found[:, 0] = 0.0
    for room in room_s.T:
        before, most = found, int(_fit(room, one.layer_s).max(initial=0.0))
        found = np.full(before.shape, -np.inf)
        for many in range(min(most, one.number) + 1):
            beside = _fit(room - many * one.layer_s, other.layer_s)[:, None]
            np.maximum(
                found[:, many:],
                before[:, : one.number + 1 - many] + np.where(beside < 0, -np.inf, beside),
                out=found[:, many:],
            )
    most_beside: Floats = found[:, -1]
    return most_beside


def _fit(room_s: Floats, each_s: Floats) -> Floats:
    """How many layers fit into the time, below 0 where there is none."""
    found: Floats = np.floor(room_s / each_s + WHOLE)
    return found
