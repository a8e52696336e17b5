"""Whether any layout of a question is faster than a known limit."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from meshplan.costmodels.layout import Layout
from meshplan.planner.search.held_memory.counted_memory import CountedMemory, taken_out
from meshplan.planner.search.held_memory.kinds_held import look_beyond_priced
from meshplan.planner.search.held_memory.less_than_priced import (
    counting_empty_stages,
    source_of_rows,
)
from meshplan.planner.search.row_layout import layout_of_row
from meshplan.planner.search.rows.priced_space import Question, busy_ns, closed_form, space_of
from meshplan.planner.search.rows.row_prices import RowPrices
from meshplan.planner.search.simulation.simulated import Simulated

COUNTED = 2_500_000  # units to count the memory of what does not fit by its bound


class Faster(NamedTuple):
    """The fastest layout found below a limit.

    layout, step_s  None and the limit where none was found
    bound_s         a lower bound of every step, the limit where nothing can be below it
    work            of the budget, spent; not what counts memory
    """

    layout: Layout | None
    step_s: float
    bound_s: float
    work: int


def faster_than(
    question: Question,
    simulate: Callable[[Layout], float],
    limit_s: float,
    budget: int,
    deadline: float | None = None,
) -> Faster:
    """The fastest layout below `limit_s` that `budget` suffices to find before the deadline, and
    `COUNTED` where every moment is counted. No first plans are made: below a limit near the optimum
    the bounds leave few layouts.
    """
    question = counting_empty_stages(question)
    space = space_of(question)
    prices = RowPrices(question, space, closed_form, busy_ns(question, space))
    rows = source_of_rows(space, prices, question.setting, fits=True)
    proof = Simulated(
        question, space, rows, simulate, partial(layout_of_row, space.layouts),
        limit_s=limit_s, budget=budget,
    )  # fmt: skip
    look_beyond_priced(proof)
    counts = question.engine.kernels.counts_passes
    beyond = taken_out(proof) if counts else proof.open.rows[:0]
    open_s = proof.prove(deadline)
    work = budget - proof.tally.left
    if counts:
        open_s = min(open_s, *CountedMemory.each(proof, beyond, COUNTED))
    if not proof.best:
        return Faster(None, limit_s, min(open_s, limit_s), work)
    best = proof.ranked()[0]
    layout = layout_of_row(space.layouts, best.row, best.variant, best.plan)
    return Faster(layout, best.step_s, min(open_s, best.step_s), work)
