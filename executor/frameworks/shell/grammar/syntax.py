"""What a shell script is made of: simple commands, lists, `if`, loops, `case`, functions.

Source: POSIX.1-2017 Shell Command Language, 2.10 Shell Grammar; GNU Bash manual 5.2, 3.2.
"""

import re
from dataclasses import dataclass, field

from meshplan.executor.frameworks.shell.grammar.words import Word

ASSIGN = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]]*)\])?(\+?)=")


@dataclass(frozen=True, slots=True)
class Array:
    """`NAME=( words )`, or `NAME+=( words )`."""

    name: str
    append: bool
    words: tuple[Word, ...]


@dataclass(slots=True)
class Redirected:
    """A here-string (`<<<`), a here-document (`<<`), and the file that a command writes (`>`) or
    goes on with (`>>`), or the other stream that it writes to (`>&`).
    """

    given: Word | None = None
    document: Word | None = None
    target: Word | None = None
    longer: Word | None = None
    elsewhere: Word | None = None


@dataclass(frozen=True, slots=True)
class Simple:
    """Assignments and words of one command, and what its redirections send it or take from it."""

    parts: tuple[Word | Array, ...]
    line: int
    sent: Redirected


@dataclass(frozen=True, slots=True)
class Test:
    """`[[ ... ]]` (its words and operators) or `(( ... ))` (its text)."""

    words: tuple[Word, ...]
    arithmetic: str | None
    line: int


@dataclass(frozen=True, slots=True)
class Not:
    """`! command`."""

    inner: "Node"


@dataclass(slots=True)
class Block:
    """Commands one after the other; each with what joins it to the one before: `;`, `&&`, `||`.

    alone  they run in a shell of their own (`( ... )`, a part of a pipeline): what they set is gone
           behind it
    piped  what each prints goes to the next
    """

    items: list[tuple[str, "Node"]] = field(default_factory=list)
    alone: bool = False
    piped: bool = False


@dataclass(frozen=True, slots=True)
class If:
    """Conditions with what runs when they hold; an empty condition is `else`."""

    clauses: tuple[tuple[Block | None, Block], ...]
    line: int


@dataclass(frozen=True, slots=True)
class For:
    """`for name in words` (None: the positional arguments), or `for (( ... ))`."""

    name: str
    words: tuple[Word, ...] | None
    arithmetic: str | None
    body: Block
    line: int


@dataclass(frozen=True, slots=True)
class While:
    """`while`, or `until`."""

    condition: Block
    body: Block
    until: bool


@dataclass(frozen=True, slots=True)
class Case:
    """`case word in pattern|pattern) ... ;;`, each clause with what ends it: `;;`, `;&`, `;;&`."""

    subject: Word
    clauses: tuple[tuple[tuple[Word, ...], Block, str], ...]
    line: int


@dataclass(frozen=True, slots=True)
class Function:
    """A function: its body runs where it is called."""

    name: str
    body: "Node"


Node = Simple | Test | Not | Block | If | For | While | Case | Function


def assigns(part: Word | Array) -> bool:
    """Whether a part of a command assigns."""
    if isinstance(part, Array):
        return True
    return bool(part.pieces) and (
        part.pieces[0].quoting == "bare" and ASSIGN.match(part.pieces[0].text) is not None
    )


def name_of(part: Word | Array) -> str:
    """The variable that an assignment sets."""
    if isinstance(part, Array):
        return part.name
    match = ASSIGN.match(part.raw)
    assert match is not None
    return match[1]
