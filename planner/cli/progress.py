"""What a running search says on stderr: nothing for a second, then one line, kept current."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from meshplan.costmodels.units import counted
from meshplan.planner.search.progress import Progress

QUIET_S = 1.0
LINE_EVERY_S = 5.0


class CurrentLine:
    """Prints where something stands; a terminal's line is rewritten, a log gets one every 5 s."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._started = time.monotonic()
        self._last_s = -LINE_EVERY_S
        self._width = 0

    def say(self, describe: Callable[[float], str]) -> None:
        """Show what `describe` says at so many seconds, if there is reason to."""
        elapsed_s = time.monotonic() - self._started
        if elapsed_s < QUIET_S:
            return
        if self._stream.isatty():
            text = describe(elapsed_s)
            self._stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
            self._stream.flush()
        elif elapsed_s - self._last_s >= LINE_EVERY_S:
            self._last_s = elapsed_s
            print(describe(elapsed_s), file=self._stream)

    def close(self) -> None:
        """Clear the line."""
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0


class SearchLine(CurrentLine):
    """Where a search stands."""

    def __call__(self, progress: Progress) -> None:
        """Show `progress` if there is reason to."""
        self.say(lambda elapsed_s: describe(progress, elapsed_s))


class FilesLine(CurrentLine):
    """How many files `check` looked at, and where it is."""

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self._looked = 0

    def __call__(self, path: Path) -> None:
        """Count a file, and show it if there is reason to. The first one is where it begins."""
        self._looked += 1
        if self._looked == 1:
            self._started = time.monotonic()
        folder = "".join(each if each.isprintable() else "?" for each in str(path.parent)[-60:])
        files = counted(self._looked, "file")
        self.say(lambda elapsed_s: f"checking {elapsed_s:.0f} s: {files} looked at, "
                                   f"now in {folder}; Ctrl-C stops")  # fmt: skip


def describe(progress: Progress, elapsed_s: float) -> str:
    """One line: time, the best plan and its distance from the bound, the work done."""
    solves, simulated = counted(progress.cpsat_solves, "CP-SAT solve"), progress.simulated
    done = solves if simulated is None else f"{simulated:,} simulated"
    work = f"{counted(progress.candidates, 'layout')}, {done}"
    keeps = "" if progress.best_s is None else "; Ctrl-C keeps the best"
    return f"searching {elapsed_s:.0f} s: {progress.words}, {work}{keeps}"
