"""Which files to check, and their text: walks folders, survives links that loop and files that are
not configs.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.files.bounded_file import read_bounded
from meshplan.planner.case.input_limits import MAX_BYTES
from meshplan.planner.case.reading import NothingToRead, UnreadableConfig
from meshplan.planner.case.settings import FILE, PROJECT, one_line

SUFFIXES = (".yaml", ".yml", ".json", ".toml", ".sh", ".sbatch", ".slurm", ".py", ".txt", ".bash")
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # byte order marks
SKIPPED_FOLDERS = frozenset(("node_modules", "__pycache__", "site-packages"))
SKIPPED_FILES = frozenset((FILE, PROJECT, "package.json", "package-lock.json"))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file to check, `named` by the user or found in a folder; or why it is skipped."""

    path: Path
    named: bool
    skip: str | None = None


def candidates(paths: list[Path]) -> Iterator[Candidate]:
    """The files at and below `paths`, in order of their names, each once."""
    seen: set[tuple[int, int]] = set()
    for path in paths:
        if _is_folder(path):
            yield from _walk(path, seen)
        else:
            yield Candidate(path, named=True)


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (OSError, ValueError):
        return False  # reading it says why


def _walk(folder: Path, seen: set[tuple[int, int]]) -> Iterator[Candidate]:
    """Depth first without recursion; `seen` holds the folders' identities, so a loop ends."""
    pending = [folder]
    while pending:
        here = pending.pop()
        try:
            status = here.stat()
            entries = sorted(os.scandir(here), key=lambda entry: entry.name)
        except OSError as error:
            yield Candidate(here, named=False, skip=f"cannot be listed: {error.strerror}")
            continue
        if (status.st_dev, status.st_ino) in seen:
            yield Candidate(here, named=False, skip="a link to a folder that was walked already")
            continue
        seen.add((status.st_dev, status.st_ino))
        folders = []
        for entry in entries:
            path = Path(entry.path)
            if _is_folder(path):
                if not entry.name.startswith(".") and entry.name not in SKIPPED_FOLDERS:
                    folders.append(path)
            else:
                yield Candidate(path, named=False, skip=_why_skip(entry.name))
        pending += reversed(folders)


def _why_skip(name: str) -> str | None:
    if name in SKIPPED_FILES:
        return "settings, not a training config"
    if name.startswith("."):
        return "hidden"
    return None if name.endswith(SUFFIXES) else "not a suffix that configs have"


def text_of(path: Path) -> str:
    """The text of a config; raises `UnreadableConfig` with the reason in one line."""
    try:
        data = read_bounded(path, MAX_BYTES, "a config")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        if str(path) == "-" and isinstance(error, FileNotFoundError):
            reason = "standard input is not read; write it to a file and name that"
        raise UnreadableConfig(f"cannot be read: {reason or one_line(error)}") from None
    if data[:2] in _UTF_16:
        raise UnreadableConfig("UTF-16 text, which no framework reads; save it as UTF-8")
    if b"\0" in data:
        raise UnreadableConfig("a binary file; not text")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UnreadableConfig("not UTF-8 text", line) from None
    if not text.strip():
        raise NothingToRead("empty")
    return text
