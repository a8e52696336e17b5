"""Bounds of every cut of many layouts by the chains of one of them, each with its own memory.

A program (`planner.cuts.free_cut_program`) weighs the chains that every step has
(`planner.bounds.first_chains`) for one layout, and prices its memory. The same weights say as much
of layouts with other micro-batches and other numbers of chunks, since their chains are the same
ones. Their memory may be scarcer, so all prices of memory are scaled by a factor of each layout's
own: the bound is concave in it. Whatever the weights and the factor, it is a bound (Lagrange,
`planner.bounds.free_cuts`), in which the multipliers of the fewest layers are the best there are
where layers are of one kind: what the least of its kinds costs more on a chunk than elsewhere.
"""

from collections.abc import Sequence

import numpy as np

from meshplan.costmodels.layouts import Floats, Ints
from meshplan.planner.bounds.first_chains import Line, Lines, first_lines, linear_from
from meshplan.planner.bounds.free_cuts import ENDLESS_S, FreeCuts
from meshplan.planner.bounds.simulated import SAFETY

FACTORS, NEARER = (0.0, 0.4, 0.1, 2.5), (0.63, 1.6, 0.8, 1.26)  # the latter times the best
TRIED = [*((False, each) for each in FACTORS), *((True, each) for each in NEARER)]
MOST_KINDS = 4  # that multipliers of the fewest layers are made for, and those of all together


class ScaledPrices:
    """Multipliers of chains and of memory, of which each row scales those of memory by a factor.

    seconds   [mode, kind, chunk, row] of a layer, infinite where none runs; fixed_s: [row] the rest
    kib_s     [mode, kind, chunk, row] seconds of a layer's memory; room_s: [row] of all its room
    fewest    [chunk], or [chunk, row], the fewest layers; counts: [kind] all of them
    """

    seconds: Floats
    fixed_s: Floats
    kib_s: Floats
    room_s: Floats
    fewest: Floats
    counts: Floats

    def bounds_s(self, limit_s: float) -> Floats:
        """[row] the largest bound by the factors that are tried, until it reaches the limit."""
        found = self._by(np.ones(len(self.fixed_s)), slice(None))
        best, left = np.ones(len(found)), np.flatnonzero(found < limit_s)
        for near, times in TRIED if self.kib_s.any() else ():
            factor = best[left] * times if near else np.full(len(left), times)
            bounds = self._by(factor, left)
            better = bounds > found[left]
            best[left[better]], found[left[better]] = factor[better], bounds[better]
            left = left[found[left] < limit_s]
        return found

    def _by(self, factor: Floats, some: Ints | slice) -> Floats:
        """[row] the bound of some rows with the prices of memory times a factor."""
        each = np.full((*self.seconds.shape[1:3], len(factor)), ENDLESS_S)  # [kind, chunk, row]
        for seconds, kib_s in zip(self.seconds, self.kib_s, strict=True):
            paid = seconds[..., some] + factor * kib_s[..., some]
            np.minimum(each, paid, out=each)
        beyond = each - each.min(axis=1)[:, None]
        fixed = self.fixed_s[some] - factor * self.room_s[some]
        of_kinds = [beyond.min(axis=0), *beyond][: MOST_KINDS if len(self.counts) > 1 else 1]
        fewest = self.fewest[..., some] if self.fewest.ndim > 1 else self.fewest[:, None]
        layers: Floats = np.max([self._with_fewest(each, v, fewest) for v in of_kinds], axis=0)
        layers += fixed
        return layers * SAFETY

    def _with_fewest(self, each: Floats, v: Floats, fewest: Floats) -> Floats:
        """[row] what layers of each [kind, chunk, row] take, with multipliers of the fewest."""
        found: Floats = (fewest * v).sum(axis=0)
        found += self.counts @ (each - v).min(axis=1)
        return found


class AskedPrices(ScaledPrices):
    """Of layouts of one schedule with equally many ranks and chunks, `weights` [line] of the first
    lines, and seconds of a KiB [cover, rank]. Layouts with as many micro-batches may have other
    `lines`; with as many chunks also seconds of the `order` [chunk, mode, kind].
    """

    def __init__(
        self, cuts: FreeCuts, weights: Floats, price: Floats, lines: Sequence[Line] | None = None,
        order: Floats | None = None,
    ) -> None:  # fmt: skip
        self.cuts, self.lines = cuts, lines
        self.fewest, self.counts = cuts.fewest, cuts.counts
        self.seconds, self.fixed_s = self._weighed(weights / weights.sum())
        if order is not None and len(order) == cuts.same.chunks:
            of_order, ahead_s = cuts.drift.prices(order)
            self.seconds -= of_order.T[..., None]
            self.fixed_s = self.fixed_s + ahead_s
        self.kib_s = self._priced(price)
        self.room_s = np.einsum("rcs,cs->r", cuts.room_kib, price)

    def _weighed(self, weights: Floats) -> tuple[Floats, Floats]:
        """[mode, kind, chunk, row] seconds of a layer, infinite where none runs; [row] the rest."""
        same, counted = self.cuts.same, np.flatnonzero(weights).tolist()
        shape = same.schedule, same.pp, same.vpp
        enough, of_each = linear_from(*shape[:2]), dict[int, Floats]()
        few = np.minimum(same.m, enough)
        for m in {*few.tolist(), enough + int(same.m.max() > enough)}:
            lines = self.lines or first_lines(*shape, m)
            like = Lines.of([lines[at] for at in counted])
            of_each[m] = np.tensordot(weights[counted], like.often, axes=1)
        often = np.stack([of_each[m] for m in few.tolist()])
        if enough + 1 in of_each:
            more = of_each[enough + 1] - of_each[enough]
            often += (same.m - few)[:, None, None] * more
        reduces = np.zeros((4, same.pp))
        np.add.at(reduces, (like.late, like.ranks), weights[counted])
        hops = float(weights[counted] @ like.hops)
        each, fixed = self.cuts.weighed(often, hops, reduces)
        return _rows_last(np.where(self.cuts.runs[:, None], each, np.inf)), fixed

    def _priced(self, price: Floats) -> Floats:
        """[mode, kind, chunk, row] seconds of a layer's memory."""
        cuts, same = self.cuts, self.cuts.same
        at = slice(None), slice(None), cuts.rank_of, cuts.place_of
        of_chunk = price[:, cuts.rank_of]  # [cover, chunk]
        covers, late, which = same.covers_by_size
        held = np.einsum("ncj,cj->nj", covers[at], of_chunk)[which]
        found: Floats = held[:, :, None, None] * cuts.saved_kib[:, None]
        found += of_chunk.sum(axis=0)[:, None, None] * cuts.state_kib[:, None, :, None]
        if late is not None:
            waits = np.einsum("ncj,cj->nj", late[at], of_chunk)[which]
            found += waits[:, :, None, None] * cuts.deferred_kib[:, None, :, None]
        return _rows_last(found)


def _rows_last(each: Floats) -> Floats:
    """[row, chunk, kind, mode] as [mode, kind, chunk, row]: the least along a short last axis would
    take several times as long.
    """
    return np.ascontiguousarray(each.transpose(3, 2, 1, 0))
