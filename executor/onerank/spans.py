"""Times each phase of a step by itself, so that each action of the schedule is known."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import fmean, median
from time import perf_counter

import torch

from meshplan.costmodels.schedule.actions import Action
from meshplan.executor.engine.clock import Phase

Span = tuple[str, float]


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
        began = perf_counter()
        yield
        self._host.append((name, perf_counter() - began))

    def take(self) -> list[Span]:
        """The phases since the last call, in order; the device must be synchronised."""
        found, self._host = self._host, []
        found += [(name, start.elapsed_time(stop) / 1e3) for name, start, stop in self._events]
        self._events.clear()
        return found


def by_phase(spans: Sequence[Span]) -> dict[str, float]:
    """Seconds of each phase."""
    seconds: dict[str, float] = defaultdict(float)
    for name, each in spans:
        seconds[name] += each
    return dict(seconds)


def by_action(
    spans: Sequence[Span], order: Sequence[Action]
) -> Mapping[tuple[int, str], tuple[float, float]]:
    """Mean and median seconds of a stage's actions of one kind: `order` is what ran, one phase for
    each.
    """
    working = [seconds for name, seconds in spans if name in ("forward", "backward")]
    found: dict[tuple[int, str], list[float]] = defaultdict(list)
    for action, seconds in zip(order, working, strict=True):
        found[action.stage, action.kind].append(seconds)
    return {key: (fmean(each), median(each)) for key, each in found.items()}
