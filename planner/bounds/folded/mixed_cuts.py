"""Lower bounds of every cut of a V shape, whose ranks recompute whole layers.

As `planner.bounds.folded.cuts`, but what a rank must recompute is that of whole layers and of the
transient that its modes ask for (`planner.bounds.folded.mixes`), not of a price of memory.
"""

from collections.abc import Iterator
from typing import Self

import numpy as np

from meshplan.costmodels.layouts import Floats, Ints
from meshplan.planner.bounds.folded.cuts import FoldedCuts, Terms, parts_of
from meshplan.planner.bounds.folded.mixes import INPUT_GRAD, FoldedMixes, Words
from meshplan.planner.bounds.free_cuts import FreeCuts

FEW, MANY = 4_000, 20_000  # mixes of all words


class MixedFolds(FoldedCuts):
    """The cuts of layouts that are below a limit; `mixes` of each layout."""

    asked_again = True

    def __init__(self, cuts: FreeCuts, words: Words, limit_s: float) -> None:
        self.words, self.listed = words, words.listed()
        rows = range(len(cuts.same))
        self.mixes = [FoldedMixes(cuts, row, self.listed, limit_s) for row in rows]
        self._added = dict[int, Floats]()
        super().__init__(cuts.hiding_most())
        self.work += sum(each.work for each in self.mixes)

    @classmethod
    def of(cls, cuts: FreeCuts, most: Floats, limit_s: float, most_mixes: int = FEW) -> Self | None:
        """Of ranks that hold `most` layers at most; None where layers have one mode, or more mixes
        than `most_mixes`, or modes that differ in more than what a backward replays.
        """
        other = np.where(cuts.runs[..., None], np.delete(cuts.seconds, INPUT_GRAD, axis=3), np.nan)
        if len(cuts.same.modes) < 2 or not cuts.runs.any(axis=2).all():
            return None
        if (np.nanmax(other, axis=2) > np.nanmin(other, axis=2)).any():
            return None
        kinds = np.array(cuts.kinds)
        kind_at = np.searchsorted(kinds, np.array(cuts.same.pattern))
        longest = int(np.clip(most.max(), 0, len(kind_at)))
        words = Words(kind_at, (len(kinds), len(cuts.same.modes)), longest)
        return cls(cuts, words, limit_s) if words.many <= most_mixes else None

    def pairs(self, places: Ints) -> Ints:
        """[way] which pair of words; `places` as in `Edges`."""
        first = self.words.of[places[1] - places[0], places[0]]
        second = self.words.of[places[3] - places[2], places[2]]
        found: Ints = first * self.listed.words + second
        return found

    def added(self, rank: int, often: Floats) -> Floats:
        """[row, pair of words] what a rank recomputes at least in a chain with so many backwards,
        [chunk].
        """
        both, pairs = often[None, self.chunks(rank)], np.arange(self.listed.words**2)
        return np.concatenate([each.added(rank, both, pairs) for each in self.mixes])

    def _terms_of(self, rank: int) -> Terms:
        """The chains of a rank in the modes that take least; what they recompute is added."""
        lines, chunks = self._lines_of(rank), self.chunks(rank)
        rest, around, own = self._seconds_of(rank, lines)
        fixed, parts = self._updated(rank, rest, parts_of(around, own.min(axis=4)))
        kept = self._longest_of(parts, fixed, rank)
        often = [lines[at % len(lines)].often[:, INPUT_GRAD] for at in kept.tolist()]
        known = {each[chunks].tobytes(): self.added(rank, each) for each in often}
        self._added[rank] = np.array([known[each[chunks].tobytes()] for each in often])
        none = np.zeros((0, 4, len(self.mixes), self.layers + 1))
        return Terms(*self._at(fixed[kept], parts[kept]), none[:, 0, :, 0], none)

    def _beyond(self, rank: int, places: Ints) -> Iterator[Floats]:
        pairs = self.pairs(places)
        return (added.take(pairs, axis=1) for added in self._added[rank])
