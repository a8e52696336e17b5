"""What `sed` makes of a text by `s/A/B/`, where A means the same to Python.

That is: no `+`, `?`, `{}`, `()` or `|` that is special, no backslash but before a mark, in B
neither `&` nor a backslash, and no `g` where A may be empty.

Source: POSIX.1-2017 `sed`, 9.3 Basic Regular Expressions; GNU sed 4.9 (`-i`, `-E`).
"""

import re

from meshplan.hardware_profiles.dataclass import dataclass

_STEP = re.compile(r"s([/|#,:@])((?:\\.|(?!\1).)+)\1((?:\\.|(?!\1).)*)\1(g?)", re.S)
_BETWEEN = re.compile(r";\s*(?=s[/|#,:@])")
_ATOM = re.compile(r"\\.|\[\^?[^\]\[\\]+\]|.", re.S)
_SET = re.compile(r"\[\^?(?!.*(?:--|&&|\|\||~~)).+\]", re.S)  # doubled marks may come to mean more
_OPTION = re.compile(r"-(?=.)([Er]*)(i.*)?|--in-place(?:=.*)?", re.S)
_MARKS = ".*[]^$"
_EXTENDED = "+?{}()|"


@dataclass(frozen=True, slots=True)
class Edit:
    """Some of `sed`'s steps for the files `names`, `in_place` or printed."""

    steps: tuple[tuple[re.Pattern[str], str, int], ...]
    names: tuple[str, ...]
    in_place: bool

    def of(self, text: str) -> str:
        """The text behind all steps, line for line."""
        *lines, rest = text.split("\n")  # behind the last end of a line there is none
        return "\n".join([*map(self._line, lines), self._line(rest) if rest else ""])

    def _line(self, line: str) -> str:
        for pattern, new, most in self.steps:
            line = pattern.sub(new, line, count=most)  # no backslash is in it
        return line

    def cost(self, text: str) -> int:
        """About how many characters are compared: stars before a step's last one try all ends."""
        inner = max(pattern.pattern[:-1].count("*") for pattern, _, _ in self.steps)
        tried = sum(int(len(line) ** (inner + 1)) for line in text.split("\n"))
        return len(self.steps) * tried


def edit(words: list[str]) -> Edit | None:
    """What the words behind `sed` do; None where they do more than is read."""
    left, scripts, names = list(words), [], []
    in_place = extended = False
    while left:
        word = left.pop(0)
        if word == "-e" and left:
            scripts.append(left.pop(0))
        elif option := _OPTION.fullmatch(word):
            in_place = in_place or option[1] is None or option[2] is not None
            extended = extended or bool(option[1])
        elif word.startswith("-"):
            return None
        else:
            names.append(word)
    scripts = scripts or [names.pop(0)] if scripts or names else []
    steps = [_step(each, extended) for script in scripts for each in _BETWEEN.split(script)]
    known = [step for step in steps if step]
    return Edit((*known,), (*names,), in_place) if known and len(known) == len(steps) else None


def _step(text: str, extended: bool) -> tuple[re.Pattern[str], str, int] | None:
    match = _STEP.fullmatch(text.strip().rstrip(";"))
    if match is None:
        return None
    mark, old, new, every = match.groups()
    pattern, new = _pattern(old, mark, extended), new.replace(f"\\{mark}", mark)
    if pattern is None or re.search(r"[&\\]", new):
        return None
    try:
        compiled = re.compile(pattern)
    except re.error:  # `[z-a]`, which sed refuses too
        return None
    return None if every and compiled.match("") else (compiled, new, 0 if every else 1)


def _pattern(old: str, mark: str, extended: bool) -> str | None:
    """Python's words for a regular expression of `sed`'s; None where they may differ."""
    atoms = _ATOM.findall(old)
    found = []
    for at, atom in enumerate(atoms):
        ends = (atom == "^" and at == 0) or (atom == "$" and at == len(atoms) - 1)
        repeats = atom == "*" and at > 0 and atoms[at - 1] not in "*^"
        is_set = _SET.fullmatch(atom) is not None
        if ends or repeats or is_set or atom == ".":
            found.append(atom)
        elif atom[0] == "\\" and atom[1:] in (mark, *_MARKS):
            found.append(re.escape(atom[1]))
        elif atom in _MARKS or atom[0] in "\\[" or (extended and atom in _EXTENDED):
            return None
        else:
            found.append(re.escape(atom))
    return "".join(found)
