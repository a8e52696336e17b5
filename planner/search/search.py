"""The best layout of a question, with a proof, and the runners-up of other kinds.

Without a simulation, `planner.search.closed_form.branch_and_bound` proves the best plan over the
whole legal space under the closed-form prices; on a time limit or Ctrl-C the smallest open bound is
the honest distance. Runners-up differ in kind (tp, cp, pp, ep): they are the best plans that first
plans in order of bound found, each solved by CP-SAT for its own layout.

With one, `search(simulate=...)`, which is what `meshplan plan` asks, the closed form only finds
first plans, near its bound and no further. These are simulated, then every layout and cut whose
bound is below the best simulated step (`planner.search.simulation.simulated`), then what may be
faster than the best of its own kind and nearly as fast as the best of all. Status, bound and gap
refer to the event simulation, and nothing of the closed form is left in them: OPTIMAL says that
nothing in the space is faster by more than a millionth.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np

from meshplan.costmodels.layout import Layout, check_layout
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.planner.cuts import budget as costs
from meshplan.planner.free_pages import give_back_freed
from meshplan.planner.problem.coefficients import NS_PER_S, reserved_bytes
from meshplan.planner.search.closed_form.branch_and_bound import BranchAndBound, Found, least
from meshplan.planner.search.closed_form.likely_seeds import seed_likely
from meshplan.planner.search.far_kinds import settle_far_kinds
from meshplan.planner.search.found import SETTLED, Timed
from meshplan.planner.search.held_memory.counted_kinds import CountedKinds
from meshplan.planner.search.held_memory.counted_memory import CountedMemory, taken_out
from meshplan.planner.search.held_memory.kinds_held import look_beyond_priced
from meshplan.planner.search.held_memory.less_than_priced import (
    counting_empty_stages,
    rows_beyond,
    source_of_rows,
)
from meshplan.planner.search.progress import Fastest, Progress
from meshplan.planner.search.row_layout import layout_of_row
from meshplan.planner.search.rows.least_held import CountedRows
from meshplan.planner.search.rows.priced_space import (
    Pricer,
    Question,
    busy_ns,
    closed_form,
    space_of,
)
from meshplan.planner.search.rows.row_prices import RowPrices
from meshplan.planner.search.rows.rows_below import Source
from meshplan.planner.search.simulation.carried_cuts import CarriedCuts
from meshplan.planner.search.simulation.free_cuts import EveryCut, FreeCutBounds
from meshplan.planner.search.simulation.likely_mixes import mix_likely
from meshplan.planner.search.simulation.open_layouts import Open
from meshplan.planner.search.simulation.simulated import Simulated
from meshplan.planner.search.unlisted_cuts import plan_unlisted
from meshplan.planner.second_core import Later
from meshplan.planner.space.legal_layouts import Space
from meshplan.planner.space.words import Cuts

FIRST_SIMULATED = 8  # best plans under the closed form that are simulated first
NEAR, MOST_STEPS = 0.03, 120
"""The closed form need not prove more where the simulation proves everything anew."""


class NoLayoutFits(Exception):
    """No legal layout of the question fits; `planner.search.footprint.explain` says what would."""


ENDED = "the search ended before it found a layout that fits; with more time it may find one"


class SearchEnded(NoLayoutFits):
    """The time limit or Ctrl-C came before any layout was found; one may fit."""


@dataclass(frozen=True, slots=True)
class Solution:
    """One layout with its best cut into stages.

    step_time_s   under the prices of the search: closed form, or the event simulation
    peak_bytes    reserved, by pipeline rank
    proved        no layout that should precede it was left open
    """

    layout: Layout
    step_time_s: float
    peak_bytes: tuple[float, ...]
    proved: bool


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
                        that it has, but run otherwise; None where only the best was looked for
    candidates   legal layouts (all axes but the cut into stages)
    priced       rows that the cost model priced, or those busy for too long were bounded by; their
                 schedules and chunks share a price
    misfits      layouts of priced rows dropped by memory
    bounded      layouts never solved: bound too high
    simulated    cuts into stages that were timed by the event simulation
    all_degrees  degrees of which nothing fits by a bound of their memory were settled, too
    dropped      rows dropped before pricing, by rule
    whole_space  False where the time limit ended the list of the space
    """

    price: Literal["closed form", "event simulation"]
    status: Literal["OPTIMAL", "FEASIBLE"]
    cuts: Cuts
    solutions: tuple[Solution, ...]
    bound_s: float
    listed_bound_s: float
    kinds_bound_s: float | None = None
    gap: float
    candidates: int
    priced: int
    misfits: int
    bounded: int
    solved: int
    cpsat_solves: int
    simulated: int
    wall_s: float
    dropped: dict[str, int]
    all_degrees: bool = True
    whole_space: bool = True


def search(
    question: Question,
    *,
    k: int = 1,
    time_limit_s: float | None = None,
    price: Pricer = closed_form,
    progress: Callable[[Progress], None] | None = None,
    simulate: Callable[[Layout], float] | None = None,
) -> SearchResult:
    """The `k` best layouts that differ in kind; raises `NoLayoutFits`.

    `simulate` is the simulated step of a layout, infinite where it does not fit after all; with it
    the answer is that of the event simulation, of the cost model's own prices.
    """
    started = time.perf_counter()
    question = q = counting_empty_stages(question) if simulate else question
    deadline = started + time_limit_s if time_limit_s is not None else None
    space = space_of(q, deadline=deadline)
    if not len(space.layouts):
        if space.ended:
            raise SearchEnded(ENDED)
        gpus = q.counted(q.gpus)
        raise NoLayoutFits(f"no layout of {q.model.name} on {gpus} obeys every rule")
    coefficients = RowPrices(question, space, price, busy_ns(q, space) if simulate else None)
    give_back_freed()
    run = BranchAndBound(space, coefficients, progress)
    seed_likely(run)
    likely = 0 if run.best else MOST_STEPS  # where none of them fits
    enough = (NEAR, likely) if simulate else (0.0, math.inf)
    finished = run.prove(deadline, *enough)
    if not run.best and not finished:
        raise SearchEnded(ENDED)
    if not run.best:
        run.settles_all = plan_unlisted(run, q.setting, deadline)
    if not run.best and not (simulate and len(rows_beyond(space, q.setting))):
        raise _nothing_fits(q, run, deadline=deadline)
    if finished and k > 1 and not simulate:
        run.find_runners_up(k, deadline)
    if simulate:
        deadline = deadline if finished else started
        try:
            return _simulated(run, question, simulate, k, deadline, started)
        except KeyboardInterrupt:  # before there was anything of it to keep
            return _simulated(run, question, simulate, k, started, started)
    open_bound = least(run.bound, run.unsolved_bound)
    best = run.ranked()[0].objective
    bound = _least(run, best if open_bound is None else min(best, open_bound))
    solutions = tuple(
        _solution(
            question, space, found, found.objective / NS_PER_S,
            proved=open_bound is None or found.objective <= open_bound,
        )
        for found in run.ranked()[:k]
    )  # fmt: skip
    every_cut_s = 0.0 if space.lists_cuts(run.rows) else math.inf
    return _result(run, solutions, bound / NS_PER_S, started, every_cut_s)


def _simulated(
    run: BranchAndBound,
    question: Question,
    simulate: Callable[[Layout], float],
    k: int,
    deadline: float | None,
    started: float,
) -> SearchResult:
    """What is best under the simulation of the rows that may fit, which begins with the best of the
    closed form.
    """
    rows = source_of_rows(run.space, run.coefficients, question.setting, fits=bool(run.best))
    give_back_freed()
    proof = _proof_of(run, question, simulate, rows, k)
    open_s, beyond_s = _settled(run, question, proof, deadline)
    deadline = proof.tally.deadline  # Ctrl-C ends what would follow
    carried = CarriedCuts(proof)
    every_cut = Later(lambda: FreeCutBounds(proof).settled())
    give_back_freed()
    if k > 1 and proof.best:
        with suppress(KeyboardInterrupt):  # the proof is there
            carried.carry(k)
            run.tell.now(partial(_proved, run, proof, open_s, every_cut))
            proof.find_runners_up(k, deadline)
            if question.engine.kernels.counts_passes:
                proof.kinds_s = min(proof.kinds_s, CountedKinds.runners_up_s(proof, k))
    if len(proof.best) < k and run.best:
        run.find_runners_up(k, deadline)
        proof.offer(*run.ranked()[:k])
    settle_far_kinds(proof, k)
    if not proof.best:
        refused = _nothing_fits(question, run, open_s, deadline)
        ended = isinstance(refused, SearchEnded)
        raise refused if ended else NoLayoutFits(f"{refused} in the simulation")
    every_cut_s, faster = every_cut.done()
    for plan in faster:
        proof.judged_s(*plan)
    if k > 1:
        with suppress(KeyboardInterrupt):
            proof.moves.go_on_near(proof.ranked()[1:k])
            carried.carry(k)
    bound_s = _least(run, open_s, proof.best_s)
    solutions = tuple(
        _solution(question, run.space, timed, timed.step_s, proved=timed.step_s <= bound_s)
        for timed in proof.ranked()[:k]
    )
    simulated = proof.tally.simulated
    if every_cut_s >= proof.best_s * SETTLED:  # runners-up may have been faster
        every_cut_s = math.inf
    result = _result(run, solutions, bound_s, started, every_cut_s, simulated)
    all_degrees = math.isinf(beyond_s) and (not isinstance(rows, CountedRows) or rows.all_degrees)
    kinds_s = proof.kinds_s if all_degrees else min(proof.kinds_s, bound_s)
    if len(solutions) == k:  # more than k kinds are not looked for
        kinds_s = min(kinds_s, solutions[-1].step_time_s)
    kinds_s = _least(run, kinds_s)
    cuts = _cuts_beside(proof, solutions) if result.cuts == "all" else result.cuts
    kinds_bound_s = kinds_s if k > 1 else None
    return replace(result, kinds_bound_s=kinds_bound_s, all_degrees=all_degrees, cuts=cuts)


def _proof_of(
    run: BranchAndBound,
    question: Question,
    simulate: Callable[[Layout], float],
    rows: Source,
    k: int,
) -> Simulated:
    """The proof before it begins, with the best plans of the closed form."""
    layouts = run.space.layouts
    budget = costs.after_rows(len(layouts))
    proof = Simulated(
        question, run.space, run.coefficients, simulate, partial(layout_of_row, layouts),
        first=run.ranked()[: max(k, FIRST_SIMULATED)], rows=rows, tell=partial(_tell, run),
        budget=budget, more=costs.BUDGET - budget + costs.BEYOND,
    )  # fmt: skip
    look_beyond_priced(proof)
    return proof


def _settled(
    run: BranchAndBound, question: Question, proof: Simulated, deadline: float | None
) -> tuple[float, float]:
    """What the proof leaves open: the least bound of all, and of what no bound of memory lets fit;
    infinite where there is nothing. Raises `NoLayoutFits`.
    """
    counts = question.engine.kernels.counts_passes
    if counts and not run.best:  # nothing fits by the bound
        proof.tally.deadline = deadline
        left_s, _ = CountedMemory.each(proof, proof.open.rows[:0])
        if not proof.best:
            raise _nothing_fits(question, run, left_s, proof.tally.deadline)
    beyond = taken_out(proof) if counts and run.best else proof.open.rows[:0]
    proof.tally.deadline = deadline
    mix_likely(proof)
    open_s, beyond_s = proof.prove(deadline), math.inf
    if not proof.best and not run.best:
        raise _nothing_fits(question, run, open_s, proof.tally.deadline)
    if counts:
        left_s, beyond_s = CountedMemory.each(proof, beyond)
        open_s = min(open_s, left_s)
    return open_s, beyond_s


def _cuts_beside(proof: Simulated, solutions: tuple[Solution, ...]) -> Cuts:
    """Whether a list limits what may be faster than the slowest runner-up."""
    rows = np.flatnonzero(proof.open.row_bounds < solutions[-1].step_time_s)
    return "runners-up listed" if len(solutions) > 1 and proof.space.lists_cuts(rows) else "all"


def _nothing_fits(
    question: Question,
    run: BranchAndBound,
    open_s: float = math.inf,
    deadline: float | None = None,
) -> NoLayoutFits:
    """`open_s`: a bound of what was not looked at, infinite where there is nothing. What a passed
    `deadline` left open may fit.
    """
    settled = math.isinf(open_s) and run.settles_all and not run.space.ended
    settled &= not question.pins.offloads_activations  # their memory is a bound
    if not settled and deadline is not None and time.perf_counter() >= deadline:
        return SearchEnded(ENDED)
    which = "fits" if settled else "was found that fits"
    gpus = question.counted(question.gpus)
    return NoLayoutFits(f"no layout of {question.model.name} {which} on {gpus}")


def _tell(run: BranchAndBound, proof: Simulated, left: Sequence[Open]) -> None:
    """Where the simulation stands; `left`: cuts of settled layouts that are open still."""

    def progress() -> Progress:
        best_s, solves = proof.best_s if proof.best else None, run.solver.solves
        open_s = [proof.proved_s, proof.open.least_s, *(each.bound_s for each in left)]
        bound_s = _least(run, proof.best_s, *open_s)
        return Progress(best_s, bound_s, run.candidates, solves, proof.tally.simulated)

    run.tell(progress)


def _proved(
    run: BranchAndBound, proof: Simulated, open_s: float, every_cut: Later[EveryCut]
) -> Progress:
    """The progress when the proof has ended; `open_s`: the least bound that it left open."""
    best, bound_s = proof.ranked()[0], _least(run, open_s, proof.best_s)
    layout = layout_of_row(run.space.layouts, best.row, best.variant, best.plan)
    fastest = Fastest(layout, best.step_s, bound_s >= best.step_s, every_cut)
    solves, simulated = run.solver.solves, proof.tally.simulated
    return Progress(best.step_s, bound_s, run.candidates, solves, simulated, fastest)


def _least(run: BranchAndBound, *bounds: float) -> float:
    """The least of `bounds`: 0 where rows are not listed, of which no bound is known."""
    return 0.0 if run.space.ended else min(bounds)


def _result(
    run: BranchAndBound,
    solutions: tuple[Solution, ...],
    bound_s: float,
    started: float,
    every_cut_s: float,
    simulated: int | None = None,
) -> SearchResult:
    """What was found and what is proved about it."""
    best_s, least_s = solutions[0].step_time_s, min(bound_s, every_cut_s)
    return SearchResult(
        price="closed form" if simulated is None else "event simulation",
        status="OPTIMAL" if least_s >= best_s else "FEASIBLE",
        cuts="all" if math.isinf(every_cut_s) else "listed",
        solutions=solutions,
        bound_s=least_s,
        listed_bound_s=bound_s,
        gap=1 - least_s / best_s if best_s else 0.0,
        candidates=run.candidates,
        priced=len(run.space.layouts),
        misfits=run.misfits,
        bounded=run.candidates - run.misfits - run.solved,
        solved=run.solved,
        cpsat_solves=run.solver.solves + run.runner_solver.solves,
        simulated=simulated or 0,
        wall_s=time.perf_counter() - started,
        dropped=run.space.dropped,
        whole_space=not run.space.ended,
    )


def _solution(
    question: Question, space: Space, found: Found | Timed, step_s: float, *, proved: bool
) -> Solution:
    layout = layout_of_row(space.layouts, found.row, found.variant, found.plan)
    check_layout(layout, space.model, question.training)
    return Solution(layout, step_s, tuple(map(reserved_bytes, found.plan.peak_kib)), proved)
