"""How a function, a loop or a shell ends before its last command, and its status then."""

import re
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field

from meshplan.executor.frameworks.shell.variables import Guesses, Text, plain


class Stops(Exception):
    """`return`, `break` or `continue` was reached."""

    def __init__(self, word: str, status: int) -> None:
        super().__init__(word)
        self.word, self.status = word, status


class Exits(Stops):
    """`exit` was reached, which ends a shell."""


@dataclass(slots=True)
class Place:
    """Where a command stands, and where bash would have stopped.

    end          the first such place, why, how many commands were recorded before it, the status
    tested       inside so many conditions, which may fail
    conditional  inside so many bodies that a condition decides
    unsure       inside so many of these whose condition something unknown answered
    parts        inside so many parts of pipelines that a next one follows
    said_of      notes of where such parts end
    part_status  of the last such part, where it ends before its last command
    left         how many `exit 0` were passed over, as a condition decides them
    """

    guesses: Guesses
    commands: Sized
    end: tuple[int, str, int, int] | None = None
    tested: int = 0
    conditional: int = 0
    unsure: int = 0
    left: int = 0
    parts: int = 0
    said_of: list[str] = field(default_factory=list)
    part_status: int | None = None

    @contextmanager
    def condition(self, *, asked: bool = True) -> Iterator[None]:
        """A command whose status is a condition: `set -e` does not end a shell there."""
        self.tested += asked
        try:
            yield
        finally:
            self.tested -= asked

    @contextmanager
    def part(self) -> Iterator[None]:
        """A part of a pipeline before its last: `set -e` ends it, and nothing around it."""
        outer, self.end = self.end, None
        self.parts += 1
        try:
            with self.condition():
                yield
        finally:
            self.parts -= 1
            self.said_of += self._said("bash ends this part of the pipeline here")
            self.part_status = self.end[3] if self.end else None
            self.end = outer

    def is_asked(self) -> bool:
        """Whether the status of a command is asked for within the shell that `set -e` ends."""
        return self.tested > self.parts

    @contextmanager
    def body(self, since: int, *, decided: bool = True) -> Iterator[None]:
        """What is followed by a condition, before which there were so many guesses."""
        unsure = decided and self.guesses.made > since
        self.conditional += decided
        self.unsure += unsure
        try:
            yield
        finally:
            self.conditional -= decided
            self.unsure -= unsure

    def note_end(self, line: int, why: str, status: int, since: int | None = None) -> None:
        """Keep the first place where bash stops, unless that is not sure; `since`: so many guesses
        were made before what ends it.
        """
        if self.end is None and not self.unsure and since in (None, self.guesses.made):
            self.end = line, why, len(self.commands), status

    def said(self) -> list[str]:
        """Notes of such places, where commands that are read stand behind them."""
        return [*self.said_of, *self._said("bash stops here")]

    def _said(self, ends: str) -> list[str]:
        if self.end is None or self.end[2] >= len(self.commands):
            return []
        line, why, *_ = self.end
        return [f"line {line}: {ends} {why}; what is behind it is read too"]


def status_of(words: list[Text], last: int) -> int:
    """What `return` and `exit` end with: their number's low byte, else the `last` status."""
    number = plain(words[0]) if words else ""
    return int(number) % 256 if re.fullmatch(r"-?\d{1,9}", number) else last
