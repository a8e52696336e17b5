"""Which of a script's commands launch the training: those with the framework's flags."""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

from meshplan.executor.frameworks.documents.values import shown
from meshplan.executor.frameworks.shell.grammar.words import closing
from meshplan.executor.frameworks.shell.record import Script
from meshplan.planner.case.reading import Fact, Start

_UNSET = re.compile(r"\$\{?([A-Za-z_]\w*)(\[[@*]\])?\}?")
_OF_SHELLS = re.compile(
    r"(^|/)(activate|\.?bashrc|\.?(bash_)?profile|conda\.sh|[\w-]*vars\.sh|init/\w+)$|^/(etc|opt|usr)/"
)
"""Files that set up a shell, and give no program its arguments."""
_OUTPUT = re.compile(r"\$\((?!\()")
NOT_RUN = "no command is run: write them into the script"
_STARTED = re.compile(r"\$(?!\{\w+\.)\{?([A-Za-z_]\w*|[1-9]\d?)\b")
"""Not `${oc.env:TP}` and `${model.x}`, which OmegaConf resolves and no shell."""
_NO_FLAGS = {"PWD", "HOME", "USER", "HOSTNAME", "RANDOM", "UID", "SLURM_JOB_ID", "SLURM_JOBID"}
"""What a shell or Slurm sets itself, which is never a flag."""
_SHOWN = 6  # of what a script is started with
_CONFIGURATIONS = (".json", ".yaml", ".yml")
MAX_CASES = 64  # launches of one script
T = TypeVar("T")
_OF_ARGUMENTS = re.compile(r"ARG|OPT|FLAG|EXTRA", re.I)


def launches(script: Script, known: Callable[[str], bool]) -> list[list[Fact]]:
    """The different commands with many `known` flags, in order; else all flags in the variables.

    A script that only writes its command into a file never runs it as one; nor does a part of
    scripts, which another one sources (`is_launched` tells).
    """
    most = max((_count(words, known) for words in script.commands), default=0)
    found: dict[tuple[object, ...], list[Fact]] = {}
    for words in script.commands:
        if most and _count(words, known) * 2 > most:
            texts = tuple(str(word.value) for word in words)
            held = tuple((name, fact.value) for name, fact in script.held_by(words).items())
            found.setdefault((texts, held, _configurations(script.files_of(words))), words)
    if found:
        return list(found.values())
    rest: list[Fact] = []
    for values in script.variables.values():
        said = [Fact(text, fact.line) for fact in values for text in str(fact.value).split()]
        rest += said if any(known(str(word.value)) for word in said) else []
    return [rest] if rest else []


def _configurations(files: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Those of a launch's written files that may say something of it."""
    return tuple(sorted(item for item in files.items() if item[0].endswith(_CONFIGURATIONS)))


def said_elsewhere(words: list[Fact], missed: Sequence[str]) -> list[Fact]:
    """What is not understood of a launch: arguments that the output of a command is, or a variable
    that one of the files sets which are sourced and not there (`missed`), where they stand as flags
    do, not as a flag's value.
    """
    program = next((at for at, word in enumerate(words) if str(word.value).endswith(".py")), 0)
    flags = [
        word
        for before, word in pairwise(words[program:])
        if "=" in str(before.value) or not str(before.value).startswith("--")
    ]
    printed = [
        Fact(f"arguments that {shown(word.value)} prints ({NOT_RUN})", word.line)
        for word in flags
        if is_output(word.value)
    ]
    return [*printed, *_set_by_sourced(flags, missed)]


def _set_by_sourced(flags: list[Fact], missed: Sequence[str]) -> list[Fact]:
    """The variables among `flags` that nothing sets which is read, as one fact."""
    files = [name for name in missed if not _OF_SHELLS.search(name.strip("\"'"))]
    names = ((_UNSET.fullmatch(str(word.value)), word.line) for word in flags)
    found = {f"${name[1]}": line for name, line in names if name and name[1] not in _NO_FLAGS}
    if not found or not files:
        return []
    why = f"what {', '.join(shown(name) for name in files[:_SHOWN])} sets, sourced and not there"
    return [Fact(f"flags of {', '.join([*found][:_SHOWN])} ({why})", min(found.values()))]


def is_output(value: object) -> bool:
    """Whether a word is, as a whole, what a command prints that is not run."""
    text = str(value)
    return _OUTPUT.match(text) is not None and closing(text, 1) == len(text)


def first_of(cases: Sequence[T]) -> tuple[Sequence[T], tuple[str, ...]]:
    """As many launches as are judged, and a note of the others."""
    if len(cases) <= MAX_CASES:
        return cases, ()
    return cases[:MAX_CASES], (f"{len(cases)} launches: the first {MAX_CASES} are judged",)


def is_launched(script: Script, known: Callable[[str], bool]) -> bool:
    """Whether a command of the script takes `known` flags."""
    return any(_count(words, known) for words in script.commands)


def left_open(commands: list[list[Fact]]) -> list[str]:
    """A note of variables that nothing sets and that stand where flags do, not a flag's value."""
    found: dict[str, int] = {}
    for words in commands:
        for before, word in pairwise(words):
            name = _UNSET.fullmatch(str(word.value))
            is_value = str(before.value).startswith("--")
            if (
                name
                and name[1] not in _NO_FLAGS
                and (not is_value or _OF_ARGUMENTS.search(name[1]))
            ):
                found.setdefault(f"${name[1]}", word.line)
    line = min(found.values(), default=1)
    return (
        [f"line {line}: flags of {', '.join(found)} are left to the environment"] if found else []
    )


def needed(
    found: Mapping[str, Fact], start: Start | None, said_by: Mapping[str, str]
) -> dict[str, Fact]:
    """The arguments less those that the script leaves to its start and that an option says instead
    (`said_by`: arguments by the option's name in `FIELDS`). Of a model below a folder that is left
    open the name is known.
    """
    instead = start.instead if start else frozenset()
    named = {
        name: _below_a_folder(fact) if said_by.get(name) == "model" else fact
        for name, fact in found.items()
    }
    return {
        name: fact
        for name, fact in named.items()
        if "$" not in str(fact.value) or said_by.get(name) not in instead
    }


def _below_a_folder(fact: Fact) -> Fact:
    """`Qwen3-8B` of `$MODELS/Qwen3-8B`; else the fact as it is (`$((N/2))` is no path)."""
    folder, _, name = str(fact.value).rpartition("/")
    is_name = "$" in folder and re.fullmatch(r"[\w.-]*[A-Za-z][\w.-]*", name)
    return Fact(name, fact.line) if is_name else fact


def started_with(value: str, waits: tuple[str, ...]) -> str:
    """How to say what `value` of a script waits for: the names in it, and what of the script's
    start decided its conditions (`waits`).
    """
    asked = [name for each in waits for name in _STARTED.findall(each)]
    names = sorted(dict.fromkeys([*_STARTED.findall(value), *asked]), key=_numbers_first)
    if not names:
        runs = re.search(r"`|\$\((?!\()", value)
        return (
            "no command is run: write its value in the script" if runs else "set it in the script"
        )
    options = " ".join(f"--env {name}=VALUE" for name in names[:_SHOWN])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    first, *others = [name for name in names if name.isdecimal()] or [""]
    arguments = f" ({first}: its argument ${first})" if first else ""
    if others:
        arguments = " (a number is its argument: `bash SCRIPT A B` is --env 1=A --env 2=B)"
    return f"say what it is started with: {options}{more}{arguments}"


def _numbers_first(name: str) -> tuple[bool, int]:
    """Arguments in their order before variables, which may follow from them."""
    return (False, int(name)) if name.isdecimal() else (True, 0)


def _count(words: list[Fact], known: Callable[[str], bool]) -> int:
    return len({str(word.value) for word in words if known(str(word.value))})
