"""Follows the functions of a Python file, statement by statement, and runs none of it.

    Program(Repository(text, path)).of("llama3_8b")     what the function returns, with its defaults

Followed: assignments, calls, `if`, `for` over what is known, functions, imports, `with`. What an
unknown condition decides is not known: each name and field that either branch stores. Whatever
else may set a field makes the function `Unfollowed`, with its line.
"""

import ast
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from meshplan.executor.frameworks.program.budget import Budget, Unfollowed
from meshplan.executor.frameworks.program.calls import Calls, Effects
from meshplan.executor.frameworks.program.expressions import Frame
from meshplan.executor.frameworks.program.modules import Module, Repository
from meshplan.executor.frameworks.program.pure import NotKnown, computed
from meshplan.executor.frameworks.program.values import (
    Class,
    Function,
    Record,
    Ref,
    Unknown,
    is_key,
    touch,
)
from meshplan.planner.case.reading import UnreadableConfig

_NOTHING = (ast.Pass, ast.Assert, ast.Break, ast.Continue, ast.Global, ast.Nonlocal)


_HARMLESS = re.compile(r"regist|factory|cache|staticmethod|override|no_type_check|deprecated")
"""Names of decorators that hand on the function as it is."""
_MAX_HANDED_ON = 8  # modules that only import a name for the next one


class _Returned(Exception):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class Program(Calls):
    """One file and those that it imports, with names of their own.

    opaque, ruled, effects  as of `Calls`
    environment    what the program is started with
    """

    def __init__(
        self,
        repository: Repository,
        budget: Budget,
        *,
        opaque: Collection[str] = (),
        ruled: Collection[str] = (),
        effects: Effects | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(budget, opaque, ruled, effects, environment)
        self._repository = repository
        self.main = repository.main()
        self._modules: dict[str, Module | None] = {self.main.name: self.main}

    def of(self, name: str) -> Any:
        """What the function `name` of the file returns when it is called without arguments; raises
        `Unfollowed` and `UnreadableConfig`.
        """
        function = self.names(self.main).get(name)
        if not isinstance(function, Function):
            raise Unfollowed(f"{name} is no function of this file", 1)
        self.line = function.node.lineno
        try:
            return self.run(function, [], dict(function.bound))
        except RecursionError:
            raise UnreadableConfig(f"{name}: calls too deep in each other", self.line) from None

    def member(self, ref: Ref) -> Any:
        """What a dotted name means, where the repository has its module; names that other modules
        only hand on are followed to the one that has them.
        """
        for _ in range(_MAX_HANDED_ON):
            package, _, name = ref.dotted.rpartition(".")
            module = self._module(package) if package else None
            found = None if module is None else self.names(module).get(name)
            if not isinstance(found, Ref) or found == ref:
                return ref if found is None else found
            ref = found
        return ref

    def _module(self, dotted: str) -> Module | None:
        if dotted not in self._modules:
            self._modules[dotted] = self._repository.module(dotted)
        return self._modules[dotted]

    def names(self, module: Module) -> dict[str, Any]:
        """The names of a module's own level."""
        if module.names is None:
            module.names = {}
            frame, line = Frame({}, module, names=module.names), self.line
            for statement in module.tree.body:
                self._leniently(statement, frame)
            self.line = line
        return module.names

    def _leniently(self, statement: ast.stmt, frame: Frame) -> None:
        """A statement of a module's own level: what is not followed there is not known."""
        try:
            self._statement(statement, frame)
        except (_Returned, Unfollowed):
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    frame.names[node.id] = self.unknown(node)

    def run(self, function: Function, args: list[Any], named: dict[str, Any]) -> Any:
        """What a function returns; raises `Unfollowed`."""
        self._check_decorators(function)
        frame = Frame(function.names or {}, function.module)
        frame.names.update(self._bound(function, args, named))
        try:
            self._block(function.node.body, frame)
        except _Returned as returned:
            return returned.value
        return None

    def _check_decorators(self, function: Function) -> None:
        """Raises `Unfollowed` where a decorator may change what the function returns."""
        for each in function.node.decorator_list:
            named = each.func if isinstance(each, ast.Call) else each
            last = self.words(named).rpartition(".")[2]
            if not _HARMLESS.search(last):
                said = f"@{last} (what it makes of {function.node.name} is not known)"
                raise Unfollowed(said, self.line)

    def _bound(self, function: Function, args: list[Any], named: dict[str, Any]) -> dict[str, Any]:
        """The parameters with their arguments or defaults."""
        spec, rest = function.node.args, dict(named)
        frame = Frame(function.names or {}, function.module)
        plain = [each.arg for each in (*spec.posonlyargs, *spec.args)]
        bound: dict[str, Any] = dict(zip(plain, args, strict=False))
        defaults = dict(zip(reversed(plain), reversed(spec.defaults), strict=False))
        defaults |= {each.arg: default for each, default
                     in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if default}  # fmt: skip
        for name in (*plain, *(each.arg for each in spec.kwonlyargs)):
            if name in rest:
                bound[name] = rest.pop(name)
            elif name not in bound and name in defaults:
                bound[name] = self.value(defaults[name], frame)
            elif name not in bound:
                said = f"the argument {name} of {function.node.name}"
                bound[name] = rest.get("**", Unknown(said, self.line))
        if spec.vararg:
            bound[spec.vararg.arg] = list(args[len(plain) :])
        if spec.kwarg:
            bound[spec.kwarg.arg] = rest
        return bound

    def _block(self, body: Iterable[ast.stmt], frame: Frame) -> None:
        for statement in body:
            self._statement(statement, frame)

    def _statement(self, node: ast.stmt, frame: Frame) -> None:
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
        raise _Returned(self.value(node.value, frame) if node.value else None)

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
            value = computed(node.op, held, more)
        except NotKnown:
            value = self.unknown(node)
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
            elif isinstance(held, Record):
                touch(held, Unknown(f"{self.words(target)} (it changes it)", self.line))
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
            self._forget([*node.body, *node.orelse], said, frame)
        else:
            self._block(node.body if truth else node.orelse, frame)

    def _do_for(self, node: ast.For, frame: Frame) -> None:
        rounds = self.value(node.iter, frame)
        leaves = any(isinstance(each, ast.Break | ast.Continue) for each in ast.walk(node))
        if leaves or not isinstance(rounds, list | tuple | dict):
            self._forget([node], f"what a loop over {self.words(node.iter)} decides", frame)
            return
        for each in list(rounds):
            self.store(node.target, each, frame)
            self._block(node.body, frame)
        self._block(node.orelse, frame)

    def _do_while(self, node: ast.While, frame: Frame) -> None:
        self._forget([node], f"what a loop while {self.words(node.test)} decides", frame)

    def _do_with(self, node: ast.With, frame: Frame) -> None:
        for item in node.items:
            held = self.value(item.context_expr, frame)
            if item.optional_vars is not None:
                self.store(item.optional_vars, held, frame)
        self._block(node.body, frame)

    def _do_raise(self, node: ast.Raise, frame: Frame) -> None:
        raise Unfollowed(f"it raises {self.words(node)}", self.line)

    def _do_try(self, node: ast.Try, frame: Frame) -> None:
        try:
            self._block([*node.body, *node.orelse], frame)
        except Unfollowed as why:
            self._forget([node], f"what a try decides ({why.text})", frame)
        self._block(node.finalbody, frame)

    def _do_functiondef(self, node: ast.FunctionDef, frame: Frame) -> None:
        inner = frame.names is not frame.module.names
        around = {**frame.outer, **frame.names} if inner else None
        frame.names[node.name] = Function(node, frame.module, around)

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
                module = self._module(package)
                frame.names.update(self.names(module) if module else {})
            else:
                named = f"{package}.{each.name}" if package else each.name
                frame.names[each.asname or each.name] = Ref(named)

    def _forget(self, body: list[ast.stmt], said: str, frame: Frame) -> None:
        """Make unknown what these statements may store; raises `Unfollowed` where they return."""
        why = Unknown(said, self.line)
        for node in (each for statement in body for each in ast.walk(statement)):
            self.budget.step(self.line)
            if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom):
                raise Unfollowed(said, self.line)
            if isinstance(node, ast.Call):
                for each in (*node.args, *(word.value for word in node.keywords)):
                    if isinstance(each, ast.Name | ast.Attribute):
                        touch(self.value(each, frame), why)
            elif isinstance(getattr(node, "ctx", None), ast.Store):
                self._forget_one(node, why, frame)

    def _forget_one(self, node: ast.AST, why: Unknown, frame: Frame) -> None:
        if isinstance(node, ast.Name):
            frame.names[node.id] = why
        elif isinstance(node, ast.Attribute | ast.Subscript):
            held = self.value(node.value, frame)
            if isinstance(held, Record) and isinstance(node, ast.Attribute):
                held.fields[node.attr] = (why, self.line)
            else:
                raise Unfollowed(why.text, self.line)
