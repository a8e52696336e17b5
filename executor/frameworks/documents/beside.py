"""Where a file lies that another one names."""

import re
from pathlib import Path

_OWN_FOLDER = re.compile(r"^\$\([^\n]*\b(?:dirname|BASH_SOURCE)\b[^\n]*\)/")
"""`$(cd "$(dirname "$0")" && pwd)/`: the script's own folder, or one above it."""


def beside(name: str, path: Path) -> Path | None:
    """The file `name` as one at `path` means it: beside it, or below a folder above it, up to the
    repository's own.
    """
    named = Path(_OWN_FOLDER.sub("", name))
    if named.is_absolute():
        return None
    folders = path.absolute().parents[: 1 if ".." in named.parts else 6]
    for folder in folders:
        if (folder / named).is_file():
            return folder / named
        if (folder / ".git").exists():
            break
    return None
