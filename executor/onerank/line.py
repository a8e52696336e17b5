"""Delayed messages: one that is answered here arrives a given number of seconds after it began.

    CPU   a point in time, before which a thread of its own has kept a core busy for as long as
          gloo's do; whoever waits sleeps until then
    CUDA  a kernel that spins so long on a stream of its own, beside the copy that makes the answer

The messages of one line follow each other, as those of one communicator do. What a rank waits for
and nothing hides is added up in `Waited`: on a CPU what was left of the message's time (a busy core
wakes the sleeper later, which is its neighbours' doing), on CUDA the device's own time.
"""

import ctypes
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from functools import cache
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from meshplan.executor.onerank.wire import Message

SPIN_S = 10e-6
"""A sleep ends up to so much late: the last part is waited for awake."""
PR_SET_TIMERSLACK = 29  # prctl(2): how late the kernel may end this thread's sleeps, in nanoseconds
BUSY_NUMBERS = 2**14  # of 8 bytes, copied at a time: too few for torch to use several threads
CALIBRATION_CYCLES = 20_000_000


class Waited:
    """Seconds that nothing hid, by the line's name, and when a host began to compute again."""

    def __init__(self) -> None:
        self._computes_since = time.perf_counter()
        self._host: dict[str, float] = defaultdict(float)
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    def add(self, name: str, seconds: float) -> None:
        """Of a host that waited until now."""
        self._host[name] += seconds
        self._computes_since = time.perf_counter()

    def computed_s(self) -> float:
        """Seconds that this host computed since a message last arrived or began, until now."""
        before, self._computes_since = self._computes_since, time.perf_counter()
        return self._computes_since - before

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

    def begin(self, message: Message, fill: Callable[[], None]) -> dist.Work:
        """A message that begins once those before it are done; `fill` makes the answer."""


class CpuLine:
    """Messages that are points in time, and work of a thread meanwhile."""

    def __init__(self, name: str, waited: Waited) -> None:
        self.name, self.waited = name, waited
        self.free_at = 0.0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    def begin(self, message: Message, fill: Callable[[], None]) -> dist.Work:
        """The answer is made by the line's thread, and has arrived when the time has passed."""
        self.free_at = max(time.perf_counter(), self.free_at) + message.seconds
        return _Arrival(self.free_at, self, self._thread.submit(_work, fill, message.busy_s))


def _work(fill: Callable[[], None], busy_s: float) -> None:
    """Make the answer, and copy memory until `busy_s` of processor time are spent."""
    began = time.thread_time()
    with torch.no_grad():
        fill()
        source, target = _buffers()
        while time.thread_time() - began < busy_s:
            target.copy_(source)


@cache
def _buffers() -> tuple[Tensor, Tensor]:
    """Two pieces of memory to copy between."""
    source, target = (torch.zeros(BUSY_NUMBERS, dtype=torch.float64) for _ in range(2))
    return source, target


class _Arrival(dist.Work):
    """A message on a CPU."""

    def __init__(self, at: float, line: CpuLine, work: Future[None]) -> None:
        super().__init__()
        self.at, self.line, self.work = at, line, work

    def is_completed(self) -> bool:
        """Whether its time has passed."""
        return self.work.done() and time.perf_counter() >= self.at

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Sleep until then."""
        left_s = self.at - time.perf_counter()
        self.work.result()
        _sleep_exactly()
        if (sleep_s := self.at - time.perf_counter()) > SPIN_S:
            time.sleep(sleep_s - SPIN_S)
        while time.perf_counter() < self.at:
            pass
        self.line.waited.add(self.line.name, max(0.0, left_s))
        return True


@cache
def _sleep_exactly() -> None:
    """Have this thread's sleeps end when they should: by default up to 50 us later."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)


class CudaLine:
    """Messages that are kernels on a stream."""

    def __init__(self, name: str, waited: Waited) -> None:
        self.name, self.waited = name, waited
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def begin(self, message: Message, fill: Callable[[], None]) -> dist.Work:
        """The spin and the copy run side by side: the message takes the longer of the two."""
        copying, now = _copies(), torch.cuda.current_stream()
        copying.wait_stream(now)
        self.stream.wait_stream(now)
        with torch.cuda.stream(self.stream):
            torch.cuda._sleep(int(message.seconds * _cycles_per_s()))  # type: ignore[no-untyped-call]
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
