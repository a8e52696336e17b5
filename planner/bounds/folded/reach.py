"""Whether the ranks of V shapes hold all layers in steps below a limit, in the order of the model.

As in `planner.bounds.folded.cuts` ranks fill the model from both ends, but of all ways to have A
layers on the chunks before a rank only the one with most behind is kept, so that places are told
apart by A alone: many layouts with many layers per rank are looked at together.

That leaves nothing out. Say a chain of a rank takes b, s and c for a layer between its chunks, on
the second one, and behind it, and lower b to min(b, s), and c to what b is then, where they are
above; it is no longer so. Take a cut with A layers before the rank, whose second chunk has the
layers from q to p, and p' <= p of what is kept. Beside the same first chunk

    from min(q, p') to p'    takes no longer than    from q to p

since each layer between these places counts as c or b instead of b or s. So what the cut leaves to
the ranks within is no more than is kept of it, rank after rank. Memory alike, where b = c = 0.
"""

from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layouts import Bools, Floats, Ints
from meshplan.planner.bounds.folded.cuts import KIB, FoldedCuts, Terms
from meshplan.planner.bounds.simulated import SAFETY

NEAR = 1e-9  # of a limit: what sums may differ by rounding
HALVINGS = 1  # between a known bound and the limit
AT_ONCE = 1_000_000  # sums that are looked at together
LIKELY = tuple((1.0, first, 1.0, 2.0 - first, 1.0) for first in (1.0, 1.5, 0.5))  # as `UNEVEN`
TERMS = 13_000  # ways that take as long as a rank's chains, and as those of each layout: 90 us
SUM = 12  # ways (`planner.bounds.folded.cuts`) that take as long as a sum: some 70 ns


class _Chains(NamedTuple):
    """Of a rank [line, row] what is left to layers, and [end, line, row, place] what a place takes
    of it, as in `Terms`: less and less where the second chunk begins, more and more where it ends.
    """

    room: Floats
    at: Floats

    def binding(self, rank: tuple[int, int]) -> Ints:
        """Which leave least to some layout in some `LIKELY` cut, by a rank of so many."""
        layers, (before, ranks), found = self.at.shape[3] - 1, rank, set[int]()
        for _, first, _, second, _ in LIKELY:
            parts = np.array([before, before + first, 2 * ranks - before - second])
            places = np.rint(
                [*parts * layers / (2 * ranks), layers - parts[0] * layers / (2 * ranks)]
            )
            left = self.room.copy()
            for end, place in zip(self.at, places.astype(int).tolist(), strict=True):
                left -= end[:, :, place]
            found |= set(left.argmin(axis=0).tolist())
        return np.array(sorted(found))

    def few(self, lines: Ints) -> "_Chains":
        """Some of them."""
        return _Chains(self.room[lines], self.at[:, lines])


class _Ways(NamedTuple):
    """Of some ways [way] the layers before the first chunk of a rank, and up to its end; where what
    is behind begins at least; [row] the layers of the rank, and of all within, at most; and the
    fewest on its second chunk, where nothing is behind that: else more may be kept there.
    """

    before: Ints
    ends: Ints
    least: Ints
    most: Floats
    within: Floats
    fewest: int


class Reach:
    """How far the ranks of some layouts come; limits may be asked one after the other."""

    def __init__(self, folded: FoldedCuts) -> None:
        self.folded, self._binding = folded, dict[int, Terms]()

    def bounds_s(self, known_s: Floats, limit_s: float, most: Floats) -> Floats:
        """[row] a lower bound of every cut of which no rank holds more than the `most` layers,
        [row, rank], not below the known; the limit where no cut is below it. What is reached there
        is asked again half-way from the known.
        """
        low, high = np.minimum(known_s, limit_s), np.full(len(most), limit_s)
        middle = high
        for _ in range(1 + HALVINGS):
            reached = self.reaches(np.where(low < high, middle, 0.0), most)
            low = np.where(reached, low, np.maximum(low, middle))
            high = np.where(reached, middle, high)
            middle = (low + high) / 2
        return low

    def reaches(self, limits_s: Floats, most: Floats) -> Bools:
        """[row] whether all layers are held below the limits by ranks that hold the `most` layers
        at most, [row, rank]; none are below 0.
        """
        folded = self.folded
        layers, ranks = folded.layers, folded.ranks
        begins = np.full((len(most), layers + 1), layers + 1.0)  # [row, A] where what is behind is
        begins[limits_s > 0, 0] = layers
        for rank in range(ranks):
            some = np.flatnonzero((begins <= layers).any(axis=1))
            if not len(some):
                break
            within = int(folded.fewest[rank + 1 : 2 * ranks - 1 - rank].sum())
            most_here = int(np.clip(most[some, rank].max(), -1, layers))
            each = range(int(folded.fewest[rank]), most_here + 1)
            before, ends = _ways(begins[some], each, layers - within)
            later = np.maximum(most[some, rank + 1 :], 0).sum(axis=1)
            fewest = 0 if rank else int(folded.fewest[-1])
            ways = _Ways(before, ends, ends + within, most[some, rank], later, fewest)
            chains = self._chains(rank, limits_s, some)
            begins[some] = _filled(begins[some], ways, chains)
            folded.work += SUM * chains.room.size * len(ends)
        found: Bools = np.any(begins <= np.arange(layers + 1), axis=1)
        return found | (~folded.runs & (limits_s > 0))

    def _chains(self, rank: int, limits_s: Floats, rows: Ints) -> _Chains:
        """Those of a rank that bind below the limits that are asked first."""
        if rank in self._binding:
            return _chains(self._binding[rank], limits_s, rows)
        terms = self.folded.terms(rank)
        self.folded.work += TERMS * (1 + len(self.folded.runs))
        chains, times = _chains(terms, limits_s, rows), len(terms.fixed)
        lines = chains.binding((rank, self.folded.ranks))
        seconds, kib = lines[lines < times], lines[lines >= times] - times
        self._binding[rank] = Terms(
            terms.fixed[seconds], terms.at[seconds], terms.room[kib], terms.held[kib]
        )
        return chains.few(lines)


def _ways(begins: Floats, each: range, last: int) -> tuple[Ints, Ints]:
    """Where a rank may begin in some row, with `each` number of layers, up to the `last` place:
    [way] the layers before it, and up to its end.
    """
    begun = np.flatnonzero((begins < begins.shape[1]).any(axis=0))
    ends = begun[:, None] + np.array(each, np.int64)
    of, which = np.nonzero(ends <= last)
    return begun[of], ends[of, which]


def _filled(begins: Floats, ways: _Ways, chains: _Chains) -> Floats:
    """What is behind the chunks so far with those of a rank."""
    found = np.full(begins.shape, float(begins.shape[1]))
    many = max(1, AT_ONCE // chains.room.size)
    for first in range(0, len(ways.ends), many):
        few = slice(first, first + many)
        some = _Ways(ways.before[few], ways.ends[few], ways.least[few], *ways[3:])
        each, order = _behind(begins, some, chains), np.argsort(some.ends, kind="stable")
        places, start = np.unique(some.ends[order], return_index=True)
        least = np.minimum.reduceat(each[:, order], start, axis=1)
        found[:, places] = np.minimum(found[:, places], least)
    return found


def _behind(begins: Floats, ways: _Ways, chains: _Chains) -> Floats:
    """[row, way] the same of some ways; beyond all places where a row has no such way."""
    layers, before = begins.shape[1] - 1, begins[:, ways.before]
    beside = ways.most[:, None] - (ways.ends - ways.before)
    left = _left(chains, ways, np.minimum(before, layers).astype(int))
    least = _first_below(chains.at[2], left).max(axis=0)
    last = before - ways.fewest
    found: Floats = np.maximum(np.minimum(least, last), np.maximum(before - beside, ways.least))
    too_many = found - ways.ends > ways.within[:, None]
    found[(before > layers) | (least > last) | (beside < ways.fewest) | too_many] = layers + 1
    return found


def _left(chains: _Chains, ways: _Ways, behind: Ints) -> Floats:
    """[line, row, way] what is left to where the second chunk begins."""
    left: Floats = chains.room[:, :, None] - chains.at[0].take(ways.before, axis=2)
    left -= chains.at[1].take(ways.ends, axis=2)
    left -= np.take_along_axis(chains.at[3], np.broadcast_to(behind, left.shape), axis=2)
    return left


def _first_below(falls: Floats, left: Floats) -> Ints:
    """[line, row, way] the first place at which what falls along places [line, row, place] is not
    above what is left [line, row, way]; beyond all places where it is at none.
    """
    found = np.empty(left.shape, np.int64)
    for at in np.ndindex(left.shape[:2]):
        found[at] = falls.shape[2] - np.searchsorted(falls[at][::-1], left[at], side="right")
    return found


def _chains(terms: Terms, limits_s: Floats, rows: Ints) -> _Chains:
    """Those of a rank and its memory, of some rows, lowered; in units of the limits, and of all
    memory.
    """
    all_kib, each = np.abs(terms.room).max(initial=1.0), SAFETY / limits_s[rows]
    room = np.concatenate([1 - terms.fixed[:, rows] * each, (KIB - terms.room[:, rows]) / all_kib])
    first, ends, begins, last = np.moveaxis(
        np.concatenate([terms.at[:, :, rows] * each[:, None], terms.held[:, :, rows] / all_kib]),
        1, 0,
    )  # fmt: skip
    over = _until(np.maximum(np.diff(begins), 0.0))  # of between beyond the second chunk
    begins = begins - over
    behind = _until(np.maximum(-np.diff(begins) - np.diff(last), 0.0))  # of behind beyond between
    at = np.stack([first, ends + over, begins, last + behind])
    return _Chains(room + behind[..., -1] + NEAR, at)


def _until(each: Floats) -> Floats:
    """[..., place] the sum before a place."""
    return np.pad(each.cumsum(axis=-1), [(0, 0)] * (each.ndim - 1) + [(1, 0)])
