"""Writing a file as a whole: a killed run leaves the old file or the new one, never half."""

from pathlib import Path


class CannotWrite(ValueError):
    """A file that cannot be written; one line with the path and the reason."""


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path`; raises `CannotWrite`."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise CannotWrite(f"cannot write {path}: {error.strerror}") from None
