"""First plans of whole questions, and what enumerating every plan finds."""

from collections.abc import Callable, Iterator

from meshplan.costmodels.layout import Stage
from meshplan.planner.problem.stage_problem import (
    StageProblem,
    chunk_times_ns,
    evaluate,
    modes_of,
    objective_of,
)
from meshplan.planner.search.closed_form.first_plans import FirstPlans
from meshplan.planner.search.rows.priced_space import Pricer, Question, space_of
from meshplan.planner.search.rows.row_prices import RowPrices

Plans = Callable[[StageProblem], Iterator[tuple[Stage, ...]]]


def first_plans(asked: Question, price: Pricer) -> FirstPlans | None:
    """The first that are found, None where no layout is legal."""
    space = space_of(asked)
    if not len(space.layouts):
        return None
    run = FirstPlans(space, RowPrices(asked, space, price))
    run.find()
    return run


def has_plan(asked: Question, price: Pricer) -> bool:
    """Whether a layout has a first plan."""
    run = first_plans(asked, price)
    return run is not None and bool(run.best)


def least_ns(problem: StageProblem, every_plan: Plans, best: int | None = None) -> int | None:
    """The best objective of every plan and `best`, None if there is none."""
    for stages in every_plan(problem):
        times = chunk_times_ns(problem, stages, list(map(modes_of, stages)))
        if best is not None and objective_of(problem, times, 0) >= best:
            continue  # whether it fits takes longer to find
        plan = evaluate(problem, stages)
        if plan is not None and (best is None or plan.objective < best):
            best = plan.objective
    return best
