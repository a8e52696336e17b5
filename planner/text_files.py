"""Writing a file for the user: as a whole, and what goes wrong is one line."""

from pathlib import Path

from meshplan.hardware_profiles.whole_file import write_whole


class CannotWrite(ValueError):
    """A file that cannot be written; one line with the path and the reason."""


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
