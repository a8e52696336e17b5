"""Cuts of the fastest kinds tried on rows of other kinds, where an engine cuts anywhere.

Layouts of several chunks per rank are solved over a list of cuts, and moves of layers find others
for the few kinds where they begin. Rows of equal ranks, chunks and micro-batches run the same
actions in the same order. So a cut is about as good for one of them as for another: its step is
expected to be to the bound of its row what it is on the other one. Where that is faster than the
best of its kind, it is simulated. Nothing is proved.
"""

import math
from itertools import islice

import numpy as np

from meshplan.costmodels.layout import Stage
from meshplan.planner.cuts import budget as costs
from meshplan.planner.cuts.known_chains import shape_of
from meshplan.planner.problem.stage_problem import StagePlan, evaluate
from meshplan.planner.search.found import SETTLED, Timed, kind_of
from meshplan.planner.search.rows.rows_below import NEARLY
from meshplan.planner.search.simulation.simulated import Simulated
from meshplan.planner.space.legal_layouts import Variant

SOURCES, MOST_TRIED = 3, 8  # kinds whose cuts are tried; rows for each of them
LIKELY = 1.005  # times its limit: what a step is expected to take at most where it is tried
WORK = 500_000  # units of `planner.cuts.budget`, each time


class CarriedCuts:
    """Cuts carried between the kinds of `proof`, each once to a row; `left` of the budget."""

    def __init__(self, proof: Simulated) -> None:
        self.proof, self.bounds, self.left = proof, proof.open.row_bounds, 0
        self._tried = set[tuple[int, Variant, tuple[Stage, ...]]]()

    def carry(self, k: int) -> None:
        """Keep what is faster than the best of its kind and than the slowest of the best `k`."""
        proof, self.left = self.proof, WORK
        if proof.space.legality.uneven_stages != "free":
            return
        left = [each for each in proof.ranked() if each.row in proof.kept]
        chunked = (each for each in left if each.variant.virtual_stages > 1)
        for source in islice(chunked, SOURCES):
            for row in self._rows(source, k):
                if self.left > 0 and not proof.tally.late:
                    self._try(source, row, self._limit_s(row, k))

    def _rows(self, source: Timed, k: int) -> list[int]:
        """Rows that run the same actions and are expected to be faster than the best of their kind,
        the fastest first.
        """
        proof, bounds, own = self.proof, self.bounds, self.proof.row_of(source)
        longer = source.step_s / bounds[own]
        alike = bounds * longer < self._most_s(k) * LIKELY
        for name in ("pipeline_parallel", "num_micro_batches"):
            column = getattr(proof.space.layouts, name)
            alike &= column == column[own]
        alike[own] = False
        rows = np.flatnonzero(alike)
        rows = rows[np.argsort(bounds[rows], kind="stable")]
        likely = (
            row for row in rows.tolist() if bounds[row] * longer < self._limit_s(row, k) * LIKELY
        )
        return list(islice(likely, MOST_TRIED))

    def _most_s(self, k: int) -> float:
        ranked = self.proof.ranked()
        return ranked[k - 1].step_s if len(ranked) >= k else self.proof.best_s * NEARLY

    def _limit_s(self, row: int, k: int) -> float:
        own = self.proof.best.get(kind_of(self.proof.space.layouts, row))
        return min(self._most_s(k), own.step_s if own else math.inf) * SETTLED

    def _try(self, source: Timed, row: int, limit_s: float) -> None:
        """Simulate the cut of a source on a row that may be run in the same way."""
        proof, variant, stages = self.proof, source.variant, source.plan.stages
        key = row, variant, stages
        if key in self._tried or variant not in proof.space.variants(row):
            return
        self._tried.add(key)
        self.left -= costs.OPENED
        plan = evaluate(proof.problem(row, variant)[0], stages)
        if plan is not None and self._step_s(row, variant, plan) < limit_s:
            proof.judged_s(row, variant, plan)

    def _step_s(self, row: int, variant: Variant, plan: StagePlan) -> float:
        before = self.proof.tally.left
        self.proof.tally.spend(shape_of(self.proof.problem(row, variant)[0]))
        self.left -= before - self.proof.tally.left
        return self.proof.times_of(row, variant, plan.stages).step_s(plan.stages)
