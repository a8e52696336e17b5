"""What a running search tells of itself, at most a few times a second."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from meshplan.costmodels.layout import Layout
from meshplan.costmodels.units import format_seconds
from meshplan.planner.processes.second_core import Later

PROGRESS_S = 0.2
LEAST_GAP = 0.0005  # a smaller one is not called 0.0%


class Fastest(NamedTuple):
    """The fastest layout and its simulated step; `proved`: that nothing is faster,
    of what is cut as a list says where a list limits it.

    later   what the search needs once runners-up are found: whoever is told may have it begun
    """

    layout: Layout
    step_s: float
    proved: bool
    later: Later[Any] | None = None


class Progress(NamedTuple):
    """Where a running search stands; `best_s` is None before the first plan.

    bound_s    the search finds nothing faster: under the event simulation where `simulated` is a
               number, that of the cuts into stages that it timed; else under the closed form
    fastest    once the proof has ended: runners-up of other kinds are looked for then
    """

    best_s: float | None
    bound_s: float
    candidates: int
    cpsat_solves: int
    simulated: int | None = None
    fastest: Fastest | None = None

    @property
    def price(self) -> str:
        """What best and bound are of."""
        return "closed form" if self.simulated is None else "event simulation"

    @property
    def words(self) -> str:
        """The best step and what may lie below it; what is so where there is none yet."""
        if self.best_s is None:
            return "nothing fits yet"
        gap = max(0.0, 1 - self.bound_s / self.best_s)
        best = f"best step {format_seconds(self.best_s)}"
        most = f"up to {gap:.1%}" if gap >= LEAST_GAP else "less than 0.1%"
        return f"{best}, the search may find one {most} shorter ({self.price})"


class Telling:
    """Tells `listener`, if there is one, at most every `PROGRESS_S` seconds."""

    def __init__(self, listener: Callable[[Progress], None] | None = None) -> None:
        self._listener, self._told = listener, time.perf_counter()

    def __call__(self, progress: Callable[[], Progress]) -> None:
        """Make it only where it is told."""
        if self._listener and time.perf_counter() - self._told >= PROGRESS_S:
            self.now(progress)

    def now(self, progress: Callable[[], Progress]) -> None:
        """Tell it, however short the time since the last."""
        if self._listener:
            self._told = time.perf_counter()
            self._listener(progress())
