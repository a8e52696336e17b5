"""Processes of our own that work on the pieces of a command, and end with it, however it ends.

Every process gets all pieces when it starts, and then the place of one after the other: a large
piece, which fills a pipe, would wait there for ever once the processes are ended.
"""

import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from meshplan.planner.processes.parent_death import die_with_parent

Piece = TypeVar("Piece")
Found = TypeVar("Found")
CTRL_C = {signal.SIGINT}

_given: list[tuple[Callable[[Any], Any], Sequence[Any]]] = []
"""In such a process: the work and its pieces."""


@contextmanager
def in_processes(
    workers: int, work: Callable[[Piece], Found], pieces: Sequence[Piece]
) -> Iterator[list[Future[Found]]]:
    """What `work` makes of each piece; where the block is left by an exception, Ctrl-C among them,
    the processes end at once.
    """
    pool = ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"),
        initializer=_take, initargs=(work, pieces),
    )  # fmt: skip
    try:
        yield _begun(pool, len(pieces))
    except BaseException:
        for child in multiprocessing.active_children():
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begun(pool: ProcessPoolExecutor, pieces: int) -> list[Future[Any]]:
    """All pieces, handed out. Processes start here and inherit that Ctrl-C waits: it is for the one
    that started them, beside whose message theirs would be tracebacks.
    """
    with ctrl_c_waits():
        return [pool.submit(_work_on, place) for place in range(pieces)]


@contextmanager
def ctrl_c_waits() -> Iterator[None]:
    """Ctrl-C comes at the end of the block: within it, a process that was just started would be
    known to nobody. Other threads do not block it, so what hears it must wait too.
    """
    heard = list[int]()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, CTRL_C)
    hears = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT)
    if hears:
        signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        yield
    finally:
        if hears:
            signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if heard:
            signal.raise_signal(signal.SIGINT)


def _take(work: Callable[[Any], Any], pieces: Sequence[Any]) -> None:
    if starter := multiprocessing.parent_process():
        die_with_parent(parent=starter.pid)
    _given.append((work, pieces))


def _work_on(place: int) -> Any:
    ((work, pieces),) = _given
    return work(pieces[place])
