"""What a call of a followed program makes.

    a function of the file or of the repository    what it returns, followed with these arguments
    a class of theirs with annotated fields        a record with the defaults that it states
    `dataclasses.replace`, `copy.deepcopy`, ...    what they do
    anything else                                  a record of its keyword arguments; records that
                                                   it is handed may be changed by it

The environment is empty but for what the file is started with.
"""

import ast
import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import field, replace
from typing import Any

from meshplan.executor.frameworks.program.budget import MAX_CALLS, Budget, Unfollowed
from meshplan.executor.frameworks.program.expressions import Expressions, Frame
from meshplan.executor.frameworks.program.pure import FUNCTIONS, NotKnown, method
from meshplan.executor.frameworks.program.values import (
    OTHERS,
    Class,
    Function,
    Record,
    Ref,
    Unknown,
    is_constant,
    is_whole,
    shallow,
    touch,
)
from meshplan.hardware_profiles.dataclass import dataclass

READ_ONLY = frozenset(
    ("print", "len", "isinstance", "type", "repr", "id", "fields", "asdict", "info", "warning",
     "debug", "warn", "get_logger", "getLogger", "is_dataclass", "hasattr")
)  # fmt: skip
"""Names of functions that change nothing that they are handed."""
_SAME = ("typing.cast", "cast")
_COPIES = ("copy.deepcopy", "deepcopy")
_SHALLOW = ("copy.copy", "copy")
_ANYTHING = ("exec", "eval", "globals", "locals")
"""Functions that may store into any name."""
_KEEPS_FIELDS = re.compile(r"dataclass|regist|deprecated|^final$|experimental")
"""Names of decorators that leave a class's fields as they are."""
_NUMBER = re.compile(r"\s*[-+]?\d+(?:\.\d+)?\s*|true|false", re.I)
_ENVIRONMENT = ("os.environ.get", "os.getenv", "environ.get", "getenv")
_LAUNCHED = re.compile(r"(?:(?:LOCAL|GROUP|ROLE)_)?(?:RANK|WORLD_SIZE)|(?:SLURM|OMPI|PMIX?|PET)_.*")
"""Variables that a launcher sets (torchrun, Slurm, MPI): without it they are not known."""
_MAX_BASES = 8
_TOUCHED_A_STEP = 16
_PLAIN: Mapping[str, type] = {"str": str, "int": int, "bool": bool, "float": float, "list": list,
                              "dict": dict, "tuple": tuple}  # fmt: skip


Effects = Mapping[str, Callable[[list[Any], dict[str, Any], int], None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the reader of a framework's programs knows of them.

    opaque       functions and classes whose calls are records wherever they lie, by the ends of
                 their dotted names
    ruled        packages whose classes set fields by rules that the reader knows
    effects      what a function that is not entered does to its arguments, by its name
    environment  what the program is started with
    """

    opaque: Collection[str] = ()
    ruled: Collection[str] = ()
    effects: Effects = field(default_factory=dict)
    environment: Mapping[str, str] | None = None


class Calls(Expressions):
    """Expressions with their calls."""

    def __init__(self, budget: Budget, rules: Rules) -> None:
        super().__init__(budget)
        self._effects = rules.effects
        self.own: Collection[ast.keyword] = ()
        self._ruled = tuple(f"{name}." for name in rules.ruled)
        self._opaque = tuple(f".{name}" for name in rules.opaque)
        self.environment: dict[str, Any] = dict(rules.environment or {})
        self.assumed: dict[str, str] = {}  # notes of numbers that stand for variables not given
        self._depth = 0

    @abstractmethod
    def run(self, function: Function, args: list[Any], named: dict[str, Any]) -> Any:
        """What a function returns; raises `Unfollowed`."""

    @abstractmethod
    def touch_around(self, function: Function, why: Unknown) -> None:
        """Note that a function may have changed what its body names and does not make."""

    def touch(self, value: Any, why: Unknown) -> None:
        """Note that something may have changed a value, what lies below it, and what a function
        that it is may store into; at its price.
        """
        if isinstance(value, Function):
            self.touch_around(value, why)
        else:
            self.budget.step(self.line, touch(value, why) // _TOUCHED_A_STEP)

    def call(self, node: ast.Call, frame: Frame) -> Any:
        """What a call makes."""
        if isinstance(node.func, ast.Attribute):
            held = self.value(node.func.value, frame)
            if isinstance(held, Record) and node.func.attr not in held.fields:
                return self._of_record(held, node, frame)
            if is_constant(held) or isinstance(held, list | dict | tuple):
                return self._of_constant(held, node, frame)
            called = self.attribute(held, node.func)
        else:
            called = self.value(node.func, frame)
        args, named = self._arguments(node, frame)
        if isinstance(called, Function):
            return self._followed(called, args, named, node)
        if isinstance(called, Class):
            return self._instance(called, args, named, node)
        if isinstance(called, Ref):
            return self._of_name(called.dotted, args, named, node)
        return self._record(self.words(node.func), args, named, node)

    _call = call

    def _arguments(self, node: ast.Call, frame: Frame) -> tuple[list[Any], dict[str, Any]]:
        args, named = self._unnamed(node, frame)
        for keyword in node.keywords:
            held = self.value(keyword.value, frame)
            if keyword.arg is not None:
                named[keyword.arg] = held
            elif isinstance(held, dict):
                named |= {str(key): value for key, value in held.items()}
            else:
                named[OTHERS] = Unknown(f"**{self.words(keyword.value)}", self.line)
        return args, named

    def _unnamed(self, node: ast.Call, frame: Frame) -> tuple[list[Any], dict[str, Any]]:
        """The arguments without names; those from a star on of which it is not known how many it
        stands for are one of `OTHERS`.
        """
        args: list[Any] = []
        others: dict[str, Any] = {}
        for each in node.args:
            starred = isinstance(each, ast.Starred)
            held = self.value(each.value if isinstance(each, ast.Starred) else each, frame)
            if starred and not (isinstance(held, list | tuple) and is_whole(held)):
                others = {OTHERS: self.unknown(each)}
            elif not others:
                args += held if starred else [held]
        return args, others

    def _of_record(self, held: Record, node: ast.Call, frame: Frame) -> Any:
        """A method of a record: what it makes has the record as its origin, which may change."""
        args, named = self._arguments(node, frame)
        assert isinstance(node.func, ast.Attribute)
        self.touch(held, Unknown(f"{self.words(node)} (it may change it)", self.line))
        made = self._record(f"{held.kind}().{node.func.attr}", args, named, node)
        made.origin = held
        return made

    def _of_constant(self, held: Any, node: ast.Call, frame: Frame) -> Any:
        args, _ = self._arguments(node, frame)
        assert isinstance(node.func, ast.Attribute)
        try:
            if node.keywords:
                raise NotKnown
            return method(held, node.func.attr, args)
        except (NotKnown, TypeError, ValueError):
            if isinstance(held, list | dict):
                said = f"{self.words(node)} (it may change {self.words(node.func.value)})"
                raise Unfollowed(said, self.line) from None
            return self.unknown(node)

    def _followed(
        self, called: Function, args: list[Any], named: dict[str, Any], node: ast.Call
    ) -> Any:
        name = called.node.name
        if f".{name}".endswith(self._opaque) or name in self._effects:
            return self._record(f"{called.module.name}.{name}", args, named, node)
        if self._depth >= MAX_CALLS:
            raise Unfollowed(f"{name}: calls more than {MAX_CALLS} deep", self.line)
        self._depth += 1
        try:
            return self.run(called, args, {**called.bound, **named})
        except Unfollowed as why:
            said = Unknown(f"{self.words(node, 40)}: {why.text}"[:200], self.line)
            for each in (called, *args, *named.values()):
                self.touch(each, said)
            return said
        finally:
            self._depth -= 1

    def _of_name(self, name: str, args: list[Any], named: dict[str, Any], node: ast.Call) -> Any:
        if name in _ANYTHING:
            raise Unfollowed(f"{self.words(node)} (it may store into any name)", self.line)
        if name in FUNCTIONS and named.keys() <= {OTHERS}:
            try:
                return self.unknown(node) if named else FUNCTIONS[name](*args)
            except (NotKnown, TypeError, ValueError, ArithmeticError):
                return self.unknown(node)
        if name in _ENVIRONMENT:
            return self._of_start(args, node)
        if name in ("dataclasses.replace", "replace") and len(args) == 1:
            return self._replaced(args[0], named, node)
        if name in _COPIES and len(args) == 1:
            return self._copied(args[0])
        if name in _SHALLOW and len(args) == 1:
            return _shallow(args[0])
        if name in _SAME and len(args) == 2:
            return args[1]
        if name == "dict" and not args:
            return dict(named)
        whole = args[0] if len(args) == 1 else None
        if name in ("functools.partial", "partial") and isinstance(whole, Function):
            return replace(whole, bound={**whole.bound, **named})
        if name in ("isinstance", "getattr", "hasattr", "setattr") and not named:
            return self._of_object(name, args, node)
        return self._record(name, args, named, node)

    def _of_object(self, name: str, args: list[Any], node: ast.Call) -> Any:
        held, *more = args or [None]
        if name == "isinstance" and len(more) == 1:
            return self._is_instance(held, more[0], node)
        known = isinstance(held, Record) and more and isinstance(more[0], str)
        if not known:
            if name == "setattr":
                raise Unfollowed(self.words(node), self.line)
            return self.unknown(node)
        if name == "setattr" and len(more) == 2:
            held.fields[more[0]] = (more[1], self.line)
            return None
        if more[0] in held.fields:
            return True if name == "hasattr" else held.fields[more[0]][0]
        return self.unknown(node)

    def _is_instance(self, held: Any, kinds: Any, node: ast.Call) -> Any:
        """Of built-in kinds, which no record is, and of classes, which no constant is."""
        listed = list(kinds) if isinstance(kinds, tuple) else [kinds]
        names = [each.dotted for each in listed if isinstance(each, Ref | Class)]
        if isinstance(held, Record) and held.is_made and len(names) == len(listed):
            if held.kind in names:
                return True
            return False if set(names) <= _PLAIN.keys() else self.unknown(node)
        plain = is_constant(held) or isinstance(held, list | dict | tuple)
        if not plain or len(names) < len(listed):
            return self.unknown(node)
        return isinstance(held, tuple(_PLAIN[name] for name in names if name in _PLAIN))

    def _of_start(self, args: list[Any], node: ast.Call) -> Any:
        name, default = (*args, None, None)[:2]
        return self.variable(name, default, node) if isinstance(name, str) else self.unknown(node)

    def variable(self, name: str, default: Any, node: ast.AST) -> Any:
        """A variable of the environment; one of a launcher's that is not given is not known."""
        if name in self.environment:
            return self.environment[name]
        if _LAUNCHED.fullmatch(name):
            return self.unknown(node)
        if isinstance(default, int | float) or _NUMBER.fullmatch(str(default)):
            said = f"{name} of the environment is taken as {default}, the program's default"
            note = f"line {self.line}: {said}; --env {name}=VALUE says another"
            self.assumed.setdefault(name, note)
        return default

    def _replaced(self, held: Any, named: dict[str, Any], node: ast.Call) -> Any:
        if not isinstance(held, Record):
            return self.unknown(node)
        made = shallow(held)
        made.fields |= {name: (value, self.line) for name, value in named.items()}
        return made

    def _copied(self, held: Any, known: dict[int, Any] | None = None) -> Any:
        """The same with records, lists and mappings of its own, each once."""
        known = {} if known is None else known
        self.budget.step(self.line)
        if id(held) in known:
            return known[id(held)]
        if isinstance(held, Record):
            known[id(held)] = made = shallow(held)
            for name, (value, at) in held.fields.items():
                made.fields[name] = (self._copied(value, known), at)
            return made
        if isinstance(held, list):
            known[id(held)] = listed = [self._copied(each, known) for each in held]
            return listed
        if isinstance(held, dict):
            known[id(held)] = mapped = {k: self._copied(each, known) for k, each in held.items()}
            return mapped
        return held

    def _record(self, kind: str, args: list[Any], named: dict[str, Any], node: ast.Call) -> Record:
        """A record of a call that is not followed."""
        lines = self._lines(node)
        fields = {name: (value, lines.get(name, self.line)) for name, value in named.items()}
        made = Record(kind, self.words(node), self.line, args, fields)
        if made.name in self._effects:
            self._effects[made.name](args, named, self.line)
            return made
        made.known = f".{kind}".endswith(self._opaque)
        if not made.is_made and made.name not in READ_ONLY:
            for each in (*args, *named.values()):
                self.touch(each, Unknown(f"{self.words(node)} (it may change it)", self.line))
        return made

    def _instance(
        self, called: Class, args: list[Any], named: dict[str, Any], node: ast.Call
    ) -> Record:
        made = self._record(called.dotted, args, named, node)
        if f".{called.dotted}".endswith(self._opaque):
            return made
        found = dict(self._fields(called, 0, made))
        stated = dict(zip(found, args, strict=False)) | named
        defaults = {name: self._default(default, frame)
                    for name, (default, frame) in found.items()
                    if name not in stated and default is not None}  # fmt: skip
        if OTHERS in named:
            defaults = dict.fromkeys(found.keys() - stated.keys(), named[OTHERS])
        lines = self._lines(node)
        made.fields |= {name: (value, lines.get(name, self.line))
                        for name, value in (defaults | stated).items()}  # fmt: skip
        return made

    def _lines(self, node: ast.Call) -> dict[str, int]:
        """The lines of a call's named arguments, where they stand in the file itself."""
        return {each.arg: each.value.lineno for each in node.keywords
                if each.arg is not None and each in self.own}  # fmt: skip

    def _fields(
        self, called: Class, depth: int, made: Record
    ) -> Iterator[tuple[str, tuple[ast.expr | None, Frame]]]:
        """The fields of a class and of those that it is made of, each with its default."""
        frame = Frame(self.names(called.module), called.module)
        for decorator in called.node.decorator_list:
            named = decorator.func if isinstance(decorator, ast.Call) else decorator
            if not _KEEPS_FIELDS.search(last := self.words(named).rpartition(".")[2]):
                said = f"@{last} (what it makes of {called.node.name} is not known)"
                touch(made, Unknown(said, self.line))
        for base in called.node.bases if depth < _MAX_BASES else ():
            held = self.value(base, frame)
            if isinstance(held, Class):
                yield from self._fields(held, depth + 1, made)
        for each in called.node.body:
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                yield each.target.id, (each.value, frame)
            elif isinstance(each, ast.FunctionDef) and self._sets(each.name, called):
                said = f"{called.node.name}.{each.name} (it may set fields)"
                touch(made, Unknown(said, self.line))

    def _sets(self, name: str, called: Class) -> bool:
        """Whether a method sets fields when a record of the class is made, by rules of its own."""
        makes = name in ("__init__", "__post_init__", "__new__", "__setattr__")
        return makes and not called.dotted.startswith(self._ruled)

    def _default(self, node: ast.expr, frame: Frame) -> Any:
        held = self.value(node, frame)
        if not (isinstance(held, Record) and held.name == "field"):
            return held
        factory = held.get("default_factory")
        if factory is None:
            return held.get("default")
        call = ast.copy_location(ast.Call(ast.Name("factory", ast.Load()), [], []), node)
        named = Frame(frame.outer, frame.module, names={"factory": factory})
        return self.call(ast.fix_missing_locations(call), named)


def _shallow(held: Any) -> Any:
    if isinstance(held, Record):
        return shallow(held)
    return held.copy() if isinstance(held, list | dict) else held
