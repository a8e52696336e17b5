"""The best layout of a question, with a proof, and the runners-up of other kinds.

The closed form finds first plans (`planner.search.closed_form.first_plans`). These are simulated,
then every layout and cut whose bound is below the best simulated step
(`planner.search.simulation.simulated`), then what may be faster than the best of its own kind and
nearly as fast as the best of all. Runners-up differ in kind (tp, cp, pp, ep). Status, bound and gap
refer to the event simulation, and nothing of the closed form is left in them: OPTIMAL says that
nothing in the space is faster by more than a millionth; on a time limit or Ctrl-C the smallest open
bound is the honest distance.
"""

import time
from collections.abc import Callable

from meshplan.costmodels.layout import Layout
from meshplan.planner.processes.free_pages import give_back_freed
from meshplan.planner.search.best_simulated import best_simulated
from meshplan.planner.search.closed_form.first_plans import FirstPlans
from meshplan.planner.search.closed_form.likely_seeds import seed_likely
from meshplan.planner.search.held_memory.less_than_priced import (
    counting_empty_stages,
    leaves_rows_out,
    rows_beyond,
)
from meshplan.planner.search.progress import Progress
from meshplan.planner.search.result import (
    NoLayoutFits,
    SearchEnded,
    SearchResult,
    nothing_fits,
)
from meshplan.planner.search.rows.priced_space import Question, busy_ns, closed_form, space_of
from meshplan.planner.search.rows.row_prices import RowPrices
from meshplan.planner.search.unlisted_cuts import plan_unlisted


def search(
    question: Question,
    simulate: Callable[[Layout], float],
    *,
    k: int = 1,
    time_limit_s: float | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> SearchResult:
    """The `k` best layouts that differ in kind; raises `NoLayoutFits`.

    `simulate` is the simulated step of a layout, infinite where it does not fit after all.
    """
    started = time.perf_counter()
    question = counting_empty_stages(question)
    deadline = started + time_limit_s if time_limit_s is not None else None
    run = _begun(question, deadline, progress)
    finished = _plan_first(run, question, deadline)
    deadline = deadline if finished else started
    try:
        return best_simulated(run, question, simulate, k, deadline, started)
    except KeyboardInterrupt:  # before there was anything of it to keep
        return best_simulated(run, question, simulate, k, started, started)


def _begun(
    question: Question,
    deadline: float | None,
    progress: Callable[[Progress], None] | None,
) -> FirstPlans:
    """The search over the priced rows of the space, with its likely plans; raises `NoLayoutFits`
    where no layout is legal.
    """
    space = space_of(question, deadline=deadline)
    if not len(space.layouts):
        if space.ended:
            raise SearchEnded()
        gpus = question.counted(question.gpus)
        raise NoLayoutFits(f"no layout of {question.model.name} on {gpus} obeys every rule")
    coefficients = RowPrices(question, space, closed_form, busy_ns(question, space))
    give_back_freed()
    run = FirstPlans(space, coefficients, progress)
    seed_likely(run)
    return run


def _plan_first(run: FirstPlans, question: Question, deadline: float | None) -> bool:
    """A plan under the closed form, if there is none; whether it was done in time. Raises
    `NoLayoutFits`.
    """
    finished = run.find(deadline)
    if not run.best and not finished:
        raise SearchEnded()
    if not run.best:
        settled = plan_unlisted(run, question.setting, deadline)
        known = settled and not run.open
        run.settles_all = known and not leaves_rows_out(run.space, question.setting)
    if not run.best and not len(rows_beyond(run.space, question.setting)):
        raise nothing_fits(question, run, deadline=deadline)
    return finished
