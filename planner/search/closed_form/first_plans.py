"""First plans of a space under the closed form: where the search under the simulation begins.

Likely kinds come first (`planner.search.closed_form.likely_seeds`). Only where none of these has a
plan are rows planned one after the other in the order of their bounds (`planner.bounds.inner`),
some together, until one of them has a plan: the event simulation bounds everything anew. If none of
all rows has one, nothing that the closed form cuts fits.
"""

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layouts import Ints
from meshplan.planner.problem.coefficients import NS_PER_S
from meshplan.planner.problem.stage_problem import StagePlan, stage_problem
from meshplan.planner.processes.second_core import done_of_many
from meshplan.planner.search.found import Kind, kind_of
from meshplan.planner.search.progress import Progress, Telling
from meshplan.planner.search.rows.row_prices import AHEAD, RowPrices
from meshplan.planner.space.legal_layouts import Space, Variant
from meshplan.planner.stages.first_plan import first_plan

TOGETHER = 16  # rows that are planned before it is asked whether one of them has a plan


class Found(NamedTuple):
    """The best plan known of one kind."""

    objective: int
    row: int
    variant: Variant
    plan: StagePlan


class FirstPlans:
    """The best first plan of each kind.

    open          a layout that was planned may have a plan that was not found
    settles_all   no cut that was not looked at may fit, where there is no plan
    solves        CP-SAT models, of cuts that no list has
    """

    def __init__(
        self,
        space: Space,
        coefficients: RowPrices,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self.space, self.coefficients = space, coefficients
        self.tell = Telling(progress)
        self.candidates = space.layouts_in(np.arange(len(space.layouts)))
        self.best: dict[Kind, Found] = {}
        self.solves = 0
        self.open, self.settles_all = False, True

    @property
    def rows(self) -> Ints:
        """The rows that may fit, of those that are priced, in order of their bounds."""
        return self.coefficients.rows

    def least_ns(self) -> float:
        """A bound of all rows, infinite where none may fit."""
        self.coefficients.settle(1)
        return float(self.coefficients.bounds[self.rows[:1]].min(initial=math.inf))

    @property
    def misfits(self) -> int:
        """Layouts of priced rows that do not fit."""
        whole = self.space.layouts_in(self.coefficients.priced)
        return whole - self.space.layouts_in(self.rows)

    @property
    def cutoff(self) -> int | None:
        """The objective of the best plan so far, which a layout must be below."""
        return min((found.objective for found in self.best.values()), default=None)

    def ranked(self) -> list[Found]:
        """The best plan of each kind, the fastest first."""
        return sorted(self.best.values(), key=lambda found: found[:2])

    def plan(self, layouts: Sequence[tuple[int, Variant]]) -> None:
        """Offer a first plan of each layout, a row and its variant, that has one."""

        def planned(layout: tuple[int, Variant]) -> tuple[int | None, StagePlan | None]:
            return first_plan(stage_problem(self.space, self.coefficients, *layout))

        for layout, found in zip(layouts, done_of_many(planned, layouts), strict=True):
            least_ns, plan = found
            self.open |= plan is None and least_ns is not None
            self.offer(*layout, plan)

    def offer(self, row: int, variant: Variant, plan: StagePlan | None) -> None:
        """Keep a plan of a layout, if there is one, where it is the best of its kind."""
        kind = kind_of(self.space.layouts, row)
        known = self.best.get(kind)
        if plan is not None and (known is None or plan.objective < known.objective):
            self.best[kind] = Found(plan.objective, row, variant, plan)

    def find(self, deadline: float | None = None, below_ns: float = math.inf) -> bool:
        """Plan rows whose bound is below a limit until one has a plan; False if time or the user
        ended it.
        """
        first = 0
        try:
            while not self.best and len(rows := self._next_rows(first)):
                least_ns = float(self.coefficients.bounds[rows[0]])
                if least_ns >= below_ns:
                    return True
                if deadline is not None and time.perf_counter() >= deadline:
                    return False
                self.tell(partial(Progress, None, least_ns / NS_PER_S, self.candidates, 0))
                self.plan([(row, way) for row in rows.tolist() for way in self.space.variants(row)])
                first += len(rows)
        except KeyboardInterrupt:
            return False
        return True

    def _next_rows(self, first: int) -> Ints:
        """The next rows in order, whose prices are held."""
        self.coefficients.settle(first + TOGETHER)
        rows = self.rows[first : first + TOGETHER]
        if not self.coefficients.holds(rows):
            self.coefficients.hold(self.rows[first : first + AHEAD])
        return rows
