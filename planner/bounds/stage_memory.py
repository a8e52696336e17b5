"""The least recomputation of a stage that holds certain layers, of many stages of many layouts at
once (one chunk per rank).

A mix of modes has a largest transient: that of some mode, and its layers are in modes of none
larger. With those, a stage that holds q micro-batches of its layers, l, fits if

    sum over l of saved[l] <= (room - states - transient) / q

and the least time beyond the fastest modes, of fractions of layers, is a linear programme, whose
dual says for any price y of a KiB, in ns,

    beyond >= sum over l of min over modes of (ns + y saved) - y (room - states - transient) / q
              - sum over l of the least ns

The largest is at a price at which two modes of some layer cost equally much; at each of those the
sums are differences of two running sums. Of the largest transients the one that asks least counts.
"""

from typing import NamedTuple

import numpy as np

from meshplan.costmodels.elementwise import least_along
from meshplan.costmodels.layouts import Bools, Floats, Ints, each_once
from meshplan.planner.problem.coefficients import NS_PER_S
from meshplan.planner.problem.same_pipeline import SamePipeline

MOST_KIB, MOST_NS = 2.0**40, 2.0**45  # beyond any memory and step: running sums stay exact
ROUNDING = 1e-12  # of sums of products


class _Mixes(NamedTuple):
    """Mixes with modes of no larger transient.

    transient_kib   [row]
    least_kib       [row, layers before] the least that they save
    fastest_kib     what the fastest of them save, which take
    fastest_ns      so long
    prices          [price, row] ns per KiB
    paid_ns         [price, row, layers before] at each price
    """

    transient_kib: Ints
    least_kib: Floats
    fastest_kib: Floats
    fastest_ns: Floats
    prices: Floats
    paid_ns: Floats


class LayoutStages:
    """The stages of some layouts."""

    def __init__(self, same: SamePipeline) -> None:
        c, self.modes = same.prices, list(same.modes)
        self.kinds = np.array(same.pattern, np.int64)
        self.held = same.vectors[:, :, 0]
        self.states = self._running(c.layer_state_kib)
        self.updates = self._running(c.layer_update_kib)
        self.room, self.room_then, self.floor = _rooms(same)
        ns = np.minimum(c.layer_ns[:, :, self.modes], MOST_NS)
        kib = np.minimum(c.layer_saved_kib[:, :, self.modes], MOST_KIB)
        self.fastest_ns = self._running(least_along(ns, 2))
        prices = _prices(ns[:, each_once(self.kinds)], kib[:, each_once(self.kinds)])
        transient = c.transient_kib[:, self.modes]
        self.mixes = []
        for largest in transient.T:
            within = (transient <= largest[:, None])[:, None]
            mixed = np.where(within, ns, MOST_NS), np.where(within, kib, MOST_KIB)
            self.mixes.append(self._mixes(*mixed, prices, largest))

    def _mixes(self, ns: Floats, kib: Floats, prices: Floats, transient: Ints) -> _Mixes:
        fastest_ns = least_along(ns, 2)
        kept = least_along(np.where(ns == fastest_ns[:, :, None], kib, MOST_KIB), 2)
        paid = [self._running(least_along(ns + each[:, None, None] * kib, 2)) for each in prices]
        return _Mixes(
            transient_kib=transient,
            least_kib=self._running(least_along(kib, 2)),
            fastest_kib=self._running(kept),
            fastest_ns=self._running(fastest_ns),
            prices=prices,
            paid_ns=np.array(paid).reshape(len(prices), len(ns), len(self.kinds) + 1),
        )

    def _running(self, of_kind: Ints | Floats) -> Floats:
        """[row, layers before] their sum."""
        found = np.zeros((len(of_kind), len(self.kinds) + 1))
        of_kind[:, self.kinds].astype(float).cumsum(axis=1, out=found[:, 1:])
        return found

    def beyond_s(self, row: Ints, stage: Ints, first: Ints, end: Ints) -> Floats:
        """Seconds of a micro-batch that `stage` of `row`, with layers `first` .. `end` - 1, takes
        beyond the least; infinite where it does not fit in any mix.
        """
        held_layers = _Layers.of(row, first, end, len(self.kinds))
        states, updates = held_layers.sum(self.states), held_layers.sum(self.updates)
        room, held = self.room[row, stage] - states, self.held[row, stage]
        least_ns = np.full(np.shape(room), np.inf)
        for mixes in self.mixes:
            transient = np.maximum(mixes.transient_kib[row] * (end > first), self.floor[row, stage])
            of_mixes = _least_ns(mixes, held_layers, (room - transient) / held)
            np.minimum(least_ns, of_mixes, out=least_ns)
        least_ns -= held_layers.sum(self.fastest_ns) + (end - first) + 1
        least_ns[states + updates > self.room_then[row, stage]] = np.inf
        found: Floats = np.maximum(least_ns, 0.0) / NS_PER_S
        return found


class _Layers(NamedTuple):
    """The layers of stages, by their places in a table of running sums [row, layers before]."""

    row: Ints
    first: Ints
    end: Ints

    @classmethod
    def of(cls, row: Ints, first: Ints, end: Ints, layers: int) -> "_Layers":
        """`first` .. `end` - 1 of each `row`, of so many layers."""
        row, first, end = np.broadcast_arrays(row, first, end)
        start = row * (layers + 1)
        return cls(row, start + first, start + end)

    def sum(self, running: Floats) -> Floats:
        """What the layers add to a running sum."""
        found: Floats = running.ravel().take(self.end) - running.ravel().take(self.first)
        return found

    def take(self, some: Bools) -> "_Layers":
        """Some of the stages."""
        return _Layers(self.row[some], self.first[some], self.end[some])


def _least_ns(mixes: _Mixes, layers: _Layers, most_kib: Floats) -> Floats:
    """The least ns of stages that may save so much, infinite where they save more."""
    found = layers.sum(mixes.fastest_ns)
    fits = layers.sum(mixes.least_kib) <= most_kib + ROUNDING * np.abs(most_kib)
    lacks = layers.sum(mixes.fastest_kib) > most_kib
    found[~fits] = np.inf
    some = fits & lacks
    if not some.any():
        return found
    layers, most_kib, ns = layers.take(some), most_kib[some], found[some]
    for price, paid in zip(mixes.prices, mixes.paid_ns, strict=True):
        whole, bought = paid.ravel().take(layers.end), price[layers.row] * most_kib
        rounding = ROUNDING * (whole + np.abs(bought))
        np.maximum(ns, whole - paid.ravel().take(layers.first) - bought - rounding, out=ns)
    found[some] = ns
    return found


def _prices(ns: Floats, kib: Floats) -> Floats:
    """[price, row] ns per KiB at which two modes of some kind cost equally much."""
    modes, found = range(ns.shape[2]), list[Floats]()
    for slow, fast in ((a, b) for a in modes for b in modes if a != b):
        more, saved = ns[:, :, slow] - ns[:, :, fast], kib[:, :, fast] - kib[:, :, slow]
        price = np.where((more > 0) & (saved > 0), more / np.maximum(saved, 1), 0.0)
        found += [each for each in price.T if each.any()]
    return np.array(found).reshape(len(found), len(ns))


def _rooms(same: SamePipeline) -> tuple[Ints, Ints, Ints]:
    """[row, stage] KiB for its layers in a pass and in the update, and its end's transient."""
    c, held = same.prices, same.vectors[:, :, 0]
    room = np.repeat((c.cap_kib - c.fixed_kib)[:, None], same.pp, axis=1)
    then, floor = room.copy(), np.zeros_like(room)
    room[:, 0] -= c.embedding_state_kib + held[:, 0] * c.embedding_saved_kib
    room[:, -1] -= c.head_state_kib + held[:, -1] * c.head_saved_kib
    then[:, 0] -= c.embedding_state_kib + c.embedding_update_kib
    then[:, -1] -= c.head_state_kib + c.head_update_kib
    floor[:, -1] = c.head_transient_kib
    return room, then, floor
