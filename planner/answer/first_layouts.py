"""The best of a few layouts of a question, simulated and not proved: a bound on what it can do.

Bounds come first: rows that are busy for too long are not priced, and a question none of whose rows
has a closed-form bound that promises enough is not searched at all.
"""

from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layout import Layout
from meshplan.costmodels.prices.known_work import KnownWork
from meshplan.planner.answer.answer import case_at, simulated_s
from meshplan.planner.problem.coefficients import NS_PER_S
from meshplan.planner.search.closed_form.first_plans import FirstPlans
from meshplan.planner.search.closed_form.likely_seeds import seed_likely
from meshplan.planner.search.row_layout import layout_of_row
from meshplan.planner.search.rows.priced_space import Question, busy_ns, closed_form, space_of
from meshplan.planner.search.rows.row_prices import RowPrices

MOST_SIMULATED = 4


class TimedLayout(NamedTuple):
    """A layout and its simulated step."""

    step_s: float
    layout: Layout


def first_layout(question: Question, most_s: float, known: KnownWork) -> TimedLayout | None:
    """The fastest of its first plans, None where none takes `most_s` or less; `known` is of
    questions that differ in the batch alone.
    """
    q = question
    space = space_of(q, known=known)
    busy = busy_ns(q, space, known)
    below = np.flatnonzero(busy < most_s * NS_PER_S)
    if not len(below):
        return None
    space = space.take(below)
    run = FirstPlans(space, RowPrices(q, space, closed_form, busy[below]))
    if run.least_ns() >= most_s * NS_PER_S:
        return None
    seed_likely(run)
    run.find(below_ns=most_s * NS_PER_S)
    layouts = [
        layout_of_row(space.layouts, found.row, found.variant, found.plan)
        for found in run.ranked()[:MOST_SIMULATED]
    ]
    timed = [TimedLayout(simulated_s(case_at(q, layout)), layout) for layout in layouts]
    best = min(timed, key=lambda each: each.step_s, default=None)
    return best if best is not None and best.step_s <= most_s else None
