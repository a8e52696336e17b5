"""`trap COMMANDS EXIT`: what a shell follows when it ends.

Source: GNU Bash manual 5.2, 4.1 `trap`. Leaves out: signals, which the machine sends, and ERR,
DEBUG and RETURN.
"""

from meshplan.executor.frameworks.shell.variables import Text, plain

_ENDS = ("EXIT", "0")


class Traps:
    """What the shell that is followed now does when it ends; `at_exit` is None for nothing."""

    def __init__(self) -> None:
        self.at_exit: Text | None = None
        self.line = 1

    def set(self, words: list[Text], line: int) -> None:
        """Follow the arguments of `trap`; a signal alone takes back what it does."""
        left = words[1:] if words and plain(words[0]) == "--" else words
        signals = left[1:] if len(left) > 1 else left
        if not any(plain(signal).upper() in _ENDS for signal in signals):
            return
        resets = len(left) == 1 or plain(left[0]) in ("", "-")
        self.at_exit, self.line = (None if resets else left[0]), line

    def taken(self) -> Text | None:
        """What is done now, which is done once."""
        text, self.at_exit = self.at_exit, None
        return text
