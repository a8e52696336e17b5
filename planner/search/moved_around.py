"""Where the engine cuts anywhere, and a list of cuts holds not all: what moves of layers lead to
(`planner.search.moved_layers`), from the cut of several chunks that was found and from the
likeliest of its row's other schedules and chunks, the fewest first.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain

from meshplan.costmodels.layout import Stage
from meshplan.costmodels.step.cut_times import CutTimes
from meshplan.planner.bounds.simulated import Passes
from meshplan.planner.problem.stage_problem import StagePlan, StageProblem, evaluate
from meshplan.planner.search import budget as costs
from meshplan.planner.search import moved_layers
from meshplan.planner.search.found import Timed
from meshplan.planner.search.open_layouts import OpenLayouts
from meshplan.planner.search.rows_below import NEARLY
from meshplan.planner.search.second_core import done_ahead
from meshplan.planner.search.simulated_cuts import Likely, likely_cut
from meshplan.planner.space.legal_layouts import Variant


class MovedAround:
    """Around a plan of a row of `layouts`: what `problem_of` and `times_of` say of a row under a
    variant is looked at, and what may be faster is handed to `judged`.
    """

    def __init__(
        self,
        layouts: OpenLayouts,
        tally: costs.Tally,
        problem_of: Callable[[int, Variant], tuple[StageProblem, Passes]],
        times_of: Callable[[int, Variant, tuple[Stage, ...]], CutTimes],
        judged: Callable[[int, Variant, StagePlan | None], float],
    ) -> None:
        self.layouts, self.tally = layouts, tally
        self.problem_of, self.times_of, self.judged = problem_of, times_of, judged

    def look(self, found: Timed, row: int) -> None:
        """Around `found`, which is the plan of `row`."""
        budget = moved_layers.BUDGET
        starts = [found] if found.variant.virtual_stages > 1 else []
        for start in chain(starts, self._beside(found, row)):
            problem, _ = self.problem_of(row, start.variant)
            times = self.times_of(row, start.variant, start.plan.stages)
            climb = moved_layers.MovedLayers(problem, times, budget)
            stages, step_s = climb.best(start.plan.stages, start.step_s)
            self.tally.simulated += climb.simulated
            budget -= climb.spent + costs.NEW_SHAPE * climb.actions
            if step_s < found.step_s:
                self.judged(row, start.variant, evaluate(problem, stages))
            if budget <= 0:
                return

    def _beside(self, found: Timed, row: int) -> Iterator[Timed]:
        """The likeliest cut in each other variant of several chunks, if it is nearly as fast."""
        known, limit_s = self.layouts.chains, found.step_s * NEARLY

        def likely(variant: Variant) -> Likely:
            times_of = partial(self.times_of, row, variant)
            return likely_cut(*self.problem_of(row, variant), known, limit_s, times_of)

        variants = sorted(self.layouts.space.variants(row), key=lambda each: each.virtual_stages)
        for variant, (step_s, plan, work) in done_ahead(likely, variants):
            self.tally.left -= work
            if plan and variant != found.variant and step_s < limit_s:
                yield Timed(step_s, found.row, variant, plan)
