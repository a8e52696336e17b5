"""Where moves of layers begin: cuts of several chunks near a layout, one for each way to run it.

The found cut, and the likeliest of its other schedules and numbers of chunks, the fewest first.
What is faster than the layout is offered to the proof; nothing is proved of the others.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np

from meshplan.costmodels.layout import Stage
from meshplan.costmodels.layouts import Floats, Layouts
from meshplan.costmodels.step.cut_times import CutTimes
from meshplan.planner.bounds.simulated import Passes
from meshplan.planner.problem.stage_problem import StagePlan, StageProblem, evaluate
from meshplan.planner.search import budget as costs
from meshplan.planner.search import moved_layers
from meshplan.planner.search.found import Timed
from meshplan.planner.search.known_chains import KnownChains
from meshplan.planner.search.second_core import done_ahead
from meshplan.planner.search.simulated_cuts import Likely, likely_cut
from meshplan.planner.space.legal_layouts import Variant

ALIKE = (
    "tensor_parallel", "context_parallel", "expert_parallel", "expert_tensor_parallel",
    "micro_batch_size", "zero_stage",
)  # fmt: skip
NEAR = 1.05  # times the step of the layout: cuts where moves begin


@dataclass(slots=True)
class NearCuts:
    """Moves of layers that begin near a layout, and what they ask of the proof.

    problem_of  the inner problem and passes of a row under a variant
    times_of    its simulation, of cuts like the given one
    offer       keeps a plan if it is the best of its kind
    budget      of the simulation, in played actions; what is left of it
    """

    problem_of: Callable[[int, Variant], tuple[StageProblem, Passes]]
    times_of: Callable[[int, Variant, tuple[Stage, ...]], CutTimes]
    known: KnownChains
    offer: Callable[[int, Variant, StagePlan | None], float]
    budget: int = moved_layers.BUDGET

    def look(
        self,
        found: Timed,
        row: int,
        variants: Sequence[Variant],
        tally: costs.Tally,
        started: bool = True,
    ) -> None:
        """Climb from the likeliest cut of each variant of `row`, and from `found` itself, until the
        budget is spent; what was played is charged to `tally`.

        started  whether `row` is the row of `found`; else `found` only says how fast to be
        """
        starts = [found] if started and found.variant.virtual_stages > 1 else []
        for start in chain(starts, self._beside(found, row, variants, tally, started)):
            problem, _ = self.problem_of(row, start.variant)
            times = self.times_of(row, start.variant, start.plan.stages)
            climb = moved_layers.MovedLayers(problem, times, self.budget)
            stages, step_s = climb.best(start.plan.stages, start.step_s)
            tally.simulated += climb.simulated
            self.budget -= climb.spent + costs.NEW_SHAPE * climb.actions
            if step_s < found.step_s:
                self.offer(row, start.variant, evaluate(problem, stages))
            if self.budget <= 0:
                return

    def _beside(
        self, found: Timed, row: int, variants: Sequence[Variant], tally: costs.Tally, started: bool
    ) -> Iterator[Timed]:
        """The likeliest cut in each other variant of several chunks, if it is nearly as fast."""
        limit_s = found.step_s * NEAR

        def likely(variant: Variant) -> Likely:
            times_of = partial(self.times_of, row, variant)
            return likely_cut(*self.problem_of(row, variant), self.known, limit_s, times_of)

        fewest_first = sorted(variants, key=lambda each: each.virtual_stages)
        for variant, (step_s, plan, work) in done_ahead(likely, fewest_first):
            tally.left -= work
            if plan and not (started and variant == found.variant) and step_s < limit_s:
                yield Timed(step_s, found.row, variant, plan)


def rows_beside(layouts: Layouts, bounds: Floats, own: int, limit_s: float) -> list[int]:
    """Of half and of twice the pipeline ranks of row `own`, with the same other degrees and
    micro-batch, the row with the smallest bound, if that is below the limit.
    """
    alike, pp, found = bounds < limit_s, layouts.pipeline_parallel, list[int]()
    for name in ALIKE:
        column = getattr(layouts, name)
        alike &= column == column[own]
    for ranks in (pp[own] // 2, 2 * pp[own]):
        some = np.flatnonzero(alike & (pp == ranks))
        if ranks > 1 and len(some):
            found.append(int(some[bounds[some].argmin()]))
    return found
