"""Runners-up that fit when every moment is counted, and not by the bound of their memory.

`planner.search.held_memory.counted_memory` settles what may be faster than the best of all. Here,
of a budget of its own, what may be faster than the best of its own kind and is nearly as fast as
the best of all: else a near tie of another kind is missed where only the counted memory holds it.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from meshplan.costmodels.layouts import Floats, Ints
from meshplan.planner.search.found import SETTLED, kind_of, own_s
from meshplan.planner.search.held_memory.counted_memory import CountedMemory, by_ranks
from meshplan.planner.search.simulation.open_layouts import Open
from meshplan.planner.search.simulation.simulated import Simulated

WORK, ALONE = 4_000_000, 2  # units; one part in so many at most for rows of one pipeline rank


class CountedKinds(CountedMemory):
    """What of some rows of `proof` may be faster than the best of its own kind and than `most_s`,
    which may fall meanwhile.
    """

    def __init__(
        self, proof: Simulated, rows: Ints, most_s: Callable[[], float], work: int
    ) -> None:
        self._most_s, self._row, self.proof = most_s, -1, proof
        self._open = list[tuple[int, float]]()
        rows = rows[proof.space.layouts.activation_offload[rows] == 0]
        bounds, own = proof.open.row_bounds[rows], own_s(proof.best, proof.space.layouts, rows)
        super().__init__(proof, rows[bounds < np.minimum(most_s(), own)])
        self.tally.left, self._all, self._more = work, work, 0

    @classmethod
    def runners_up(cls, proof: Simulated, k: int) -> None:
        """`settle_kinds` of the rows that may be among the best of `k` kinds and nearly as fast as
        the best of all, those of one pipeline rank first.
        """
        most_s = partial(proof.shown_below_s, k)
        rows = np.argsort(proof.open.row_bounds, kind="stable")
        alone, several = by_ranks(proof.space, rows)
        first = cls(proof, alone, most_s, WORK // ALONE)
        first.settle_kinds()
        left = 0 if first.interrupted else WORK - first.spent
        cls(proof, several, most_s, left).settle_kinds()

    def settle_kinds(self) -> None:
        """Offer the proof what is faster than the best of its kind, and tell it what is open."""
        self.settle()
        layouts, best = self.proof.space.layouts, self.proof.best
        self.proof.open_kinds.add(best, layouts, *self.open_rows())

    def open_rows(self) -> tuple[Ints, Floats]:
        """What was not settled: rows, some with several bounds."""
        asked, given_up = self.open.asked(), self._given_up
        left = [*self._open, *((cut.layout.row, cut.bound_s) for cut in given_up)]
        rows = np.array([row for row, _ in left], np.int64)
        return np.append(asked[0], rows), np.append(asked[1], [bound_s for _, bound_s in left])

    @property
    def _limit_s(self) -> float:
        """Of the layout that is settled, or of all."""
        most_s = self._most_s()
        if self._row >= 0:
            own = self.proof.best.get(kind_of(self.proof.space.layouts, self._row))
            most_s = min(most_s, own.step_s if own else most_s)
        return most_s * SETTLED

    def _settled(self, layout: Open) -> float:
        self._row = layout.row
        try:
            below = layout.bound_s < self._limit_s
            found_s = super()._settled(layout) if below else math.inf
        finally:
            self._row = -1
        self._open += [(layout.row, found_s)] * (found_s < math.inf)
        return found_s
