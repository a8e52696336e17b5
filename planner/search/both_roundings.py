"""Searches whose words hold to the byte, though they sum memory in whole KiB.

    rounded down   nothing that fits is left out, so bounds and refusals hold; what is found may
                   need some KiB too many
    rounded up     what is found fits; something that fits may be left out

The first is asked. Where all that it finds fits by its exact bytes, which is nearly always, its
answer is the answer. Else the second is asked too: what it finds is told, under the bound of the
first.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from meshplan.costmodels.layout import Layout
from meshplan.planner.problem.coefficients import KIB
from meshplan.planner.search.faster import Faster, faster_than
from meshplan.planner.search.found import SETTLED
from meshplan.planner.search.progress import Progress
from meshplan.planner.search.result import NoLayoutFits, SearchEnded, SearchResult, none_fits
from meshplan.planner.search.rows.priced_space import Question
from meshplan.planner.search.search import search


class Simulation(Protocol):
    """The step of a layout whose ranks may fill `more_bytes` than a plan may, infinite where it
    does not fit in these.
    """

    def __call__(self, layout: Layout, more_bytes: float = 0.0, /) -> float: ...


def search_exactly(
    question: Question,
    simulation: Simulation,
    *,
    k: int,
    time_limit_s: float | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> SearchResult:
    """`search.search`; raises `NoLayoutFits`."""
    started = time.perf_counter()
    found = search(
        _rounded_down(question), _tolerant(simulation, question),
        k=k, time_limit_s=time_limit_s, progress=progress,
    )  # fmt: skip
    if all(simulation(each.layout) == each.step_time_s for each in found.solutions):
        return found
    left_s = None if time_limit_s is None else time_limit_s - (time.perf_counter() - started)
    try:
        fits = search(question, simulation, k=k, time_limit_s=left_s, progress=progress)
    except SearchEnded:
        raise
    except NoLayoutFits:
        raise none_fits(question, proved=False) from None
    return _under(fits, found)


def faster_exactly(
    question: Question,
    simulation: Simulation,
    limit_s: float,
    budget: int,
    deadline: float | None = None,
) -> Faster:
    """`faster.faster_than`."""
    found = faster_than(
        _rounded_down(question), _tolerant(simulation, question), limit_s, budget, deadline
    )
    if found.layout is None or simulation(found.layout) == found.step_s:
        return found
    left = max(0, budget - found.work)
    fits = faster_than(question, simulation, limit_s, left, deadline)
    least_s = min(fits.bound_s, found.bound_s)
    return fits._replace(bound_s=least_s, work=fits.work + found.work)


def _rounded_down(question: Question) -> Question:
    return replace(question, rounds_up=False)


def _tolerant(simulation: Simulation, question: Question) -> Callable[[Layout], float]:
    """`simulation` of layouts of `question` that fit when rounded down."""
    return lambda layout: simulation(layout, rounding_bytes(question, layout))


def rounding_bytes(question: Question, layout: Layout) -> float:
    """What a rank's memory loses at most by rounding down: each layer and end has states, what the
    update holds, and what is saved of no more than all micro-batches; a transient, and what is
    fixed.
    """
    parts = question.model.num_layers + 2
    return float(KIB * (parts * (2 + layout.num_micro_batches(question.training)) + 2))


def _under(result: SearchResult, other: SearchResult) -> SearchResult:
    """`result` with no more proved than `other`, of a space that holds all of it, says."""
    least_s = min(result.bound_s, other.bound_s)
    best_s = result.solutions[0].step_time_s
    solutions = tuple(
        replace(
            each,
            proved=each.proved and each.step_time_s * SETTLED <= least_s,
            kind_bound_s=None if each.kind_bound_s is None else min(each.kind_bound_s, least_s),
        )
        for each in result.solutions
    )
    kinds_s = None if result.kinds_bound_s is None else min(result.kinds_bound_s, least_s)
    return replace(
        result,
        status="OPTIMAL" if least_s >= best_s * SETTLED else "FEASIBLE",
        solutions=solutions,
        bound_s=least_s,
        listed_bound_s=min(result.listed_bound_s, other.listed_bound_s),
        kinds_bound_s=kinds_s,
        open_kinds=None,
        rest_bound_s=None,
        gap=1 - least_s / best_s,
        wall_s=result.wall_s + other.wall_s,
    )
