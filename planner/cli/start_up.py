"""What is imported when a command starts, and how."""

import gc
import importlib
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ONE_THREAD = "OPENBLAS_NUM_THREADS"


@contextmanager
def importing() -> Iterator[None]:
    """Imports without a search for garbage meanwhile: there is none among what modules hold, nor is
    it looked through later. Ctrl-C ends the process: there is nothing to keep yet, and what is half
    imported would fail with errors of its own.
    """
    was_on, was_heard = gc.isenabled(), ends_on_ctrl_c()
    gc.disable()
    try:
        yield
    finally:
        if was_heard:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        gc.freeze()
        if was_on:
            gc.enable()


def ends_on_ctrl_c() -> bool:
    """Have Ctrl-C end the process at once and unsaid, where it raised `KeyboardInterrupt`; whether
    it did. Only the main thread may say so.
    """
    is_main = threading.current_thread() is threading.main_thread()
    raised = is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if raised:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return raised


def import_numpy() -> None:
    """Import numpy with one thread: products of small matrices take longer on several. Nothing that
    is started later inherits that, and what the user set counts.
    """
    if ONE_THREAD in os.environ:
        return
    os.environ[ONE_THREAD] = "1"
    try:
        importlib.import_module("numpy")
    finally:
        del os.environ[ONE_THREAD]
