"""What an expression of a followed program is, as far as constants, records and names say it."""

import ast
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any

from meshplan.executor.frameworks.program.budget import Budget, Unfollowed
from meshplan.executor.frameworks.program.pure import MOST_ENTRIES, NotKnown, compared, computed
from meshplan.executor.frameworks.program.values import (
    MOST_SHOWN,
    OTHERS,
    Class,
    Function,
    Record,
    Ref,
    Unknown,
    is_constant,
    is_key,
    is_whole,
    touch,
    words,
)

ENVIRONMENT = ("os.environ", "environ")
_ENTRIES_A_STEP = 16
_STEPS_OF_WORDS = 20


class Frame:
    """The names of one call: its own, those around it, and its module's."""

    def __init__(
        self, outer: MutableMapping[str, Any], module: "Any", *, names: dict[str, Any] | None = None
    ) -> None:
        self.names: dict[str, Any] = {} if names is None else names
        self.outer = outer
        self.module = module


class Expressions(ABC):
    """Values of expressions; `Calls` adds what a call makes, `Program` the statements."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.line = 1  # of the file that is read, whichever one is followed

    @abstractmethod
    def call(self, node: ast.Call, frame: Frame) -> Any:
        """What a call makes."""

    @abstractmethod
    def variable(self, name: str, default: Any, node: ast.AST) -> Any:
        """A variable of the environment, `default` where it is not there."""

    @abstractmethod
    def forget(self, nodes: Iterable[ast.AST], said: str, frame: Frame) -> None:
        """Make unknown what these pieces may store or change."""

    def _left(self, node: ast.AST, nodes: Iterable[ast.AST], frame: Frame) -> Unknown:
        """`node` as not known, and what of it may have been followed, and was not."""
        self.forget(nodes, self.words(node), frame)
        return self.unknown(node)

    @abstractmethod
    def names(self, module: "Any") -> dict[str, Any]:
        """The names of a module's own level."""

    @abstractmethod
    def member(self, ref: Ref) -> Any:
        """What a dotted name means."""

    def unknown(self, node: ast.AST) -> Unknown:
        """What this syntax makes, by its words."""
        return Unknown(self.words(node), self.line)

    def words(self, node: ast.AST, most: int = MOST_SHOWN) -> str:
        """A piece of syntax as it is written; its first reading takes steps of the budget."""
        if node not in self.budget.written:
            self.budget.written[node] = words(node)
            self.budget.step(self.line, _STEPS_OF_WORDS)
        return self.budget.written[node][:most]

    def value(self, node: ast.expr, frame: Frame) -> Any:
        """The value of an expression; `Unknown` where nothing here says it."""
        found = getattr(self, f"_{type(node).__name__.lower()}", None)
        value: Any = self._left(node, [node], frame) if found is None else found(node, frame)
        long = isinstance(value, list | tuple | dict | str)
        self.budget.step(self.line, 1 + len(value) // _ENTRIES_A_STEP if long else 1)
        return value

    def _constant(self, node: ast.Constant, frame: Frame) -> Any:
        return node.value if is_constant(node.value) else self.unknown(node)

    def _name(self, node: ast.Name, frame: Frame) -> Any:
        for names in (frame.names, frame.outer, self.names(frame.module)):
            if node.id in names:
                found = names[node.id]
                return self.member(found) if isinstance(found, Ref) else found
        return Ref(node.id)

    def _attribute(self, node: ast.Attribute, frame: Frame) -> Any:
        return self.attribute(self.value(node.value, frame), node)

    def attribute(self, held: Any, node: ast.Attribute) -> Any:
        """What `.name` of a value is."""
        if isinstance(held, Record):
            return self.field(held, node)
        if isinstance(held, Ref):
            return self.member(Ref(f"{held.dotted}.{node.attr}"))
        if isinstance(held, Class):
            return held.member(node.attr)
        return self.unknown(node)

    def field(self, record: Record, node: ast.Attribute) -> Any:
        """A record's field; one that is not stated is there with the default of its class."""
        if node.attr in record.fields:
            return record.fields[node.attr][0]
        if node.attr == "__dict__":  # what is stored into it is the record's
            touch(record, self.unknown(node))
        if record.changed is not None:
            return record.changed
        made = Record(node.attr, self.words(node), self.line, default=True, origin=record)
        record.fields[node.attr] = (made, self.line)
        return made

    def _list(self, node: ast.List, frame: Frame) -> Any:
        return list(self._each(node.elts, frame))

    def _tuple(self, node: ast.Tuple, frame: Frame) -> Any:
        return tuple(self._each(node.elts, frame))

    def _set(self, node: ast.Set, frame: Frame) -> Any:
        made = list(self._each(node.elts, frame))
        return list(dict.fromkeys(made)) if all(map(is_key, made)) else self.unknown(node)

    def _each(self, nodes: list[ast.expr], frame: Frame) -> Iterator[Any]:
        for node in nodes:
            if isinstance(node, ast.Starred):
                held = self.value(node.value, frame)
                yield from held if isinstance(held, list | tuple) else [self.unknown(node)]
            else:
                yield self.value(node, frame)

    def _dict(self, node: ast.Dict, frame: Frame) -> Any:
        made: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            held = self.value(value, frame)
            named = None if key is None else self.value(key, frame)
            if key is None and isinstance(held, dict):
                made |= held
            elif key is not None and is_key(named):
                made[named] = held
            elif not isinstance(named, Ref):
                return self.unknown(node)
            else:
                made[named.dotted] = held
            if len(made) > MOST_ENTRIES:
                return self.unknown(node)
        return made

    def _joinedstr(self, node: ast.JoinedStr, frame: Frame) -> Any:
        text = ""
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                if part.format_spec is not None or part.conversion != -1:
                    return self.unknown(node)
                part = part.value
            held = self.value(part, frame)
            if not is_constant(held) or len(text) > MOST_ENTRIES:
                return self.unknown(node)
            text += str(held)
        return text

    def _binop(self, node: ast.BinOp, frame: Frame) -> Any:
        left, right = self.value(node.left, frame), self.value(node.right, frame)
        try:
            return computed(node.op, left, right)
        except NotKnown:
            return self.unknown(node)

    def _unaryop(self, node: ast.UnaryOp, frame: Frame) -> Any:
        held = self.value(node.operand, frame)
        if isinstance(node.op, ast.Not):
            truth = self.truth(held)
            return self.unknown(node) if truth is None else not truth
        if isinstance(node.op, ast.USub) and isinstance(held, int | float):
            return -held
        return self.unknown(node)

    def truth(self, value: Any) -> bool | None:
        """Whether a value counts as true; None where that is not known."""
        if isinstance(value, list | tuple | dict):
            return bool(value) if is_whole(value) else None
        if is_constant(value):
            return bool(value)
        if isinstance(value, Function | Class):
            return True
        return True if isinstance(value, Record) and value.is_made else None

    def _boolop(self, node: ast.BoolOp, frame: Frame) -> Any:
        stops = isinstance(node.op, ast.Or)
        held: Any = None
        for at, each in enumerate(node.values, start=1):
            held = self.value(each, frame)
            truth = self.truth(held)
            if truth is None:
                return self._left(node, node.values[at:], frame)
            if truth is stops:
                return held
        return held

    def _ifexp(self, node: ast.IfExp, frame: Frame) -> Any:
        truth = self.truth(self.value(node.test, frame))
        if truth is None:
            return self._left(node, [node.body, node.orelse], frame)
        return self.value(node.body if truth else node.orelse, frame)

    def _compare(self, node: ast.Compare, frame: Frame) -> Any:
        left = self.value(node.left, frame)
        for kind, each in zip(node.ops, node.comparators, strict=True):
            right = self.value(each, frame)
            holds = self._holds(kind, left, right)
            if not holds:
                return self.unknown(node) if holds is None else False
            left = right
        return True

    def _holds(self, kind: ast.cmpop, left: Any, right: Any) -> bool | None:
        if isinstance(kind, ast.Is | ast.IsNot):
            same = self._same(left, right)
            return None if same is None else same is isinstance(kind, ast.Is)
        try:
            return compared(kind, left, right)
        except NotKnown:
            return None

    def _same(self, left: Any, right: Any) -> bool | None:
        """Whether two values are one object, of those that a program asks so."""
        for one, other in ((left, right), (right, left)):
            if other is None and isinstance(one, Record):
                return False if one.is_made else None
            if other is None and (is_constant(one) or isinstance(one, list | tuple | dict)):
                return one is None
        alone = (bool, type(None))
        return left is right if isinstance(left, alone) and isinstance(right, alone) else None

    def _subscript(self, node: ast.Subscript, frame: Frame) -> Any:
        held = self.value(node.value, frame)
        if isinstance(node.slice, ast.Slice):
            return self.unknown(node)
        key = self.value(node.slice, frame)
        if isinstance(held, Ref) and held.dotted in ENVIRONMENT and isinstance(key, str):
            return self.variable(key, self.unknown(node), node)
        try:
            if isinstance(held, dict) and is_key(key):
                return held.get(key, held[OTHERS]) if OTHERS in held else held[key]
            if isinstance(held, list | tuple | str) and type(key) is int:
                return held[key]
        except (KeyError, IndexError):
            raise Unfollowed(f"{self.words(node)} is not there", self.line) from None
        return self.unknown(node)

    def _listcomp(self, node: ast.ListComp | ast.SetComp, frame: Frame) -> Any:
        try:
            return [self.value(node.elt, inner) for inner in self._rounds(node, frame)]
        except NotKnown:
            return self._left(node, [node], frame)

    _generatorexp = _listcomp

    def _setcomp(self, node: ast.SetComp, frame: Frame) -> Any:
        made = self._listcomp(node, frame)
        known = isinstance(made, list) and all(map(is_key, made))
        return list(dict.fromkeys(made)) if known else self.unknown(node)

    def _dictcomp(self, node: ast.DictComp, frame: Frame) -> Any:
        made: dict[Any, Any] = {}
        try:
            for inner in self._rounds(node, frame):
                key = self.value(node.key, inner)
                if not is_key(key):
                    raise NotKnown
                made[key] = self.value(node.value, inner)
        except NotKnown:
            return self._left(node, [node], frame)
        return made

    def _rounds(self, node: Any, frame: Frame) -> Iterator[Frame]:
        """The names in each round of a comprehension over one list that is known; raises
        `NotKnown`.
        """
        first, *more = node.generators
        held = self.value(first.iter, frame)
        if more or not isinstance(held, list | tuple | dict):
            raise NotKnown
        inner = Frame(frame.outer, frame.module, names=dict(frame.names))
        for each in list(held):
            self.store(first.target, each, inner)
            truths = [self.truth(self.value(test, inner)) for test in first.ifs]
            if None in truths:
                raise NotKnown
            if all(truths):
                yield inner

    def _namedexpr(self, node: ast.NamedExpr, frame: Frame) -> Any:
        held = self.value(node.value, frame)
        self.store(node.target, held, frame)
        return held

    @abstractmethod
    def store(self, target: ast.expr, value: Any, frame: Frame) -> None:
        """Store a value into a name, a field, an entry or each of several."""
