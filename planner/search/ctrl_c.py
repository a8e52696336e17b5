"""Whether Ctrl-C came, for what follows a search that took it as the wish for its best so far."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def hearing_ctrl_c() -> Iterator[list[int]]:
    """A list that is empty until Ctrl-C comes, which does what it did before. Outside the main
    thread, which alone is told of it, the list stays empty.
    """
    heard, before = list[int](), signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield heard
        return
    handler = before

    def hear(number: int, frame: Any) -> None:
        heard.append(number)
        handler(number, frame)

    signal.signal(signal.SIGINT, hear)
    try:
        yield heard
    finally:
        signal.signal(signal.SIGINT, before)
