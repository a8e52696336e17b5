"""What a pipeline prints whose commands only compute: `echo 8,4 | cut -d, -f1`.

No command is run. Source: POSIX.1-2017 `awk`, `bc`, `cut`, `head`, `tail`, `tr`, `wc`, `xargs`;
GNU sed. Leaves out: everything of them but taking a field, a line, a count, and replacing text.
"""

import re
from collections.abc import Callable

from meshplan.executor.frameworks.shell.expansion.arithmetic import NotArithmetic, evaluate
from meshplan.executor.frameworks.shell.expansion.text import computed, ends_open, no_name

_AWK = re.compile(r"\s*\{\s*print\s+\$(\d{1,3}|NF)\s*;?\s*\}\s*")
_REPLACED = re.compile(r"s([/|#,])([\w ,.:=-]*)\1([\w ,.:=-]*)\1(g?)")
_LINES = re.compile(r"-(?:n\s*)?(\d{1,4})")
_NOT_OF_BOTH = re.compile(r"\b0\d|\*\*|\+\+|--|[^\d\s+*/%()-]")
_CLASSES = {"a-z": "abcdefghijklmnopqrstuvwxyz", "A-Z": "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
_CLASSES |= {"[:lower:]": _CLASSES["a-z"], "[:upper:]": _CLASSES["A-Z"], r"\n": "\n"}

Filter = Callable[[str, list[str]], str | None]


def printed(stages: list[list[str]]) -> str | None:
    """What `stages`, the commands of a pipeline by their words, print, less the line ends behind
    it; None where one of them does more than is read.
    """
    text = computed(stages[0]) if stages else ""
    if text is not None and stages and not _ends_open(stages[0]):
        text += "\n"  # every other command ends its last line
    for name, *words in stages[1:]:
        if text is None:
            return None
        known = _FILTERS.get(name)
        text = known(text, words) if known else None
    return None if text is None else text.rstrip("\n")


def _ends_open(words: list[str]) -> bool:
    """Whether a command leaves its last line without an end: `printf`, `echo -n`."""
    return words[:1] == ["printf"] or (words[:1] == ["echo"] and ends_open(words[1:]))


def _options(words: list[str], letters: str) -> dict[str, str] | None:
    """Short options with a value, `-d, -f 2`; None where there is another word."""
    found: dict[str, str] = {}
    left = list(words)
    while left:
        word = left.pop(0)
        if len(word) < 2 or word[0] != "-" or word[1] not in letters:
            return None
        if len(word) == 2 and not left:
            return None
        found[word[1]] = word[2:] or left.pop(0)
    return found


def _cut(text: str, words: list[str]) -> str | None:
    said = _options(words, "df")
    if said is None or not said.get("f", "").isdecimal() or len(said.get("d", "\t")) != 1:
        return None
    at, mark = int(said["f"]) - 1, said.get("d", "\t")
    if at < 0:
        return None
    rows = ((line, line.split(mark)) for line in _rows(text))
    taken = (line if len(row) == 1 else "".join(row[at : at + 1]) for line, row in rows)
    return "".join(each + "\n" for each in taken)


def _awk(text: str, words: list[str]) -> str | None:
    said = _options(words[:-1], "F") if words else None
    match = _AWK.fullmatch(words[-1]) if words else None
    if said is None or match is None or not re.fullmatch(r"[^\\\[\].*+?^$()|]*", said.get("F", "")):
        return None
    mark = said.get("F", " ")
    if not mark:
        return None
    fields = ((line, line.split(None if mark == " " else mark)) for line in _rows(text))
    return "".join(_field(line, row, match[1]) + "\n" for line, row in fields)


def _field(line: str, row: list[str], which: str) -> str:
    if which == "0":
        return line
    at = len(row) if which == "NF" else int(which)
    return row[at - 1] if 0 < at <= len(row) else ""


def _rows(text: str) -> list[str]:
    """Its lines; the last one may lack its end."""
    return text.removesuffix("\n").split("\n") if text else []


def _tr(text: str, words: list[str]) -> str | None:
    if words[:1] == ["-d"] and len(words) == 2 and (gone := _set(words[1])) is not None:
        return "".join(char for char in text if char not in gone)
    sets = [_set(word) for word in words]
    if len(sets) != 2 or not sets[0] or not sets[1]:
        return None
    first, second = sets[0], sets[1]
    return text.translate(str.maketrans(first, second.ljust(len(first), second[-1])[: len(first)]))


def _set(word: str) -> str | None:
    """The characters of a set of `tr`; None for classes and escapes that are not read."""
    if word in _CLASSES:
        return _CLASSES[word]
    return word if re.fullmatch(r"[^\\\[\]-]+|-", word) else None


def _sed(text: str, words: list[str]) -> str | None:
    match = _REPLACED.fullmatch(words[-1]) if words else None
    if match is None or words[:-1] not in ([], ["-e"]) or "." in match[2] or not match[2]:
        return None
    most = -1 if match[4] else 1
    return "\n".join(line.replace(match[2], match[3], most) for line in text.split("\n"))


def _lines(text: str, words: list[str], *, last: bool) -> str | None:
    match = _LINES.fullmatch(" ".join(words)) if words else None
    if words and match is None:
        return None
    count, lines = int(match[1]) if match else 10, _rows(text)
    kept = lines[len(lines) - min(count, len(lines)) :] if last else lines[:count]
    return "".join(line + "\n" for line in kept)


def _wc(text: str, words: list[str]) -> str | None:
    counted = {"-l": text.count("\n"), "-w": len(text.split())}
    return str(counted[words[0]]) if len(words) == 1 and words[0] in counted else None


def _bc(text: str, words: list[str]) -> str | None:
    """Sums of whole numbers, where `bc` and a shell agree: neither its powers nor octal `010`."""
    if words or _NOT_OF_BOTH.search(text):
        return None
    try:
        return str(evaluate(text, no_name, lambda _name, _value: None))
    except NotArithmetic:
        return None


_FILTERS: dict[str, Filter] = {
    "cut": _cut, "awk": _awk, "gawk": _awk, "tr": _tr, "sed": _sed, "wc": _wc, "bc": _bc,
    "xargs": lambda text, words: None if words else " ".join(text.split()),
    "head": lambda text, words: _lines(text, words, last=False),
    "tail": lambda text, words: _lines(text, words, last=True),
}  # fmt: skip
