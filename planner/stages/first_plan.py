"""A first plan of one layout, with a bound of what its best plan takes, without a solver.

one rank         there is nothing to cut: the one interval, priced exactly
a list of splits V = 1: those that may fit, priced. V > 1: by rule of thumb
                 (`planner.stages.heuristic`)
any split        V = 1: the shortest longest stage (`planner.stages.path.greedy_path`)
"""

from meshplan.planner.bounds.split_memory import some_mix_fits
from meshplan.planner.problem.stage_problem import StagePlan, StageProblem
from meshplan.planner.stages.heuristic import first_counts
from meshplan.planner.stages.path import Intervals, best_split, greedy_path, plan_of


def first_plan(problem: StageProblem) -> tuple[int | None, StagePlan | None]:
    """A lower bound and a plan near it; bound None if nothing fits."""
    if problem.vpp > 1:
        return _of_chunks(problem)
    intervals = Intervals(problem)
    if problem.pp == 1 or problem.splits is not None:
        plan = _of_list(intervals)
        return (plan.objective, plan) if plan else (None, None)
    slowest, plan = greedy_path(intervals)
    if plan is None:
        return None, None
    least = problem.form.weight * slowest + problem.least_work_ns
    return least + problem.least_end_ns, plan


def _of_chunks(problem: StageProblem) -> tuple[int | None, StagePlan | None]:
    plan = first_counts(problem)
    if plan is None and problem.splits and (problem.first or not some_mix_fits(problem).any()):
        return None, None
    return 0, plan


def _of_list(intervals: Intervals) -> StagePlan | None:
    if intervals.problem.pp == 1:
        return plan_of(intervals, [len(intervals.problem.pattern)])
    return best_split(intervals)
