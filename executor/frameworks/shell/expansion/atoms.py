"""The parts that a word of a shell script expands to, and the words that they make.

Source: GNU Bash manual 5.2, 3.5.7 Word Splitting.
"""

import re
from dataclasses import dataclass

from meshplan.executor.frameworks.shell.variables import Part, Text, plain


@dataclass(frozen=True, slots=True)
class Atom:
    """A part of a word: `splits` at blanks, or begins a word of its own (`part` None)."""

    part: Part | None
    splits: bool = False


def may_say(text: Text) -> bool:
    """Whether it is more than nothing, as the output of a command may be that is not run."""
    return any(part.text and not (part.unset and part.text[:2] != "$(") for part in text)


def squeezed(part: Part) -> Part:
    """The part with each run of blanks and line ends as one space."""
    return Part(re.sub(r"\s+", " ", part.text), part.line, part.unset)


def length(items: list[Text] | None, *, every: bool) -> int:
    """`${#X}`: the characters of a value, or how many elements an array has."""
    if items is None:
        return 0
    return len(items) if every else len(plain(items[0]) if items else "")


def atoms_of(text: Text, *, quoted: bool) -> list[Atom]:
    """A value as it stands in a word."""
    return [Atom(part, splits=not quoted) for part in text] or (
        [Atom(Part("", 1))] if quoted else []
    )


def unknown(raw: str, line: int, *, quoted: bool) -> list[Atom]:
    """Something that is not set; between quotes it is an empty word, else no word at all."""
    atoms = [Atom(Part(raw, line, unset=True), splits=not quoted)]
    return [*atoms, Atom(Part("", line))] if quoted else atoms


def several(items: list[Text], *, quoted: bool) -> list[Atom]:
    """The elements of an array, each a word of its own."""
    atoms: list[Atom] = []
    for at, text in enumerate(items):
        atoms += [Atom(None)] if at else []
        atoms += atoms_of(text, quoted=quoted)
    return atoms


def of_items(items: list[Text], *, every: bool, quoted: bool) -> list[Atom]:
    """All elements, or the first, which a name without an index stands for."""
    if every:
        return several(items, quoted=quoted)
    return atoms_of(items[0] if items else (), quoted=quoted)


def joined(atoms: list[Atom]) -> Text:
    """One text, unsplit."""
    return tuple(atom.part or Part(" ", 1) for atom in atoms)


def split(atoms: list[Atom]) -> list[Text]:
    """Words out of parts: unquoted ones split at blanks, and vanish when they are empty."""
    words: list[Text] = []
    current: list[Part] | None = None
    for atom in atoms:
        part = atom.part
        if part is None:
            words += [tuple(current)] if current is not None else []
            current = None
        elif not atom.splits or part.unset:
            current = current if current is not None else []
            current.append(part)
        else:
            for text in re.split(r"([ \t\n]+)", part.text):
                if text and not text.isspace():
                    current = current if current is not None else []
                    current.append(Part(text, part.line))
                elif text and current is not None:
                    words.append(tuple(current))
                    current = None
    return words + ([tuple(current)] if current is not None else [])
