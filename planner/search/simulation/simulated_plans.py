"""What a search under the simulation has found, and of which rows: the best plan of each kind."""

import math
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Self

import numpy as np

from meshplan.costmodels.layout import Layout, Stage
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.step.cut_times import CutTimes
from meshplan.planner.bounds.simulated import Passes
from meshplan.planner.case.host_memory import host_takes
from meshplan.planner.cuts.budget import Tally
from meshplan.planner.problem.coefficients import Priced
from meshplan.planner.problem.stage_problem import StagePlan, StageProblem, stage_problem
from meshplan.planner.processes.second_core import done_of_many
from meshplan.planner.search.closed_form.first_plans import Found
from meshplan.planner.search.found import Kind, Timed, kind_of
from meshplan.planner.search.rows.least_of_kinds import LeastOfKinds
from meshplan.planner.search.rows.rows_below import NEARLY, Source, rows_below
from meshplan.planner.space.legal_layouts import Space, Variant


class SimulatedPlans:
    """The best simulated plan of each kind that is faster than `limit_s`, and the rows that are
    left, which are numbered anew: `kept` is what they were.

    `judged` says what the whole simulation of a layout takes, infinite where it does not fit after
    all; `layout_of` makes the layout of a row, a variant and a plan.
    """

    def __init__(
        self,
        setting: Setting,
        space: Space,
        judged: Callable[[Layout], float],
        layout_of: Callable[[int, Variant, StagePlan], Layout],
        limit_s: float,
        tally: Tally,
    ) -> None:
        self.setting, self.space, self.layouts = setting, space, space.layouts
        self.judged, self.layout_of = judged, layout_of
        self.limit_s, self.tally = limit_s, tally
        self.best: dict[Kind, Timed] = {}
        self._times: dict[tuple[int, Variant], CutTimes] = {}
        self._problems: dict[tuple[int, Variant], tuple[StageProblem, Passes]] = {}

    def keep(self, source: Source) -> None:
        """Of the rows of a source those that may be nearly as fast as what is found: below
        `let_go_s`. Where priced memory is a bound for kinds of layers, prices of the `least` that
        ranks need beside it.
        """
        self.source, most_s = source, min(self.limit_s, self.best_s * NEARLY)
        self.let_go_s = most_s
        planned = [timed.row for timed in self.best.values()]
        below = rows_below(self.space, source, self.setting, most_s, planned)
        self.kept, self.passes, self.prices = below
        self.space = replace(self.space, layouts=self.layouts.take(self.kept).packed())
        self.least: Priced = self.prices
        if self.setting.has_several_kinds:
            every = np.arange(len(self.kept))
            self.least = LeastOfKinds(self.prices, self.space.layouts, self.setting, every)

    def copied(self) -> Self:
        """The same with best plans of its own: neither knows what the other finds from now on."""
        same = copy(self)
        same.best = dict(self.best)
        return same

    @property
    def best_s(self) -> float:
        """The fastest simulated step, or the limit."""
        return min([self.limit_s, *(found.step_s for found in self.best.values())])

    def ranked(self) -> list[Timed]:
        """The best of each kind, the fastest first."""
        return sorted(self.best.values(), key=lambda found: found[:2])

    def shown_below_s(self, k: int) -> float:
        """What the step of a kind must be below to be shown: nearly the best, and that of the last
        of the best `k` kinds that are known.
        """
        ranked, nearly_s = self.ranked(), self.best_s * NEARLY
        return min(nearly_s, ranked[k - 1].step_s) if len(ranked) >= k else nearly_s

    def offer(self, *found: Found) -> None:
        """Plans of the search under the closed form."""
        layouts = [self.layout_of(each.row, each.variant, each.plan) for each in found]
        for each, step_s in zip(found, done_of_many(self.judged, layouts), strict=True):
            self.tally.simulated += 1
            self._know(each.row, each.variant, each.plan, step_s)

    def kind(self, found: Timed) -> Kind:
        """Its kind."""
        return kind_of(self.layouts, found.row)

    def row_of(self, found: Timed) -> int:
        """Its row among those that are left."""
        return int(np.flatnonzero(self.kept == found.row)[0])

    def problem(self, row: int, variant: Variant) -> tuple[StageProblem, Passes]:
        """The inner problem of a row that is left, and its passes."""
        if (row, variant) not in self._problems:
            problem = stage_problem(self.space, self.prices, row, variant)
            passes = Passes.of(self.passes, np.array([row]), problem.alone)
            self._problems[row, variant] = problem, passes
        return self._problems[row, variant]

    def times_of(self, row: int, variant: Variant, stages: tuple[Stage, ...]) -> CutTimes:
        """The simulation of a row that is left, of cuts like the given one."""
        if (row, variant) not in self._times:
            layout = self.layout_of(int(self.kept[row]), variant, StagePlan(stages, 0, ()))
            priced = self.passes, row, variant.columns
            self._times[row, variant] = CutTimes(self.setting, layout, *priced)
        return self._times[row, variant]

    def judged_s(self, row: int, variant: Variant, plan: StagePlan | None) -> float:
        """`_judge` of a row that is left; infinite where nothing fits."""
        return self._judge(int(self.kept[row]), variant, plan) if plan else math.inf

    def no_mix_fits(self, row: int, variant: Variant, stages: tuple[Stage, ...]) -> bool:
        """Whether of a row that is left the host takes too little for this cut, whatever its layers
        recompute: the optimizer alone is there.
        """
        layouts = self.space.layouts
        if not layouts.optimizer_offload[row] or layouts.activation_offload[row]:
            return False
        layout = self.layout_of(int(self.kept[row]), variant, StagePlan(stages, 0, ()))
        return not host_takes(self.setting, layout)

    def _judge(self, row: int, variant: Variant, plan: StagePlan) -> float:
        """The whole simulation of a plan, which is kept if it is the best of its kind."""
        return self._know(row, variant, plan, self.judged(self.layout_of(row, variant, plan)))

    def _know(self, row: int, variant: Variant, plan: StagePlan, step_s: float) -> float:
        kind = kind_of(self.layouts, row)
        known = self.best.get(kind)
        if step_s < (known.step_s if known else self.limit_s):
            self.best[kind] = Timed(step_s, row, variant, plan)
        return step_s
