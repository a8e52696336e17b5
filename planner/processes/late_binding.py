"""Shared libraries whose functions are looked up when they are first called.

Python has the loader look up all of them when a library is loaded. OR-Tools brings a hundred
libraries, of which a search calls little: 20 of the 50 to 65 processor-milliseconds that its import
takes are such look-ups (2026-11-28). Windows has no such choice.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def bound_when_called() -> Iterator[None]:
    """What is imported meanwhile."""
    if not hasattr(sys, "setdlopenflags"):
        yield
        return
    usual = sys.getdlopenflags()
    sys.setdlopenflags(usual & ~os.RTLD_NOW | os.RTLD_LAZY)
    try:
        yield
    finally:
        sys.setdlopenflags(usual)
