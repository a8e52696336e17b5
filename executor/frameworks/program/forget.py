"""What pieces of a program may have changed that are not followed: it is not known from there on.

if unknown(): c.tp = 4                 the field
if unknown(): parts.append(4)          the list, and what lies in it
unknown() and tune(c)                  the record, as `tune` is handed it
if unknown(): inner()                  what lies around `inner`, and its body names
"""

import ast
from collections import ChainMap
from collections.abc import Iterable, Iterator

from meshplan.executor.frameworks.program.budget import Unfollowed
from meshplan.executor.frameworks.program.calls import READ_ONLY, Calls
from meshplan.executor.frameworks.program.expressions import Frame
from meshplan.executor.frameworks.program.values import Function, Record, Unknown

_LEAVES = (ast.Return, ast.Yield, ast.YieldFrom)


class Forgetting(Calls):
    """Expressions and calls, and what is no longer known behind those that are not followed."""

    def forget(self, nodes: Iterable[ast.AST], said: str, frame: Frame) -> None:
        """Make unknown what these pieces may store or change; raises `Unfollowed` where they
        return, or where it is not known into what they store.
        """
        for each in self.forgetting(nodes, said, frame):
            raise each

    def forgetting(self, nodes: Iterable[ast.AST], said: str, frame: Frame) -> Iterator[Unfollowed]:
        """As `forget`; yields what it would raise, and goes on."""
        why, listed = Unknown(said, self.line), list(nodes)
        reached = [each for node in listed for each in _reached(node)]
        self.budget.step(self.line, 1 + len(reached))
        for each in reached:
            if isinstance(each, ast.Name | ast.Attribute):
                self.touch(self.value(each, frame), why)
        for node in (each for whole in listed for each in ast.walk(whole)):
            self.budget.step(self.line)
            if isinstance(node, _LEAVES):
                yield Unfollowed(said, self.line)
            elif isinstance(node, ast.Attribute | ast.Subscript) and _is_stored(node):
                yield from self._forget_place(node, why, frame)
        for name in (name for whole in listed for name in stored_names(whole)):
            frame.names[name] = why

    def _forget_place(
        self, node: ast.Attribute | ast.Subscript, why: Unknown, frame: Frame
    ) -> Iterator[Unfollowed]:
        held = self.value(node.value, frame)
        if isinstance(held, Record) and isinstance(node, ast.Attribute):
            held.fields[node.attr] = (why, self.line)
        elif isinstance(held, Record | list | dict):
            self.touch(held, why)
        else:
            yield Unfollowed(why.text, self.line)

    def touch_around(self, function: Function, why: Unknown) -> None:
        """Note that a function may have changed what its body names and does not make: records
        and lists around it, records of its module, names that it says it stores.
        """
        waiting, seen = [function], set()
        while waiting:
            each = waiting.pop()
            if each.node in seen:
                continue
            seen.add(each.node)
            around, own = each.names or {}, self.names(each.module)
            for node in ast.walk(each.node):
                self.budget.step(self.line)
                if isinstance(node, ast.Global):
                    own |= dict.fromkeys(node.names, why)
                if isinstance(node, ast.Nonlocal) and isinstance(around, ChainMap):
                    around |= dict.fromkeys(node.names, why)
                if not isinstance(node, ast.Name):
                    continue
                held = around.get(node.id, own.get(node.id))
                if isinstance(held, Function):
                    waiting.append(held)
                elif isinstance(held, Record) or node.id in around:
                    super().touch(held, why)


def _is_stored(node: ast.AST) -> bool:
    return isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)


def stored_names(whole: ast.AST) -> Iterator[str]:
    """The names that a piece of syntax stores, makes, imports or deletes."""
    for node in ast.walk(whole):
        if isinstance(node, ast.Name) and _is_stored(node):
            yield node.id
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (each.asname or each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name


def _reached(node: ast.AST) -> Iterator[ast.expr]:
    """What a piece of syntax hands on: its longest dotted names that are loaded, of a method's
    what it is called on; nothing of what only reads.
    """
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in READ_ONLY:
            return
        if isinstance(node.func, ast.Attribute):
            yield from _reached(node.func.value)
        else:
            yield from _reached(node.func)
        for each in (*node.args, *node.keywords):
            yield from _reached(each)
    elif isinstance(node, ast.Name | ast.Attribute) and not _is_stored(node):
        yield node
    elif isinstance(node, ast.Attribute | ast.Subscript) and _is_stored(node):
        yield from () if isinstance(node.value, ast.Name | ast.Attribute) else _reached(node.value)
    elif not isinstance(node, ast.Compare | ast.expr_context):
        for inner in ast.iter_child_nodes(node):
            yield from _reached(inner)
