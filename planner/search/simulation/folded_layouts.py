"""Whole layers of V shapes' chunks, in the order of the model, of many layouts at once: each bound
may rise, none falls.

Each function returns the units of work that it took.
"""

import numpy as np

from meshplan.costmodels.layouts import Ints
from meshplan.planner.bounds.folded.cuts import FoldedCuts
from meshplan.planner.bounds.folded.reach import reaches
from meshplan.planner.cuts.folded_bound import FOLD, WAYS
from meshplan.planner.search.simulation.alike_layouts import Alike
from meshplan.planner.search.simulation.listed_layouts import ListedLayouts

FOLDED, REACHED = 16, 32  # layouts that are bounded at once
PARTS = (1.0, 0.75, 0.5)


def fold(layouts: ListedLayouts, alike: Alike, aim_s: float) -> int:
    """Of those that have the smallest bounds, by all that ranks may hold."""
    left = np.flatnonzero(~alike.folded & (alike.bounds < aim_s))
    some = np.sort(left[np.argsort(alike.bounds[left], kind="stable")[:FOLDED]])
    folded = FoldedCuts(layouts.cuts(alike.variant, alike.rows[some]))
    bounds = folded.bounds_s(aim_s, alike.most[some])
    alike.bounds[some] = np.maximum(bounds, alike.bounds[some])
    alike.folded[some] = True
    alike.changed()
    return _work(folded, alike, some)


def reach(layouts: ListedLayouts, alike: Alike, some: Ints, aim_s: float) -> int:
    """Of `some`, below which step ranks do not reach the middle of the model: of a few `PARTS` of
    the way from the least bound to what is wanted.
    """
    left, work = some[alike.bounds[some] < aim_s], 0
    for first in range(0, len(left), REACHED):
        each = left[first : first + REACHED]
        least_s = float(alike.bounds[each].min())
        for part in PARTS:
            below_s = least_s + part * (aim_s - least_s)
            each = each[alike.bounds[each] < below_s]
            if len(each):
                folded = FoldedCuts(layouts.cuts(alike.variant, alike.rows[each]))
                can = reaches(folded, below_s, alike.most[each])
                alike.bounds[each[~can]] = below_s
                work += _work(folded, alike, each)
                each = each[can]
    alike.changed()
    return work


def _work(folded: FoldedCuts, alike: Alike, some: Ints) -> int:
    return FOLD * alike.shape[1] * (1 + len(some)) + folded.work // WAYS
