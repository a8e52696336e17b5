"""What a search answers with, or that nothing fits."""

import math
import time
from typing import Literal

from meshplan.costmodels.layout import Layout, check_layout
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.planner.problem.coefficients import reserved_bytes
from meshplan.planner.search.closed_form.first_plans import FirstPlans, Found
from meshplan.planner.search.found import Kind, Timed
from meshplan.planner.search.row_layout import layout_of_row
from meshplan.planner.search.rows.priced_space import Question
from meshplan.planner.space.legal_layouts import Space
from meshplan.planner.space.words import Cuts, bounds_memory


class NoLayoutFits(Exception):
    """No legal layout of the question fits; `planner.search.footprint.explain` says what would.

    proved  False: none was found that fits, and something that may fit was left open
    """

    def __init__(self, said: str, *, proved: bool = True) -> None:
        super().__init__(said)
        self.proved = proved


ENDED = "the search ended before it found a layout that fits; with more time it may find one"


class SearchEnded(NoLayoutFits):
    """The time limit or Ctrl-C came before any layout was found; one may fit."""

    def __init__(self, said: str = ENDED) -> None:
        super().__init__(said, proved=False)


@dataclass(frozen=True, slots=True)
class Solution:
    """One layout with its best cut into stages.

    step_time_s   under the event simulation
    peak_bytes    reserved, by pipeline rank
    proved        no layout that should precede it was left open
    kind_bound_s  no layout of the same kind (tp, cp, pp, ep) is faster, however it is cut; None
                  where that is not known
    """

    layout: Layout
    step_time_s: float
    peak_bytes: tuple[float, ...]
    proved: bool
    kind_bound_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """How a search ended.

    price        what steps were compared by
    status       OPTIMAL when every layout of the space was solved, infeasible or bounded away
    cuts         listed: of layouts of several chunks per rank that may be faster those of a list;
                 runners-up listed: the same of those that may be faster than a solution but the
                 first
    bound_s      nothing in the space is faster, however it is cut; gap = 1 - bound_s / best
    listed_bound_s      nothing is faster that is cut as a list says
    kinds_bound_s       nothing is faster that is of a kind that `solutions` leaves out, or of one
                        that it has, but run otherwise, of listed cuts; None where only the best was
                        looked for
    open_kinds   kinds that `solutions` leaves out and that may be faster than the last of them,
                 however they are cut, with bounds, the least first; None as above, and where a
                 time limit or a bound of memory leaves kinds out
    rest_bound_s        no kind is faster that is in neither, of what is faster than the last of
                        `solutions`; None as `open_kinds`
    candidates   legal layouts (all axes but the cut into stages)
    priced       rows that the cost model priced, or those busy for too long were bounded by; their
                 schedules and chunks share a price
    misfits      layouts of priced rows dropped by memory
    simulated    cuts into stages that were timed by the event simulation
    all_degrees  degrees of which nothing fits by a bound of their memory were settled, too
    dropped      rows dropped before pricing, by rule
    whole_space  False where the time limit ended the list of the space
    """

    price: Literal["event simulation"]
    status: Literal["OPTIMAL", "FEASIBLE"]
    cuts: Cuts
    solutions: tuple[Solution, ...]
    bound_s: float
    listed_bound_s: float
    kinds_bound_s: float | None = None
    open_kinds: tuple[tuple[Kind, float], ...] | None = None
    rest_bound_s: float | None = None
    gap: float
    candidates: int
    priced: int
    misfits: int
    cpsat_solves: int
    simulated: int
    wall_s: float
    dropped: dict[str, int]
    all_degrees: bool = True
    whole_space: bool = True


def nothing_fits(
    question: Question,
    run: FirstPlans,
    open_s: float = math.inf,
    deadline: float | None = None,
) -> NoLayoutFits:
    """`open_s`: a bound of what was not looked at, infinite where there is nothing. What a passed
    `deadline` left open may fit.
    """
    settled = math.isinf(open_s) and run.settles_all and not run.space.ended
    settled &= not bounds_memory(question.engine.legality, question.pins)
    if not settled and deadline is not None and time.perf_counter() >= deadline:
        return SearchEnded()
    return none_fits(question, proved=settled)


def none_fits(question: Question, *, proved: bool) -> NoLayoutFits:
    """The refusal of `question`, or that nothing was found."""
    which = "fits" if proved else "was found that fits"
    gpus = question.counted(question.gpus)
    return NoLayoutFits(f"no layout of {question.model.name} {which} on {gpus}", proved=proved)


def least_known(run: FirstPlans, *bounds: float) -> float:
    """The least of `bounds`: 0 where rows are not listed, of which no bound is known."""
    return 0.0 if run.space.ended else min(bounds)


def result_of(
    run: FirstPlans,
    solutions: tuple[Solution, ...],
    bound_s: float,
    started: float,
    every_cut_s: float,
    simulated: int,
) -> SearchResult:
    """What was found and what is proved about it."""
    best_s, least_s = solutions[0].step_time_s, min(bound_s, every_cut_s)
    return SearchResult(
        price="event simulation",
        status="OPTIMAL" if least_s >= best_s else "FEASIBLE",
        cuts="all" if math.isinf(every_cut_s) else "listed",
        solutions=solutions,
        bound_s=least_s,
        listed_bound_s=bound_s,
        gap=1 - least_s / best_s if best_s else 0.0,
        candidates=run.candidates,
        priced=len(run.space.layouts),
        misfits=run.misfits,
        cpsat_solves=run.solves,
        simulated=simulated,
        wall_s=time.perf_counter() - started,
        dropped=run.space.dropped,
        whole_space=not run.space.ended,
    )


def solution_of(
    question: Question, space: Space, found: Found | Timed, step_s: float, *, proved: bool
) -> Solution:
    """The layout of what was found; raises `InvalidLayout` as for one that a user states."""
    layout = layout_of_row(space.layouts, found.row, found.variant, found.plan)
    check_layout(layout, space.model, question.training)
    return Solution(layout, step_s, tuple(map(reserved_bytes, found.plan.peak_kib)), proved)
