"""How a function, a loop or a shell ends before its last command, and its status then."""

import re

from meshplan.executor.frameworks.shell.variables import Text, plain


class Stops(Exception):
    """`return`, `break` or `continue` was reached."""

    def __init__(self, word: str, status: int) -> None:
        super().__init__(word)
        self.word, self.status = word, status


class Exits(Stops):
    """`exit` was reached, which ends a shell."""


def status_of(words: list[Text], last: int) -> int:
    """What `return` and `exit` end with: their number's low byte, else the `last` status."""
    number = plain(words[0]) if words else ""
    return int(number) % 256 if re.fullmatch(r"-?\d{1,9}", number) else last
