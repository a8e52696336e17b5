"""Splits a shell script into commands of words, each word with its line and its pieces by quoting.

Only what launch scripts use: words, quotes, `${...}`, `$((...))`, `$(...)`, comments, line
continuations, arrays `NAME=( ... )`, operators, here-documents. Nothing is run and nothing is
expanded here.
"""

from dataclasses import dataclass
from typing import Literal

from planner.limits import check_size
from planner.reading import UnreadableConfig

OPERATORS = (
    "&&",
    "||",
    ";;",
    "<<-",
    "<<",
    ">>",
    ">&",
    "<&",
    ";",
    "|",
    "&",
    "\n",
    "(",
    ")",
    "<",
    ">",
)
_CLOSES = {"{": "}", "(": ")"}


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of text under one kind of quoting; `single` text is never expanded."""

    text: str
    quoting: Literal["bare", "double", "single"]


@dataclass(frozen=True, slots=True)
class Word:
    """One word; `operator` words are separators such as `;` and a newline."""

    pieces: tuple[Piece, ...]
    line: int
    operator: bool = False

    @property
    def raw(self) -> str:
        """The text without its quotes, unexpanded."""
        return "".join(piece.text for piece in self.pieces)


class _Lexer:
    def __init__(self, text: str) -> None:
        self.text, self.at, self.line = text, 0, 1
        self.words: list[Word] = []
        self.heredocs: list[str] = []

    def split(self) -> list[Word]:
        while self.at < len(self.text):
            if self._skip_blank():
                continue
            operator = next((op for op in OPERATORS if self.text.startswith(op, self.at)), None)
            if operator:
                self._operator(operator)
            else:
                self._word()
        return self.words

    def _skip_blank(self) -> bool:
        if self.text.startswith("\\\r\n", self.at) or self.text.startswith("\\\n", self.at):
            self.at = self.text.index("\n", self.at) + 1
            self.line += 1
            return True
        if self.text[self.at] in " \t\r":
            self.at += 1
            return True
        if self.text[self.at] == "#":
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end
            return True
        return False

    def _operator(self, operator: str) -> None:
        self.words.append(Word((Piece(operator, "bare"),), self.line, operator=True))
        self.at += len(operator)
        if operator in ("<<", "<<-"):
            self._heredoc_name()
        elif operator == "\n":
            self.line += 1
            for name in self.heredocs:
                self._skip_heredoc(name)
            self.heredocs.clear()

    def _heredoc_name(self) -> None:
        while self.at < len(self.text) and self.text[self.at] in " \t":
            self.at += 1
        start = len(self.words)
        if self.at < len(self.text) and self.text[self.at] not in "\n;|&()<>":
            self._word()
            self.heredocs += [word.raw for word in self.words[start:]]
            del self.words[start:]

    def _skip_heredoc(self, name: str) -> None:
        while self.at < len(self.text):
            end = self.text.find("\n", self.at)
            end = len(self.text) if end < 0 else end
            body = self.text[self.at : end].strip()
            self.at, self.line = end + 1, self.line + 1
            if body == name:
                return

    def _word(self) -> None:
        pieces: list[Piece] = []
        line, bare = self.line, ""
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t\r\n;|&()<>":
                break
            if char in "'\"":
                pieces += [Piece(bare, "bare")] if bare else []
                bare = ""
                pieces.append(self._quoted(char))
            elif char == "\\" and self.at + 1 < len(self.text):
                if self.text[self.at + 1] in "\r\n":
                    break
                pieces += [Piece(bare, "bare")] if bare else []
                bare = ""
                pieces.append(Piece(self.text[self.at + 1], "single"))
                self.at += 2
            else:
                bare += self._expansion() if char == "$" else self._one()
        pieces += [Piece(bare, "bare")] if bare else []
        if pieces:
            self.words.append(Word(tuple(pieces), line))
        else:
            self.at += 1  # a lone backslash at the very end

    def _one(self) -> str:
        char = self.text[self.at]
        self.line += char == "\n"
        self.at += 1
        return char

    def _expansion(self) -> str:
        """`$`, and the balanced `${...}`, `$(...)` or `$((...))` after it."""
        start = self.at
        self.at += 1
        opener = self.text[self.at : self.at + 1]
        if opener not in _CLOSES:
            return "$"
        depth = 0
        while self.at < len(self.text):
            char = self._one()
            depth += (char == opener) - (char == _CLOSES[opener])
            if depth == 0:
                return self.text[start : self.at]
        raise UnreadableConfig(f"`${opener}` is never closed", self.line)

    def _quoted(self, quote: str) -> Piece:
        opened = self.line
        self.at += 1
        text = ""
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == quote:
                self.at += 1
                return Piece(text, "single" if quote == "'" else "double")
            if quote == '"' and char == "\\" and self.at + 1 < len(self.text):
                self.at += 1
                following = self._one()
                text += "" if following == "\n" else following
            elif quote == '"' and char == "$":
                text += self._expansion()
            else:
                text += self._one()
        raise UnreadableConfig(f"the quote {quote} is never closed", opened)


def split_words(text: str) -> list[Word]:
    """The words and operators of a shell script; raises `UnreadableConfig`."""
    check_size(text, "a script")
    return _Lexer(text).split()
