"""Splits a shell script into words and operators, each word with its line and its quoting.

Words, quotes, `${...}`, `$((...))`, `$[...]`, `$(...)`, `<(...)`, backticks, comments, line
continuations, operators, here-documents and `((...))` where a command may start. Nothing is run or
expanded here.

Source: POSIX.1-2017 Shell Command Language, 2.2 Quoting and 2.3 Token Recognition; GNU Bash manual
5.2, 3.1.2, 3.2.5 and 3.5.6.
"""

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal

from meshplan.planner.case.input_limits import check_size
from meshplan.planner.case.reading import UnreadableConfig

OPERATORS = (
    *(";;&", "&>>", "<<-", "<<<", "&&", "||", ";;", ";&", "<<", ">>", ">&", "<&", "<>", ">|"),
    *("&>", "|&", ";", "|", "&", "\n", "(", ")", "<", ">"),
)
MAX_WORDS = 30_000  # of a script, with its operators; a published one has hundreds
_PLAIN = {
    "bare": re.compile(r"[^ \t\r\n;|&()<>\\'\"$`]+"),
    '"': re.compile(r'[^"\\$`\n]+'),
    "'": re.compile(r"[^'\n]+"),
    "balanced": re.compile(r"[^\\'\"(){}]+"),
}
"""Runs of characters that stand for themselves, bare, between quotes and between brackets."""
_BLANKS = re.compile(r"[ \t\r]+")
_CONTINUED = re.compile(r"\\\r?\n")
_ENDS_WORD = " \t\r\n;|&()<>"
_OLDER_ARITHMETIC = re.compile(r"\$\[((?:[^\[\]\n'\"\\]|\[[^\[\]\n'\"\\]*\])*)\]")
"""`$[2*4]`, which bash takes for `$((2*4))`, also with an array's subscript in it."""
_PLACEHOLDER = re.compile(r"<[A-Za-z](?:[^<>\n;|&$`\"']*[^<>\s;|&$`\"'])?>(?=[\s/_.\"')\\-]|$)")
"""`<PATH TO CHECKPOINTS>` of a script to be filled in: what someone will write there is one word,
though bash would take the text for a redirection, and what stands behind it for a file's name.
"""
_STARTS_OPERATOR = frozenset(operator[0] for operator in OPERATORS)
_CLOSES = {"{": "}", "(": ")"}
_CASE = re.compile(r"\b(?:case(?=\s)|esac\b)")
_COMMAND_FOLLOWS = re.compile(r"(?:^|[(){;&|\n]|\b(?:if|then|else|elif|do|while|until|in))[ \t]*$")
_LOOK_BACK = 20  # characters before a word that say whether a command begins there
_BEFORE_COMMAND = ("if", "then", "else", "elif", "do", "while", "until", "!", "{")
_ESCAPED = '$`"\\'  # what a backslash keeps literal inside double quotes


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of text under one kind of quoting; `single` text is never expanded."""

    text: str
    quoting: Literal["bare", "double", "single"]
    line: int


@dataclass(frozen=True, slots=True)
class Word:
    """One word; `operator` words are separators such as `;` and a newline.

    descriptor  the number before a redirection, 2 of `2>`; none where the usual one is meant
    """

    pieces: tuple[Piece, ...]
    line: int
    operator: bool = False
    descriptor: str = ""

    @property
    def raw(self) -> str:
        """The text without its quotes, unexpanded."""
        return "".join(piece.text for piece in self.pieces)

    @property
    def bare(self) -> str:
        """The text if no part of it is quoted (only then is it a reserved word), else nothing."""
        return self.raw if all(piece.quoting == "bare" for piece in self.pieces) else ""


class _Lexer:
    def __init__(self, text: str, lines: list[tuple[int, int]] | None) -> None:
        newlines = [match.end() for match in re.finditer("\n", text)]
        marks = lines or [(start, at) for at, start in enumerate([0, *newlines], start=1)]
        self.starts, self.lines = [start for start, _ in marks], [line for _, line in marks]
        self.text, self.at = text, 0
        self.words: list[Word] = []
        self.descriptor = ""  # of the redirection that comes next
        self.heredocs: list[tuple[int, bool]] = []  # their name's place, whether tabs go

    @property
    def line(self) -> int:
        """The line of the file at which the lexer is."""
        return self.lines[max(0, bisect_right(self.starts, self.at) - 1)]

    def split(self) -> list[Word]:
        while self.at < len(self.text):
            if self._skip_blank():
                continue
            operator = None
            if self.text[self.at] in _STARTS_OPERATOR and not self._bracketed():
                operator = next(op for op in OPERATORS if self.text.startswith(op, self.at))
            if operator == "(" and self.text.startswith("((", self.at) and self._at_command():
                self._arithmetic_command()
            elif operator:
                self._operator(operator)
            else:
                self._word()
            if len(self.words) > MAX_WORDS:
                raise UnreadableConfig(
                    f"more than {MAX_WORDS} words; no launch script has as many", self.line
                )
        return self.words

    def _at_command(self) -> bool:
        last = self.words[-1] if self.words else None
        if last is None or (last.operator and last.raw != "("):
            return True
        return last.bare in (*_BEFORE_COMMAND, "for")

    def _arithmetic_command(self) -> None:
        line, start = self.line, self.at
        text = "((" + self._balanced(self.at + 1, "(")[1:] + ")"
        if self.text[self.at : self.at + 1] != ")":  # a group inside a group
            self.at = start
            self._operator("(")
            return
        self.at += 1
        self.words.append(Word((Piece(text, "bare", line),), line))

    def _skip_blank(self) -> bool:
        if continued := self._continuation():
            self.at += continued
        elif blanks := _BLANKS.match(self.text, self.at):
            self.at = blanks.end()
        elif self.text[self.at] == "#":
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end
        else:
            return False
        return True

    def _continuation(self) -> int:
        """The length of a backslash with the newline after it, 0 when there is none here."""
        if self.text[self.at] != "\\":
            return 0
        match = _CONTINUED.match(self.text, self.at)
        return len(match[0]) if match else 0

    def _operator(self, operator: str) -> None:
        piece = Piece(operator, "bare", self.line)
        self.words.append(Word((piece,), self.line, operator=True, descriptor=self.descriptor))
        self.descriptor, self.at = "", self.at + len(operator)
        if operator in ("<<", "<<-"):
            self._heredoc_name(operator == "<<-")
        elif operator == "\n":
            for at, tabs in self.heredocs:
                self._read_heredoc(at, tabs)
            self.heredocs.clear()

    def _heredoc_name(self, tabs: bool) -> None:
        while self.at < len(self.text) and self.text[self.at] in " \t":
            self.at += 1
        start = len(self.words)
        if self.at < len(self.text) and self.text[self.at] not in _ENDS_WORD:
            self._word()
            self.heredocs += [(at, tabs) for at in range(start, len(self.words))]

    def _read_heredoc(self, at: int, tabs: bool) -> None:
        """The lines up to the name take its place; of a quoted name nothing in them expands."""
        name, line, lines = self.words[at], self.line, list[str]()
        while self.at < len(self.text):
            end = self.text.find("\n", self.at)
            end = len(self.text) if end < 0 else end
            body = self.text[self.at : end]
            self.at = end + 1
            if body.strip() == name.raw:
                break
            lines.append(body.lstrip("\t") if tabs else body)
        text = "".join(f"{each}\n" for each in lines)
        self.words[at] = Word((Piece(text, "double" if name.bare else "single", line),), line)

    def _word(self) -> None:
        pieces: list[Piece] = []
        line, bare, bare_line = self.line, "", self.line
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in _ENDS_WORD and not self._bracketed():
                break
            if continued := self._continuation():
                self.at += continued
                continue
            quoted = char in "'\"\\<>" or self.text.startswith("$'", self.at)
            if quoted and bare:
                pieces.append(Piece(bare, "bare", bare_line))
                bare = ""
            if char in "<>":
                pieces.append(Piece(self._bracketed(), "single", self.line))
                self.at += len(pieces[-1].text)
            elif char == "\\":
                pieces.append(Piece(self.text[self.at + 1 : self.at + 2], "single", self.line))
                self.at += 2
            elif quoted:
                self.at += char == "$"
                pieces += self._quoted(self.text[self.at])
            else:
                bare_line = bare_line if bare else self.line
                bare += self._expansion() if char in "$`" else self._run("bare")
        pieces += [Piece(bare, "bare", bare_line)] if bare else []
        following = self.text[self.at : self.at + 1]
        if bare.isdecimal() and len(pieces) == 1 and following in ("<", ">"):
            self.descriptor = bare
        else:
            self.words.append(Word(tuple(pieces) or (Piece("", "bare", line),), line))

    def _bracketed(self) -> str:
        """The placeholder or the process substitution `<(...)` that begins here, else nothing."""
        if self.text.startswith(("<(", ">("), self.at):
            return self.text[self.at : closing(self.text, self.at + 1)]
        match = _PLACEHOLDER.match(self.text, self.at)
        return match[0] if match else ""

    def _run(self, place: str) -> str:
        """The plain text that begins here, at least one character."""
        match = _PLAIN[place].match(self.text, self.at)
        if match is None:
            return self._one()
        self.at = match.end()
        return match[0]

    def _one(self) -> str:
        char = self.text[self.at]
        self.at += 1
        return char

    def _expansion(self) -> str:
        """`$`, and the balanced `${...}`, `$(...)`, `$((...))` or `$[...]` after it; backticks."""
        if self.text[self.at] == "`":
            return self._backticks()
        if older := _OLDER_ARITHMETIC.match(self.text, self.at):
            self.at = older.end()
            return f"$(({older[1]}))"
        opener = self.text[self.at + 1 : self.at + 2]
        if opener not in _CLOSES:
            return self._one()
        return "$" + self._balanced(self.at + 1, opener)

    def _backticks(self) -> str:
        opened = self.line
        end = self.text.find("`", self.at + 1)
        if end < 0:
            raise UnreadableConfig("a backtick is never closed", opened)
        inner = self.text[self.at + 1 : end]
        self.at = end + 1
        return f"$({inner})"

    def _balanced(self, start: int, opener: str) -> str:
        """From the `opener` at `start` to what closes it; quotes inside hide brackets."""
        opened, self.at = self.line, closing(self.text, start)
        if self.at > len(self.text):
            raise UnreadableConfig(f"`${opener}` is never closed", opened)
        return re.sub(r"\\\r?\n", "", self.text[start : self.at])

    def _quoted(self, quote: str) -> list[Piece]:
        """The pieces between two quotes: one for each line, and for each escaped character."""
        opened = self.line
        self.at += 1
        kind: Literal["single", "double"] = "single" if quote == "'" else "double"
        pieces: list[Piece] = []
        text, line = "", opened
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == quote:
                self.at += 1
                return [*pieces, Piece(text, kind, line)]
            if quote == '"' and (continued := self._continuation()):
                pieces.append(Piece(text, kind, line))
                self.at += continued
                text, line = "", self.line
            elif quote == '"' and char == "\\" and self.text[self.at + 1 : self.at + 2] in _ESCAPED:
                following = self.text[self.at + 1 : self.at + 2]
                pieces += [Piece(text, kind, line), Piece(following, "single", self.line)]
                self.at += 2
                text, line = "", self.line
            elif quote == '"' and char in "$`":
                text += self._expansion()
            else:
                text += self._run(quote)
                if char == "\n":
                    pieces.append(Piece(text, kind, line))
                    text, line = "", self.line
        raise UnreadableConfig(f"the quote {quote} is never closed", opened)


def closing(text: str, start: int) -> int:
    """Where what opens at `start` is closed, beyond the text's end if it never is; quotes inside
    hide brackets.
    """
    at, depth, quote, opener = start, 0, "", text[start]
    cases: list[int] = []  # the depths of the `case` commands that are open
    while at < len(text):
        if plain := _PLAIN["balanced"].match(text, at):
            if opener == "(" and not quote:
                _follow_cases(text, at, plain.end(), depth, cases)
            at = plain.end()
            continue
        char = text[at]
        at += 2 if char == "\\" else 1
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char != _CLOSES[opener] or depth not in cases[-1:]:
            depth += (char == opener) - (char == _CLOSES[opener])
        if depth == 0:
            return at
    return len(text) + 1


def _follow_cases(text: str, start: int, end: int, depth: int, cases: list[int]) -> None:
    """Notes the `case` that begin, and those that end, at `depth` in a run of plain text: within
    one, `)` at its depth ends a pattern.
    """
    for match in _CASE.finditer(text, start, end):
        before = text[max(0, match.start() - _LOOK_BACK) : match.start()]
        if not _COMMAND_FOLLOWS.search(before):
            continue
        if match[0] == "case":
            cases.append(depth)
        elif depth in cases[-1:]:
            cases.pop()


def document(word: Word) -> Word:
    """A here-document as its text expands: as between double quotes, which stand for themselves."""
    piece = word.pieces[0]
    if piece.quoting == "single":
        return word
    text = piece.text.replace('"', '\\"')
    return Word(tuple(_Lexer(f'"{text}"', [(0, piece.line)])._quoted('"')), word.line)


def split_words(text: str, lines: list[tuple[int, int]] | None = None) -> list[Word]:
    """The words and operators of a shell script; raises `UnreadableConfig`.

    lines  offset in `text` and the line of the file there, for text that was put together
    """
    check_size(text, "a script")
    return _Lexer(text, lines).split()
