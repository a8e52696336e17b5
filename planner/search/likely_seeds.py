"""First plans of the layouts that an estimate likes best, before any of them is bounded.

Of the rows that are busy least, as many as are priced together (`planner.search.row_prices`): what
is likely fast is among them, and no other row is priced for an estimate.
"""

from itertools import islice

from meshplan.costmodels.layouts import Ints
from meshplan.planner.search.branch_and_bound import BranchAndBound
from meshplan.planner.search.found import Kind, kind_of
from meshplan.planner.search.likely_ways import likely_ways
from meshplan.planner.search.row_prices import AHEAD

KINDS, WAYS = 12, 2  # so many kinds get first plans, of so many ways to run them
LOOKED_AT = 256


def seed_likely(run: BranchAndBound) -> None:
    """Offer `run` plans of the likeliest kinds, so that the first bounds have a cutoff."""
    rows, tried = _priced(run), dict[Kind, int]()
    ways = likely_ways(run.space, run.coefficients.take(rows), rows)
    for place, variant, _ in islice(ways, LOOKED_AT):
        row = int(rows[place])
        kind = kind_of(run.space.layouts, row)
        known = kind in tried or len(tried) < KINDS
        if known and tried.setdefault(kind, 0) < WAYS:
            tried[kind] += 1
            run.plan(row, variant)


def _priced(run: BranchAndBound) -> Ints:
    """Rows that may fit, whose prices are held."""
    run.coefficients.settle(1)
    rows = run.rows if run.coefficients.holds(run.rows) else run.rows[:AHEAD]
    run.coefficients.hold(rows)
    return rows
