"""Where moves of layers begin: cuts of several chunks near a layout, one for each way to run it.

The found cut, and the likeliest of each schedule and number of chunks, the fastest first.
What is faster than the layout is for the proof to keep; nothing is proved of the others.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layout import Stage
from meshplan.costmodels.layouts import Floats
from meshplan.costmodels.step.cut_times import CutTimes
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.planner.bounds.simulated import Passes
from meshplan.planner.cuts import budget as costs
from meshplan.planner.cuts import moved_layers
from meshplan.planner.cuts.known_chains import KnownChains
from meshplan.planner.cuts.simulated_cuts import Likely, likely_cut
from meshplan.planner.problem.stage_problem import StagePlan, StageProblem, evaluate
from meshplan.planner.processes.second_core import done_ahead, done_of_many
from meshplan.planner.search.found import Timed
from meshplan.planner.space.legal_layouts import Space, Variant

ALIKE = (
    "tensor_parallel", "context_parallel", "expert_parallel", "expert_tensor_parallel",
    "micro_batch_size", "zero_stage",
)  # fmt: skip
NEAR, NEAR_OF_FEW = 1.05, 1.2  # times the step of the layout: cuts where moves begin
SHARE = 3  # a climb gets one part in so many of the remaining budget: others begin too
FEW = 4  # cuts of few chunks of which the first that fits is likely


class Beginning(NamedTuple):
    """Where moves begin: from likely cuts of a row in some variants, to beat a layout.

    found    the layout; `started`: `row` is its own, and moves begin from its own cut too
    """

    found: Timed
    row: int
    variants: Sequence[Variant]
    started: bool


Start = tuple[int, Variant, tuple[Stage, ...]]


class Looked(NamedTuple):
    """What moves have found.

    faster     rows with plans of cuts that are faster than the layout
    simulated  how many cuts were simulated
    work       what finding beginnings took of the search's budget
    ended      the climbs that came to an end
    """

    faster: list[tuple[int, Variant, StagePlan | None]]
    simulated: int
    work: int
    ended: dict[Start, float]


@dataclass(slots=True)
class NearCuts:
    """Moves of layers that begin near layouts, and what they ask of the proof.

    problem_of  the inner problem and passes of a row under a variant
    times_of    its simulation, of cuts like the given one
    ended       where climbs that came to an end began and ended, and what they had to be faster
                than or found
    budget      of the climbs; what is left of it
    """

    problem_of: Callable[[int, Variant], tuple[StageProblem, Passes]]
    times_of: Callable[[int, Variant, tuple[Stage, ...]], CutTimes]
    known: KnownChains
    ended: dict[Start, float]
    budget: int = moved_layers.BUDGET
    faster: list[tuple[int, Variant, StagePlan | None]] = field(default_factory=list)
    simulated: int = 0
    work: int = 0

    def looked(self, beginnings: Sequence[Beginning], tally: costs.Tally) -> Looked:
        """Look beside each as long as there is a budget, and time."""
        for each in beginnings:
            if self.budget > 0 and not tally.late:
                self.look(each)
        return Looked(self.faster, self.simulated, self.work, self.ended)

    def look(self, beginning: Beginning) -> None:
        """Climb from the likeliest cut of each variant of the row, and from the layout itself,
        until the budget is spent.
        """
        found, row, _, started = beginning
        starts = [found] if started and found.variant.virtual_stages > 1 else []
        goal_s = found.step_s
        for start in chain(starts, self._beside(beginning)):
            if not self._is_ended(row, start, goal_s):
                goal_s = self._climbed(row, start, goal_s, self.budget // SHARE)
            if self.budget <= 0:
                return

    def go_on(self, found: Timed, row: int, variants: Sequence[Variant]) -> None:
        """Climb on from the cut of a layout, in its own variant and in others of as many chunks, as
        long as one of these gets faster and there is a budget.
        """
        best, left = found, [each for each in variants if each != found.variant]
        for variant in (found.variant, *left, found.variant):
            start = self._as_cut(best, row, variant)
            if start is None or self.budget <= 0 or self._is_ended(row, start, best.step_s):
                continue
            if self._climbed(row, start, best.step_s, self.budget) < best.step_s:
                _, faster, plan = self.faster[-1]
                assert plan is not None
                best = Timed(self._step_s(row, faster, plan.stages), best.row, faster, plan)

    def _is_ended(self, row: int, start: Timed, goal_s: float) -> bool:
        """Whether a climb from there came to an end, with nothing below the goal."""
        return self.ended.get((row, start.variant, start.plan.stages), -math.inf) >= goal_s

    def _as_cut(self, found: Timed, row: int, variant: Variant) -> Timed | None:
        """The cut of a layout in another variant, None where it does not fit or is far slower."""
        if variant == found.variant:
            return found
        problem, _ = self.problem_of(row, variant)
        plan = evaluate(problem, found.plan.stages)
        if plan is None:
            return None
        step_s = self._step_s(row, variant, plan.stages)
        near = step_s < found.step_s * NEAR
        return Timed(step_s, found.row, variant, plan) if near else None

    def _step_s(self, row: int, variant: Variant, stages: tuple[Stage, ...]) -> float:
        return self.times_of(row, variant, stages).step_s(stages)

    def _climbed(self, row: int, start: Timed, goal_s: float, budget: int) -> float:
        """Where a climb ends: the step if that is faster than the goal, else the goal."""
        problem, _ = self.problem_of(row, start.variant)
        times = self.times_of(row, start.variant, start.plan.stages)
        climb = moved_layers.MovedLayers(problem, times, budget, goal_s)
        stages, step_s = climb.best(start.plan.stages, start.step_s)
        self.simulated += climb.simulated
        self.budget -= climb.spent + costs.NEW_SHAPE * climb.actions
        if climb.spent < climb.budget:
            self.ended[row, start.variant, start.plan.stages] = goal_s
            self.ended[row, start.variant, stages] = min(step_s, goal_s)
        if step_s >= goal_s:
            return goal_s
        self.faster.append((row, start.variant, evaluate(problem, stages)))
        return step_s

    def _beside(self, beginning: Beginning) -> Iterator[Timed]:
        """The likeliest cut in each variant of several chunks that is nearly as fast, but for the
        found one: of few chunks the fastest first, then the others when they are asked for.
        """
        found, row, variants, started = beginning
        if not variants:
            return
        most = moved_layers.MOST_BALANCED // self.problem_of(row, variants[0])[0].pp

        def near_s(variant: Variant) -> float:
            return found.step_s * (NEAR_OF_FEW if variant.virtual_stages <= most else NEAR)

        def likely(variant: Variant) -> Likely:
            problem, passes = self.problem_of(row, variant)
            times_of, cuts = partial(self.times_of, row, variant), FEW
            if variant.virtual_stages > most:
                cuts = 1
            return likely_cut(problem, passes, self.known, near_s(variant), times_of, cuts)

        def timed(variant: Variant, each: Likely) -> Iterator[Timed]:
            self.work += each.work
            own = started and variant == found.variant
            known = own and each.plan and each.plan.stages == found.plan.stages
            if each.plan and not known and each.step_s < near_s(variant):
                yield Timed(each.step_s, found.row, variant, each.plan)

        fewest_first = sorted(variants, key=lambda each: each.virtual_stages)
        few = [each for each in fewest_first if each.virtual_stages <= most]
        pairs = zip(few, done_of_many(likely, few), strict=True)
        starts = [start for pair in pairs for start in timed(*pair)]
        yield from sorted(starts, key=lambda each: each.step_s)
        for pair in done_ahead(likely, fewest_first[len(few) :]):
            yield from timed(*pair)


def rows_beside(space: Space, bounds: Floats, own: int, limit_s: float) -> Iterator[int]:
    """With the degrees and micro-batch of row `own`, for each set of schedules and chunks that a
    row may have but its own, and with half and with twice as many pipeline ranks, the row with the
    smallest bound, if that is below the limit.
    """
    layouts = space.layouts
    alike, pp = bounds < limit_s, layouts.pipeline_parallel
    ranks = int(pp[own])  # packed there: twice as many are not
    for name in ALIKE:
        column = getattr(layouts, name)
        alike &= column == column[own]
    same = space.by_all_variants(np.flatnonzero(alike & (pp == ranks))) if ranks > 1 else ()
    sets = [rows for _, rows in same if own not in rows]
    sets += [np.flatnonzero(alike & (pp == n)) for n in (ranks // 2, 2 * ranks) if n > 1]
    for rows in sets:
        if len(rows):
            yield int(rows[bounds[rows].argmin()])
