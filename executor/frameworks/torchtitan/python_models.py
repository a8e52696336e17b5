"""Which model a configuration function of torchtitan has.

`model_registry(flavor, ...)` of a module of torchtitan's is known; what another function gives is
not, whatever the configuration that it is stored into had before.

Source: pytorch/torchtitan@b5bcd76 torchtitan/models/llama3/__init__.py (`model_registry`) and
config_registry.py (`model_spec = model_registry("8B")`, stored by `model_spec=model_spec`).
"""

import ast
import copy
from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice

from meshplan.planner.case.reading import Fact

REGISTRY = "model_registry"
_FIELD = "model_spec"
_OF_REGISTRY = ("flavor", "attn_backend", "moe_comm_backend", "converters")
"""Its arguments that change no sizes, or are read where they stand: attention is fused by each."""
_SHOWN = 60
_MOST_NODES = 300  # of a call that is copied; torchtitan's longest has some 50


def with_models(function: ast.FunctionDef) -> ast.FunctionDef:
    """The function with a local name of a model replaced by the call that it holds, where it is
    stored into a configuration.
    """
    made: dict[str, list[ast.Call]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    made.setdefault(target.id, []).append(node.value)
    for calls in made.values():
        calls.sort(key=_line)
    replaced: ast.FunctionDef = _Models(made).visit(copy.deepcopy(function))
    return replaced


def _line(node: ast.expr) -> int:
    return node.lineno


class _Models(ast.NodeTransformer):
    def __init__(self, made: dict[str, list[ast.Call]]) -> None:
        self._made = made

    def visit_keyword(self, node: ast.keyword) -> ast.keyword:
        if node.arg == _FIELD:
            node.value = self._held(node.value)
        self.generic_visit(node)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        target = node.targets[0]
        if isinstance(target, ast.Attribute) and target.attr == _FIELD:
            node.value = self._held(node.value)
        self.generic_visit(node)
        return node

    def _held(self, value: ast.expr) -> ast.expr:
        """The last call before it that the name was given, at the place of the name."""
        if not isinstance(value, ast.Name):
            return value
        calls = self._made.get(value.id, [])
        before = bisect_left(calls, value.lineno, key=_line)
        if not before or not _is_short(calls[before - 1]):
            return value
        held = copy.deepcopy(calls[before - 1])
        for node in ast.walk(held):
            ast.copy_location(node, value)
        return held


def _is_short(call: ast.Call) -> bool:
    """Whether a call is no longer than those of registries, so that its copies cost little."""
    return sum(1 for _ in islice(ast.walk(call), _MOST_NODES + 1)) <= _MOST_NODES


def spec_facts(value: ast.expr, name: str) -> dict[str, Fact]:
    """The model as the file names it, of a call of the function `name`. `ours` is False where that
    is no registry; else the call itself, which is met behind this, says the model.
    """
    known = name.split(".")[-1] == REGISTRY
    return {
        "model.spec": Fact(ast.unparse(value)[:_SHOWN], value.lineno),
        "model.ours": Fact(None if known else False, value.lineno),
    }


def flavor_of(node: ast.Call) -> ast.expr | None:
    """The flavor that a registry is asked for."""
    said = [keyword.value for keyword in node.keywords if keyword.arg == "flavor"]
    return next(iter([*node.args, *said]), None)


def changes_of(node: ast.Call) -> Iterator[Fact]:
    """Arguments of a registry that may change the model."""
    others = [keyword for keyword in node.keywords if keyword.arg not in _OF_REGISTRY]
    for each in [*node.args[1:], *others]:
        said = ast.unparse(each)[:_SHOWN]
        yield Fact(f"{REGISTRY}({said}) (it may change the model)", node.lineno)
