"""Searches whose words hold to the byte, though they sum memory in whole KiB.

    rounded down   nothing that fits is left out, so bounds and refusals hold; what is found may
                   need some KiB too many
    rounded up     what is found fits; something that fits may be left out

The first is asked. Where all that it finds fits by its exact bytes, which is nearly always, its
answer is the answer. Else the second is asked too, unless Ctrl-C ended the first, or its time did
and something of it fits. The answer is the best of both that fits, of each kind (tp, cp, pp, ep),
under the bounds of the first.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol, get_args

from meshplan.costmodels.layout import Layout
from meshplan.planner.problem.coefficients import KIB
from meshplan.planner.search.ctrl_c import hearing_ctrl_c
from meshplan.planner.search.faster import Faster, faster_than
from meshplan.planner.search.found import SETTLED, Kind, kind_of_layout
from meshplan.planner.search.progress import Progress
from meshplan.planner.search.result import (
    NoLayoutFits,
    SearchEnded,
    SearchResult,
    Solution,
    none_fits,
)
from meshplan.planner.search.rows.priced_space import Question
from meshplan.planner.search.search import search
from meshplan.planner.space.words import Cuts


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
    time_limit_s: float | None,
    progress: Callable[[Progress], None] | None = None,
) -> SearchResult:
    """`search.search`; raises `NoLayoutFits`."""
    started = time.perf_counter()
    told = progress and _Told(progress, simulation)
    with hearing_ctrl_c() as heard:
        found = search(
            _rounded_down(question), _tolerant(simulation, question),
            k=k, time_limit_s=time_limit_s, progress=told,
        )  # fmt: skip
    fit = [each for each in found.solutions if simulation(each.layout) == each.step_time_s]
    if len(fit) == len(found.solutions):
        return found
    if heard and not fit:
        raise SearchEnded()
    spent_s = time.perf_counter() - started
    left_s = None if time_limit_s is None else max(0.0, time_limit_s - spent_s)
    if heard or (fit and left_s == 0.0):
        return _with(found, fit)
    try:
        other = search(question, simulation, k=k, time_limit_s=left_s, progress=told)
    except NoLayoutFits as error:
        if fit:
            return _with(replace(found, wall_s=time.perf_counter() - started), fit)
        if isinstance(error, SearchEnded):
            raise
        raise none_fits(question, proved=False) from None
    return _with(_counting(found, other), _best_of_kinds([*fit, *other.solutions])[:k])


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
    """What a rank's memory loses at most by rounding down, a KiB for each number that is rounded
    (`planner.problem.stage_problem.peak_kib`): of each layer and end its states, gradients that
    wait or what the update holds, and what is saved of no more than all micro-batches; a
    transient, what zero-bubble schedules put off beside it, and what is fixed.
    """
    of_a_part = 2 + layout.num_micro_batches(question.training)
    return float(KIB * ((question.model.num_layers + 2) * of_a_part + 3))


class _Told:
    """`listener` is told of one fastest layout, which fits: others begin work for it."""

    def __init__(self, listener: Callable[[Progress], None], simulation: Simulation) -> None:
        self._listener, self._simulation, self._fastest = listener, simulation, False

    def __call__(self, progress: Progress) -> None:
        fastest = progress.fastest
        if fastest and (self._fastest or self._simulation(fastest.layout) != fastest.step_s):
            progress = progress._replace(fastest=None)
        self._fastest = self._fastest or progress.fastest is not None
        self._listener(progress)


def _best_of_kinds(solutions: Iterable[Solution]) -> list[Solution]:
    """The fastest of each kind, the fastest first."""
    best = dict[Kind, Solution]()
    for each in sorted(solutions, key=lambda each: each.step_time_s):
        best.setdefault(kind_of_layout(each.layout), each)
    return [*best.values()]


def _counting(result: SearchResult, other: SearchResult) -> SearchResult:
    """`result` with what both searches did, and the cuts that neither leaves out."""
    return replace(
        result,
        cuts=max(result.cuts, other.cuts, key=get_args(Cuts).index),
        cpsat_solves=result.cpsat_solves + other.cpsat_solves,
        simulated=result.simulated + other.simulated,
        wall_s=result.wall_s + other.wall_s,
    )


def _with(result: SearchResult, solutions: Sequence[Solution]) -> SearchResult:
    """`result` with these solutions, all of which its bounds hold for; what it proves of a kind
    that it has holds for any layout of that kind.
    """
    best_s = solutions[0].step_time_s
    bound_s, listed_s = min(result.bound_s, best_s), min(result.listed_bound_s, best_s)
    of_kinds_s = {
        kind_of_layout(each.layout): bound_s if each.kind_bound_s is None else each.kind_bound_s
        for each in result.solutions
    }

    def bounded(each: Solution) -> Solution:
        kind_s = min(each.step_time_s, of_kinds_s.get(kind_of_layout(each.layout), bound_s))
        return replace(
            each,
            proved=each.step_time_s * SETTLED <= listed_s,
            kind_bound_s=None if each.kind_bound_s is None else kind_s,
        )

    gone = [each for each in result.solutions if each not in solutions]
    gone_s = [of_kinds_s[kind_of_layout(each.layout)] for each in gone]
    kinds_s = result.kinds_bound_s
    return replace(
        result,
        status="OPTIMAL" if bound_s >= best_s * SETTLED else "FEASIBLE",
        solutions=tuple(map(bounded, solutions)),
        bound_s=bound_s,
        listed_bound_s=listed_s,
        kinds_bound_s=None if kinds_s is None else min([kinds_s, *gone_s]),
        open_kinds=None,
        rest_bound_s=None,
        gap=1 - bound_s / best_s,
    )
