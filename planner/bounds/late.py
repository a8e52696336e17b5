"""Lower bounds of a rank's exposed gradient reduction, linear in the layers that it holds.

A rank that reduces gradients for T seconds while it computes for R exposes max(shown T, T - R)
(`costmodels.prices.late_traffic`). Each of the two is a lower bound, and linear in the rank's
layers:

    shown     shown T              the fraction that nothing hides
    beyond    T - p R*(k)          what does not fit under the last backward, or under the rounds of
                                   chunks that are beside it: p passes (`chunk_traffic.Beside`)

So their means over the ranks are bounds of the mean rank. A layer that recomputes has a longer
backward, which hides more, but the step pays for it. p R*(k) is what a layer hides at most beyond
that: the largest p R(x) - k (t(x) - t) over its recompute modes x, where t is the time of its
fastest mode, and k the number of its backwards in the chain to which the bound is added. The chain
has every layer in its fastest mode then. One that counts what layers recompute has paid for it
already: k = 0.
"""

from collections.abc import Sequence

import numpy as np

from meshplan.costmodels.elementwise import most_along
from meshplan.costmodels.layouts import Floats, Ints
from meshplan.costmodels.prices.late_traffic import LateTraffic
from meshplan.costmodels.prices.passes import PassSeconds
from meshplan.hardware_profiles.dataclass import dataclass

FORWARD, BACKWARD = 0, 1
SHOWN, BEYOND_ALL, BEYOND_ONE, BEYOND_ANY = range(4)
"""Bounds: the fraction that nothing hides; beyond the last backward, after a chain that holds all
backwards of the rank (k = m), one of each layer (k = 1), or any (k = 0).
"""


@dataclass(frozen=True, slots=True)
class Lines:
    """Coefficients of the four bounds: seconds of a layer of each kind [row, bound, kind], of the
    embedding and of the head [row, bound, end], and of any rank [row, bound].
    """

    layer: Floats
    ends: Floats
    fixed: Floats

    def take(self, rows: Ints | slice) -> "Lines":
        """Some of the rows."""
        return Lines(self.layer[rows], self.ends[rows], self.fixed[rows])

    def fewest_s(self, most: Ints, fewest: int, pp: int) -> Floats:
        """[row] of the first of `pp` ranks, with one backward of each of its layers in the chain
        and between `fewest` and `most` of them. A rank alone has the head too.
        """
        ends = self.ends[:, :, 0] if pp > 1 else self.ends.sum(axis=2)
        fixed = (self.fixed + ends)[:, [SHOWN, BEYOND_ONE]]
        layer = self.layer[:, [SHOWN, BEYOND_ONE]].min(axis=2)
        least = np.minimum(layer * fewest, layer * np.maximum(most, fewest)[:, None])
        found: Floats = np.maximum(fixed + least, 0.0).max(axis=1)
        return found

    def mean_s(self, counts: Floats, pp: Ints | int) -> Floats:
        """[row] of the mean of `pp` ranks that hold `counts` layers of each kind together."""
        parts = self.layer @ counts + self.ends.sum(axis=2)
        ranks = np.broadcast_to(pp, len(parts))[:, None]
        found: Floats = most_along(parts / ranks + self.fixed, 1)
        return found


def reduce_lines(
    found: PassSeconds,
    rows: Ints | slice,
    modes: list[int],
    work: tuple[Floats, Ints],
    passes: Floats,
) -> Lines:
    """Of the gradients of `rows`.

    work    the least seconds of a layer of each kind [row, kind], and the micro-batches
    passes  [row] `Beside.passes`
    """
    least, m = work
    room = found.layer_room_s[rows][:, :, modes, BACKWARD] * passes[:, None, None]
    longer = found.layer_s[rows][:, :, modes].sum(axis=3) - least[:, :, None]
    often = m[:, None, None] * longer, longer
    rooms = [*(most_along(room - each, 2) for each in often), most_along(room, 2)]
    ends = found.ends_room_s[rows][:, :, BACKWARD] * passes[:, None]
    return _lines(found.reduce.take(rows), rooms, ends)


def beyond_backwards(
    found: PassSeconds, rows: Ints, modes: Sequence[int], passes: Floats
) -> Floats:
    """[row, kind, mode] seconds of a layer's gradients that its own backward in a mode does not
    hide: `BEYOND_ANY` of layers whose modes are known.
    """
    room = found.layer_room_s[rows][:, :, modes, BACKWARD] * passes[:, None, None]
    beyond: Floats = found.reduce.take(rows).layer_s[:, :, None] - room
    return beyond


def mean_update_s(
    found: PassSeconds, rows: Ints | slice, counts: Floats, pp: Ints, passes: Floats
) -> Floats:
    """[row] the mean rank's optimizer, and what it shows of gathering the weights at least."""
    gather = _gather_lines(found, rows, passes)
    update = found.layer_update_s[rows] @ counts + found.ends_update_s[rows].sum(axis=1)
    mean: Floats = update / pp + gather.mean_s(counts, pp)
    return mean


def update_lines(found: PassSeconds, rows: Ints, passes: Floats) -> Lines:
    """A rank's optimizer, with each of two bounds of what it shows of gathering the weights: the
    fraction that nothing hides, and what does not fit under the first forward, or under `passes` of
    it. The step has that of the slowest rank.
    """
    gather = _gather_lines(found, rows, passes)
    layer, ends = found.layer_update_s[rows], found.ends_update_s[rows]
    return Lines(gather.layer + layer[:, None], gather.ends + ends[:, None], gather.fixed)


def _gather_lines(found: PassSeconds, rows: Ints | slice, passes: Floats) -> Lines:
    room = most_along(found.layer_room_s[rows][..., FORWARD], 2) * passes[:, None]
    ends = found.ends_room_s[rows][:, :, FORWARD] * passes[:, None]
    return _lines(found.refresh.take(rows), [room], ends)


def _lines(late: LateTraffic, rooms: list[Floats], ends_room: Floats) -> Lines:
    shown, bounds = late.shown[:, None], 1 + len(rooms)
    layer, ends, fixed = (
        np.empty((len(each), bounds, *each.shape[1:]))
        for each in (late.layer_s, late.ends_s, late.least_s)
    )
    np.multiply(shown, late.layer_s, out=layer[:, SHOWN])
    for at, room in enumerate(rooms, start=1):
        np.subtract(late.layer_s, room, out=layer[:, at])
    np.multiply(shown, late.ends_s, out=ends[:, SHOWN])
    ends[:, 1:] = (late.ends_s - ends_room)[:, None]
    np.multiply(late.shown, late.least_s, out=fixed[:, SHOWN])
    fixed[:, 1:] = late.least_s[:, None]
    return Lines(layer, ends, fixed)
