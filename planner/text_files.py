"""Writing a file for the user: as a whole, and what goes wrong is one line."""

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from meshplan.hardware_profiles.files.whole_file import write_whole


class CannotWrite(ValueError):
    """A file that cannot be written; one line with the path and the reason."""


def check_writable(*paths: Path | None, read: Iterable[Path] = ()) -> None:
    """Refuse before the work what could not be written after it, or would replace a file that is
    `read` or another of these; raises `CannotWrite`.
    """
    check_apart(*paths)
    for path in filter(None, paths):
        try:
            old = path.stat()
        except FileNotFoundError:
            old = None
        except OSError as error:
            raise CannotWrite(f"cannot write {path}: {error.strerror}") from None
        if old and stat.S_ISDIR(old.st_mode):
            raise CannotWrite(f"cannot write {path}: it is a folder")
        if old and not stat.S_ISREG(old.st_mode):
            continue  # a device or a pipe
        if not os.access(path.parent, os.W_OK):
            raise CannotWrite(f"cannot write {path}: no such folder, or it may not be written to")
        if old and any(_is(each, old) for each in read):
            raise CannotWrite(f"cannot write {path}: it is read; name another file")


def check_apart(*paths: Path | None) -> None:
    """Refuse a file that would be written twice, and lose what was written first; raises
    `CannotWrite`.
    """
    named: set[Path] = set()
    for path in filter(None, paths):
        try:
            place = path.resolve()
        except (OSError, RuntimeError):  # a link to itself, which its own check names
            continue
        if place in named and (path.is_file() or not path.exists()):
            raise CannotWrite(f"cannot write {path}: two options name it; name another file")
        named.add(place)


def _is(path: Path, other: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.stat(), other)
    except OSError:
        return False


def write_text(path: Path, text: str | bytes) -> None:
    """Write `text`, or a picture's bytes, to `path` (`hardware_profiles.files.whole_file`).

    Raises `CannotWrite`.
    """
    if str(path) == "-":
        raise CannotWrite("cannot write -: standard output is /dev/stdout, or what --json prints")
    try:
        write_whole(path, text)
    except OSError as error:
        raise CannotWrite(f"cannot write {path}: {error.strerror}") from None
