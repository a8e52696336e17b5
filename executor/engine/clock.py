"""What watches a step: named phases, timed on this device.

Phases: "forward", "backward" (input and weight gradients), "wait" (for another pipeline stage),
"reduce" (gradient reductions that the backward pass did not hide), "optimizer".
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Literal, Protocol

import torch

Phase = Literal["forward", "backward", "wait", "reduce", "optimizer"]
Span = tuple[str, float]
"""A phase, and the seconds that it took."""


class Observer(Protocol):
    """Told when a phase begins and ends; phases do not nest."""

    def phase(self, name: Phase) -> AbstractContextManager[None]:
        """Around everything that the phase does."""


class Spans:
    """An observer that keeps every phase: wall time on CPU, CUDA events on a GPU."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self._host: list[Span] = []
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Time what happens inside."""
        if self.cuda:
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            yield
            stop.record()
            self._events.append((name, start, stop))
            return
        began = time.perf_counter()
        yield
        self._host.append((name, time.perf_counter() - began))

    def take(self) -> list[Span]:
        """The phases since the last call, in order; the device must be synchronised."""
        found, self._host = self._host, []
        found += [(name, start.elapsed_time(stop) / 1e3) for name, start, stop in self._events]
        self._events.clear()
        return found


class Clock:
    """Seconds per phase, by `Spans`.

    said  told the name of each phase when it begins
    """

    def __init__(self, device: torch.device, said: Callable[[str], None] | None = None) -> None:
        self.said = said or (lambda phase: None)
        self.spans = Spans(device)

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Time what happens inside."""
        self.said(name)
        with self.spans.phase(name):
            yield

    def take(self) -> dict[str, float]:
        """Seconds per phase since the last call; the device must be synchronised."""
        return by_phase(self.spans.take())


def by_phase(spans: Iterable[Span]) -> dict[str, float]:
    """Seconds of each phase."""
    seconds: dict[str, float] = defaultdict(float)
    for name, each in spans:
        seconds[name] += each
    return dict(seconds)
