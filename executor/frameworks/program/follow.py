"""Follows the functions of a Python file over those that it imports, and runs none of them.

Program(Repository(text, path), Budget()).of("llama3_8b")
                                         what the function returns, with its defaults
"""

import ast
import re
from typing import Any

from meshplan.executor.frameworks.program.budget import Budget, Unfollowed
from meshplan.executor.frameworks.program.calls import Rules
from meshplan.executor.frameworks.program.expressions import Frame
from meshplan.executor.frameworks.program.modules import Module, Repository
from meshplan.executor.frameworks.program.statements import Returned, Statements
from meshplan.executor.frameworks.program.values import (
    OTHERS,
    Function,
    Ref,
    Unknown,
)
from meshplan.planner.case.reading import UnreadableConfig

_HARMLESS = re.compile(r"regist|factory|cache|staticmethod|override|no_type_check|deprecated")
"""Names of decorators that hand on the function as it is."""
_MAX_HANDED_ON = 8  # modules that only import a name for the next one


class Program(Statements):
    """One file and those that it imports, with names of their own."""

    def __init__(self, repository: Repository, budget: Budget, rules: Rules | None = None) -> None:
        super().__init__(budget, rules or Rules())
        self._repository = repository
        self.own = repository.own
        self.main = repository.main()
        self._modules: dict[str, Module | None] = {self.main.name: self.main}

    def of(self, name: str) -> Any:
        """What the function `name` of the file returns when it is called without arguments; raises
        `Unfollowed` and `UnreadableConfig`.
        """
        try:
            function = self.names(self.main).get(name)
            if not isinstance(function, Function):
                raise Unfollowed(f"{name} is no function of this file that is known", 1)
            self.line = function.node.lineno
            return self.run(function, [], dict(function.bound))
        except RecursionError:
            raise UnreadableConfig(f"{name}: calls too deep in each other", self.line) from None

    def member(self, ref: Ref) -> Any:
        """What a dotted name means, where the repository has its module; names that other modules
        only hand on are followed to the one that has them.
        """
        for _ in range(_MAX_HANDED_ON):
            package, _, name = ref.dotted.rpartition(".")
            module = self.module(package) if package else None
            found = None if module is None else self.names(module).get(name)
            if not isinstance(found, Ref) or found == ref:
                return ref if found is None else found
            ref = found
        return ref

    def module(self, dotted: str) -> Module | None:
        """The module of that name, of the repository."""
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
            self.statement(statement, frame)
        except (Returned, Unfollowed):
            for _ in self.forgetting([statement], self.words(statement), frame):
                continue

    def run(self, function: Function, args: list[Any], named: dict[str, Any]) -> Any:
        """What a function returns; raises `Unfollowed`."""
        self._check_decorators(function)
        frame = Frame(function.names or {}, function.module)
        frame.names.update(self._bound(function, args, named))
        try:
            self.block(function.node.body, frame)
        except Returned as returned:
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
        plain = [each.arg for each in (*spec.posonlyargs, *spec.args)]
        bound: dict[str, Any] = dict(zip(plain, args, strict=False))
        for name in (*plain, *(each.arg for each in spec.kwonlyargs)):
            if name in rest:
                bound[name] = rest.pop(name)
            elif name not in bound and OTHERS in rest:
                bound[name] = rest[OTHERS]
            elif name not in bound:
                said = Unknown(f"the argument {name} of {function.node.name}", self.line)
                bound[name] = function.defaults.get(name, said)
        if spec.vararg:
            bound[spec.vararg.arg] = list(args[len(plain) :])
        if spec.kwarg:
            bound[spec.kwarg.arg] = rest
        return bound
