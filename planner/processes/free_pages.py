"""Memory that was freed: kept for what comes next, and given back where a process is large.

glibc keeps the pages of what was freed for what comes next. A large space leaves tens of MiB of
them, in pieces that the next arrays do not fit into, and a forked process has them too. To give
them back takes 2 to 5 ms, and what is needed again is faulted in again, so it is done between the
parts of a search alone.

By itself glibc gives back what is free at the end of its heap as soon as that is twice the largest
array that was freed. What a search takes and frees for each block of rows is more than that, so the
same pages were faulted in again for each: a tenth of the processor-seconds of a large space.
`keep_freed` has it keep as much as such a block takes. Elsewhere (musl, macOS, Windows) nothing is
done.
"""

import gc
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

LARGE_BYTES = 128 * 2**20  # with fewer resident nothing is worth the time
KEPT_BYTES, APART_BYTES = 32 * 2**20, 4 * 2**20
"""Free at the end of the heap at most; an array of so much has pages of its own."""
YOUNG = 50_000
"""New objects among which what only itself refers to is looked for; with Python's 700 an ordinary
search does so 150 times, for a fiftieth of its processor-seconds, and finds nearly nothing."""
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of `mallopt`, as in malloc.h
SET_BY_USER = "MALLOC_TRIM_THRESHOLD_"  # the variable that glibc reads
TRIM = "malloc_trim"


def keep_freed() -> None:
    """From now on keep what is freed for what comes next, unless the user has said how much."""
    may_be = sys.platform == "linux" and SET_BY_USER not in os.environ
    if may_be and (option := _of_libc("mallopt")):
        option(TRIM_THRESHOLD, KEPT_BYTES)
        option(MMAP_THRESHOLD, APART_BYTES)


def collect_seldom() -> None:
    """From now on look seldom for what only itself refers to, where that is looked for at all."""
    gc.set_threshold(YOUNG)


def give_back_freed(*, cycles: bool = False) -> None:
    """Give back what is free, if this process is large; before that, where `cycles` is set, free
    what nothing but itself refers to, as a search that has ended.
    """
    if sys.platform == "linux" and resident_bytes() >= LARGE_BYTES and (trim := _of_libc(TRIM)):
        if cycles:
            gc.collect()
        trim(0)


def resident_bytes() -> int:
    """What this process holds of the memory now."""
    import resource  # not on Windows

    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize()


@cache
def _of_libc(name: str) -> Any:
    """A function of glibc, None where another library does not have it."""
    import ctypes

    return getattr(ctypes.CDLL(None), name, None)
