"""All rows of a space at their prices, as a proof takes them."""

import numpy as np

from meshplan.planner.search.rows.priced_space import Question, closed_form, price_space
from meshplan.planner.search.rows.rows_below import Given
from meshplan.planner.space.legal_layouts import Space


def every_row(question: Question, space: Space) -> Given:
    """Those that surely do not fit too."""
    return Given(np.arange(len(space.layouts)), price_space(question, space, closed_form))
