"""The allocator of this process on a CPU: what it keeps, and the most that it had handed out.

glibc returns large freed blocks to the system and takes them anew, zeroed page by page: a bf16 step
of a small model then takes 15 to 25 % longer. So those who train or measure keep what they free.

The resident set counts more: the libraries, and the holes between freed blocks that the allocator
keeps. glibc says what is in use (`mallinfo2`); a thread asks it `EVERY_S` while a step runs, which
costs some time, so only steps that are not timed are watched.
"""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

EVERY_S = 0.5e-3
FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
          "fordblks", "keepcost")  # fmt: skip


TRIM_THRESHOLD, MAPPINGS = -1, -4  # of mallopt
NEVER = -1


def keep_freed_memory() -> None:
    """Reuse freed blocks instead of returning them, where the C library can be told so."""
    tell = getattr(ctypes.CDLL(None), "mallopt", None)
    if tell is not None:
        tell(MAPPINGS, 0)
        tell(TRIM_THRESHOLD, NEVER)


class _MallInfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS]


class Heap:
    """Bytes in use beyond those at its making, and their peak over the watched steps."""

    def __init__(self) -> None:
        self._ask = getattr(ctypes.CDLL(None), "mallinfo2", None)
        if self._ask is not None:
            self._ask.restype = _MallInfo
        self._before = self._in_use()
        self.peak_bytes = 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Follow the peak while the body runs."""
        done = threading.Event()

        def follow() -> None:
            while not done.wait(EVERY_S):
                self.peak_bytes = max(self.peak_bytes, self._in_use() - self._before)

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _in_use(self) -> int:
        """Bytes of all arenas, and of blocks that have a mapping of their own."""
        if self._ask is None:
            return 0
        found = self._ask()
        return int(found.uordblks + found.hblkhd)
