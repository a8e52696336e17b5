"""Any cut of one layout that fits, listed or not.

A list of cuts is made for short steps (`planner.space.stage_splits`); another may need less memory.
"""

from dataclasses import replace

from meshplan.planner.problem.stage_problem import StagePlan, StageProblem
from meshplan.planner.stages.counts import solve_counts
from meshplan.planner.stages.first_plan import first_plan

LIMIT_S = 1.0  # deterministic seconds


def any_cut(problem: StageProblem, limit_s: float = LIMIT_S) -> tuple[StagePlan | None, bool]:
    """A plan of any cut, and whether there is none where none is found."""
    free = replace(problem, splits=None)
    if problem.vpp == 1:
        return first_plan(free)[1], True
    return solve_counts(free, limit_s)
