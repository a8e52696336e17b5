"""The files that a script sources or calls, where they lie beside it or below a folder above it.

Leaves out: files that `PATH` finds, and absolute paths, which are of the machine that ran it.
"""

import re
from pathlib import Path

from meshplan.executor.frameworks.documents.beside import beside
from meshplan.planner.case.config_files import text_of
from meshplan.planner.case.reading import UnreadableConfig

MAX_SOURCED = 2**19  # characters of all files that one script sources
_SOMEWHERE = re.compile(
    r"^(?:\$\(pwd\)|\$\{?PWD\}?|\$\{?[A-Za-z_]\w*(?:\[0\])?(?:%[^}/]*/\*)?\}?)/"
)
"""A folder that the script does not set (`$HERE/`), its own (`${BASH_SOURCE[0]%/*}/`), or the one
that it is started in."""


def file_of(name: str, path: str) -> Path | None:
    """The file that a script at `path` calls `name`; None where it is not there."""
    found = beside(_SOMEWHERE.sub("", name.strip("\"'")), Path(path)) if path and name else None
    return None if found and found.absolute() == Path(path).absolute() else found


def sourced_text(name: str, path: str) -> str | None:
    """The text of the file `name` that the script at `path` sources; None where it is not there or
    cannot be read.
    """
    found = file_of(name, path)
    try:
        return text_of(found) if found else None
    except UnreadableConfig:
        return None
