"""Solving the inner problem of one layout: a first plan with a bound, then the exact answer.

one rank                    there is nothing to cut: the one interval, priced exactly
a list of splits            V = 1: each is priced
                            V > 1: those that `planner.bounds.recompute` leaves; if few, each by its
                            rows (`planner.stages.row_delays`); the rest in the counts model.
                            Where equally many layers of each chunk recompute, each is priced
any split                   V = 1: `planner.stages.least_path`; V > 1: the counts model (CP-SAT)
"""

import math
from dataclasses import replace

import numpy as np

from meshplan.costmodels.schedule.orders import V_SHAPED
from meshplan.planner.bounds.recompute import Ranks
from meshplan.planner.bounds.split import least_of_splits
from meshplan.planner.problem.first_layers import fewest_first
from meshplan.planner.problem.stage_problem import StagePlan, StageProblem, evaluate
from meshplan.planner.stages.counts import solve_counts
from meshplan.planner.stages.cpsat import Outcome
from meshplan.planner.stages.heuristic import first_counts
from meshplan.planner.stages.least_path import solve_path
from meshplan.planner.stages.path import Intervals, best_split, greedy_path, plan_of
from meshplan.planner.stages.row_delays import answer_rows

LIMIT_S = 4.0
FEW = 8  # splits up to which each gets a model of its own
NEAR, NEAR_S = 1e-4, 1.0  # a gap, and the seconds spent at most on what is nearer than that


class Solver:
    """Solves inner problems and counts the CP-SAT models that it took.

    deadline  of `time.perf_counter`: what is not solved by then is left
    """

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self.limit_s, self.solves = limit_s, 0
        self.deadline: float | None = None
        self._last: Intervals | None = None

    def first_plan(self, problem: StageProblem) -> tuple[int | None, StagePlan | None]:
        """A lower bound and a plan near it, without CP-SAT; bound None if nothing fits."""
        if problem.vpp > 1:
            return 0, first_counts(problem)
        intervals = self._intervals(problem)
        plan = self._without_solver(intervals)
        if problem.pp == 1 or problem.splits is not None:
            return (plan.objective, plan) if plan else (None, None)
        slowest, plan = greedy_path(intervals)
        if plan is None:
            return None, None
        least = problem.form.weight * slowest + problem.least_work_ns
        return least + problem.least_end_ns, plan

    def solve(self, problem: StageProblem, below: int | None) -> Outcome:
        """The best plan with an objective below `below` (None: any)."""
        if problem.vpp == 1 and (problem.pp == 1 or problem.splits is not None):
            plan = self._without_solver(self._intervals(problem))
            if plan is not None and (below is None or plan.objective < below):
                return Outcome("OPTIMAL", plan, plan.objective)
            return Outcome("INFEASIBLE", None, below if plan else None)
        if problem.vpp == 1:
            return solve_path(self._intervals(problem), below, self.deadline)
        return _one_rule(problem, below) if problem.first else self._solve_chunks(problem, below)

    def _solve_chunks(self, problem: StageProblem, below: int | None) -> Outcome:
        """Several chunks per rank: bounds first; a model of everything for what these leave."""
        if problem.splits is None:
            self.solves += 1
            return solve_counts(problem, below, self.limit_s)
        ranks = Ranks(problem, below)
        left, best = ranks.left(), None
        if len(left) <= FEW and problem.schedule not in V_SHAPED:
            for pair, known in left.items():
                self.solves += 1
                bound, plan = answer_rows(ranks, pair, below)
                left[pair] = max(known, bound)
                if plan is not None and (below is None or plan.objective < below):
                    best, below = plan, plan.objective
        left = {pair: bound for pair, bound in left.items() if below is None or bound < below}
        left = {pair: bound for pair, bound in left.items() if math.isfinite(bound)}
        outcome = Outcome("INFEASIBLE", None, below)
        if left:
            self.solves += 1
            narrowed = replace(problem, splits=tuple(ranks.splits[pair] for pair in left))
            least = int(min(left.values()))
            near = best is not None and best.objective <= least * (1 + NEAR)
            limit_s = min(NEAR_S, self.limit_s) if near else self.limit_s
            outcome = solve_counts(narrowed, below, limit_s, least)
        if best is None or outcome.plan is not None:
            return outcome
        if outcome.status == "INFEASIBLE":
            return Outcome("OPTIMAL", best, best.objective)
        return Outcome("FEASIBLE", best, outcome.bound)

    def _without_solver(self, intervals: Intervals) -> StagePlan | None:
        problem = intervals.problem
        if problem.pp == 1:
            return plan_of(intervals, [len(problem.pattern)])
        return best_split(intervals) if problem.splits is not None else None

    def _intervals(self, problem: StageProblem) -> Intervals:
        """The interval prices of `problem`, kept while the same layout is asked again."""
        if self._last is None or self._last.problem.key != problem.key:
            self._last = Intervals(problem)
        return self._last


def _one_rule(problem: StageProblem, below: int | None) -> Outcome:
    """Several chunks per rank, of each of which equally many layers recompute: split by split, the
    smallest bound first.
    """
    limit, best = None if below is None else np.array([below]), None
    pairs, least = least_of_splits(problem.alone, limit)
    for pair in np.argsort(least, kind="stable").tolist():
        if below is not None and least[pair] >= below:
            break
        stages = fewest_first(problem, (problem.splits or ())[pairs.split[pair]])
        plan = evaluate(problem, stages) if stages else None
        if plan is not None and (below is None or plan.objective < below):
            best, below = plan, plan.objective
    if best is None:
        return Outcome("INFEASIBLE", None, below)
    return Outcome("OPTIMAL", best, best.objective)
