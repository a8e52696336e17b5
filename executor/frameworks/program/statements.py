"""Follows the statements of a program, in order.

Followed: assignments, calls, `if`, `for` over what is known, functions, imports, `with`. What an
unknown condition decides is not known: each name and field that either branch stores. Whatever
else may set a field makes the function `Unfollowed`, with its line.
"""

import ast
from abc import abstractmethod
from collections import ChainMap
from collections.abc import Iterable, Iterator
from typing import Any

from meshplan.executor.frameworks.program.budget import Unfollowed
from meshplan.executor.frameworks.program.expressions import ENVIRONMENT, Frame
from meshplan.executor.frameworks.program.forget import Forgetting, stored_names
from meshplan.executor.frameworks.program.modules import Module
from meshplan.executor.frameworks.program.pure import NotKnown, grown
from meshplan.executor.frameworks.program.values import (
    Class,
    Function,
    Record,
    Ref,
    Unknown,
    is_key,
)

_NOTHING = (ast.Pass, ast.Assert)


class Returned(Exception):
    """What a `return` hands back."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class Statements(Forgetting):
    """Statements, upon the expressions and calls in them; `Program` adds modules."""

    main: Module

    @abstractmethod
    def module(self, dotted: str) -> Module | None:
        """The module of that name, of the repository."""

    def block(self, body: Iterable[ast.stmt], frame: Frame) -> None:
        for statement in body:
            self.statement(statement, frame)

    def statement(self, node: ast.stmt, frame: Frame) -> None:
        if frame.module is self.main:
            self.line = node.lineno
        self.budget.step(self.line)
        if isinstance(node, _NOTHING):
            return
        found = getattr(self, f"_do_{type(node).__name__.lower()}", None)
        if found is None:
            raise Unfollowed(f"{self.words(node)} ({self._place(node, frame)})", self.line)
        found(node, frame)

    def _place(self, node: ast.AST, frame: Frame) -> str:
        """Where a piece of syntax stands that is not followed."""
        line = getattr(node, "lineno", self.line)
        of = "" if frame.module is self.main else f" of {frame.module.name}"
        return f"line {line}{of} is not followed"

    def _do_expr(self, node: ast.Expr, frame: Frame) -> None:
        self.value(node.value, frame)

    def _do_return(self, node: ast.Return, frame: Frame) -> None:
        raise Returned(self.value(node.value, frame) if node.value else None)

    def _do_assign(self, node: ast.Assign, frame: Frame) -> None:
        value = self.value(node.value, frame)
        for target in node.targets:
            self.store(target, value, frame)

    def _do_annassign(self, node: ast.AnnAssign, frame: Frame) -> None:
        if node.value is not None:
            self.store(node.target, self.value(node.value, frame), frame)

    def _do_augassign(self, node: ast.AugAssign, frame: Frame) -> None:
        held = self.value(node.target, frame)
        more = self.value(node.value, frame)
        try:
            value = grown(node.op, held, more)
        except NotKnown:
            value = self.unknown(node)
            self.touch(held, value)
        self.store(node.target, value, frame)

    def store(self, target: ast.expr, value: Any, frame: Frame) -> None:
        """Store a value into a name, a field, an entry or each of several."""
        if isinstance(target, ast.Name):
            frame.names[target.id] = value
        elif isinstance(target, ast.Attribute):
            held = self.value(target.value, frame)
            if not isinstance(held, Record):
                raise self._into_unknown(target, held)
            held.fields[target.attr] = (value, self.line)
        elif isinstance(target, ast.Subscript):
            held, key = self.value(target.value, frame), self.value(target.slice, frame)
            if isinstance(held, dict) and is_key(key):
                held[key] = value
            elif isinstance(held, Ref) and held.dotted in ENVIRONMENT:
                self.environment[str(key)] = value
            elif isinstance(held, Record):
                self.touch(held, Unknown(f"{self.words(target)} (it changes it)", self.line))
            elif not isinstance(held, Ref):
                raise self._into_unknown(target, held)
        elif isinstance(target, ast.Tuple | ast.List):
            self._store_each(target, value, frame)
        else:
            raise Unfollowed(f"{self.words(target)} is stored into", self.line)

    def _into_unknown(self, target: ast.expr, held: Any) -> Unfollowed:
        why = f": {held.text}" if isinstance(held, Unknown) else ""
        return Unfollowed(f"{self.words(target)} is stored into what is not known{why}", self.line)

    def _store_each(self, target: ast.Tuple | ast.List, value: Any, frame: Frame) -> None:
        known = isinstance(value, list | tuple) and len(value) == len(target.elts)
        for at, each in enumerate(target.elts):
            self.store(each, value[at] if known else self.unknown(target), frame)

    def _do_if(self, node: ast.If, frame: Frame) -> None:
        truth = self.truth(self.value(node.test, frame))
        if truth is None:
            said = f"what {self.words(node.test)} decides"
            self.forget([*node.body, *node.orelse], said, frame)
        else:
            self.block(node.body if truth else node.orelse, frame)

    def _do_for(self, node: ast.For, frame: Frame) -> None:
        rounds = self.value(node.iter, frame)
        leaves = any(isinstance(each, ast.Break | ast.Continue) for each in ast.walk(node))
        if leaves or not isinstance(rounds, list | tuple | dict):
            self.forget([node], f"what a loop over {self.words(node.iter)} decides", frame)
            return
        for each in list(rounds):
            self.store(node.target, each, frame)
            self.block(node.body, frame)
        self.block(node.orelse, frame)

    def _do_while(self, node: ast.While, frame: Frame) -> None:
        self.forget([node], f"what a loop while {self.words(node.test)} decides", frame)

    def _do_with(self, node: ast.With, frame: Frame) -> None:
        for item in node.items:
            held = self.value(item.context_expr, frame)
            if item.optional_vars is not None:
                self.store(item.optional_vars, held, frame)
        self.block(node.body, frame)

    def _do_raise(self, node: ast.Raise, frame: Frame) -> None:
        raise Unfollowed(f"it raises {self.words(node)}", self.line)

    def _do_try(self, node: ast.Try, frame: Frame) -> None:
        """As if nothing were raised; but what a handler stores beside the names of the body is not
        known, because a package that it tries to import may be missing.
        """
        try:
            self.block(node.body, frame)
        except Unfollowed as why:
            self.forget([node], f"what a try decides ({why.text})", frame)
        else:
            held = dict(frame.names)
            self.forget(node.handlers, f"what a try decides ({self.words(node)})", frame)
            stored = {name for each in node.body for name in stored_names(each)}
            frame.names.update({name: held[name] for name in stored & held.keys()})
            self.block(node.orelse, frame)
        self.block(node.finalbody, frame)

    def _do_functiondef(self, node: ast.FunctionDef, frame: Frame) -> None:
        inner = frame.names is not frame.module.names
        around = ChainMap(frame.names, frame.outer) if inner else None
        defaults = dict(self._defaults(node.args, frame))
        frame.names[node.name] = Function(node, frame.module, around, defaults=defaults)

    def _defaults(self, spec: ast.arguments, frame: Frame) -> Iterator[tuple[str, Any]]:
        """The parameters that have a default, each with what it is where the function is made."""
        plain = [*spec.posonlyargs, *spec.args]
        listed = [*zip(reversed(plain), reversed(spec.defaults), strict=False),
                  *zip(spec.kwonlyargs, spec.kw_defaults, strict=True)]  # fmt: skip
        for each, default in listed:
            if default is not None:
                yield each.arg, self.value(default, frame)

    def _do_classdef(self, node: ast.ClassDef, frame: Frame) -> None:
        dotted = f"{frame.module.name}.{node.name}".lstrip(".")
        frame.names[node.name] = Class(node, frame.module, dotted)

    def _do_import(self, node: ast.Import, frame: Frame) -> None:
        for each in node.names:
            name = each.asname or each.name.partition(".")[0]
            frame.names[name] = Ref(each.name if each.asname else name)

    def _do_importfrom(self, node: ast.ImportFrom, frame: Frame) -> None:
        package = node.module or ""
        if node.level:
            above = frame.module.package(node.level)
            package = ".".join(part for part in (above, node.module) if part)
        for each in node.names:
            if each.name == "*":
                module = self.module(package)
                frame.names.update(self.names(module) if module else {})
            else:
                named = f"{package}.{each.name}" if package else each.name
                frame.names[each.asname or each.name] = Ref(named)
