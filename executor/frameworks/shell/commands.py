"""What a command is, by its words: a test, or a shell that is given its script, and that as
a tree.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from meshplan.executor.frameworks.shell.grammar import syntax
from meshplan.executor.frameworks.shell.grammar.parser import parse
from meshplan.executor.frameworks.shell.grammar.words import Piece, Word, split_words
from meshplan.executor.frameworks.shell.variables import Part, Text, line_of, plain
from meshplan.planner.case.reading import UnreadableConfig

MAX_BRACED = 1_001  # one more than a loop may have rounds
_RANGE = re.compile(r"\{(\d{1,6})\.\.(\d{1,6})(?:\.\.(\d{1,6}))?\}")
_LIST = re.compile(r"\{([^{}$`,]+(?:,[^{}$`,]+)+)\}")
_TRAINS = re.compile(r"\s*(?:\w+=\S*\s+)*\S*(?:python[\d.]*|torchrun|deepspeed)\s")
OTHER_MACHINES = {"ssh": "BbcDEeFIiJLlmOoPpQRSWw", "pdsh": "wxgXlRMtuf"}
"""What runs a command on other machines, and its options that take a value (ssh(1), pdsh(1))."""
_SHELLS = re.compile(r"(?:/usr|/bin|/)*(?:ba|z|)sh")
_SHELL_OPTION = re.compile(r"[-+][A-Za-z]+|--[a-z-]+")
_OF_FILES = ("--rcfile", "--init-file")  # options of a shell that take a value


def decides(condition: syntax.Block) -> bool:
    """Whether a condition is a test, whose answer follows from the script."""
    tests = ("[", "test", "true", "false", ":")
    return all(
        isinstance(node, syntax.Test | syntax.Not)
        or (
            isinstance(node, syntax.Simple)
            and isinstance(node.parts[0], Word)
            and node.parts[0].raw in tests
        )
        for _, node in condition.items
    )


def is_shell(node: syntax.Node) -> bool:
    """Whether it runs in a shell of its own."""
    return isinstance(node, syntax.Block) and node.alone


def failing(node: syntax.Node, statuses: Sequence[int]) -> syntax.Simple | syntax.Test | None:
    """The command that `set -e` looks at behind `node`: itself, or the first of a pipeline whose
    last part holds and whose parts end with `statuses`; a last part that fails was looked at.
    """
    if isinstance(node, syntax.Block) and node.piped and any(statuses) and not statuses[-1]:
        while isinstance(node, syntax.Block) and node.items:
            node = node.items[0][1]
    return node if isinstance(node, syntax.Simple | syntax.Test) else None


def reads(condition: syntax.Block) -> bool:
    """Whether a condition is `read` of what the script does not say."""
    first = condition.items[0][1] if condition.items else None
    words = first.parts if isinstance(first, syntax.Simple) else ()
    named = (part.bare for part in words if isinstance(part, Word) and not syntax.assigns(part))
    return next(named, "") == "read"


def printing(command: str, line: int) -> syntax.Block | None:
    """The commands of `$( )`; None for what is read by no rule, and for `< FILE` without a command,
    which prints the file.
    """
    try:
        block = parsed([(Part(command, line),)], line)
    except UnreadableConfig:
        return None
    nodes = [node for _, node in block.items]
    empty = all(isinstance(node, syntax.Simple) and not node.parts for node in nodes)
    return None if empty else block


def is_count(words: list[Text]) -> bool:
    """Whether the first word is a small number."""
    return bool(words) and re.fullmatch(r"\d{1,4}", plain(words[0])) is not None


def inline(words: list[Text]) -> tuple[Text, list[Text]] | None:
    """The script of `bash -c SCRIPT NAME A B` and its arguments, also behind a launcher such as
    srun, and of `ssh HOST "A; B"`; of another program's `-c`, a text that begins as a command that
    trains does.
    """
    if (sent := _elsewhere(words)) is not None:
        return sent, []
    for at, word in enumerate(words[:-2]):
        if _SHELLS.fullmatch(plain(word)) and (script := _behind_options(words, at + 1)):
            return words[script], words[script + 2 :]
        if plain(words[at + 1]) == "-c" and _TRAINS.match(plain(words[at + 2])):
            return words[at + 2], []
    return None


def _behind_options(words: list[Text], at: int) -> int:
    """Where the script of `bash -x -o pipefail -c SCRIPT` stands, whose options begin at `at`; 0
    where none of them is `-c` (GNU Bash manual 5.2, 6.1 Invoking Bash).
    """
    given = False
    while at < len(words) and _SHELL_OPTION.fullmatch(option := plain(words[at])):
        letters = "" if option.startswith("--") else option[1:]
        given = given or (option[0] == "-" and "c" in letters)
        at += 1 + ("o" in letters or "O" in letters or option in _OF_FILES)
    return at if given and at < len(words) else 0


def _elsewhere(words: list[Text]) -> Text | None:
    """What `ssh` or `pdsh` runs on other machines, where it is quoted; word by word it is a command
    as it stands.
    """
    name, left = plain(words[0]) if words else "", words[1:]
    if name not in OTHER_MACHINES:
        return None
    while left and (word := plain(left[0])).startswith("-"):
        takes = len(word) == 2 and word[1] in OTHER_MACHINES[name]
        left = left[2:] if takes else left[1:]
    left = left[1:] if name == "ssh" else left
    text = tuple(part for word in left for part in (*word, Part(" ", line_of(word, 1))))
    quoted = any(" " in plain(word).strip() for word in left)
    return text if quoted and printing(plain(text), 1) else None  # else another shell's words


def after_equals(word: Word, cut: int) -> Word:
    """`word` less its first `cut` characters."""
    first = word.pieces[0]
    rest = Piece(first.text[cut:], first.quoting, first.line)
    return replace(word, pieces=(rest, *word.pieces[1:]))


def parsed(texts: list[Text], line: int) -> syntax.Block:
    """Text of several lines as a script, each part at its own line."""
    parts = [part for text in texts for part in (*text, Part(" ", line))]
    lines, at = [(0, line)], 0
    for part in parts:
        lines.append((at, part.line))
        at += len(part.text)
    return parse(split_words("".join(part.text for part in parts), lines))


def braced(word: Word) -> list[Text]:
    """The words of `{1,2,4}` or `{1..8}` (GNU Bash manual 5.2, 3.5.1), where it stands alone and
    unquoted; none for any other.
    """
    if match := _RANGE.fullmatch(word.bare):
        first, last, step = int(match[1]), int(match[2]), int(match[3] or 1) or 1
        numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
        items = [str(number) for number in numbers[:MAX_BRACED]]
    elif match := _LIST.fullmatch(word.bare):
        items = match[1].split(",")
    else:
        return []
    return [(Part(item, word.line),) for item in items]
