"""Whole layers of V shapes' chunks, in the order of the model, of many layouts at once: each bound
may rise, none falls.
"""

import numpy as np

from meshplan.costmodels.layouts import Floats
from meshplan.planner.bounds.folded.cuts import FoldedCuts
from meshplan.planner.bounds.folded.reach import LIKELY, Reach
from meshplan.planner.bounds.free_cuts import FreeCuts
from meshplan.planner.cuts.folded_bound import FOLD, WAYS
from meshplan.planner.search.simulation.alike_layouts import Alike
from meshplan.planner.search.simulation.listed_layouts import ListedLayouts

FOLDED = 16  # layouts that are bounded at once


def fold(layouts: ListedLayouts, alike: Alike, aim_s: float) -> int:
    """Bound those that have the smallest bounds: by how far ranks come into the model, then by all
    that they may hold; and the units of work that it took.
    """
    left, work = np.flatnonzero(~alike.folded & (alike.bounds < aim_s)), 0
    some = np.sort(left[np.argsort(alike.bounds[left], kind="stable")[:FOLDED]])
    alike.folded[some] = True
    for bounds_s in (_reach_s, _ways_s):
        some = some[alike.bounds[some] < aim_s]
        if len(some):
            cuts, known_s = layouts.cuts(alike.variant, alike.rows[some]), alike.bounds[some]
            alike.bounds[some], ways = bounds_s(cuts, known_s, aim_s, alike.most[some])
            work += ways // WAYS
    alike.changed()
    return work


def _reach_s(cuts: FreeCuts, known_s: Floats, aim_s: float, most: Floats) -> tuple[Floats, int]:
    folded = FoldedCuts(cuts, LIKELY)
    return Reach(folded).bounds_s(known_s, aim_s, most), folded.work


def _ways_s(cuts: FreeCuts, known_s: Floats, aim_s: float, most: Floats) -> tuple[Floats, int]:
    folded = FoldedCuts(cuts)
    found = np.maximum(folded.bounds_s(aim_s, most), known_s)
    return found, folded.work + FOLD * WAYS * folded.ranks * (1 + len(most))
