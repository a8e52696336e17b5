"""Independent pieces of work on two processors: a forked process takes part.

Both take the next piece when they are done with one. What comes back is the same as on one
processor, in the same order; only the clock differs. Where there is one processor, where other
threads run (a fork copies none of them, but their locks), off Linux and within a piece all is done
here. So is what the other process could not do.

Work that a forked process has begun (`Begun`) is not divided while something else is done here.
Once this process has nothing left to do but to wait for it, it has this processor as well.
"""

import atexit
import mmap
import os
import pickle
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, Generic, TypeVar

from meshplan.planner.processes.free_pages import give_back_freed
from meshplan.planner.processes.parent_death import die_with_parent

Piece = TypeVar("Piece")
Done = TypeVar("Done")
Other = TypeVar("Other")

NUMBER = 4  # bytes of a piece's number in the pipe, which holds 16,384 of them
AHEAD = 8  # pieces that are done at once, before they are asked for
FEW_ROWS = 4096  # with fewer a second process is not worth its start
WORTH_S = 0.02  # nor with less work: a fork, and some thousand pages that both copy when they write
_second = threading.Lock()  # held by whoever uses the second processor
_ending = list[int]()  # forked processes that have answered, or were killed
_meanwhile = list[int]()  # the process that keeps it beyond the call that forked it
_lent = list[mmap.mmap]()  # in such a process: whether the one that forked it waits for it


def done_of_each(work: Callable[[Piece], Done], pieces: Sequence[Piece]) -> list[Done]:
    """`work` of each of `pieces`, which changes nothing outside itself, and can be pickled.

    What takes longest should come first.
    """
    if len(pieces) < 2 or not is_idle() or not _second.acquire(blocking=False):
        return [work(piece) for piece in pieces]
    try:
        done = _shared(work, pieces)
    finally:
        _second.release()
    return [done[at] if at in done else work(piece) for at, piece in enumerate(pieces)]


def done_until(
    work: Callable[[Piece], Done], pieces: Sequence[Piece], deadline: float
) -> list[Done | None]:
    """`done_of_each`, and None of what is not begun by the deadline, of `time.perf_counter`. The
    first piece is always done, and pieces are begun far from those done before, so that what is
    there at the deadline is of all parts of the list.
    """
    order = sorted(range(len(pieces)), key=_mirrored)

    def of(at: int) -> Done | None:
        in_time = at == 0 or time.perf_counter() < deadline
        return work(pieces[at]) if in_time else None

    done = dict(zip(order, done_of_each(of, order), strict=True))
    return [done[at] for at in range(len(pieces))]


def _mirrored(number: int) -> int:
    """The bits of `number` from the last to the first."""
    return int(f"{number:032b}"[::-1], 2)


def done_of_many(work: Callable[[Piece], Done], pieces: Sequence[Piece]) -> list[Done]:
    """`done_of_each` of pieces that may be short: they are begun here, and a forked process takes
    part once what is left will take longer than its start, if it is like what is done.
    """
    done, begun_s = list[Done](), time.perf_counter()
    for piece in pieces:
        left = len(pieces) - len(done)
        if done and (time.perf_counter() - begun_s) / len(done) * left >= WORTH_S:
            break
        done.append(work(piece))
    return done + done_of_each(work, pieces[len(done) :])


def done_ahead(
    work: Callable[[Piece], Done], pieces: Sequence[Piece]
) -> Iterator[tuple[Piece, Done]]:
    """Each of `pieces` with what `work` gives, when it is asked for: on two processors `AHEAD` at
    once, of which the last may be in vain.
    """
    step = AHEAD if is_idle() else 1
    for at in range(0, len(pieces), step):
        some = pieces[at : at + step]
        yield from zip(some, done_of_many(work, some), strict=True)


def done_beside(*pieces: Callable[[], Done]) -> list[Done]:
    """What each of `pieces` gives, as `done_of_each`."""
    return done_of_each(_called, pieces)


def done_meanwhile(
    work: Callable[[], Done], other: Callable[[], Other], deadline: float | None = None
) -> tuple[Done, Other | None]:
    """What both give, neither of which needs the other: a forked process finds `other` while `work`
    runs here, which has the second processor from when that process is done.

    Where `work` ends after the deadline, of `time.perf_counter`, `other` is waited for as long
    again as `work` was given, and is None if it was not begun or takes longer.
    """
    begun, begun_s = Begun(other), time.perf_counter()
    try:
        done = work()
        if deadline is not None and time.perf_counter() >= deadline:
            found = begun.done_by(2 * deadline - begun_s)
        else:
            found = begun.done()
        return done, found[0] if found else None
    finally:
        begun.end()


class Later(Generic[Done]):
    """Work whose answer is needed later and the same till then: a `Begun` may do it meanwhile."""

    def __init__(self, work: Callable[[], Done]) -> None:
        self.work, self._begun = work, list[Begun[Any]]()

    def begun(self, by: "Begun[Any]") -> None:
        """Another process does it first of all that it does."""
        self._begun = [by]

    def done(self) -> Done:
        """The answer: of this process where no other one has begun it. It is asked for once; then
        the work is let go, with all that it refers to.
        """
        sent = self._begun[0].first_sent() if self._begun else None
        work = self.work
        del self.work, self._begun
        return work() if sent is None else sent[0]


class Begun(Generic[Done]):
    """Pieces that a forked process does, one after the other, while something else is done here: it
    has the second processor until it is done with them. Before them it does `first`, for which
    somebody else waits: meanwhile pieces are begun here, from the last, which takes least. Once
    nothing is left to begin here, it divides what it does. What follows is `done`, or `end`.
    """

    def __init__(self, *pieces: Callable[[], Done], first: Later[Any] | None = None) -> None:
        self.pieces, self._child, self._here = pieces, 0, dict[int, Done]()
        if not pieces or not is_idle():
            return
        self._queue, self._waits = _queue_of(len(pieces)), mmap.mmap(-1, 1)
        with _second:
            self._child, self._reading = _forked(lambda: self._answers(first))
        _meanwhile.append(self._child)
        if first:
            first.begun(self)

    def _answers(self, first: Later[Any] | None) -> Iterator[object]:
        """What the forked process answers, which has this processor when it is waited for."""
        _second.release()
        _meanwhile.clear()
        _lent[:] = [self._waits]
        if first:
            yield (first.work(),)
            give_back_freed()
        done = dict[int, Done]()
        while os.read(self._queue, NUMBER):
            done[len(done)] = self.pieces[len(done)]()
        yield done

    def first_sent(self) -> tuple[Any] | None:
        """The answer of `first`, None where there is none. It is asked once."""
        if not self._child:
            return None
        self._begin_here(until=self._has_sent)
        with self._waiting():
            found: tuple[Any] | None = _next_sent(self._reading)
        return found

    def _begin_here(self, until: Callable[[], bool] = lambda: False) -> None:
        """Do pieces from the last, as many as `until` leaves time for: the other process takes them
        from the first, and each of both a number for each from the queue.
        """
        while not until() and os.read(self._queue, NUMBER):
            at = len(self.pieces) - 1 - len(self._here)
            self._here[at] = self.pieces[at]()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Nothing is done here meanwhile."""
        self._waits[0] = 1
        try:
            yield
        finally:
            self._waits[0] = 0

    def _has_sent(self, wait_s: float = 0.0) -> bool:
        return bool(select.select([self._reading], [], [], wait_s)[0])

    def done(self) -> list[Done]:
        """What each piece gives: those that the other process has not begun are done here."""
        if not self._child:
            return done_beside(*self.pieces)
        self._begin_here()
        with self._waiting():
            done = self._here | (_sent(*self._let_go()) or {})
        return [done[at] if at in done else piece() for at, piece in enumerate(self.pieces)]

    def done_by(self, deadline: float) -> list[Done] | None:
        """`done` of the other process, if it has all of them by the deadline; nothing is begun
        here.
        """
        if not self._child or not self._has_sent(max(0.0, deadline - time.perf_counter())):
            return None
        return self.done()

    def end(self) -> None:
        """Nobody needs what is not done yet."""
        if self._child:
            os.kill(self._child, signal.SIGKILL)
            _sent(*self._let_go())

    def _let_go(self) -> tuple[int, BinaryIO]:
        child, self._child = self._child, 0
        _meanwhile.remove(child)
        os.close(self._queue)
        return child, self._reading


def is_idle() -> bool:
    """Whether a second processor would take part now."""
    is_lent = all(waits[0] for waits in _lent)
    others_ended = not _second.locked() and all(map(_has_ended, _meanwhile))
    return _has_second_core() and is_lent and others_ended


def blocks(rows: int, most: int) -> range:
    """Where blocks of at most `most` rows begin: equal ones, an even number but for few rows."""
    pairs = -(-rows // (2 * most))
    step = min(rows, most) if rows <= FEW_ROWS else -(-rows // (2 * pairs))
    return range(0, max(1, rows), max(1, step))


def _has_second_core() -> bool:
    alone = sys.platform == "linux" and threading.active_count() == 1
    return alone and len(os.sched_getaffinity(0)) > 1


def _has_ended(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _shared(work: Callable[[Piece], Done], pieces: Sequence[Piece]) -> dict[int, Done]:
    """What this process did of `pieces`, by number, and the other one unless it failed."""
    queue = _queue_of(len(pieces))
    child, reading = _forked(lambda: [_taken(work, pieces, queue)])
    try:
        done = _taken(work, pieces, queue)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        os.close(queue)
        sent = _sent(child, reading)
    return done | (sent or {})


def _queue_of(pieces: int) -> int:
    """What both processes take the numbers of so many pieces from."""
    queue, numbers = os.pipe()
    os.write(numbers, b"".join(at.to_bytes(NUMBER, "big") for at in range(pieces)))
    os.close(numbers)
    return queue


def _called(piece: Callable[[], Done]) -> Done:
    return piece()


def _taken(work: Callable[[Piece], Done], pieces: Sequence[Piece], queue: int) -> dict[int, Done]:
    """The pieces whose numbers this process takes from `queue`."""
    done = dict[int, Done]()
    while number := os.read(queue, NUMBER):
        at = int.from_bytes(number, "big")
        done[at] = work(pieces[at])
    return done


def _forked(work: Callable[[], Iterable[object]]) -> tuple[int, BinaryIO]:
    """A process that does `work` and ends, and what to read its answers from, each when it is
    there: None behind the last of them, and no more where it failed. It ends with this one.
    """
    _reap(os.WNOHANG)
    reading, writing = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child:
        os.close(writing)
        return child, os.fdopen(reading, "rb")
    failed = 1
    try:
        die_with_parent(parent=parent)
        _ending.clear()
        os.close(reading)
        with os.fdopen(writing, "wb") as pipe:
            for done in work():
                _send(done, pipe)
            _send(None, pipe)
        _reap()  # whoever waits for this process is told of its own ones' seconds
        failed = 0
    finally:
        os._exit(failed)  # nothing of the parent's is flushed or cleaned up twice


def _send(answer: object, pipe: BinaryIO) -> None:
    pickle.dump(answer, pipe, pickle.HIGHEST_PROTOCOL)
    pipe.flush()


def _next_sent(reading: BinaryIO) -> Any:
    """What a forked process answers next, when it is there; None where it failed."""
    with suppress(EOFError, pickle.UnpicklingError):
        return pickle.load(reading)
    return None


def _sent(child: int, reading: BinaryIO) -> Any:
    """The last that a forked process answers, when it is there; None where it failed. That process
    is not waited for: to give its memory back takes it some milliseconds.
    """
    sent = None
    try:
        with reading:
            while (found := pickle.load(reading)) is not None:
                sent = found
    except (EOFError, pickle.UnpicklingError):
        return None
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        _ending.append(child)
    return sent


def _reap(how: int = 0) -> None:
    """Let go of what has ended, and wait for it unless `how` says not to."""
    while _ending:
        with suppress(ChildProcessError):  # somebody else has let go of it
            if not os.waitpid(_ending[0], how)[0]:
                return
        del _ending[0]


atexit.register(_reap)
