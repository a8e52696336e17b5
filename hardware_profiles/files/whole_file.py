"""Writing a file as a whole: a killed run leaves the old file or the new one, never half.

Every file that this project writes in one piece goes through `write_whole`.
"""

import os
import stat
import tempfile
from pathlib import Path

NEW_FILE = 0o666  # before the umask, as `open` makes a file


def write_whole(path: Path, content: str | bytes) -> None:
    """Write `content` (text as UTF-8) to `path`, all or nothing; raises `OSError`.

    It goes to a new file beside `path` first, whose name nobody can know beforehand and that
    must not exist yet (O_EXCL): a link that someone planted is never followed. An existing file
    keeps its permissions. A device or a pipe (`/dev/stdout`) is written to, not replaced.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    old = _mode(path)
    if old is not None and not stat.S_ISREG(old) and not stat.S_ISDIR(old):
        with path.open("wb") as stream:
            stream.write(data)
        return
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as stream:
            os.fchmod(handle, _permissions(old))
            stream.write(data)
        Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _permissions(old: int | None) -> int:
    """Those of the file that is replaced, else what the umask leaves of `NEW_FILE`."""
    if old is not None:
        return stat.S_IMODE(old) & 0o777
    mask = os.umask(0o077)
    os.umask(mask)
    return NEW_FILE & ~mask
