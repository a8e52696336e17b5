"""What a followed program's names hold: constants, lists and mappings as they are, and these.

A call of something that is not followed, a class or a function of another package, makes a
`Record`: its keyword arguments are its fields, and fields may be stored into it. What it says is
known by the fields that the program states, nothing else. An `Unknown` may be stored anywhere; only
where a reader asks for it is the file not understood.
"""

import ast
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshplan.executor.frameworks.program.modules import Module

MOST_SHOWN = 60
_MOST_NODES = 200  # of syntax whose words are shown
_MOST_TOUCHED = 20_000  # values in one that is handed on; a configuration has hundreds
OTHERS = "**"  # the key under which a mapping, or a record, has what is not known of its entries
CONSTANTS = (bool, int, float, str, type(None))


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that nothing here knows: the words that make it, and the line of the file."""

    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Ref:
    """A name of another package, by its dotted path: `torch.bfloat16`, a class, a function."""

    dotted: str

    @property
    def name(self) -> str:
        """Its last part."""
        return self.dotted.rpartition(".")[2]


@dataclass(slots=True, eq=False)
class Record:
    """What a call makes that is not followed.

    kind     the dotted name that is called, by its import: `torchtitan.trainer.Trainer.Config`
    text     the call as it is written
    args     its arguments without names
    fields   those with names and what is stored later, each with the line that states it
    origin   what a method was called on
    changed  what may have changed it in a way that is not known
    default  whether it is a field that the program reads or stores into, and does not make
    known    whether a function makes it of which the reader says that it returns an object
    """

    kind: str
    text: str
    line: int
    args: list[Any] = field(default_factory=list)
    fields: dict[str, tuple[Any, int]] = field(default_factory=dict)
    origin: "Record | None" = None
    changed: Unknown | None = None
    default: bool = False
    known: bool = False

    def get(self, name: str) -> Any:
        """A field's value, None where it is not stated."""
        return self.fields[name][0] if name in self.fields else None

    @property
    def name(self) -> str:
        """The last part of `kind`."""
        return self.kind.rpartition(".")[2]

    @property
    def is_made(self) -> bool:
        """Whether it is an object: a class makes it, by the habit of capitals, or it is `known`."""
        return self.known or (not self.default and self.name.lstrip("_")[:1].isupper())


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A function of a module that is followed, with the names around it, what is bound, and its
    parameters' defaults.
    """

    node: ast.FunctionDef
    module: "Module"
    names: MutableMapping[str, Any] | None = None
    bound: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Class:
    """A class of a module that is followed."""

    node: ast.ClassDef
    module: "Module"
    dotted: str

    def member(self, name: str) -> "Class | Ref":
        """What is inside it: a class, or a name that is not followed."""
        dotted = f"{self.dotted}.{name}"
        inner = (each for each in self.node.body if isinstance(each, ast.ClassDef))
        found = next((each for each in inner if each.name == name), None)
        return Class(found, self.module, dotted) if found else Ref(dotted)


def is_constant(value: object) -> bool:
    """Whether a value is a number, a text, true, false or None."""
    return isinstance(value, CONSTANTS)


def is_key(value: object) -> bool:
    """Whether a value may name an entry of a mapping: a constant, or a tuple of them."""
    return is_constant(value) or (isinstance(value, tuple) and is_flat(value))


def is_whole(value: object) -> bool:
    """Whether a text, a list or a mapping has the entries that it shows: nothing unknown was
    handed it.
    """
    if isinstance(value, dict):
        return OTHERS not in value
    if isinstance(value, list | tuple):
        return not value or not isinstance(value[-1], Unknown)
    return isinstance(value, str)


def is_flat(value: object) -> bool:
    """Whether a value is a constant or a list of them, so that comparing it costs little."""
    return is_constant(value) or (
        isinstance(value, list | tuple) and all(is_constant(each) for each in value)
    )


def words(node: ast.AST, most: int = MOST_SHOWN) -> str:
    """A piece of syntax as it is written, in one line; of a long one its beginning."""
    if sum(1 for _ in islice(ast.walk(node), _MOST_NODES)) == _MOST_NODES:
        called = getattr(node, "func", None)
        return f"{words(called, most)}(...)" if called is not None else "a long expression"
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= most else text[: most - 3] + "..."


def touch(value: object, why: Unknown) -> int:
    """Note that something may have changed a value, and all that lies below it: a record is
    marked, of lists and mappings no constant is known any more. Returns how many were looked at.
    """
    waiting, seen = [value], 0
    known: set[int] = set()
    while waiting and seen < _MOST_TOUCHED:
        held, seen = waiting.pop(), seen + 1
        if isinstance(held, Record) and held.changed is None:
            held.changed = why
            waiting += [*held.args, *(inner for inner, _ in held.fields.values())]
        elif isinstance(held, list | dict | tuple) and id(held) not in known:
            known.add(id(held))
            waiting += held.values() if isinstance(held, dict) else held
            _unsettle(held, why)
    return seen


def _unsettle(held: list[Any] | dict[Any, Any] | tuple[Any, ...], why: Unknown) -> None:
    """Forget the constants of a list or a mapping, and whether it has more."""
    if isinstance(held, dict):
        held.update({key: why for key, inner in held.items() if is_constant(inner)})
        held[OTHERS] = why
    elif isinstance(held, list) and is_whole(held):
        held[:] = [*(why if is_constant(inner) else inner for inner in held), why]


def shallow(held: Record) -> Record:
    """Another record with the same fields."""
    return replace(held, fields=dict(held.fields), args=list(held.args))
