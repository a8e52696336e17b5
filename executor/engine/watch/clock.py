"""What watches a step: named phases, timed on this device.

Phases: "forward", "backward" (input and weight gradients), "wait" (for another pipeline stage),
"reduce" (gradient reductions that the backward pass did not hide), "optimizer".
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Literal, NamedTuple, Protocol

import torch

from meshplan.costmodels.schedule.actions import Action

Phase = Literal["forward", "backward", "wait", "reduce", "optimizer"]


class Span(NamedTuple):
    """A phase: the seconds that it took, its start after that of the step's first phase, and the
    action that it is, or is waited for by; None outside the schedule.
    """

    name: str
    seconds: float
    start_s: float
    action: Action | None


class Observer(Protocol):
    """Told when a phase begins and ends; phases do not nest."""

    def phase(self, name: Phase, action: Action | None = None) -> AbstractContextManager[None]:
        """Around everything that the phase does."""


class Spans:
    """An observer that keeps every phase: wall time on CPU, CUDA events on a GPU."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self._host: list[tuple[str, float, float, Action | None]] = []
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event, Action | None]] = []

    @contextmanager
    def phase(self, name: Phase, action: Action | None = None) -> Iterator[None]:
        """Time what happens inside."""
        if self.cuda:
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            yield
            stop.record()
            self._events.append((name, start, stop, action))
            return
        began = time.perf_counter()
        yield
        self._host.append((name, began, time.perf_counter(), action))

    def take(self) -> list[Span]:
        """The phases since the last call, in order; the device must be synchronised."""
        host, self._host = self._host, []
        events, self._events = self._events, []
        return [
            *(Span(name, stop - start, start - host[0][1], act) for name, start, stop, act in host),
            *(
                Span(
                    name,
                    start.elapsed_time(stop) / 1e3,
                    events[0][1].elapsed_time(start) / 1e3,
                    act,
                )
                for name, start, stop, act in events
            ),
        ]


class Clock:
    """Seconds per phase, by `Spans`.

    said   told the name of each phase when it begins
    taken  the phases that `take` added up last
    """

    def __init__(self, device: torch.device, said: Callable[[str], None] | None = None) -> None:
        self.said = said or (lambda phase: None)
        self.spans = Spans(device)
        self.taken: list[Span] = []

    @contextmanager
    def phase(self, name: Phase, action: Action | None = None) -> Iterator[None]:
        """Time what happens inside."""
        self.said(name)
        with self.spans.phase(name, action):
            yield

    def take(self) -> dict[str, float]:
        """Seconds per phase since the last call; the device must be synchronised."""
        self.taken = self.spans.take()
        return by_phase(self.taken)


def by_phase(spans: Iterable[Span]) -> dict[str, float]:
    """Seconds of each phase."""
    seconds: dict[str, float] = defaultdict(float)
    for span in spans:
        seconds[span.name] += span.seconds
    return dict(seconds)
