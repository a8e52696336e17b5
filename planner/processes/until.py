"""Work that a deadline ends wherever it is, as Ctrl-C does.

What scans sizes or lifts pins one after the other looks at no clock. An alarm of the process ends
it: `Ended` is raised in what runs then, which lets go of what it holds as it does when Ctrl-C is
pressed. Python drops what is raised in a finaliser or a callback of its garbage collector, so the
alarm comes again until it is heard. Where there are no such alarms (off Unix, outside the main
thread) work is not ended, but nothing is begun after the deadline.
"""

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Generic, NamedTuple, TypeVar

AGAIN_S = 0.5

Done = TypeVar("Done")


class Ended(BaseException):
    """The deadline came; no `except Exception` takes it for a failure."""


class Finished(NamedTuple, Generic[Done]):
    """What work gave that came to its end, which may be None."""

    answer: Done


def done_by(work: Callable[[], Done], deadline: float | None) -> Finished[Done] | None:
    """What `work` gives, None where the deadline, of `time.perf_counter`, comes before its end."""
    if deadline is None:
        return Finished(work())
    left_s = deadline - time.perf_counter()
    if left_s <= 0:
        return None
    if not hasattr(signal, "setitimer") or not _is_main():
        return Finished(work())
    return _ended_after(work, left_s)


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def _ended_after(work: Callable[[], Done], left_s: float) -> Finished[Done] | None:
    """`work`, unless it takes longer: an alarm that comes when it is done changes nothing."""
    running = [True]

    def end(number: int, frame: FrameType | None) -> None:
        if running:
            raise Ended

    before = signal.signal(signal.SIGALRM, end)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, left_s, AGAIN_S)
            return Finished(work())
        finally:
            running.clear()
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Ended:
        return None
    finally:
        signal.signal(signal.SIGALRM, before)
