"""Writing a file for the user: as a whole, and what goes wrong is one line."""

import os
from pathlib import Path

from meshplan.hardware_profiles.whole_file import write_whole


class CannotWrite(ValueError):
    """A file that cannot be written; one line with the path and the reason."""


def check_writable(*paths: Path | None) -> None:
    """Refuse before the work what could not be written after it; raises `CannotWrite`."""
    for path in filter(None, paths):
        try:
            if path.is_dir():
                raise CannotWrite(f"cannot write {path}: it is a folder")
            path.stat()
        except FileNotFoundError:
            pass
        except OSError as error:
            raise CannotWrite(f"cannot write {path}: {error.strerror}") from None
        if not os.access(path.parent, os.W_OK):
            raise CannotWrite(f"cannot write {path}: no such folder, or it may not be written to")


def write_text(path: Path, text: str | bytes) -> None:
    """Write `text`, or a picture's bytes, to `path` (`hardware_profiles.whole_file`).

    Raises `CannotWrite`.
    """
    if str(path) == "-":
        raise CannotWrite("cannot write -: standard output is /dev/stdout, or what --json prints")
    try:
        write_whole(path, text)
    except OSError as error:
        raise CannotWrite(f"cannot write {path}: {error.strerror}") from None
