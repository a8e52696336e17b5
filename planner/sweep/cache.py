"""The file that a sweep resumes from: answers that no time limit cut short, by the hash of all that
they depend on. Several sweeps may share it: each adds to what the others have written.
"""

import json
import time
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from meshplan.hardware_profiles.files.bounded_file import read_bounded
from meshplan.planner.sweep.cells import Answer
from meshplan.planner.sweep.file_lock import locked
from meshplan.planner.text_files import CannotWrite, write_text

FORMAT = "meshplan_sweep_cache"
VERSION = 1
MAX_CACHE_BYTES = 256 * 2**20
Written = tuple[int, int, int]
SAVE_EVERY_S = 1.0
"""A killed sweep loses at most what it proved in this time."""


class UnreadableCache(ValueError):
    """A file that is not a cache of a sweep; one line with the fix."""


class Cache:
    """Answers by key, written to `path` as a whole; without a path nothing is kept.

    Raises `UnreadableCache` for a file of another kind, which is left as it is.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._written = _written(path) if path else None
        self._documents: dict[str, Any] = _read(path) if path and path.exists() else {}
        self._saved_s = time.monotonic()
        self._unkept: CannotWrite | UnreadableCache | None = None
        self.save()  # a path that cannot be written is said before the work, not after

    def get(self, key: str) -> Answer | None:
        """What was answered before, None where nothing was."""
        if key not in self._documents:
            return None
        try:
            return Answer.model_validate(self._documents[key])
        except ValidationError as error:
            raise _unreadable(self._path, f"cell {key[:12]}: {error.errors()[0]['msg']}") from None

    def put(self, key: str, found: Answer) -> None:
        """Keep an answer if no time limit ended its search."""
        if self._path is None or not found.final:
            return
        self._documents[key] = found.model_dump(mode="json")
        if time.monotonic() - self._saved_s >= SAVE_EVERY_S:
            self.keep()

    def keep(self) -> None:
        """Write the file; that it cannot be written is said by `check_kept`, behind the answers."""
        try:
            self.save()
            self._unkept = None
        except (CannotWrite, UnreadableCache) as error:
            self._unkept = error

    def check_kept(self) -> None:
        """Raise `CannotWrite` where the file does not have all answers, such as on a full disk, or
        `UnreadableCache` where another kind of file is in its place by now.
        """
        if self._unkept is not None:
            raise self._unkept

    def save(self) -> None:
        """Write the file, with what others have written since; raises `CannotWrite`, and
        `UnreadableCache` for a file of another kind.
        """
        if self._path is None:
            return
        try:
            with locked(self._path):
                self._merge(self._path)
        except OSError as error:
            raise CannotWrite(f"cannot write {self._path}: {error.strerror}") from None
        self._saved_s = time.monotonic()

    def _merge(self, path: Path) -> None:
        if _written(path) not in (None, self._written):
            self._documents = _read(path) | self._documents
        document = {FORMAT: VERSION, "cells": self._documents}
        write_text(path, json.dumps(document, separators=(",", ":")) + "\n")
        self._written = _written(path)


def _written(path: Path) -> Written | None:
    """What is another where anybody has written the file anew; None where there is none."""
    try:
        held = path.stat()
    except FileNotFoundError:
        return None
    return held.st_ino, held.st_mtime_ns, held.st_size


def _read(path: Path) -> dict[str, Any]:
    try:
        text = read_bounded(path, MAX_CACHE_BYTES, "a sweep's cache").decode("utf-8")
    except UnicodeDecodeError:
        raise _unreadable(path, "it is not UTF-8 text") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise _unreadable(path, str(reason)) from None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise _unreadable(path, "it is not JSON") from None
    if not isinstance(document, dict) or document.get(FORMAT) != VERSION:
        raise _unreadable(path, f"it needs the key {FORMAT!r}: {VERSION}")
    cells = document.get("cells")
    if not isinstance(cells, dict):
        raise _unreadable(path, "it has no cells")
    return cells


def _unreadable(path: Path | None, why: str) -> UnreadableCache:
    return UnreadableCache(
        f"--cache {path} is not a cache of `meshplan sweep`: {why}; name another file, or remove it"
    )
