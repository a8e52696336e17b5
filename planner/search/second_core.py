"""Independent pieces of work on two processors: every second one in a forked process.

What comes back is the same as on one processor, in the same order; only the clock differs. Where
there is one processor, where other threads run (a fork copies none of them, but their locks), and
off Linux all is done here. So is what the other process could not do.
"""

import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

Piece = TypeVar("Piece")
Done = TypeVar("Done")


def done_of_each(work: Callable[[Piece], Done], pieces: Sequence[Piece]) -> list[Done]:
    """`work` of each of `pieces`, which changes nothing outside itself, and can be pickled."""
    if len(pieces) < 2 or not _has_second_core():
        return [work(piece) for piece in pieces]
    child, reading = _forked(work, pieces[1::2])
    try:
        own = [work(piece) for piece in pieces[::2]]
        with os.fdopen(reading, "rb", closefd=False) as pipe:
            sent = pipe.read()
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        os.close(reading)
        _, failed = os.waitpid(child, 0)
    others = [work(piece) for piece in pieces[1::2]] if failed else pickle.loads(sent)
    every: list[Done] = [own[0]] * len(pieces)
    every[::2], every[1::2] = own, others
    return every


def _has_second_core() -> bool:
    alone = sys.platform == "linux" and threading.active_count() == 1
    return alone and len(os.sched_getaffinity(0)) > 1


def _forked(work: Callable[[Piece], Done], pieces: Sequence[Piece]) -> tuple[int, int]:
    """A process that does `pieces` and ends, and what to read its answers from: nothing where it
    failed.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    failed = 1
    try:
        os.close(reading)
        sent = pickle.dumps([work(piece) for piece in pieces], pickle.HIGHEST_PROTOCOL)
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(sent)
        failed = 0
    finally:
        os._exit(failed)  # nothing of the parent's is flushed or cleaned up twice
