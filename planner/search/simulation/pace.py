"""Whether what is left of a budget is enough, at `PACE` times the pace of what was spent last."""

import math

import numpy as np

from meshplan.planner.cuts.budget import WIDE
from meshplan.planner.search.simulation.open_layouts import OpenLayouts

PACE = 1.5
ENOUGH_WORK = 400_000  # a pace is of so many units of work at least
WINDOW, LOOK = 4_000_000, 500_000
"""Units of work whose pace says whether a proof ends; between two looks at it."""


class WorkPace:
    """Of what many bounds lack together, `lack_s` with `left` units of work: that of the last
    `window` units, once `first` units are spent, which are no more than a window.
    """

    def __init__(
        self, *known: tuple[int, float], window: int = ENOUGH_WORK, first: int = ENOUGH_WORK
    ) -> None:
        self._were, self._window, self._first = list(known), window, first

    def is_enough(self, left: int, lack_s: float) -> bool:
        """Whether nothing lacks once that is spent; true before `first` units are."""
        self._were.append((left, lack_s))
        while len(self._were) > 1 and self._were[1][0] - left >= self._window:
            self._were.pop(0)
        was_left, lacked_s = self._were[0]
        spent = was_left - left
        return spent < self._first or PACE * (lacked_s - lack_s) / spent * left >= lack_s


class ProofPace:
    """Whether a proof can be finished: by what the bounds of all that is open lack together, for
    the least one stays while others of the same bound are settled.
    """

    def __init__(self) -> None:
        self._pace, self._next = WorkPace(window=WINDOW, first=WINDOW), math.inf

    def is_in_vain(self, open_layouts: OpenLayouts, best_s: float, left: int) -> bool:
        """Whether it cannot with `left` units of work; false while the gap is wide, which more work
        makes less so.
        """
        if left > self._next or open_layouts.least_s < best_s * WIDE:
            return False
        self._next = left - LOOK
        _, bounds = open_layouts.asked()
        return not self._pace.is_enough(left, float(np.maximum(0.0, best_s - bounds).sum()))
