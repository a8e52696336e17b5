"""Cuts of the fastest kinds tried on rows of other kinds, where an engine cuts anywhere.

Layouts of several chunks per rank are solved over a list of cuts, and moves of layers find others
for the few kinds where they begin. Rows of equal ranks, chunks and micro-batches run the same
actions in the same order. So a cut is about as good for one of them as for another: its step is to
the bound of its row as on the other one. Where that is faster than the best of a kind, the cut is
simulated on its row.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np

from meshplan.costmodels.layout import Stage
from meshplan.costmodels.layouts import Floats
from meshplan.planner.cuts import budget as costs
from meshplan.planner.problem.stage_problem import evaluate
from meshplan.planner.search.found import SETTLED, Kind, Timed, kind_of
from meshplan.planner.search.simulation.simulated_plans import SimulatedPlans

SOURCES, MOST_TRIED = 3, 8  # kinds whose cuts are tried; rows for each
LIKELY = 1.01  # times its limit: what a step is expected to take at most where it is tried


class CarriedCuts:
    """Cuts carried between the kinds of `plans`, each once to a row; `bounds` of the rows."""

    def __init__(self, plans: SimulatedPlans, bounds: Floats) -> None:
        self.plans, self.bounds = plans, bounds
        self._tried = set[tuple[int, str, tuple[Stage, ...]]]()

    def carry(self, most_s: Callable[[], float]) -> None:
        """Keep what is faster than the best of its kind and than `most_s`."""
        if self.plans.space.legality.uneven_stages != "free":
            return
        chunked = [each for each in self.plans.ranked() if each.variant.virtual_stages > 1]
        for source in chunked[:SOURCES]:
            for row in self._rows(source, most_s())[:MOST_TRIED]:
                if not self.plans.tally.late:
                    self._try(source, row, most_s())

    def _rows(self, source: Timed, most_s: float) -> list[int]:
        """Rows that run the same actions and are expected to be faster than the best of their kind,
        the fastest first.
        """
        layouts, own = self.plans.space.layouts, self.plans.row_of(source)
        alike = self.bounds * (source.step_s / self.bounds[own]) < most_s * LIKELY
        alike &= self.bounds < most_s
        for name in ("pipeline_parallel", "num_micro_batches"):
            column = getattr(layouts, name)
            alike &= column == column[own]
        alike[own] = False
        rows = np.flatnonzero(alike)
        rows = rows[np.argsort(self.bounds[rows], kind="stable")]
        expected_s = self.bounds * (source.step_s / self.bounds[own])
        return [row for row in rows.tolist() if expected_s[row] < LIKELY * self._limit_s(row, most_s)]

    def _limit_s(self, row: int, most_s: float) -> float:
        own = self.plans.best.get(kind_of(self.plans.space.layouts, row))
        return min(most_s, own.step_s if own else math.inf) * SETTLED

    def _try(self, source: Timed, row: int, most_s: float) -> None:
        """Simulate the cut of a source on a row that is run in the same way."""
        plans, variant, stages = self.plans, source.variant, source.plan.stages
        key = row, variant, stages
        if key in self._tried or variant not in plans.space.variants(row):
            return
        self._tried.add(key)
        problem, _ = plans.problem(row, variant)
        plan = evaluate(problem, stages)
        if plan is not None:
            plans.tally.simulated += 1
            if plans.times_of(row, variant, stages).step_s(stages) < self._limit_s(row, most_s):
                plans.judged_s(row, variant, plan)
