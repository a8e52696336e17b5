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
from collections.abc import Callable

from meshplan.costmodels.layout import Layout
from meshplan.planner.free_pages import give_back_freed
from meshplan.planner.problem.coefficients import NS_PER_S
from meshplan.planner.search.best_simulated import best_simulated
from meshplan.planner.search.closed_form.branch_and_bound import BranchAndBound, least
from meshplan.planner.search.closed_form.likely_seeds import seed_likely
from meshplan.planner.search.held_memory.less_than_priced import counting_empty_stages, rows_beyond
from meshplan.planner.search.progress import Progress
from meshplan.planner.search.result import (
    ENDED,
    NoLayoutFits,
    SearchEnded,
    SearchResult,
    least_known,
    nothing_fits,
    result_of,
    solution_of,
)
from meshplan.planner.search.rows.priced_space import (
    Pricer,
    Question,
    busy_ns,
    closed_form,
    space_of,
)
from meshplan.planner.search.rows.row_prices import RowPrices
from meshplan.planner.search.unlisted_cuts import plan_unlisted

NEAR, MOST_STEPS = 0.03, 120
"""The closed form need not prove more where the simulation proves everything anew."""


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
    simulated = simulate is not None
    question = counting_empty_stages(question) if simulated else question
    deadline = started + time_limit_s if time_limit_s is not None else None
    run = _begun(question, deadline, price, progress, simulated=simulated)
    finished = _plan_first(run, question, deadline, simulated=simulated)
    if simulate is None:
        if finished and k > 1:
            run.find_runners_up(k, deadline)
        return _best_priced(run, question, k, started)
    deadline = deadline if finished else started
    try:
        return best_simulated(run, question, simulate, k, deadline, started)
    except KeyboardInterrupt:  # before there was anything of it to keep
        return best_simulated(run, question, simulate, k, started, started)


def _begun(
    question: Question,
    deadline: float | None,
    price: Pricer,
    progress: Callable[[Progress], None] | None,
    *,
    simulated: bool,
) -> BranchAndBound:
    """The search over the priced rows of the space, with its likely plans; raises `NoLayoutFits`
    where no layout is legal.
    """
    space = space_of(question, deadline=deadline)
    if not len(space.layouts):
        if space.ended:
            raise SearchEnded(ENDED)
        gpus = question.counted(question.gpus)
        raise NoLayoutFits(f"no layout of {question.model.name} on {gpus} obeys every rule")
    busy = busy_ns(question, space) if simulated else None
    coefficients = RowPrices(question, space, price, busy)
    give_back_freed()
    run = BranchAndBound(space, coefficients, progress)
    seed_likely(run)
    return run


def _plan_first(
    run: BranchAndBound, question: Question, deadline: float | None, *, simulated: bool
) -> bool:
    """Plans under the closed form, near its bound where a simulation follows; whether it was done
    in time. Raises `NoLayoutFits`.
    """
    likely = 0 if run.best else MOST_STEPS  # where none of them fits
    enough = (NEAR, likely) if simulated else (0.0, math.inf)
    finished = run.prove(deadline, *enough)
    if not run.best and not finished:
        raise SearchEnded(ENDED)
    if not run.best:
        run.settles_all = plan_unlisted(run, question.setting, deadline)
    if not run.best and not (simulated and len(rows_beyond(run.space, question.setting))):
        raise nothing_fits(question, run, deadline=deadline)
    return finished


def _best_priced(run: BranchAndBound, question: Question, k: int, started: float) -> SearchResult:
    """What is best under the closed form, and what is proved about it."""
    open_bound = least(run.bound, run.unsolved_bound)
    best = run.ranked()[0].objective
    bound = least_known(run, best if open_bound is None else min(best, open_bound))
    solutions = tuple(
        solution_of(
            question, run.space, found, found.objective / NS_PER_S,
            proved=open_bound is None or found.objective <= open_bound,
        )
        for found in run.ranked()[:k]
    )  # fmt: skip
    every_cut_s = 0.0 if run.space.lists_cuts(run.rows) else math.inf
    return result_of(run, solutions, bound / NS_PER_S, started, every_cut_s)
