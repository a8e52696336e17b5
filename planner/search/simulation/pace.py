"""Whether what is left of a budget is enough, at `PACE` times the pace of what was spent last; and
whether that gained anything.
"""

import math

import numpy as np

from meshplan.planner.cuts.budget import WIDE
from meshplan.planner.search.simulation.open_layouts import OpenLayouts

PACE = 1.5
ENOUGH_WORK = 400_000  # a pace is of so many units of work at least
WINDOW, LOOK = 4_000_000, 500_000
"""Units of work in which a proof has to gain something; between two looks at it."""


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
    """Whether a proof gains anything: by what the bounds of all that is open lack together, for the
    least one stays while others of the same bound are settled.
    """

    def __init__(self) -> None:
        self._were, self._next = list[tuple[int, float]](), math.inf

    def is_in_vain(self, open_layouts: OpenLayouts, best_s: float, left: int) -> bool:
        """Whether as much lacks with `left` units of work as `WINDOW` units before; false while the
        gap is wide, which has a budget of its own.
        """
        if left > self._next or open_layouts.least_s < best_s * WIDE:
            return False
        self._next = left - LOOK
        _, bounds = open_layouts.asked()
        lack_s = float(np.maximum(0.0, best_s - bounds).sum())
        self._were.append((left, lack_s))
        while len(self._were) > 1 and self._were[1][0] - left >= WINDOW:
            self._were.pop(0)
        was_left, lacked_s = self._were[0]
        return was_left - left >= WINDOW and lack_s >= lacked_s > 0
