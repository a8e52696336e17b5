"""Memory that was freed, given back to the system where a process is large.

glibc keeps the pages of what was freed for what comes next. A large space leaves tens of MiB of
them, in pieces that the next arrays do not fit into, and a forked process has them too. To give
them back takes 2 to 5 ms, and what is needed again is faulted in again, so it is done between the
parts of a search alone. Elsewhere (musl, macOS, Windows) nothing is done.
"""

import gc
import sys
from functools import cache
from pathlib import Path
from typing import Any

LARGE_BYTES = 128 * 2**20  # with fewer resident nothing is worth the time


def give_back_freed(*, cycles: bool = False) -> None:
    """Give back what is free, if this process is large; before that, where `cycles` is set, free
    what nothing but itself refers to, as a search that has ended.
    """
    if sys.platform == "linux" and resident_bytes() >= LARGE_BYTES and (trim := _trim()):
        if cycles:
            gc.collect()
        trim(0)


def resident_bytes() -> int:
    """What this process holds of the memory now."""
    import resource  # not on Windows

    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize()


@cache
def _trim() -> Any:
    """glibc's `malloc_trim`, None of another library."""
    import ctypes

    return getattr(ctypes.CDLL(None), "malloc_trim", None)
