"""Bars and lists that fit any terminal width, beyond what rich has.

A bar takes the room that the other columns of its row leave, so a picture of 100 columns is still
one at 60. `Unpadded` is what a table is printed through: rich fills cells with blanks up to their
column's width, and nobody wants them behind the last one in a pipe or a file.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

from meshplan.hardware_profiles.dataclass import dataclass

LEAST_BAR = 8
_BLANKS = re.compile(r"[ \t]+((?:\x1b\[[0-9;]*m)*)(?=\n|$)")


class Unpadded:
    """Standard output without trailing blanks."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        """Write `text`, each line of which is whole."""
        return self._file.write(_BLANKS.sub(r"\1", text))

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


@dataclass(frozen=True, slots=True)
class Bar:
    """Letters one after the other, `most` columns of room for `whole` of them together.

    parts  a letter, its share of `whole`, and a colour for it
    """

    parts: tuple[tuple[str, float, str], ...]
    most: int
    whole: float

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(LEAST_BAR, self.most).clamp(max_width=options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, bar, painted = min(self.most, options.max_width), Text(), console.is_terminal
        reached, drawn = 0.0, 0
        for letter, size, colour in self.parts:
            reached += size
            end = round(reached / self.whole * width)
            style = f"{colour} on {colour}" if painted and colour else ""
            bar.append(letter * (end - drawn), style=style)
            drawn = max(drawn, end)
        yield bar


@dataclass(frozen=True, slots=True)
class Items:
    """Short texts in a row, as many on a line as fit; none is broken."""

    items: tuple[Text, ...]
    gap: str = "  "

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from _lines(self.items, self.gap, options.max_width)


def _lines(items: Sequence[Text], gap: str, width: int) -> Iterator[Text]:
    line = Text()
    for item in items:
        if line and len(line) + len(gap) + len(item) > width:
            yield line
            line = Text()
        line = line + gap + item if line else item
    if line:
        yield line


def as_written(**options: Any) -> Console:
    """A console that prints text as it is: in what users name, `[x]` and `:x:` are no markup."""
    return Console(markup=False, emoji=False, highlight=False, **options)


def standard_output(width: int | None) -> Console:
    """A console on standard output whose lines end where their text does."""
    return as_written(file=Unpadded(sys.stdout), width=width)
