"""A lock on a file that is replaced as a whole: on a second file beside it, which goes with it.

Who waits for the lock may get it on a file that is gone by then: it looks again.
"""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCKLESS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""What file systems without locks answer, such as Lustre unless it is mounted with them."""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """No other process is inside for `path` at the same time, where its file system has locks.
    Raises `OSError`.
    """
    beside = path.with_name(f".{path.name}.lock")
    handle = _taken(beside)
    try:
        yield
    finally:
        beside.unlink(missing_ok=True)
        os.close(handle)


def _taken(beside: Path) -> int:
    while True:
        handle = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if _is_there(handle, beside):
                return handle
        except OSError as error:
            if error.errno in LOCKLESS:
                return handle
            os.close(handle)
            raise
        os.close(handle)


def _is_there(handle: int, beside: Path) -> bool:
    """Whether the open file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(handle), beside.stat())
    except FileNotFoundError:
        return False
