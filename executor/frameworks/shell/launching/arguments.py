"""The `--flag value` arguments of a command, by name."""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from meshplan.executor.frameworks.documents.values import Values, shown
from meshplan.executor.frameworks.shell.launching.hosts import long_options
from meshplan.executor.frameworks.shell.launching.launches import NOT_RUN, is_output, started_with
from meshplan.executor.frameworks.shell.launching.ranks import started
from meshplan.executor.frameworks.shell.launching.starters import starter_of
from meshplan.planner.case.missing import FLAGS
from meshplan.planner.case.reading import Fact, UnreadableConfig

_LISTS = (
    *("recompute_modules", "hierarchical_context_parallel_sizes", "cp_comm_type"),
    "target_modules",
)


_WHOLE = re.compile(r"\s*[-+]?\d[\d_]*\s*")
"""What Python's `int` takes, which Megatron's parser calls: neither `8.0` nor `1e3`."""


class Arguments(Values):
    """A program's arguments; one that the script leaves open is named.

    waits    what of the script's start decided its conditions
    said_by  arguments, and the option that says the same, by its name in `FLAGS`
    """

    dash = "_"  # as its parser writes a name's words apart
    before = "--"  # and what it writes before a name

    def __init__(
        self,
        found: Mapping[str, Fact],
        waits: tuple[str, ...] = (),
        said_by: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(found)
        self.waits, self.said_by = waits, said_by

    def get(self, *names: str) -> Fact | None:
        fact = super().get(*names)
        if fact is not None and "$" in str(fact.value):
            name = next(name for name in names if self.found.get(name) is fact)
            option = self.before + name.replace("_", self.dash)
            how = started_with(str(fact.value), self.waits)
            if (same := FLAGS.get(self.said_by.get(name, ""))) is not None:
                how += f"; or give {same}"
            raise UnreadableConfig(
                f"{option} is {shown(fact.value)}, which the script does not set; {how}",
                fact.line,
            )
        return fact


class FlagArguments(Arguments):
    """The same of Megatron's parser: a flag without a value is true, whatever stands behind it."""

    dash = "-"

    def count(self, *names: str, least: int = 1) -> Fact | None:
        fact = self.get(*names)
        if fact is not None and not _WHOLE.fullmatch(str(fact.value)):
            name = next(name for name in names if self.found.get(name) is fact)
            raise UnreadableConfig(
                f"--{name.replace('_', '-')} must be a whole number, not {shown(fact.value)}",
                fact.line,
            )
        number = fact and Fact(str(fact.value).strip(), fact.line)
        return Values({names[0]: number} if number else {}).count(names[0], least=least)

    def flag(self, *names: str) -> Fact | None:
        fact = Values.get(self, *names)
        if fact is None:
            return None
        if is_output(fact.value):  # the arguments behind the switch
            raise UnreadableConfig(f"{shown(fact.value)} says arguments: {NOT_RUN}", fact.line)
        return Fact(str(fact.value).lower() not in ("false", "0"), fact.line)


def arguments(words: list[Fact]) -> dict[str, Fact]:
    """`--flag value` pairs by name with underscores; several values become a list, none is true."""
    found: dict[str, Fact] = {}
    name, collected, line = "", [], 0
    for word in [*words, Fact("--", 0)]:
        text = str(word.value)
        if not text.startswith("--"):
            collected.append(text)
            continue
        if name:
            _store(found, name, collected, line)
        flag, _, value = text[2:].partition("=")
        name, line = flag.strip().replace("-", "_"), word.line
        collected = [value] if value else []
    return found


def options_of(words: Sequence[Fact]) -> list[tuple[Fact, list[Fact]]]:
    """Each `--option` as it is written, with the words behind it that the script says, in order."""
    found: list[tuple[Fact, list[Fact]]] = []
    for word in words:
        text = str(word.value)
        if text.startswith("--"):
            option, equals, value = text.partition("=")
            values = [Fact(value, word.line)] if equals else []
            found.append((Fact(option.strip(), word.line), values))
        elif found and text != "\\" and "$" not in text:
            found[-1][1].append(word)
    return found


def launcher_arguments(
    words: list[Fact], inherited: Mapping[str, str] | None = None
) -> dict[str, Fact]:
    """The same of what starts a program, with the short options of `srun`, `mpirun`, DeepSpeed, the
    launcher's name and, of none, what the program inherits.
    """
    starter = starter_of(words, inherited or {})
    return starter | started(words) | arguments(long_options(words))


def _store(found: dict[str, Fact], name: str, texts: list[str], line: int) -> None:
    kept = [text.strip("\"'") for text in texts if text != "\\"]
    if name in _LISTS:
        found[name] = Fact(kept, line)
    else:
        found[name] = Fact(kept[0] if kept else True, line)
