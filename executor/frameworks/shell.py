"""Reads a launch script as far as its arguments: variables, arrays, simple conditions, the command.

`read_script` follows assignments (`A=1`, `A=(...)`, `A+=(...)`, `export A=1`), expands `$A`,
`${A}`, `${A:-x}`, `${A[@]}` and `$((a * b))`, takes the branch of an `if` whose test it can decide
(`=`, `!=`, `-eq`, `-n`, `-z` on known text; others count as false) and skips loops, `case` and
functions. The environment and positional arguments are unknown, so they are empty unless the
script gives a default. Commands are never run.
"""

import ast
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from executor.frameworks.effort import Effort
from executor.frameworks.shell_words import Piece, Word, split_words
from planner.limits import MAX_EXPRESSION
from planner.reading import Fact

MAX_TOKENS = 20_000  # of one expansion: a script that doubles an array in a row stops here
_ASSIGN = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_NAME = re.compile(
    r"\$(?:\{([A-Za-z_]\w*|[0-9@*#])(?:\[[@*]\])?(?:(:?[-=])(.*))?\}|([A-Za-z_]\w*|[0-9@*#]))", re.S
)
_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


@dataclass(slots=True)
class Script:
    """What a script assigned, and the words of the commands it would run."""

    variables: dict[str, list[Fact]] = field(default_factory=dict)
    commands: list[list[Fact]] = field(default_factory=list)
    effort: Effort = field(default_factory=Effort)


def read_script(text: str) -> Script:
    """Follow the script `text`; raises `UnreadableConfig` on unbalanced quotes."""
    script = Script()
    branches: list[list[bool]] = []  # per open `if`: [this branch is live, some branch was taken]
    skipping = 0
    for words in _commands(split_words(text)):
        head = words[0].raw
        if head in ("for", "while", "until", "case", "select", "function"):
            skipping += 1
        elif skipping:
            skipping -= head in ("done", "esac")
        elif head in ("if", "elif", "else", "fi"):
            _branch(script, branches, head, words[1:])
        elif all(live for live, _ in branches):
            _follow(script, words[1:] if head == "then" else words)
    return script


def _commands(words: list[Word]) -> Iterator[list[Word]]:
    """Split at `;`, newlines and pipes; an array's parentheses keep its words together."""
    command: list[Word] = []
    in_array = False
    for word in words:
        if not word.operator or in_array:
            if word.operator and word.raw == ")":
                in_array = False
            if not (word.operator and word.raw == "\n"):
                command.append(word)
            continue
        if word.raw == "(" and command and _ASSIGN.fullmatch(command[-1].raw):
            in_array = True
            command.append(word)
        elif command:
            yield command
            command = []
    if command:
        yield command


def _branch(script: Script, branches: list[list[bool]], head: str, test: list[Word]) -> None:
    if head == "if":
        outer = all(live for live, _ in branches)
        taken = outer and _holds(script, test)
        branches.append([taken, taken])
    elif not branches:
        return
    elif head == "fi":
        branches.pop()
    else:
        taken_before = branches[-1][1]
        live = not taken_before and (head == "else" or _holds(script, test))
        branches[-1] = [live, taken_before or live]


def _holds(script: Script, test: list[Word]) -> bool:
    words = [
        " ".join(_texts(script, word)) for word in test if word.raw not in ("[", "[[", "]", "]]")
    ]
    if len(words) == 2 and words[0] in ("-n", "-z"):
        return bool(words[1]) == (words[0] == "-n")
    if len(words) == 3 and words[1] in ("=", "==", "-eq"):
        return words[0] == words[2]
    if len(words) == 3 and words[1] in ("!=", "-ne"):
        return words[0] != words[2]
    return False


def _follow(script: Script, words: list[Word]) -> None:
    """Apply leading assignments; what is left is a command."""
    rest = list(words)
    line = words[0].line if words else 1
    while rest and rest[0].raw in (
        "export",
        "local",
        "readonly",
        "declare",
        "set",
        "-a",
        "then",
        "else",
    ):
        script.effort.spend(len(rest), line)
        rest.pop(0)
    while rest and (match := _ASSIGN.match(rest[0].raw)):
        script.effort.spend(len(rest), line)
        name, append = match[1], bool(match[2])
        if len(rest) > 1 and rest[1].operator:
            closed = next((i for i, w in enumerate(rest) if w.operator and w.raw == ")"), len(rest))
            values = [fact for word in rest[2:closed] for fact in _facts(script, word)]
            rest = rest[closed + 1 :]
        else:
            values = _facts(script, _after_equals(rest.pop(0), match.end()))
        old = script.variables.get(name, []) if append else []
        script.effort.spend(len(old) + len(values), line)
        script.variables[name] = (old + values)[:MAX_TOKENS]
    command = [fact for word in rest if not word.operator for fact in _facts(script, word)]
    script.effort.spend(len(command), line)
    if command:
        script.commands.append(command[:MAX_TOKENS])


def _after_equals(word: Word, cut: int) -> Word:
    first = word.pieces[0]
    return Word((Piece(first.text[cut:], first.quoting), *word.pieces[1:]), word.line)


def _facts(script: Script, word: Word) -> list[Fact]:
    """The word expanded and split at blanks; text keeps the line where it was written."""
    if len(word.pieces) == 1 and word.pieces[0].quoting != "single":
        match = _NAME.fullmatch(word.pieces[0].text)
        if match and match[1] is not None and script.variables.get(match[1]):
            return script.variables[match[1]]
        if match and match[4] is not None and script.variables.get(match[4]):
            return script.variables[match[4]]
    return [Fact(text, word.line) for text in _texts(script, word)]


def _texts(script: Script, word: Word) -> list[str]:
    text = "".join(
        piece.text if piece.quoting == "single" else _expand(script, piece.text)
        for piece in word.pieces
    )
    return text.split()


def _expand(script: Script, text: str, depth: int = 0) -> str:
    """`text` with its variables and arithmetic replaced; `$(command)` becomes nothing."""
    script.effort.spend(len(text) * (1 + text.count("$")))  # what the patterns look at, at most
    if depth > 10 or "$" not in text:
        return text
    text = re.sub(r"\$\(\((.*?)\)\)", lambda match: _arithmetic(script, match[1]), text)
    text = re.sub(r"\$\((?!\().*?\)", "", text, flags=re.S)

    def value(match: re.Match[str]) -> str:
        known = script.variables.get(match[1] or match[4])
        if known:
            words = [str(fact.value) for fact in known]
            script.effort.spend(sum(map(len, words)) + len(words))
            return " ".join(words)
        if match[3] is not None:
            return _expand(script, match[3].strip("\"'"), depth + 1)
        return "" if (match[1] or match[4]) in "0123456789@*#" else match[0]

    return _NAME.sub(value, text)[: MAX_TOKENS * 16]


def _arithmetic(script: Script, expression: str) -> str:
    text = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda match: _first(script, match[1]), expression)
    if len(text) > MAX_EXPRESSION:
        return ""
    try:
        return str(_value(ast.parse(text.strip(), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return f"$(({expression}))"


def _first(script: Script, name: str) -> str:
    known = script.variables.get(name)
    return str(known[0].value) if known else name


def _value(node: ast.expr) -> int:
    """A whole-number expression; raises ValueError for anything else."""
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < 2**63:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _BINARY[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError("not whole-number arithmetic")


def flags_of(script: Script, known: Callable[[str], bool]) -> list[Fact]:
    """The words of the command with the most `known` flags, else all flags in the variables.

    A script that keeps its command in a string (`bash -c "${CMD}"`) never runs it as one.
    """
    best = max(script.commands, key=lambda words: _count(words, known), default=[])
    if _count(best, known):
        return best
    flagged = [values for values in script.variables.values() if _count(values, known)]
    return [fact for values in flagged for fact in values]


def _count(words: list[Fact], known: Callable[[str], bool]) -> int:
    return sum(known(str(word.value)) for word in words)
