"""Reading a file that somebody else named: a regular file, and no more of it than its kind has.

A pipe would wait for ever, `/dev/zero` never ends, and a file may be larger than the memory.
"""

import os
import re
import stat
from functools import cache
from pathlib import Path


def read_bounded(path: Path, most_bytes: int, kind: str) -> bytes:
    """The bytes of the regular file at `path`.

    Raises `OSError` when it cannot be read and `ValueError` when it is no file or larger than
    `most_bytes`, which are more than any `kind` has. What was opened is what is looked at: nobody
    can put a pipe in its place in between.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError(
                f"not a file, and pipes are not read; write {kind} to one and name that"
            )
        data = file.read(most_bytes + 1)
    if data is None:  # of /proc/kmsg and its like, which call themselves files
        raise ValueError(f"nothing to read by now; name {kind}")
    if len(data) > most_bytes:
        raise ValueError(f"larger than {most_bytes >> 20} MiB, which {kind} is not")
    return data


@cache
def dotted_key(dots: int) -> re.Pattern[str]:
    """A key of TOML with as many dots or more: reading it costs the square of them."""
    return re.compile(rf"(?<![\w\"'.-])(?:[\w\"'-]++[ \t]*+\.[ \t]*+){{{dots}}}")
