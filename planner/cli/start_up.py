"""What is imported when a command starts, and how."""

import gc
import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager

ONE_THREAD = "OPENBLAS_NUM_THREADS"


@contextmanager
def importing() -> Iterator[None]:
    """Imports without a search for garbage meanwhile: there is none among what modules hold, nor is
    it looked through later.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()


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
