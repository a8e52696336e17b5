"""What watches a step: named phases, timed on this device.

Phases: "forward", "backward" (input and weight gradients), "wait" (for another pipeline stage),
"reduce" (gradient reductions that the backward pass did not hide), "optimizer".
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Literal, Protocol

import torch

Phase = Literal["forward", "backward", "wait", "reduce", "optimizer"]


class Observer(Protocol):
    """Told when a phase begins and ends; phases do not nest."""

    def phase(self, name: Phase) -> AbstractContextManager[None]:
        """Around everything that the phase does."""


class Clock:
    """Seconds per phase: wall time on CPU, CUDA events on a GPU.

    said  told the name of each phase when it begins
    """

    def __init__(self, device: torch.device, said: Callable[[str], None] | None = None) -> None:
        self.said = said or (lambda phase: None)
        self.cuda = device.type == "cuda"
        self._host: dict[str, float] = defaultdict(float)
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Time what happens inside."""
        self.said(name)
        if self.cuda:
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            yield
            stop.record()
            self._events.append((name, start, stop))
            return
        began = time.perf_counter()
        yield
        self._host[name] += time.perf_counter() - began

    def take(self) -> dict[str, float]:
        """Seconds per phase since the last call; the device must be synchronised."""
        seconds, self._host = self._host, defaultdict(float)
        for name, start, stop in self._events:
            seconds[name] += start.elapsed_time(stop) / 1e3
        self._events.clear()
        return seconds
