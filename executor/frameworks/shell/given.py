"""What a script is given: the environment and arguments of its start, here-strings to
`read`, and the files that it writes of here-documents.

Source: GNU Bash manual 5.2, 3.6.6 Here Documents, 3.6.7 Here Strings, 4.2 `read`, 3.5.7
Word Splitting.
"""

import re
from collections.abc import Mapping, Sequence

from meshplan.executor.frameworks.shell.grammar.syntax import Array, assigns, name_of
from meshplan.executor.frameworks.shell.grammar.words import Word
from meshplan.executor.frameworks.shell.variables import (
    Part,
    Text,
    Variables,
    is_unset,
    line_of,
    plain,
)


def set_start(known: Variables, environment: Mapping[str, str]) -> None:
    """Sets variables by name and arguments by number; an argument below one that is said stays
    unknown.
    """
    last = max((int(name) for name in environment if name.isdecimal()), default=0)
    for at in range(1, last + 1):
        value = environment.get(str(at))
        part = Part(f"${at}", 1, unset=True) if value is None else Part(value, 1)
        known.arguments.append((part,))
    for name, value in environment.items():
        if not name.isdecimal():
            known.values[name] = [(Part(value, 1),)]


def exported_names(word: str, parts: Sequence[Word | Array]) -> set[str]:
    """The names that `export A=1 B` or `declare -x A=1` exports."""
    flags = [part.raw for part in parts if isinstance(part, Word) and part.raw.startswith("-")]
    if (word != "export" and "x" not in "".join(flags)) or "-n" in flags:
        return set()
    return {
        part.raw if isinstance(part, Word) and not assigns(part) else name_of(part)
        for part in parts
    }


_TAKE_VALUES = {"read": "dinNptu"}  # options of `read`; else those of `mapfile`


def read_here(known: Variables, command: str, words: list[Text], given: Text | None) -> bool:
    """`read` and `mapfile` of a here-string or here-document: each name takes a field, the last one
    the rest; after `-a` a name takes all of them, of `mapfile` all lines. What is read from
    elsewhere is unknown.
    """
    texts = [plain(word) for word in words]
    options, names = _read_words(texts, _TAKE_VALUES.get(command, "dnOsuCc"))
    if command != "read":
        names, options = names[:1] or ["MAPFILE"], options | {"a": ""}
    names = names or ["REPLY"]
    if given is None or is_unset(given):
        for name in names:
            known.values[name] = [(Part(f"${name}", 1, unset=True),)]
        return True
    ifs = plain(known.values["IFS"][0]) if known.values.get("IFS") else " \t\n"
    text, line = plain(given), line_of(given, 1)
    if command == "read" and options.get("d") != "":
        text = text.partition(options.get("d", "\n")[:1])[0]
    fields = _fields(text, ifs) if command == "read" else text.rstrip("\n").split("\n")
    for at, name in enumerate(names):
        if "a" in options:
            known.values[name] = [(Part(each, line),) for each in fields]
            known.arrays.add(name)
        else:
            taken = _rest(text, ifs, at) if at == len(names) - 1 else "".join(fields[at : at + 1])
            known.values[name] = [(Part(taken, line),)]
    return True


def _read_words(texts: list[str], with_value: str) -> tuple[dict[str, str], list[str]]:
    """The options of `read` with their values, and the names that it sets."""
    options: dict[str, str] = {}
    names: list[str] = []
    left = list(texts)
    while left:
        word = left.pop(0)
        if not word.startswith("-") or names:
            names.append(word)
            continue
        for at, letter in enumerate(word[1:], start=2):
            takes = letter in with_value
            value = (word[at:] or (left.pop(0) if left else "")) if takes else ""
            options[letter] = value
            if takes:
                break
    return options, names


def _rest(text: str, ifs: str, taken: int) -> str:
    """`text` less the first fields that other names have taken, and the blanks around it."""
    blanks = "".join(char for char in ifs if char.isspace())
    text = text.strip(blanks) if blanks else text
    for _ in range(taken):
        parts = re.split(_separator(ifs), text, maxsplit=1)
        text = parts[1] if len(parts) > 1 else ""
    left = _fields(text, ifs)
    return text if len(left) > 1 else "".join(left)


def _fields(text: str, ifs: str) -> list[str]:
    """`text` split at the characters of IFS; its blanks in a row count as one, those around
    another as part of it, and nothing follows a last one.
    """
    blanks = "".join(char for char in ifs if char.isspace())
    fields = re.split(_separator(ifs), text.strip(blanks or "\n"))
    return fields[:-1] if fields[-1] == "" else fields


def _separator(ifs: str) -> str:
    blanks = "".join(char for char in ifs if char.isspace())
    others = "".join(char for char in ifs if not char.isspace())
    space, mark = (f"[{re.escape(each)}]" for each in (blanks or "\n", others or "\n"))
    return f"{space}*{mark}{space}*|{space}+"
