"""`${...}` of a YAML file, answered by the file itself with OmegaConf's grammar.

    ${model.tensor_model_parallel_size}      another entry, from the top or from the file's place
    ${.seq_length}                           an entry of the same section, ${..x} of the one above
    ${multiply:${trainer.num_nodes}, 8}      the resolvers that the NeMo launcher registers
    ${oc.env:TP}, ${oc.env:TP,4}             what the file is started with, else the default: the
                                             environment is otherwise empty, as a script's is

Anything else (hydra, a name that is itself computed) stays as it is written, and
so does what is not one number or short text: OmegaConf would answer each reference anew wherever it
is used, so a few lines that double each other would never end. Here each entry is answered once.

Source: NVIDIA/NeMo-Framework-Launcher@26e42fa9 `launcher_scripts/main.py` (resolvers);
omegaconf 2.3 `grammar/OmegaConfGrammarParser.g4`.
"""

import math
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from meshplan.planner.case.input_limits import MAX_DIGITS, MAX_PATH, MAX_REFERENCES
from meshplan.planner.case.reading import Fact, UnreadableConfig

_ENTRY = re.compile(r"\$\{[ \t]*+(\.*+[A-Za-z_][\w.-]*+)[ \t]*+\}")
_OF_START = re.compile(r"\$\{oc\.env:[ \t]*+([A-Za-z_]\w*+)[ \t]*+(?:,[ \t]*+([^{},\n]*+))?\}")
_MOST_NESTED = 20
_MOST_CHAINED = 50  # references from one entry to the next; published files have 4


def resolved(
    found: Mapping[str, Fact], text: str, environment: Mapping[str, str] | None = None
) -> dict[str, Fact]:
    """`found` with each `${...}` that the file or `environment`, which it is started with, answers
    replaced by its value.

    Raises `UnreadableConfig` where the references are longer than a config's.
    """
    if "${" not in text:
        return dict(found)
    asked = {name: fact for name, fact in found.items() if _refers(fact.value)}
    if sum(len(fact.value) for fact in asked.values()) > MAX_REFERENCES:
        raise UnreadableConfig(
            f"its ${{...}} have more than {MAX_REFERENCES} characters; no config has as many",
            next(iter(asked.values())).line,
        )
    found = {**found, **_of_start(asked, environment or {})}
    answers = _Answers(found)
    return {**found, **{name: Fact(answers.of(name), fact.line) for name, fact in asked.items()}}


def _of_start(asked: Mapping[str, Fact], environment: Mapping[str, str]) -> dict[str, Fact]:
    """The entries that name what the file is started with, each with the values put in."""

    def answer(match: re.Match[str]) -> str:
        value = environment.get(match[1], match[2])
        return match[0] if value is None else value.strip().strip("\"'")

    found = {}
    for name, fact in asked.items():
        text = _OF_START.sub(answer, fact.value)
        whole = _OF_START.fullmatch(fact.value) is not None and text.isdecimal()
        found[name] = Fact(int(text[:MAX_DIGITS]) if whole else text, fact.line)
    return found


def _refers(value: object) -> bool:
    return isinstance(value, str) and "${" in value


class _Answers:
    """What each entry of one file says, asked for once."""

    def __init__(self, found: Mapping[str, Fact]) -> None:
        self._found = found
        self._known: dict[str, object] = {}

    def of(self, name: str, chained: int = 0) -> object:
        """The entry's value, as it is written where the file does not answer it."""
        value = self._found[name].value
        if not _refers(value):
            return value
        if name not in self._known:
            self._known[name] = value  # also what a reference to itself finds
            if chained < _MOST_CHAINED:
                self._known[name] = self._answer(name, value, chained)
        return self._known[name]

    def _answer(self, name: str, written: str, chained: int) -> object:
        values: list[object] = []

        def entry(match: re.Match[str]) -> str:
            place = self._place(match[1], name)
            values.append(written if place is None else self.of(place, chained + 1))
            return f"${{v{len(values) - 1}}}"

        asked = _ENTRY.sub(entry, written)
        if any(_refers(value) or not isinstance(value, str | int | float) for value in values):
            return written
        return values[0] if asked == "${v0}" else _computed(asked, values, written)

    def _place(self, reference: str, name: str) -> str | None:
        """The entry that is meant: from the top, below the file's place, or relative."""
        plain = reference.lstrip(".")
        if up := len(reference) - len(plain):
            return next((p for p in (".".join([*name.split(".")[:-up], plain]),)
                         if p in self._found), None)  # fmt: skip
        below = plain.partition(".")[2]
        return next((place for place in (plain, below) if place in self._found), None)


def _computed(asked: str, values: list[object], written: str) -> object:
    """What OmegaConf makes of `asked`, whose only entries are `v0`, `v1` ...: `values`."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    opened = asked.count("${")
    if opened > _MOST_NESTED or len(_KNOWN.findall(asked)) < opened:
        return written
    _register()
    named = {f"v{i}": value for i, value in enumerate(values)}
    try:
        value = OmegaConf.create({"asked": asked, **named})["asked"]
    except (OmegaConfBaseException, RecursionError, ArithmeticError, TypeError, ValueError):
        return written
    if (isinstance(value, int) and abs(value) < 10**MAX_DIGITS) or isinstance(value, float):
        return value
    return value if isinstance(value, str) and len(value) <= 2 * MAX_PATH else written


def _register() -> None:
    from omegaconf import OmegaConf

    with warnings.catch_warnings():  # its 2.4 renames the function that 2.3 has
        warnings.simplefilter("ignore")
        for name, function in _FUNCTIONS.items():
            OmegaConf.register_new_resolver(name, _of_numbers(function), replace=True)


def _of_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of numbers alone: a text times a number would be as long as it says."""

    def checked(*arguments: object) -> Any:
        if not all(isinstance(each, int | float) for each in arguments):
            raise TypeError("numbers")
        return function(*arguments)

    return checked


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "multiply": lambda x, y: x * y,
    "divide_ceil": lambda x, y: math.ceil(x / y),
    "divide_floor": lambda x, y: math.floor(x / y),
    "int_div": lambda x, y: int(x // y),
    "sum": lambda *x: sum(x),
}
_KNOWN = re.compile(rf"\$\{{(?:v\d++\}}|(?:{'|'.join(_FUNCTIONS)})[ \t]*+:)")
