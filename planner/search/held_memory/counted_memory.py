"""Plans that fit when every moment is counted, and not by the bound of their memory.

Where an engine's passes are counted (`native`) the priced memory is a bound: a rank pays its
largest transient at its fullest moment, and zero-bubble micro-batches count with the larger of what
they hold before and after their backward. `Simulated` proves what fits by it. What else may be
faster is settled here, layout by layout, of those whose bound is below the best step under a memory
that is not above what ranks hold:

    least    with the lightest pass alone; what waits for its weight gradient apart, or with the
             smaller of both (`planner.search.rows.least_held`)
    one      chunk per rank: each stage in its fastest mix that fits by every moment, so each cut
             has one, and the fastest is found as ever (`planner.cuts.path_cuts`)
    several  cut by cut: the ways in which each rank fits
             (`planner.search.simulation.counted_ranks`), and the fastest of these together
             (`planner.search.held_memory.counted_cuts`)

Rows of one pipeline rank come first: they are soon settled, and a better plan leaves less to bound.
What the budget leaves, and cuts of which a rank has too many ways, stay open with their bounds.
Rows of a pipeline of which nothing fits by the bound come last, with a budget of their own.
"""

import math
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layout import Schedule, Stage
from meshplan.costmodels.layouts import Floats, Ints
from meshplan.costmodels.schedule.in_flight import ZERO_BUBBLE
from meshplan.costmodels.step.cut_times import CutTimes
from meshplan.costmodels.step.step import StepModel
from meshplan.planner.bounds.inner import row_fits
from meshplan.planner.bounds.simulated import SAFETY, Passes
from meshplan.planner.bounds.split_chains import rough_split_bounds_s
from meshplan.planner.bounds.split_memory import some_mix_fits
from meshplan.planner.cuts import budget as costs
from meshplan.planner.cuts.known_chains import CLOSER, Shape, actions_of
from meshplan.planner.cuts.path_cuts import PathCuts, first_cut
from meshplan.planner.cuts.simulated_cuts import Cut
from meshplan.planner.problem.coefficients import KIB, Priced
from meshplan.planner.problem.stage_problem import (
    StagePlan,
    StageProblem,
    evaluate,
    stage_problem,
    starts_of,
)
from meshplan.planner.search.found import SETTLED
from meshplan.planner.search.held_memory.counted_cuts import MOST_PLAYED, CountedCut
from meshplan.planner.search.held_memory.counted_paths import CountedIntervals
from meshplan.planner.search.rows.least_held import LeastHeld
from meshplan.planner.search.simulation.counted_ranks import BYTES, ENDLESS_KIB, CountedRanks
from meshplan.planner.search.simulation.cut_mixes import CutMixes
from meshplan.planner.search.simulation.open_layouts import Open, OpenLayouts
from meshplan.planner.search.simulation.path_search import PathSearch
from meshplan.planner.search.simulation.simulated import MOST_PASSES, Simulated
from meshplan.planner.space.legal_layouts import Space, Variant

LEAST_WORK, MOST_WORK = 5_000_000, 10_000_000
"""Units that are spent: what the proof left of its budget, between these two; and the difference of
the two once more as long as the gap is wide. The least where nothing fits by the bound.
"""
FEWEST_WORK, BEYOND_WORK = 1_000_000, 3_000_000  # for rows that fit by every moment alone
LONGER = 16  # times as many steps of a cut, where there is budget at the end
LAYOUT, CUT = 50_000, 3_000  # units of one that is begun


def taken_out(proof: Simulated) -> Ints:
    """Rows of several pipeline ranks of which nothing fits by the bound, taken out of the proof."""
    out = proof.space.layouts.pipeline_parallel > 1
    several = np.flatnonzero(out)
    out[several] = ~row_fits(proof.space.take(several), proof.prices.take(several))
    return proof.open.leave_out(out)


def by_ranks(space: Space, rows: Ints) -> tuple[Ints, Ints]:
    """Those of one pipeline rank, which have one cut and are soon settled, and the others."""
    alone = space.layouts.pipeline_parallel[rows] == 1
    return rows[alone], rows[~alone]


class GivenUp(NamedTuple):
    """A cut `bare`, with nothing recomputed, that stays open.

    by_rank_s  the longest known chain of each rank
    """

    bound_s: float
    layout: Open
    ranks: CountedRanks
    bare: tuple[Stage, ...]
    by_rank_s: Floats


class CountedMemory:
    """What `proof` left out by the bound of its memory."""

    unchained: frozenset[Schedule] = ZERO_BUBBLE  # whose least memory is too far below what is held

    def __init__(self, proof: Simulated, rows: Ints, most: int = MOST_WORK) -> None:
        self.proof = proof
        self.least: Priced = LeastHeld(proof.prices, proof.space.layouts, proof.setting, rows)
        self.open = OpenLayouts(proof.space, self.least, proof.passes, self._limit_s, rows)
        self.open.chains = proof.open.chains
        left, deadline = proof.tally.left, proof.tally.deadline
        most = min(most, MOST_WORK if proof.best else LEAST_WORK)
        self._budget, self._more = min(most, max(LEAST_WORK, left)), max(0, most - LEAST_WORK)
        self.tally = costs.Tally(left=self._budget, deadline=deadline, shapes=proof.tally.shapes)
        self._all, self.interrupted = self._budget + self._more, False
        self.killers: dict[tuple[object, ...], int] = {}
        self._given_up, self._taught = list[GivenUp](), set[Shape]()

    @classmethod
    def each(cls, proof: Simulated, beyond: Ints, most: int = MOST_WORK) -> tuple[float, float]:
        """`settle` of the rows of the proof, those of one pipeline rank first, which have one cut
        each; then of those `beyond` it. A budget that is smaller than usual is for all of them.
        """

        def below(rows: Ints) -> Ints:
            faster = proof.open.row_bounds[rows] < proof.best_s * SETTLED
            found: Ints = rows[faster & (proof.space.layouts.activation_offload[rows] == 0)]
            return found

        alone, several = by_ranks(proof.space, below(proof.open.rows))
        fewest = FEWEST_WORK if most == MOST_WORK else 0
        first = cls(proof, alone, most)
        alone_s = first.settle()
        half = cls(proof, below(several), 0 if first.interrupted else most)
        half.tally.left -= first.spent
        left_s, beyond = min(alone_s, half.settle()), below(beyond)
        if not len(beyond):
            return left_s, math.inf
        most = 0 if half.interrupted else max(fewest, min(BEYOND_WORK, half.tally.left))
        return left_s, cls(proof, beyond, most).settle()

    @property
    def spent(self) -> int:
        """Units."""
        return self._all - self._more - self.tally.left

    def settle(self) -> float:
        """Offer the proof what is faster than its best; a lower bound of what may be faster and was
        not settled, infinite where nothing may be.
        """
        left = math.inf
        try:
            while self._goes_on():
                if not self._closer():
                    left = min(left, self._settled(self.open.first))
                    self.open.pop()
            self._settle_longer()
        except KeyboardInterrupt:  # what was begun stays open
            self.interrupted = True
        self.proof.tally.simulated += self.tally.simulated
        bound_s = min(left, self.open.least_s, *(cut.bound_s for cut in self._given_up))
        return bound_s if bound_s < self._limit_s else math.inf

    def _settle_longer(self) -> None:
        """Ask cuts that were given up for longer, the smallest bound first, as the budget goes."""
        cuts = sorted(self._given_up, key=attrgetter("bound_s"))
        while cuts and not self.tally.ended:
            if cuts[0].bound_s < self._limit_s:
                found_s, _ = self._by_ranks(cuts[0], LONGER * MOST_PLAYED)
                if found_s < self._limit_s:
                    return
            cuts.pop(0)
            self._given_up = cuts

    @property
    def _limit_s(self) -> float:
        return self.proof.best_s * SETTLED

    def _goes_on(self) -> bool:
        """Whether something may be faster, and there is time, and budget: more of it as long as the
        gap is wide.
        """
        least_s = self.open.least_s
        while self.tally.left <= 0 and self._more > 0 and least_s < self.proof.best_s * costs.WIDE:
            self.tally.left += costs.MORE
            self._more -= costs.MORE
        return not self.tally.ended and least_s < self._limit_s

    def _closer(self) -> bool:
        """`OpenLayouts.closer`, which is charged; whether the first is not below the limit."""
        before = self.open.work
        found = self.open.closer(self._limit_s)
        self.tally.left -= self.open.work - before
        return found

    def _settled(self, layout: Open) -> float:
        """The bound of what of a layout may be faster still."""
        self.tally.left -= LAYOUT
        problem = stage_problem(self.proof.space, self.proof.prices, layout.row, layout.variant)
        problem = replace(problem, prices=replace(problem.prices, cap_kib=ENDLESS_KIB))
        if problem.splits is None:
            return self._settled_paths(layout, problem)
        return self._settled_by_cuts(layout, problem)

    def _settled_paths(self, layout: Open, problem: StageProblem) -> float:
        """One chunk per rank, cut anywhere."""
        proof, row, variant = self.proof, layout.row, layout.variant
        passes = Passes.of(proof.passes, np.array([row]), problem.alone)
        times = proof.times_of(row, variant, first_cut(problem))
        ranks = self._ranks(problem, times, variant)
        intervals = CountedIntervals(problem, ranks)
        cuts = PathCuts(problem, passes, times, self._limit_s, intervals)
        self.tally.left -= costs.WAYS + costs.STEP * cuts.steps + ranks.work // BYTES
        search = PathSearch(
            cuts, proof.open.shape(row, variant), proof.open.chains, self.tally,
            lambda stages: self._offered_s(layout, ranks, stages),
            partial(proof.no_mix_fits, row, variant),
        )  # fmt: skip
        left = search.settled(layout, lambda: self._limit_s, MOST_PASSES)
        return min((each.bound_s for each in left), default=math.inf)

    def _settled_by_cuts(self, layout: Open, problem: StageProblem) -> float:
        return self._settled_cuts(layout, problem)

    def _settled_cuts(self, layout: Open, problem: StageProblem) -> float:
        """Several chunks per rank: the cuts of the list, the smallest bound first."""
        proof, row, variant = self.proof, layout.row, layout.variant
        least = stage_problem(proof.space, self.least, row, variant)
        passes = Passes.of(proof.passes, np.array([row]), least.alone)
        known, left_s, ranks = proof.open.chains.bounds_s, math.inf, None
        splits, _, bounds, by_rank = rough_split_bounds_s(least.alone, passes, self._limit_s, known)
        fits, mode = some_mix_fits(least)[splits], min(least.modes)
        for at in np.argsort(np.where(fits, bounds, math.inf), kind="stable").tolist():
            if not fits[at] or bounds[at] >= self._limit_s:
                break
            if self.tally.ended:
                return min(left_s, max(layout.bound_s, float(bounds[at])))
            counts = (least.splits or ())[splits[at]]
            bare = tuple(Stage(n, n * (mode == 1), n * (mode == 2)) for n in counts)
            times = proof.times_of(row, variant, bare)
            if ranks is None:
                ranks = self._ranks(problem, times, variant)
                if not self._some_fit(ranks, np.array(least.splits)[splits[fits]], by_rank[fits]):
                    return math.inf
            least_s = max(layout.bound_s, float(bounds[at]))
            cut = GivenUp(least_s, layout, ranks, bare, by_rank[at])
            found_s, given_up = self._by_ranks(cut)
            if found_s < self._limit_s and variant.schedule not in self.unchained:
                found_s = max(found_s, self._by_chains_s(layout, least, ranks, bare))
            if given_up and found_s < self._limit_s:
                self._given_up.append(cut._replace(bound_s=found_s))
            else:
                left_s = min(left_s, found_s)
        return left_s

    def _by_ranks(self, cut: GivenUp, most_played: int = MOST_PLAYED) -> tuple[float, bool]:
        """The bound of a cut by the ways in which its ranks fit, infinite where it is settled; and
        whether it was given up for its many ways.
        """
        ranks, before = cut.ranks, cut.ranks.work
        times = self.proof.times_of(cut.layout.row, cut.layout.variant, cut.bare)
        found = CountedCut(ranks.problem, times, ranks, cut.bare, self._limit_s, most_played)
        if found.shape not in self._taught:
            ratio = found.play_bare() / cut.bound_s
            self.open.chains.learn(found.shape, times, cut.bare, ratio)
            self._taught |= {found.shape} if ratio < CLOSER else set()
        answer = found.answer(cut.by_rank_s)
        self.tally.left -= CUT + (ranks.work - before) // BYTES + found.work
        if answer.stages:
            self._offered_s(cut.layout, ranks, answer.stages)
        return max(cut.bound_s, answer.bound_s), found.played > most_played

    def _by_chains_s(
        self, layout: Open, least: StageProblem, ranks: CountedRanks, bare: tuple[Stage, ...]
    ) -> float:
        """The bound of a cut by means of chains under the least memory, whose plan may fit."""
        times = self.proof.times_of(layout.row, layout.variant, bare)
        cut = Cut(layout.bound_s, bare, lambda: tuple(range(least.pp)))
        mixes = CutMixes(least, times, cut, self._limit_s)
        actions = actions_of(mixes.shape)
        if actions > costs.MOST_CHAINED:
            return 0.0
        answer = mixes.by_chains()
        self.tally.left -= costs.CHAINED * actions + costs.KNAPSACKS * answer.knapsacks
        if answer.plan:
            self._offered_s(layout, ranks, answer.plan.stages)
        return answer.bound_s

    def _some_fit(self, ranks: CountedRanks, counts: Ints, by_rank_s: Floats) -> bool:
        """Whether some cut may be below the limit, of layers of one kind: a rank that has no way
        with the fewest layers that each of its chunks holds in any of them has none in any.
        """
        problem, before = ranks.problem, ranks.work
        if len(set(problem.pattern)) > 1:
            return True
        fewest, shape = counts.min(axis=0).tolist(), (problem.schedule, problem.pp, problem.vpp)
        rest_s = ((self._limit_s - by_rank_s) / (problem.m * SAFETY)).max(axis=0)
        killer = self.killers.get(shape, 0)
        for rank in dict.fromkeys((killer, 0, int(rest_s.argmin()), problem.pp - 1)):
            spans = [(chunk, 0, fewest[chunk]) for chunk in problem.chunks_of_rank[rank]]
            if math.isinf(ranks.ways(rank, spans, float(rest_s[rank])).least_s):
                self.killers[shape] = rank
                break
        else:
            rank = -1
        self.tally.left -= (ranks.work - before) // BYTES
        return rank < 0

    def _ranks(self, problem: StageProblem, times: CutTimes, variant: Variant) -> CountedRanks:
        layout = replace(times.layout, selective_modules=variant.replayed)
        return CountedRanks(problem, StepModel(times.model.setting, layout))

    def _offered_s(self, layout: Open, ranks: CountedRanks, stages: tuple[Stage, ...]) -> float:
        """The simulated step of a mix, offered with what each rank needs instead of the bound."""
        problem = ranks.problem
        priced, starts = evaluate(problem, stages), starts_of(stages)
        assert priced is not None, "everything fits in an endless memory"
        needs = (ranks.needed_bytes(rank, starts, stages) for rank in range(problem.pp))
        peaks = tuple(math.ceil(each / KIB) for each in needs)
        plan = StagePlan(stages, priced.objective, peaks)
        return self.proof.judged_s(layout.row, layout.variant, plan)
