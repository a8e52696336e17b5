"""Plans that fit when a rank pays for the kinds of layers that it holds, and not by the largest.

Where layers are of several kinds the priced memory is a bound. So layouts are bounded by the least
that ranks need (`planner.search.rows.least_of_kinds`); what is settled by the priced memory is
settled here by what its ranks need, of a budget of its own, when the rest is settled.
"""

import math
from collections.abc import Callable

import numpy as np

from meshplan.costmodels.layout import Schedule, Stage
from meshplan.costmodels.step.cut_times import CutTimes
from meshplan.planner.bounds.simulated import Passes
from meshplan.planner.cuts import budget as costs
from meshplan.planner.cuts.known_chains import Shape
from meshplan.planner.cuts.simulated_cuts import Cut, cuts_below
from meshplan.planner.problem.stage_problem import StageProblem, stage_problem
from meshplan.planner.search.found import SETTLED
from meshplan.planner.search.held_memory.counted_memory import (
    CUT,
    LEAST_WORK,
    MOST_WORK,
    CountedMemory,
)
from meshplan.planner.search.rows.least_of_kinds import LeastOfKinds
from meshplan.planner.search.simulation.counted_ranks import BYTES, CountedRanks
from meshplan.planner.search.simulation.cut_mixes import ranks_it_pays
from meshplan.planner.search.simulation.open_layouts import Open
from meshplan.planner.search.simulation.simulated import Simulated


class KindsHeld(CountedMemory):
    """What `proof` leaves out of its layouts by the bound of their memory."""

    unchained: frozenset[Schedule] = frozenset()

    def __init__(self, proof: Simulated) -> None:
        self.proof, self.least, self.open = proof, proof.least, proof.open
        self.tally = costs.Tally(left=LEAST_WORK, shapes=proof.tally.shapes)
        self._more = MOST_WORK - LEAST_WORK
        self.killers: dict[tuple[object, ...], int] = {}
        self._taught = set[Shape]()
        assert isinstance(proof.least, LeastOfKinds)
        self._less = proof.least.below_priced(np.arange(len(proof.space.layouts)))
        self._waits = proof.space.layouts.activation_offload > 0
        self._limit: Callable[[], float] = lambda: proof.best_s * SETTLED

    def settled(self, layouts: list[Open], limit_s: Callable[[int], float]) -> list[Open]:
        """Offer the proof what of these layouts is below the limit of its row, those of one
        pipeline rank first, then the smallest bound; those that stay open.
        """
        self.tally.deadline = self.proof.tally.deadline
        pp = self.proof.space.layouts.pipeline_parallel
        open_ = sorted(
            filter(self._may_need_less, layouts), key=lambda each: (pp[each.row] > 1, each)
        )
        left, before = list[Open](), self.tally.simulated
        try:
            while open_:
                left += self._settled_below(open_[0], limit_s)
                open_.pop(0)
        except KeyboardInterrupt:  # what was begun stays open
            pass
        self.proof.tally.simulated += self.tally.simulated - before
        return left + open_

    def _may_need_less(self, layout: Open) -> bool:
        """Than is priced, in the modes that its layers may be in. Of chunks that wait on the host
        together it is not known.
        """
        variant = layout.variant
        if self._waits[layout.row] and variant.virtual_stages > 1:
            return False
        return bool(self._less[layout.row, [variant.columns[mode] for mode in variant.modes]].any())

    def _settled_below(self, layout: Open, limit_s: Callable[[int], float]) -> list[Open]:
        self._limit = lambda: limit_s(layout.row) * SETTLED
        self._widen(layout.bound_s)
        if layout.bound_s >= self._limit_s:
            return []
        bound_s = layout.bound_s
        if not self.tally.ended:
            self._given_up = []
            left_s = self._settled(layout)
            self._settle_longer()
            left_s = min([left_s, *(cut.bound_s for cut in self._given_up)])
            bound_s = max(bound_s, left_s)
        return [] if bound_s >= self._limit_s else [layout._replace(bound_s=bound_s)]

    def _widen(self, bound_s: float) -> None:
        """More of the budget as long as the gap is wide, before it ends amid a layout."""
        wide = bound_s < self.proof.best_s * costs.WIDE
        while wide and self.tally.left <= costs.MORE // 2 and self._more > 0:
            self.tally.left += costs.MORE
            self._more -= costs.MORE

    @property
    def _limit_s(self) -> float:
        return self._limit()

    def _settled_by_cuts(self, layout: Open, problem: StageProblem) -> float:
        """The cuts of the list; where a cut has one mix for each rank, or one for each number of
        first layers, in their order.
        """
        if problem.vpp > 1 and not problem.first:
            return self._settled_cuts(layout, problem)
        proof, row, variant = self.proof, layout.row, layout.variant
        least = stage_problem(proof.space, self.least, row, variant)
        passes = Passes.of(proof.passes, np.array([row]), least.alone)
        ranks, known = None, proof.open.chains
        for cut in cuts_below(least, passes, known, lambda: self._limit_s, self.tally):
            if self.tally.ended:
                return max(layout.bound_s, cut.bound_s)
            self.tally.left -= CUT
            ranks = ranks or self._ranks(problem, proof.times_of(row, variant, cut.least), variant)
            before = ranks.work
            mixes = self._mixes(ranks, cut, proof.times_of(row, variant, cut.least))
            self.tally.left -= (ranks.work - before) // BYTES
            for stages in mixes:
                self.tally.spend(proof.open.shape(row, variant))
                if proof.times_of(row, variant, stages).step_s(stages) < self._limit_s:
                    self._offered_s(layout, ranks, stages)
        return math.inf

    def _mixes(self, ranks: CountedRanks, cut: Cut, times: CutTimes) -> list[tuple[Stage, ...]]:
        """Those of a cut that fit and of which one may be the fastest."""
        problem, counts = ranks.problem, [stage.layers for stage in cut.least]
        if problem.first and ranks_it_pays(cut.least, problem.modes, times, self._limit_s):
            return list(ranks.mixes_that_fit(counts))
        stages = ranks.fastest_of_cut(counts)
        return [stages] if stages else []


def look_beyond_priced(proof: Simulated) -> None:
    """Where the priced memory is a bound for kinds of layers: settle what fits all the same."""
    if proof.setting.has_several_kinds and len(proof.space.layouts):
        proof.beyond = KindsHeld(proof).settled
