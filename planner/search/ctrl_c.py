"""Whether Ctrl-C came, for what follows a search that took it as the wish for its best so far; and
what one Ctrl-C does not end, because all that it could save is there.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def hearing_ctrl_c() -> Iterator[list[int]]:
    """A list that is empty until Ctrl-C comes, which does what it did before. Outside the main
    thread, which alone is told of it, the list stays empty.
    """
    with _heard_first(lambda _: True) as heard:
        yield heard


@contextmanager
def unheard_once() -> Iterator[None]:
    """The first Ctrl-C does nothing, another one what it did before: for what takes a moment, and
    would lose what took long; but who reads it may never do so.
    """
    with _heard_first(lambda times: times > 1):
        yield


@contextmanager
def _heard_first(goes_on: Callable[[int], bool]) -> Iterator[list[int]]:
    """The Ctrl-Cs that came, each of which does what it did before if `goes_on` with their number;
    outside the main thread, and where it was ignored, none.
    """
    heard, before = list[int](), signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield heard
        return
    handler = before

    def hear(number: int, frame: Any) -> None:
        heard.append(number)
        if goes_on(len(heard)):
            handler(number, frame)

    signal.signal(signal.SIGINT, hear)
    try:
        yield heard
    finally:
        signal.signal(signal.SIGINT, before)
