"""Lower bounds of every cut of a V shape, whose ranks recompute whole layers.

As `planner.bounds.folded_cuts`, but what a rank must recompute is that of whole layers and of the
transient that its modes ask for (`planner.bounds.folded_mixes`), not of a price of memory.
"""

from collections.abc import Sequence
from typing import Self

import numpy as np

from meshplan.costmodels.layouts import Bools, Floats, Ints
from meshplan.planner.bounds.folded_cuts import Edges, FoldedCuts, Terms, parts_of
from meshplan.planner.bounds.folded_mixes import INPUT_GRAD, FoldedMixes, Words
from meshplan.planner.bounds.free_cuts import FreeCuts

MOST_MIXES = 4_000  # of all words


class MixedFolds(FoldedCuts):
    """The cuts of one layout that are below a limit."""

    def __init__(self, cuts: FreeCuts, words: Words, limit_s: float) -> None:
        super().__init__(cuts)
        self.words, self.mixes = words, FoldedMixes(cuts, words.listed(), limit_s)
        self._added = dict[int, Floats]()

    @classmethod
    def of(cls, cuts: FreeCuts, most: Floats, limit_s: float) -> Self | None:
        """Of ranks that hold `most` layers at most; None where layers have one mode, or too many
        mixes, or modes that differ in more than what a backward replays.
        """
        other = np.delete(cuts.seconds[0], INPUT_GRAD, axis=2)
        differ = np.where(cuts.runs[0][..., None], other - other.min(axis=1, keepdims=True), 0.0)
        one_way: Bools = cuts.runs[0].sum(axis=1) <= 1
        if one_way.all() or not cuts.runs[0].any(axis=1).all() or differ.any():
            return None
        kinds = np.array(cuts.kinds)
        kind_at = np.searchsorted(kinds, np.array(cuts.same.pattern))
        longest = int(np.clip(most.max(), 0, len(kind_at)))
        words = Words(kind_at, (len(kinds), len(cuts.same.modes)), longest)
        return cls(cuts, words, limit_s) if words.many <= MOST_MIXES else None

    def pairs(self, places: Ints) -> Ints:
        """[way] which pair of words; `places` as in `Edges`."""
        first = self.words.of[places[1] - places[0], places[0]]
        second = self.words.of[places[3] - places[2], places[2]]
        found: Ints = first * self.mixes.listed.words + second
        return found

    def added(self, rank: int, often: Floats) -> Floats:
        """[pair of words] what a rank recomputes at least in a chain with so many backwards,
        [chunk].
        """
        return self.mixes.added(rank, *often[self.chunks(rank)].tolist())

    def added_of(self, edges: Sequence[Edges], often: Floats) -> list[Floats]:
        """Of each rank [edge] the same."""
        return [
            self.added(rank, often)[self.pairs(edge.places)] for rank, edge in enumerate(edges)
        ]

    def _terms_of(self, rank: int) -> Terms:
        """The chains of a rank in the modes that take least; what they recompute is added."""
        lines = self._lines_of(rank)
        rest, around, own = self._seconds_of(rank, lines)
        fixed, parts = self._updated(rank, rest, parts_of(around, own.min(axis=4)))
        kept = self._longest_of(parts, fixed, rank)
        often = [lines[at % len(lines)].often[:, INPUT_GRAD] for at in kept.tolist()]
        known = {each[self.chunks(rank)].tobytes(): self.added(rank, each) for each in often}
        self._added[rank] = np.array([known[each[self.chunks(rank)].tobytes()] for each in often])
        none = np.zeros((0, 4, 1, self.layers + 1))
        return Terms(*self._at(fixed[kept], parts[kept]), none[:, 0, :, 0], none)

    def _beyond(self, rank: int, places: Ints) -> Floats:
        each: Floats = self._added[rank][:, None, self.pairs(places)]
        return each
