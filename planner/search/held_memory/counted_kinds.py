"""Runners-up that fit when every moment is counted, and not by the bound of their memory.

`planner.search.held_memory.counted_memory` settles what may be faster than the best of all. Here,
of a budget of its own, what may be faster than the best of its own kind and is nearly as fast as
the best of all: else a near tie of another kind is missed where only the counted memory holds it.
"""

import numpy as np

from meshplan.planner.search.found import SETTLED, kind_of, own_s
from meshplan.planner.search.held_memory.counted_memory import CountedMemory
from meshplan.planner.search.rows.rows_below import NEARLY
from meshplan.planner.search.simulation.open_layouts import Open
from meshplan.planner.search.simulation.simulated import Simulated

WORK = 4_000_000  # units


class CountedKinds(CountedMemory):
    """What the runners-up of `proof`, the best of each of `k` kinds, leave out."""

    def __init__(self, proof: Simulated, k: int) -> None:
        self._k, self._row = k, -1
        every, bounds = np.arange(len(proof.space.layouts)), proof.open.row_bounds
        self.proof = proof
        below = bounds < np.minimum(self._most_s, own_s(proof.best, proof.space.layouts, every))
        super().__init__(proof, every[below & (proof.space.layouts.activation_offload == 0)])
        self.tally.left, self._more = WORK, 0

    @property
    def _most_s(self) -> float:
        """Slower ones are no near ties, or no runners-up."""
        ranked, nearly_s = self.proof.ranked(), self.proof.best_s * NEARLY
        return min(nearly_s, ranked[self._k - 1].step_s) if len(ranked) >= self._k else nearly_s

    @property
    def _limit_s(self) -> float:
        """Of the layout that is settled, or of all."""
        if self._row < 0:
            return self._most_s * SETTLED
        own = self.proof.best.get(kind_of(self.proof.space.layouts, self._row))
        return min(self._most_s, own.step_s if own else self._most_s) * SETTLED

    def _settled(self, layout: Open) -> float:
        self._row = layout.row
        try:
            below = layout.bound_s < self._limit_s
            return super()._settled(layout) if below else float("inf")
        finally:
            self._row = -1
