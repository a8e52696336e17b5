"""The files that a script sources or calls, where they lie beside it or below a folder above it.

An absolute path is of the machine that ran the script, where its repository lay elsewhere: the file
is the one whose path below a folder above the script ends as it does, by two to six names.
Leaves out: files that `PATH` finds.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from meshplan.executor.frameworks.documents.beside import beside
from meshplan.planner.case.config_files import text_of
from meshplan.planner.case.reading import UnreadableConfig

MAX_SOURCED = 2**19  # characters of all files that one script sources
_LONGEST = 6  # names of an end
SEARCH_WORK = 10_000  # steps that looking for a file counts for
_SOMEWHERE = re.compile(
    r"^(?:\$\(pwd\)|\$\{?PWD\}?|\$\{?[A-Za-z_]\w*(?:\[0\])?(?:%[^}/]*/\*)?\}?)/"
)
"""A folder that the script does not set (`$HERE/`), its own (`${BASH_SOURCE[0]%/*}/`), or the one
that it is started in."""


def file_of(name: str, path: str) -> Path | None:
    """The file that a script at `path` calls `name`; None where it is not there."""
    if not path or not name:
        return None
    stated = name.strip("\"'")
    named = _SOMEWHERE.sub("", stated)
    found = beside(named, Path(path))
    if found is None and (named != stated or named.startswith("/")):
        ends = (beside(end, Path(path)) for end in _ends(named))
        found = next((file for file in ends if file), None)
    return None if found and found.absolute() == Path(path).absolute() else found


def _ends(named: str) -> Iterator[str]:
    """The ends of a path of two names to six, the longest first."""
    parts = [part for part in named.split("/") if part][-_LONGEST:]
    return ("/".join(parts[at:]) for at in range(len(parts) - 1))


def sourced_text(name: str, path: str) -> str | None:
    """The text of the file `name` that the script at `path` sources; None where it is not there or
    cannot be read.
    """
    found = file_of(name, path)
    try:
        return text_of(found) if found else None
    except UnreadableConfig:
        return None
