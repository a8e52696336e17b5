"""First plans of the layouts that an estimate likes best, before any of them is bounded.

Of the rows that are busy least, as many as are priced together (`planner.search.rows.row_prices`):
what is likely fast is among them, and no other row is priced for an estimate. In a large space that
is short of memory what is busy least may fit slowly or not at all, for thousands of rows. Where
none of these has a plan, or many rows may be faster than the best one, rows are drawn evenly from
those, as long as better plans are found.
"""

from itertools import islice

import numpy as np

from meshplan.costmodels.layouts import Ints, each_once
from meshplan.planner.problem.coefficients import Coefficients
from meshplan.planner.search.closed_form.first_plans import FirstPlans
from meshplan.planner.search.closed_form.likely_ways import likely_ways
from meshplan.planner.search.found import Kind, kind_of
from meshplan.planner.search.rows.row_prices import AHEAD
from meshplan.planner.space.legal_layouts import Variant

KINDS, WAYS = 12, 2  # kinds that get first plans, and ways to run each of them
LOOKED_AT = 256
DRAWS, DRAWN = 4, 8192  # how often rows are drawn, and how many each time
MANY = 32_768  # so many unpriced rows are worth a better plan before they are priced


def seed_likely(run: FirstPlans) -> None:
    """Offer `run` plans of the likeliest kinds, so that the first bounds have a cutoff."""
    rows = _priced(run)
    _plan(run, rows, run.coefficients.take(rows))
    for _ in range(DRAWS):
        before = run.cutoff
        left = run.coefficients.unpriced(before)
        if len(left) < (MANY if run.best else 1):
            return
        drawn = np.sort(left[:: -(-len(left) // DRAWN)])
        _plan(run, *run.coefficients.fitting(drawn))
        if run.cutoff == before:
            return


def _plan(run: FirstPlans, rows: Ints, prices: Coefficients) -> None:
    """Offer `run` plans of the likeliest ways to run `rows`, which have these prices."""
    likely, tried = list[tuple[int, Variant]](), dict[Kind, int]()
    for place, variant, _ in islice(likely_ways(run.space, prices, rows), LOOKED_AT):
        row = int(rows[place])
        kind = kind_of(run.space.layouts, row)
        known = kind in tried or len(tried) < KINDS
        if known and tried.setdefault(kind, 0) < WAYS:
            tried[kind] += 1
            likely.append((row, variant))
    run.coefficients.hold(each_once(np.array([row for row, _ in likely], np.int64)))
    run.plan(likely)


def _priced(run: FirstPlans) -> Ints:
    """Rows that may fit, whose prices are held."""
    run.coefficients.settle(1)
    rows = run.rows if run.coefficients.holds(run.rows) else run.rows[:AHEAD]
    run.coefficients.hold(rows)
    return rows
