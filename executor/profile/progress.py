"""What is being measured and the time left, for people: rank 0 draws it or tells its parent."""

import json
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from meshplan.hardware_profiles.files.whole_file import write_whole


class Bar:
    """A bar on stderr: title, measurements done, time elapsed, time left. Silent if not a terminal,
    save a line every ten seconds.
    """

    def __init__(self, total: int) -> None:
        self._console = Console(stderr=True)
        self._total = total
        self._last_line_s = 0.0
        self._bar = RichProgress(
            TextColumn("{task.description:<48.48}"),
            BarColumn(24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("starting", total=total, left="")
        self._bar.start()

    def show(self, title: str, *, done: int, left_s: float) -> None:
        """Draw the state; `left_s` is how long it can still take, 0 if that is not known."""
        left = f"{max(0.0, left_s):.0f} s left" if left_s > 0 else ""
        self._bar.update(self._task, description=title, completed=done, left=left)
        if self._bar.disable and time.monotonic() - self._last_line_s > 10:
            self._last_line_s = time.monotonic()
            self._console.print(f"{done}/{self._total} {title}  {left}", markup=False)

    def close(self) -> None:
        """Remove the bar."""
        self._bar.stop()


class Progress:
    """Rank 0's side: draws a `Bar`, or leaves the state in a file for the starting process."""

    def __init__(self, rank: int, path: Path | None, *, total: int, done: int) -> None:
        self._path = path if rank == 0 else None
        self._total = total
        self._bar = Bar(total) if rank == 0 and path is None else None
        self.show("starting", done=done, left_s=0.0)

    def show(self, title: str, *, done: int, left_s: float) -> None:
        """Say what is being measured."""
        if self._bar:
            self._bar.show(title, done=done, left_s=left_s)
        if self._path:
            state = {"title": title, "done": done, "total": self._total, "left_s": left_s}
            write_whole(self._path, json.dumps(state))

    def close(self) -> None:
        """Nothing more will be measured."""
        if self._bar:
            self._bar.close()
