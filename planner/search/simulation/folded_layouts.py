"""Whole layers of V shapes' chunks, in the order of the model, of many layouts at once: each bound
may rise, none falls.
"""

import numpy as np

from meshplan.costmodels.layouts import Floats
from meshplan.planner.bounds.folded.cuts import FoldedCuts
from meshplan.planner.bounds.folded.reach import reaches
from meshplan.planner.cuts.folded_bound import FOLD, WAYS
from meshplan.planner.search.simulation.alike_layouts import Alike
from meshplan.planner.search.simulation.listed_layouts import ListedLayouts

FOLDED = 16  # layouts that are bounded at once


def fold(layouts: ListedLayouts, alike: Alike, aim_s: float) -> int:
    """Bound those that have the smallest bounds: by whether ranks reach the middle of the model at
    all, else by all that they may hold; and the units of work that it took.
    """
    left, work = np.flatnonzero(~alike.folded & (alike.bounds < aim_s)), 0
    some = np.sort(left[np.argsort(alike.bounds[left], kind="stable")[:FOLDED]])
    alike.folded[some] = True
    for bounds_s in (_reached_s, FoldedCuts.bounds_s):
        some = some[alike.bounds[some] < aim_s]
        if len(some):
            folded = FoldedCuts(layouts.cuts(alike.variant, alike.rows[some]))
            bounds = bounds_s(folded, aim_s, alike.most[some])
            alike.bounds[some] = np.maximum(bounds, alike.bounds[some])
            work += FOLD * alike.shape[1] * (1 + len(some)) + folded.work // WAYS
    alike.changed()
    return work


def _reached_s(folded: FoldedCuts, aim_s: float, most: Floats) -> Floats:
    """[row] what is wanted where ranks do not reach the middle below it, else nothing."""
    found: Floats = np.where(reaches(folded, aim_s, most), 0.0, aim_s)
    return found
