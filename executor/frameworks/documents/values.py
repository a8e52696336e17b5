"""The facts of one file by the framework's own names, read with their types checked.

`auto` and null count as absent: the file leaves the choice to something else.
"""

import difflib
from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

from meshplan.executor.frameworks.documents.parse import number
from meshplan.planner.case.input_limits import MAX_COUNT as MOST
from meshplan.planner.case.missing import MissingFacts
from meshplan.planner.case.reading import Fact, IllegalConfig, UnreadableConfig

T = TypeVar("T")


YES, NO = ("true", "yes", "on", "t", "y", "1"), ("false", "no", "off", "f", "n", "0")
"""What transformers' `string_to_bool` (hf_argparser.py, 5.23) and pydantic take as true, and not.
"""


class Values:
    """Typed access to facts; remembers which names were asked for, to report the others."""

    def __init__(self, found: Mapping[str, Fact]) -> None:
        self.found = found
        self.asked: set[str] = set()

    def get(self, *names: str) -> Fact | None:
        """The first of `names` that is stated."""
        self.asked |= set(names)
        for name in names:
            fact = self.found.get(name)
            if fact is not None and fact.value is not None and fact.value != "auto":
                return fact
        return None

    def has(self, prefix: str) -> bool:
        """Whether any name is `prefix` or lies below it."""
        return any(name == prefix or name.startswith(prefix + ".") for name in self.found)

    def count(self, *names: str, least: int = 1) -> Fact | None:
        """A whole number; `UnreadableConfig` on another type, `IllegalConfig` out of range."""
        fact = self.get(*names)
        if fact is None:
            return None
        value = number(fact.value) if isinstance(fact.value, str) else fact.value
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise UnreadableConfig(
                f"{names[0]} must be a whole number, not {shown(fact.value)}", fact.line
            )
        if not least <= value <= MOST:
            raise IllegalConfig(
                f"{names[0]} is {shown(value)}; it must be at least {least} and at most {MOST}",
                fact.line,
            )
        return Fact(value, fact.line)

    def num(self, *names: str) -> Fact | None:
        """A number of at least 0, whole or not; raises `UnreadableConfig`."""
        fact = self.get(*names)
        if fact is None:
            return None
        value = number(fact.value) if isinstance(fact.value, str) else fact.value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST:
            raise UnreadableConfig(
                f"{names[0]} must be a number from 0, not {shown(fact.value)}", fact.line
            )
        return Fact(value, fact.line)

    def flag(self, *names: str) -> Fact | None:
        """A boolean (also as text: people quote it, and command lines have nothing else)."""
        fact = self.get(*names)
        if fact is None or isinstance(fact.value, bool):
            return fact
        text = fact.value.lower() if isinstance(fact.value, str) else None
        if text in YES + NO:
            return Fact(text in YES, fact.line)
        raise UnreadableConfig(
            f"{names[0]} must be true or false, not {shown(fact.value)}", fact.line
        )

    def on(self, *names: str) -> bool:
        """Whether a boolean is stated and true."""
        fact = self.flag(*names)
        return bool(fact and fact.value)

    def word(self, table: Mapping[str, T], *names: str) -> Fact | None:
        """One of the framework's words, translated by `table`.

        Another word may be a fork's or a later release's: it raises `MissingFacts`, which says that
        it is not understood. Where all of them are numbers another one is none: `IllegalConfig`.
        """
        fact = self.get(*names)
        if fact is None:
            return None
        if not isinstance(fact.value, str | int) or str(fact.value) not in table:
            raise _other_word(names[0], fact, table)
        return Fact(table[str(fact.value)], fact.line)

    def besides(self, usual: Collection[str], name: str, why: str) -> list[Fact]:
        """What is not understood, for the reason `why`: `name`, unless it is a `usual` word."""
        fact = self.get(name)
        if fact is None or str(fact.value) in usual:
            return []
        return [Fact(f"{name} {shown(fact.value)} ({why})", fact.line)]

    def switched_on(self, name: str, why: str) -> list[Fact]:
        """The same of a switch that is on."""
        fact = self.flag(name)
        return [Fact(f"{name} ({why})", fact.line)] if fact and fact.value else []

    def unasked(self) -> list[tuple[str, Fact]]:
        """The facts that nobody asked for."""
        return [(name, fact) for name, fact in self.found.items() if name not in self.asked]

    def ignored(self) -> tuple[str, ...]:
        """The names that nobody asked for."""
        return tuple(name for name, fact in self.found.items() if name not in self.asked)

    def nested(self) -> list[Fact]:
        """What was asked for as a value and is a section: not understood, one line each."""
        parents = {name.rpartition(".")[0] for name in self.found}
        why = "a section, where a value is read"
        return [Fact(f"{name} ({why})", self.found[name].line)
                for name in sorted(parents & self.asked) if name in self.found]  # fmt: skip

    def suspects(self, known: Iterable[str]) -> tuple[str, ...]:
        """A note for each ignored name that looks like a misspelling of a `known` one."""
        wanted = [name for name in known if name not in self.found]
        notes = []
        for name in self.ignored()[:500]:
            if match := difflib.get_close_matches(name, wanted, n=1, cutoff=0.9):
                line = self.found[name].line
                notes.append(f"line {line}: {shown(name)} is not known; is {match[0]} meant?")
        return tuple(notes)


def _other_word(name: str, fact: Fact, table: Mapping[str, T]) -> ValueError:
    known = f"known are {', '.join(table)}{near(str(fact.value), table)}"
    if all(word.isdecimal() for word in table):
        return IllegalConfig(f"{name} is {shown(fact.value)}; {known}", fact.line)
    return MissingFacts((), (Fact(f"{name} {shown(fact.value)} ({known})", fact.line),))


def below(values: Values, section: str) -> Values:
    """The facts below `section`, by their names there; they count as asked for."""
    names = [name for name in values.found if name.startswith(section + ".")]
    values.asked |= {section, *names}
    return Values({name.removeprefix(section + "."): values.found[name] for name in names})


def top_level(values: Values) -> list[tuple[str, Fact]]:
    """The keys of the file's own level that nobody read, each once; what is below one is its own.

    A section of which something was read counts as read.
    """
    read_below = {name.partition(".")[0] for name in values.asked if name in values.found}
    seen: dict[str, Fact] = {}
    for name, fact in values.found.items():
        key = name.partition(".")[0]
        if key not in read_below and key not in values.asked:
            held = Fact(True, fact.line) if "." in name or fact.value is None else fact
            stated = "." in name or fact.value is not None
            if stated:
                seen.setdefault(key, held)
    return list(seen.items())


def near(text: str, known: Iterable[str]) -> str:
    """`; is X meant?` when one of `known` is close to `text`, else nothing."""
    match = difflib.get_close_matches(text[:100], list(known), n=1, cutoff=0.6)
    return f"; is {match[0]} meant?" if match else ""


def shown(value: object) -> str:
    """A value as a one-line message takes it: quoted, printable, at most 60 characters."""
    text = repr(value)
    text = "".join(char if char.isprintable() else "?" for char in text)
    return text if len(text) <= 60 else text[:57] + "..."


def optimizer(
    values: Values, facts: dict[str, Fact], name: str, known: Mapping[str, str]
) -> list[Fact]:
    """Adds the optimizer that `name` states in a framework's words; one that is not `known` is not
    understood.
    """
    stated = values.get(name)
    if stated is not None and str(stated.value) in known:
        facts["optimizer"] = Fact(known[str(stated.value)], stated.line)
    return values.besides(known, name, "the bytes of its states are not modelled")


def put(facts: dict[str, Fact], **found: Fact | None) -> None:
    """Add to `facts` those that are stated."""
    facts.update({name: fact for name, fact in found.items() if fact is not None})
