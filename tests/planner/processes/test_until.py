"""Work that a deadline ends."""

import signal
import time

import pytest

from meshplan.planner.processes import until
from meshplan.planner.processes.second_core import done_until
from meshplan.planner.processes.until import Finished, done_by

FAR_S, SOON_S = 60.0, 0.05


def _endless() -> int:
    while True:
        time.sleep(0.001)


def test_work_without_end_is_ended_at_its_deadline() -> None:
    """And the alarm is as it was before."""
    before, begun = signal.getsignal(signal.SIGALRM), time.perf_counter()
    assert done_by(_endless, begun + SOON_S) is None
    assert SOON_S <= time.perf_counter() - begun < 5.0
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_what_is_done_in_time_is_told() -> None:
    """None too is an answer; later no alarm comes."""
    soon = time.perf_counter() + SOON_S
    assert done_by(lambda: None, soon) == Finished(None)
    assert done_by(lambda: 7, None) == Finished(7)
    time.sleep(2 * SOON_S)


def test_nothing_is_begun_after_the_deadline() -> None:
    """What has no time left is not called."""
    begun = list[int]()
    assert done_by(lambda: begun.append(1), time.perf_counter()) is None
    assert begun == []


def test_no_handler_of_failures_takes_the_end_for_one() -> None:
    """`except Exception` in the work does not keep it going; what it raises itself is raised."""

    def stubborn() -> int:
        while True:
            try:
                _endless()
            except Exception:
                continue

    assert done_by(stubborn, time.perf_counter() + SOON_S) is None
    with pytest.raises(ZeroDivisionError):
        done_by(lambda: 1 // 0, time.perf_counter() + FAR_S)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_end_that_python_drops_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is raised while an object is finalised is dropped: the work would go on for a minute."""
    monkeypatch.setattr(until, "AGAIN_S", 4 * SOON_S)

    class Lasting:
        def __del__(self) -> None:
            time.sleep(2 * SOON_S)

    def work() -> None:
        Lasting()
        for _ in range(int(FAR_S / SOON_S)):
            time.sleep(SOON_S)

    begun = time.perf_counter()
    assert done_by(work, begun + SOON_S) is None
    assert time.perf_counter() - begun < 5.0


@pytest.mark.parametrize("pieces", [1, 2, 9])
def test_pieces_are_done_until_the_deadline(pieces: int) -> None:
    """All of them before it, in their order; the first alone after it."""
    of = list(range(pieces))
    assert done_until(lambda each: each**2, of, time.perf_counter() + FAR_S) == [i**2 for i in of]
    late = done_until(lambda each: each**2, of, time.perf_counter())
    assert late == [0] + [None] * (pieces - 1)


def test_pieces_far_from_each_other_are_begun_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of eight with time for three: the first, the middle one and that of the first half."""
    monkeypatch.setattr("meshplan.planner.processes.second_core._has_second_core", lambda: False)
    now = iter(range(100))
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    done = done_until(lambda each: each, list(range(8)), 2)
    assert [each for each in done if each is not None] == [0, 2, 4]
