"""What a running search tells of itself, at most a few times a second."""

import time
from collections.abc import Callable
from typing import NamedTuple

PROGRESS_S = 0.2


class Progress(NamedTuple):
    """Where a running search stands; `best_s` is None before the first plan.

    bound_s    nothing is faster: under the event simulation where `simulated` is a number, that of
               the cuts into stages that were timed by it; else under the closed form
    """

    best_s: float | None
    bound_s: float
    candidates: int
    cpsat_solves: int
    simulated: int | None = None

    @property
    def price(self) -> str:
        """What best and bound are of."""
        return "closed form" if self.simulated is None else "event simulation"


class Telling:
    """Tells `listener`, if there is one, at most every `PROGRESS_S` seconds."""

    def __init__(self, listener: Callable[[Progress], None] | None = None) -> None:
        self._listener, self._told = listener, time.perf_counter()

    def __call__(self, progress: Callable[[], Progress]) -> None:
        """Make it only where it is told."""
        now = time.perf_counter()
        if self._listener and now - self._told >= PROGRESS_S:
            self._told = now
            self._listener(progress())
