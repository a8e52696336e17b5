"""Which of Megatron's flags and NeMo's keys that nobody read still matter to a price.

A name that the reader does not take changes the layout, the memory or the shape (then the verdict
is incomplete and names it), changes the step time (then a note names it), or nothing. The lists are
`megatron_flags.toml` and `nemo_keys.toml`; a name in none of them counts as one that matters.
"""

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from meshplan.executor.frameworks.documents.values import Values, shown
from meshplan.planner.case.reading import Fact

_UNSAID = ("", "none", "null")
_OFF = (*_UNSAID, "0", "0.0", "false", "[]")
_UNKNOWN = ("unknown", "not known")
_LOGGERS = ("wandb_", "swanlab_", "mlflow_", "comet_", "trackio_", "tensorboard_")
"""How settings of what only writes a run down begin, whoever has them."""
_SHOWN = 8  # names in one note


@dataclass(frozen=True, slots=True)
class Flags:
    """The lists of one file: class and reason by name, and values that say nothing new."""

    classes: dict[str, tuple[str, str]]
    usual: dict[str, tuple[str, ...]]


@cache
def flags_in(*names: str) -> Flags:
    """The lists of some files of this folder, the first that has a name winning."""
    classes: dict[str, tuple[str, str]] = {}
    usual: dict[str, tuple[str, ...]] = {}
    for name in names:
        table = tomllib.loads((Path(__file__).parent / name).read_text(encoding="utf-8"))
        for kind in ("not_modelled", "noted", "no_effect"):
            for reason, words in table[kind].items():
                for word in words.split():
                    classes.setdefault(word, (kind, reason))
        usual |= {word: tuple(values) for word, values in table.get("usual", {}).items()}
    return Flags(classes, usual)


MEGATRON = ("megatron_flags.toml",)
NEMO = ("nemo_keys.toml", "megatron_flags.toml")


def judged(
    found: Iterable[tuple[str, Fact]], lists: tuple[str, ...], written: str
) -> tuple[list[Fact], list[str]]:
    """Of the facts `found`, which nobody read: those that matter, and notes for the others.

    written  how a name is written in the file, such as `--{}`
    """
    flags = flags_in(*lists)
    unread: list[Fact] = []
    noted: dict[str, tuple[int, str]] = {}
    for name, fact in found:
        kind, reason = flags.classes.get(name, _UNKNOWN)
        if (kind, reason) == _UNKNOWN and name.startswith(_LOGGERS):
            continue
        text = str(fact.value).lower()
        if kind == "no_effect" or text in flags.usual.get(name, ()):
            continue
        off = text in (_UNSAID if "true" in flags.usual.get(name, ()) else _OFF)
        if off and fact.value is not True and kind != "unknown":
            continue
        shown_name = written.format(name.replace("_", "-") if written.startswith("--") else name)
        if kind == "noted":
            noted.setdefault(shown_name, (fact.line, reason))
        elif not (kind == "unknown" and fact.value in (None, False)):
            unread.append(Fact(f"{_plain(shown_name)} ({reason})", fact.line))
    return unread, _notes(noted)


def unjudged(values: Values, lists: tuple[str, ...]) -> list[tuple[str, Fact]]:
    """The values that nobody read, each by its own name, where it is not listed by the section that
    is listed whole.
    """
    listed = flags_in(*lists).classes
    found: dict[str, Fact] = {}
    for name, fact in values.unasked():
        if fact.value is None or fact.value == "auto":
            continue
        parts = name.split(".")
        above = (".".join(parts[:end]) for end in range(1, len(parts)) if name not in listed)
        section = next((each for each in above if each in listed), None)
        if section is None or not switched_off(values, section):
            found.setdefault(section or name, Fact(True, fact.line) if section else fact)
    return list(found.items())


def switched_off(values: Values, section: str) -> bool:
    """Whether a section is idle, by its `enabled: false`."""
    stated = values.found.get(f"{section}.enabled")
    return stated is not None and stated.value is False


def _plain(name: str) -> str:
    return name if name.isprintable() and len(name) <= 80 else shown(name)


def _notes(noted: dict[str, tuple[int, str]]) -> list[str]:
    """One line for all flags that change the time: they are many, and mean the same."""
    if not noted:
        return []
    names = [*noted][:_SHOWN]
    more = f" and {len(noted) - _SHOWN} more" if len(noted) > _SHOWN else ""
    line = next(iter(noted.values()))[0]
    said = f"whatever is said of {', '.join(names)}{more}"
    return [f"line {line}: priced as the engine runs by default, {said}"]
