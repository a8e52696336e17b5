"""A bound of every cut of one kind, whose layouts may be cut as no list says.

As of the whole space (`planner.search.simulation.free_cuts`), of the rows of the kind alone and up
to its own step, with a small budget: whether a runner-up is the best of its kind, or how much
faster another cut may be.
"""

from meshplan.planner.search.found import KIND_AXES, SETTLED, Kind
from meshplan.planner.search.simulation.free_cuts import FreeCutBounds
from meshplan.planner.search.simulation.simulated import Simulated

WORK = 200_000  # units of each kind


class KindCuts(FreeCutBounds):
    """The layouts of a kind of `proof` that may be faster than the one that was found for it."""

    def __init__(self, proof: Simulated, kind: Kind) -> None:
        super().__init__(proof)
        layouts = proof.space.layouts
        for axis, degree in zip(KIND_AXES, kind, strict=True):
            self._some &= getattr(layouts, axis) == degree
        self.limit_s = self.found_s = self.aim_s = proof.best[kind].step_s * SETTLED
        self._wide_s, self._more, self._left = 0.0, 0, WORK

    def _settle(self) -> None:
        self._alike = list(self._layouts.below(self._alike, self._rest_s))
        self._raise()
