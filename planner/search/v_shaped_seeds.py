"""First plans of V-shaped schedules, where the closed form's steps ended far from their bound.

Rows are ordered by bounds that look at no schedule. A V shape may be what is fastest, and stand
behind thousands of rows whose layouts of many chunks do not fit: the steps end before they reach
it, and the proof begins with a plan that is far too slow.
"""

from collections.abc import Iterator

import numpy as np

from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.layouts import Ints
from meshplan.costmodels.schedule.orders import V_SHAPED
from meshplan.planner.bounds.packing import packing_bounds
from meshplan.planner.problem.same_pipeline import run_as
from meshplan.planner.search.branch_and_bound import BranchAndBound
from meshplan.planner.search.second_core import done_of_each
from meshplan.planner.space.legal_layouts import Variant

FAR = 0.05  # from the bound
ROWS, MOST_ROWS = 1024, 8192  # looked at together, and in all
TRIED = 3  # first plans of a schedule from what was looked at together


def seed_v_shapes(run: BranchAndBound) -> None:
    """Offer `run` plans of such schedules, if its best is far from its bound."""
    bound, cutoff = run.bound, run.cutoff
    if bound is None or cutoff is None or bound >= cutoff * (1 - FAR):
        return
    for schedule in sorted(V_SHAPED & set(run.space.legality.schedules)):
        for likeliest in _looked_at(run, schedule, cutoff):
            if any([run.plan(*each) for each in likeliest]):
                break


def _looked_at(
    run: BranchAndBound, schedule: Schedule, cutoff: int
) -> Iterator[list[tuple[int, Variant]]]:
    """`_likeliest` of each block, of two at a time."""
    blocks = list(_blocks(run, cutoff))
    for two in (blocks[first : first + 2] for first in range(0, len(blocks), 2)):
        for rows in two:
            run.coefficients.hold(rows)
        yield from done_of_each(lambda rows: _likeliest(run, schedule, rows, cutoff), two)


def _blocks(run: BranchAndBound, cutoff: int) -> Iterator[Ints]:
    run.coefficients.settle(MOST_ROWS, cutoff)
    for first in range(0, min(len(run.rows), MOST_ROWS), ROWS):
        rows = run.rows[first : first + ROWS]
        rows = rows[run.bounds[rows] < cutoff]
        if len(rows):
            yield rows


def _likeliest(
    run: BranchAndBound, schedule: Schedule, rows: Ints, cutoff: int
) -> list[tuple[int, Variant]]:
    """The layouts with the least packing bounds, of those that may fit and be below the cutoff."""
    found = []
    for variant, same in run.space.by_variant(rows):
        if variant.schedule == schedule:
            limits = np.full(len(same), cutoff)
            bounds = packing_bounds(run_as(run.space, run.coefficients, same, variant), limits)
            below = np.flatnonzero(np.isfinite(bounds))
            found += [(float(bounds[at]), int(same[at]), variant) for at in below]
    found.sort(key=lambda each: each[:2])
    return [each[1:] for each in found[:TRIED]]
