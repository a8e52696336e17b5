"""When a message that is answered here has arrived: later than it began by given seconds.

    CPU   a point in time; whoever waits sleeps until then, so that the core is free meanwhile
    CUDA  a kernel that spins so long on a stream of its own, beside the copy that makes the answer

The messages of one line follow each other, as those of one communicator do. What a rank waits for
and nothing hides is added up in `Waited`: on a CPU what was left of the message's time (a busy core
wakes the sleeper later, which is its neighbours' doing), on CUDA the device's own time.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from typing import Protocol

import torch
import torch.distributed as dist

SPIN_S = 100e-6
"""A sleep ends up to so much late: the last part is waited for awake."""
CALIBRATION_CYCLES = 20_000_000


class Waited:
    """Seconds that nothing hid, by the line's name."""

    def __init__(self) -> None:
        self._host: dict[str, float] = defaultdict(float)
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    def add(self, name: str, seconds: float) -> None:
        """Of a host that waited."""
        self._host[name] += seconds

    def around(self, name: str, start: torch.cuda.Event, stop: torch.cuda.Event) -> None:
        """Of a stream that waited between two events."""
        self._events.append((name, start, stop))

    def take(self) -> dict[str, float]:
        """The seconds since the last call; the device must be synchronised."""
        seconds, self._host = self._host, defaultdict(float)
        for name, start, stop in self._events:
            seconds[name] += start.elapsed_time(stop) / 1e3
        self._events.clear()
        return dict(seconds)


class Line(Protocol):
    """One communicator of one rank."""

    def begin(self, seconds: float, fill: Callable[[], None]) -> dist.Work:
        """A message that takes `seconds` once those before it are done; `fill` makes the answer."""


class CpuLine:
    """Messages that are points in time."""

    def __init__(self, name: str, waited: Waited) -> None:
        self.name, self.waited = name, waited
        self.free_at = 0.0

    def begin(self, seconds: float, fill: Callable[[], None]) -> dist.Work:
        """The answer is made at once, and has arrived when the time has passed."""
        self.free_at = max(time.perf_counter(), self.free_at) + seconds
        fill()
        return _Arrival(self.free_at, self)


class _Arrival(dist.Work):
    """A message on a CPU."""

    def __init__(self, at: float, line: CpuLine) -> None:
        super().__init__()
        self.at, self.line = at, line

    def is_completed(self) -> bool:
        """Whether its time has passed."""
        return time.perf_counter() >= self.at

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Sleep until then."""
        left_s = self.at - time.perf_counter()
        if left_s > SPIN_S:
            time.sleep(left_s - SPIN_S)
        while time.perf_counter() < self.at:
            pass
        self.line.waited.add(self.line.name, max(0.0, left_s))
        return True


class CudaLine:
    """Messages that are kernels on a stream."""

    def __init__(self, name: str, waited: Waited) -> None:
        self.name, self.waited = name, waited
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def begin(self, seconds: float, fill: Callable[[], None]) -> dist.Work:
        """The spin and the copy run side by side: the message takes the longer of the two."""
        copying, now = _copies(), torch.cuda.current_stream()
        copying.wait_stream(now)
        self.stream.wait_stream(now)
        with torch.cuda.stream(self.stream):
            torch.cuda._sleep(int(seconds * _cycles_per_s()))  # type: ignore[no-untyped-call]
        with torch.cuda.stream(copying):
            fill()
        self.stream.wait_stream(copying)
        return _Kernel(self, fill)


class _Kernel(dist.Work):
    """A message on CUDA; keeps what its copy reads and writes until it is waited for."""

    def __init__(self, line: CudaLine, fill: Callable[[], None]) -> None:
        super().__init__()
        self.line, self.fill = line, fill
        self.done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.done.record(line.stream)

    def is_completed(self) -> bool:
        """Whether the kernel has ended."""
        return bool(self.done.query())  # type: ignore[no-untyped-call]

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """The current stream goes on after it."""
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        torch.cuda.current_stream().wait_event(self.done)
        stop.record()
        self.line.waited.around(self.line.name, start, stop)
        del self.fill
        return True


@cache
def _copies() -> torch.cuda.Stream:
    """The stream on which answers are made."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


@cache
def _cycles_per_s() -> float:
    """How fast the device's counter runs that `torch.cuda._sleep` counts by: measured, once."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda._sleep(CALIBRATION_CYCLES)  # type: ignore[no-untyped-call]
    start.record()
    torch.cuda._sleep(CALIBRATION_CYCLES)  # type: ignore[no-untyped-call]
    stop.record()
    torch.cuda.synchronize()
    return CALIBRATION_CYCLES / float(start.elapsed_time(stop) / 1e3)
