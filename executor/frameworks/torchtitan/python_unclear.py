"""What a configuration function of torchtitan does that its syntax alone does not say.

`python` reads literals: keyword arguments of the sections and assignments to their keys. Whatever
else may change a section (a branch, a loop, a name for a section, another function, a base of
another file) is found here, to be named instead of passed over.
"""

import ast
from collections import Counter
from collections.abc import Collection, Iterator

from meshplan.planner.case.reading import Fact

SECTIONS = ("parallelism", "training", "activation_checkpoint")
SECTION_CLASSES = ("ParallelismConfig", "TrainingConfig")
_BLOCKS = (ast.If, ast.For, ast.While, ast.Try, ast.With, ast.Match, ast.IfExp)
_NEEDED = ("training.seq_len", "training.local_batch_size")


def with_constants(tree: ast.Module) -> ast.Module:
    """The tree with names that the file sets once, to a literal, replaced by it."""
    stored = Counter(node.id for node in ast.walk(tree)
                     if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))  # fmt: skip
    stored.update(node.arg for node in ast.walk(tree) if isinstance(node, ast.arg))
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name) and stored[target.id] == 1
    }
    replaced: ast.Module = _Constants(constants).visit(tree)
    return replaced


class _Constants(ast.NodeTransformer):
    def __init__(self, constants: dict[str, ast.Constant]) -> None:
        self._constants = constants

    def visit_Name(self, node: ast.Name) -> ast.expr:
        known = self._constants.get(node.id) if isinstance(node.ctx, ast.Load) else None
        return ast.copy_location(ast.Constant(known.value), node) if known else node


def imported_registries(tree: ast.Module) -> set[str]:
    """The configuration functions that the file imports from a registry."""
    return {
        name.asname or name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("config_registry")
        for name in node.names
    }


def unclear(function: ast.FunctionDef, own: Collection[str]) -> Iterator[Fact]:
    """What may change a section of `function` and is not read; `own`: the file's functions."""
    configs = _configs(function)
    for node in ast.walk(function):
        line = getattr(node, "lineno", function.lineno)
        if isinstance(node, _BLOCKS) and _touches(node):
            yield Fact(f"what line {line} decides (a branch or a loop)", line)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute):
            yield Fact(f"{ast.unparse(node)[:60]} (it changes a value of before)", line)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            yield from _assigned(node, line)
            yield from _of_model(node, configs, line)
        elif isinstance(node, ast.Call):
            yield from _called(node, configs, own)


def _configs(function: ast.FunctionDef) -> set[str]:
    """The names that hold a whole configuration: what is returned, and the parameters."""
    returned = {node.value.id for node in ast.walk(function)
                if isinstance(node, ast.Return) and isinstance(node.value, ast.Name)}  # fmt: skip
    return returned | {each.arg for each in function.args.args}


def _touches(block: ast.AST) -> bool:
    """Whether a block stores into an attribute, makes a section, or returns."""
    for node in ast.walk(block):
        stores = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if stores or isinstance(node, ast.Return):
            return True
        if isinstance(node, ast.Call) and _last(node.func) in (*SECTION_CLASSES, "setattr"):
            return True
    return False


def _assigned(node: ast.Assign | ast.AnnAssign, line: int) -> Iterator[Fact]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    if len(targets) > 1 or isinstance(targets[0], ast.Tuple | ast.List):
        if any(isinstance(each, ast.Attribute) for target in targets for each in ast.walk(target)):
            yield Fact(f"{ast.unparse(node)[:60]} (several targets)", line)
    elif isinstance(targets[0], ast.Name):
        value = node.value
        is_section = isinstance(value, ast.Attribute) and value.attr in SECTIONS
        is_made = isinstance(value, ast.Call) and _last(value.func) in SECTION_CLASSES
        if is_section or is_made:
            yield Fact(f"{ast.unparse(node)[:60]} (a section by another name)", line)


BESIDE = {"model_spec": "it changes the model", "model": "it changes the model",
          "peft": "adapters", "lora": "adapters"}  # fmt: skip
"""Sections of a configuration whose assigned keys nothing here reads."""
IN_TURN = ("generator", "rollouter")
"""Sections of training by rewards (pytorch/torchtitan@b5bcd76 torchtitan/experiments/rl)."""


def _of_model(node: ast.Assign | ast.AnnAssign, configs: set[str], line: int) -> Iterator[Fact]:
    """What is stored below the model of a configuration, or into adapters beside it."""
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        name, *parts = ast.unparse(target)[:200].split(".")
        if name in configs and len(parts) > 1 and parts[0] in BESIDE:
            yield Fact(f"{'.'.join(parts)[:60]} ({BESIDE[parts[0]]})", line)


def _called(node: ast.Call, configs: set[str], own: Collection[str]) -> Iterator[Fact]:
    name, line = _last(node.func), node.lineno
    if name in SECTION_CLASSES and (node.args or any(not key.arg for key in node.keywords)):
        yield Fact(f"{name} (arguments without names)", line)
    for keyword in node.keywords:
        if keyword.arg in SECTIONS[:2] and not isinstance(keyword.value, ast.Call):
            yield Fact(f"{keyword.arg}={ast.unparse(keyword.value)[:40]} (not a literal)", line)
        if keyword.arg in IN_TURN and isinstance(keyword.value, ast.Call):
            yield Fact(f"{keyword.arg} (it trains and generates in turn: not modelled)", line)
        if keyword.arg == "tokenizer" and "MultiModal" in ast.unparse(keyword.value)[:80]:
            yield Fact("MultiModalTokenizer (images, and the tower that reads them)", line)
        if keyword.arg in ("peft", "lora") and name == "Config" and not is_none(keyword.value):
            yield Fact(f"{keyword.arg}={ast.unparse(keyword.value)[:40]} (adapters)", line)
    handed = [each for each in node.args if _is_config(each, configs)]
    if handed and name not in own:
        yield Fact(f"{name}({ast.unparse(handed[0])[:40]}, ...) (it may change it)", line)


def is_none(node: ast.expr) -> bool:
    """Whether an expression is the word None."""
    return isinstance(node, ast.Constant) and node.value is None


def _is_config(node: ast.expr, configs: set[str]) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in SECTIONS
    return isinstance(node, ast.Name) and node.id in configs


def of_another_file(
    function: ast.FunctionDef, imported: Collection[str], stated: Collection[str]
) -> Iterator[Fact]:
    """What a function takes from a configuration of another file and does not replace."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and _last(node.func) in imported:
            kept = [each for each in _NEEDED if each not in stated]
            kept += [each for each in ("parallelism", "activation_checkpoint.mode")
                     if each not in stated]  # fmt: skip
            if kept:
                name = _last(node.func)
                yield Fact(f"what {name}() of another file says of {', '.join(kept)}", node.lineno)


def _last(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
