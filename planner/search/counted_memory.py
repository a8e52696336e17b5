"""Plans that fit when every moment is counted, and not by the bound of their memory.

Where an engine's passes are counted (`native`) the priced memory is a bound: a rank pays its
largest transient at its fullest moment, and zero-bubble micro-batches count with the larger of what
they hold before and after their backward. `Simulated` proves what fits by it. What else may be
faster is settled here, layout by layout, of those whose bound is below the best step under a memory
that is not above what ranks hold:

    least    without transients; what waits for its weight gradient with the smaller of both
    one      chunk per rank: each stage in its fastest mix that fits by every moment, so each cut
             has one, and the fastest is found as ever (`planner.cuts.path_cuts`)
    several  cut by cut: the ways in which each rank fits (`planner.search.counted_ranks`), and the
             fastest of these together (`planner.search.counted_cuts`)

What the budget leaves, and cuts of which a rank has too many ways, stay open with their bounds.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layout import Stage
from meshplan.costmodels.layouts import Floats, Ints
from meshplan.costmodels.step.cut_times import CutTimes
from meshplan.costmodels.step.setting import Setting
from meshplan.costmodels.step.step import StepModel
from meshplan.planner.bounds.any_split import bounds_of_any_split
from meshplan.planner.bounds.inner import row_fits
from meshplan.planner.bounds.simulated import Passes, simulated_bounds
from meshplan.planner.bounds.split_chains import bounds_of_splits, rough_split_bounds_s
from meshplan.planner.bounds.split_memory import some_mix_fits
from meshplan.planner.bounds.stage_chains import cut_bounds
from meshplan.planner.cuts import budget as costs
from meshplan.planner.cuts.known_chains import actions_of
from meshplan.planner.cuts.path_cuts import PathCuts, first_cut
from meshplan.planner.problem.coefficients import KIB, Priced
from meshplan.planner.problem.same_pipeline import run_as
from meshplan.planner.problem.stage_problem import (
    StagePlan,
    StageProblem,
    evaluate,
    stage_problem,
    starts_of,
)
from meshplan.planner.search.counted_cuts import CountedCut
from meshplan.planner.search.counted_paths import CountedIntervals
from meshplan.planner.search.counted_ranks import CountedRanks
from meshplan.planner.search.found import SETTLED
from meshplan.planner.search.least_held import LeastHeld
from meshplan.planner.search.open_layouts import Open
from meshplan.planner.search.path_search import PathSearch
from meshplan.planner.search.second_core import done_of_each
from meshplan.planner.search.simulated import MOST_PASSES, Simulated
from meshplan.planner.space.legal_layouts import Space, Variant

BUDGET = 4_000_000  # in the time of one played action, some 60 ns
LAYOUT, CUT, WAY = 20_000, 5_000, 4  # one that is begun; and a way of a rank
TOGETHER = 2_048  # layouts that are bounded at a time
MOST_REFUSED = 4_096  # rows that are looked at where nothing fits by the bound
ENDLESS_KIB = 2**50


def rows_that_may_fit(space: Space, prices: Priced, setting: Setting) -> Ints:
    """The rows of a small space that may fit when every moment is counted; none of a large one."""
    rows = np.arange(len(space.layouts))
    if len(rows) > MOST_REFUSED:
        return rows[:0]
    least = LeastHeld(prices, space.layouts, setting, rows).under("zb_v")
    return np.flatnonzero(row_fits(space, least.take(rows)))


class _Candidate(NamedTuple):
    """A layout that may be faster."""

    bound_s: float
    row: int
    variant: Variant


class CountedMemory:
    """What `proof` left out by the bound of its memory."""

    def __init__(self, proof: Simulated) -> None:
        self.proof, self.rows = proof, self._below(proof)
        self.least = LeastHeld(proof.prices, proof.space.layouts, proof.setting, self.rows)
        self.tally = costs.Tally(
            left=BUDGET, deadline=proof.tally.deadline, shapes=proof.tally.shapes
        )

    def settle(self) -> float:
        """Offer the proof what is faster than its best; a lower bound of what may be faster and was
        not settled, infinite where nothing may be.
        """
        left = {-1: float(self.proof.open.row_bounds[self.rows].min(initial=math.inf))}
        try:
            if not self.tally.late:
                self._settle_each(left)
        except KeyboardInterrupt:  # what was begun stays open
            pass
        self.proof.tally.simulated += self.tally.simulated
        bound_s = min(left.values(), default=math.inf)
        return bound_s if bound_s < self.proof.best_s * SETTLED else math.inf

    def _settle_each(self, left: dict[int, float]) -> None:
        """The layouts that may be faster, those of one chunk per rank first: each has few mixes.
        `left` is what may be faster still, by number.
        """
        found = sorted(self._candidates(), key=lambda each: each.bound_s)
        found.sort(key=lambda each: each.variant.virtual_stages > 1)
        left |= {number: each.bound_s for number, each in enumerate(found)}
        del left[-1]
        for number, candidate in enumerate(found):
            if candidate.bound_s >= self._limit_s:
                del left[number]
            elif not self.tally.ended:
                left[number] = self._settled(candidate)

    @property
    def _limit_s(self) -> float:
        return self.proof.best_s * SETTLED

    @staticmethod
    def _below(proof: Simulated) -> Ints:
        """The rows that may be faster and whose memory is counted so."""
        rows = proof.open.rows
        counted = proof.space.layouts.activation_offload[rows] == 0
        return rows[counted & (proof.open.row_bounds[rows] < proof.best_s * SETTLED)]

    def _candidates(self) -> Iterator[_Candidate]:
        groups = [
            (variant, same[first : first + TOGETHER])
            for variant, same in self.proof.space.by_variant(self.rows)
            for first in range(0, len(same), TOGETHER)
        ]
        limit_s = self._limit_s
        bounds = done_of_each(lambda group: self._bounds(*group, limit_s), groups)
        for (variant, same), of_each in zip(groups, bounds, strict=True):
            for row, bound_s in zip(same.tolist(), of_each.tolist(), strict=True):
                if bound_s < limit_s:
                    yield _Candidate(bound_s, row, variant)

    def _bounds(self, variant: Variant, rows: Ints, limit_s: float) -> Floats:
        """Of `rows` run as `variant`; the limit where that is no more."""
        proof, found = self.proof, np.full(len(rows), limit_s)
        same = run_as(proof.space, self.least.under(variant.schedule), rows, variant)
        passes = Passes.of(proof.passes, rows, same)
        if same.vpp == 1:
            rough = simulated_bounds(same, passes, limit_s)
            return cut_bounds(same, passes, rough, limit_s)
        below = np.flatnonzero(bounds_of_any_split(same, passes, limit_s) < limit_s)
        if len(below):
            found[below], _ = bounds_of_splits(same.take(below), passes.take(below), limit_s)
        return found

    def _settled(self, candidate: _Candidate) -> float:
        """The bound of what of a layout may be faster still."""
        self.tally.left -= LAYOUT
        problem = stage_problem(self.proof.space, self.proof.prices, *candidate[1:])
        problem = replace(problem, prices=replace(problem.prices, cap_kib=ENDLESS_KIB))
        if problem.vpp == 1:
            return self._settled_paths(candidate, problem)
        return self._settled_cuts(candidate, problem)

    def _settled_paths(self, candidate: _Candidate, problem: StageProblem) -> float:
        """One chunk per rank, cut anywhere."""
        proof, (bound_s, row, variant) = self.proof, candidate
        passes = Passes.of(proof.passes, np.array([row]), problem.alone)
        times = proof.times_of(row, variant, first_cut(problem))
        ranks = self._ranks(problem, times, variant)
        intervals = CountedIntervals(problem, ranks)
        cuts = PathCuts(problem, passes, times, self._limit_s, intervals)
        self.tally.left -= costs.WAYS + costs.STEP * cuts.steps + WAY * ranks.work
        search = PathSearch(
            cuts, proof.open.shape(row, variant), proof.open.chains, self.tally,
            lambda stages: self._offered_s(candidate, problem, ranks, stages),
        )  # fmt: skip
        layout = Open(bound_s, (row, 0, 0), row, variant, None, 0)
        left = search.settled(layout, lambda: self._limit_s, MOST_PASSES)
        return min((each.bound_s for each in left), default=math.inf)

    def _settled_cuts(self, candidate: _Candidate, problem: StageProblem) -> float:
        """Several chunks per rank: the cuts of the list, the smallest bound first."""
        proof, (bound_s, row, variant) = self.proof, candidate
        least = stage_problem(proof.space, self.least.under(variant.schedule), row, variant)
        passes = Passes.of(proof.passes, np.array([row]), least.alone)
        known, left_s, ranks = proof.open.chains.bounds_s, math.inf, None
        splits, _, bounds, by_rank = rough_split_bounds_s(
            least.alone, passes, self._limit_s, known
        )
        fits, mode = some_mix_fits(least), min(least.modes)
        for at in np.argsort(bounds, kind="stable").tolist():
            if bounds[at] >= self._limit_s:
                break
            if not fits[splits[at]]:
                continue
            if self.tally.ended:
                return min(left_s, max(bound_s, float(bounds[at])))
            counts = (least.splits or ())[splits[at]]
            bare = tuple(Stage(n, n * (mode == 1), n * (mode == 2)) for n in counts)
            times = proof.times_of(row, variant, bare)
            ranks = ranks or self._ranks(problem, times, variant)
            before = ranks.work
            cut = CountedCut(problem, times, ranks, bare, self._limit_s)
            answer = cut.answer(by_rank[at])
            self.tally.left -= CUT + WAY * (ranks.work - before)
            self.tally.left -= answer.played * actions_of(cut.shape)
            if answer.stages:
                self._offered_s(candidate, problem, ranks, answer.stages)
            left_s = min(left_s, max(answer.bound_s, float(bounds[at])))
        return left_s

    def _ranks(self, problem: StageProblem, times: CutTimes, variant: Variant) -> CountedRanks:
        layout = replace(times.layout, selective_modules=variant.replayed)
        return CountedRanks(problem, StepModel(times.model.setting, layout))

    def _offered_s(
        self,
        candidate: _Candidate,
        problem: StageProblem,
        ranks: CountedRanks,
        stages: tuple[Stage, ...],
    ) -> float:
        """The simulated step of a mix, offered with what each rank needs instead of the bound."""
        priced, starts = evaluate(problem, stages), starts_of(stages)
        assert priced is not None, "everything fits in an endless memory"
        needs = (ranks.needed_bytes(rank, starts, stages) for rank in range(problem.pp))
        peaks = tuple(math.ceil(each / KIB) for each in needs)
        plan = StagePlan(stages, priced.objective, peaks)
        return self.proof.judged_s(candidate.row, candidate.variant, plan)
