"""The answers of all cells: from the cache where they are known, else planned on every core."""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from typing import Any

from meshplan.planner.answer.question import Asked
from meshplan.planner.processes.worker_processes import in_processes
from meshplan.planner.sweep.cache import Cache
from meshplan.planner.sweep.cells import Answer, Cell, answer, key_of

FEW_CELLS = 4  # up to these, starting processes costs more than it saves
Told = Callable[[int], None]


class WorkerDied(RuntimeError):
    """A process that planned a cell was killed; one line."""


class Interrupted(BaseException):
    """Ctrl-C; no `KeyboardInterrupt`, which a search takes as the wish for its best so far."""


def answers(
    cells: Sequence[Cell],
    cache: Cache,
    *,
    jobs: int,
    time_limit_s: float | None = None,
    told: Told = lambda _: None,
) -> list[Answer | None]:
    """The answer of each cell, None of those that Ctrl-C left open; `told` counts the new ones.

    Cells that ask the same are planned once. Raises `WorkerDied`.
    """
    keys = [None if cell.asked is None else key_of(cell.asked) for cell in cells]
    known: dict[str, Answer] = {}
    waiting: dict[str, Asked] = {}
    for key, cell in zip(keys, cells, strict=True):
        if key is None or cell.asked is None or key in known or key in waiting:
            continue
        if (kept := cache.get(key)) is not None:
            known[key] = kept
        else:
            waiting[key] = cell.asked
    told(len(cells) - len(waiting))
    try:
        with _ctrl_c_raises():
            for key, found in _planned(waiting, jobs, time_limit_s):
                known[key] = found
                cache.put(key, found)
                told(1)
    except Interrupted:
        pass  # what is there is shown; `None in answers` says that it is not all
    finally:
        cache.keep()
    refused = (Answer(status="REFUSED", reason=cell.refusal) for cell in cells)
    return [
        each if key is None else known.get(key) for key, each in zip(keys, refused, strict=True)
    ]


def _planned(
    waiting: dict[str, Asked], jobs: int, time_limit_s: float | None
) -> Iterator[tuple[str, Answer]]:
    """Each key with its answer, as they come."""
    workers = min(jobs, len(waiting))
    if workers <= 1 or len(waiting) <= FEW_CELLS:
        for key, asked in waiting.items():
            yield key, answer(asked, time_limit_s)
        return
    work = partial(answer, time_limit_s=time_limit_s)
    try:
        with in_processes(workers, work, list(waiting.values())) as futures:
            running = dict(zip(futures, waiting, strict=True))
            while running:
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(future), future.result()
    except BrokenProcessPool:
        raise WorkerDied(
            "a process that planned a cell was killed (out of memory?); --jobs 1 needs least, and "
            "--cache FILE keeps what is done"
        ) from None


@contextmanager
def _ctrl_c_raises() -> Iterator[None]:
    """Ctrl-C raises `Interrupted` inside; only the main thread may say so."""

    def interrupt(number: int, frame: Any) -> None:
        raise Interrupted

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
