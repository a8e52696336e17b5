"""torchtitan 0.3's configuration function: written from a plan, and read without running it.

Reading looks at the syntax only: the keyword arguments of `ParallelismConfig(...)`,
`TrainingConfig(...)` and `X.Config()`, assignments such as `config.parallelism.x = 8`, and the base
configuration that the function starts from. Values that are not literals are left out.

Source: torchtitan 0.3.0 `torchtitan/config/README.md` (a configuration is a function),
`torchtitan/models/llama3/config_registry.py`.
"""

import ast
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from meshplan.executor.frameworks.export_notes import Answer, nearest_recompute
from meshplan.executor.frameworks.torchtitan.names import (
    CONVERTER_CLASSES,
    MODELS,
    Flavor,
    model_named,
    model_of_function,
)
from meshplan.planner.case.limits import MAX_COUNT, check_lines, check_size
from meshplan.planner.case.reading import Fact, UnreadableConfig

_SECTION = {
    "ParallelismConfig": "parallelism",
    "TrainingConfig": "training",
    "CompileConfig": "compile",
}
_CHECKPOINT = {"FullAC": "full", "SelectiveAC": "selective"}


def write_python(model: str, answer: Answer, sections: Mapping[str, Mapping[str, Any]]) -> str:
    """A module with one function, `meshplan`, that changes a shipped configuration."""
    flavor = MODELS.get(model, Flavor("llama3", "debugmodel", "llama3_debugmodel"))
    base = flavor.plain or flavor.function or f"{flavor.module}_debugmodel"
    mode = nearest_recompute(answer.layout.stages).mode
    policy = {"full": "FullAC.Config()", "selective": "SelectiveAC.Config()"}.get(mode, "None")
    training = dict(sections["training"])
    if answer.layout.pipeline_parallel > 1 or answer.layout.expert_parallel > 1:
        training["disable_cuda_graphs"] = True
    lines = [
        repr(f"{model}: {answer.layout.label} on {answer.layout.world_size} GPUs."),
        "",
        "from torchtitan.config import ParallelismConfig",
        *(
            [f"from torchtitan.distributed.activation_checkpoint import {policy.split('.')[0]}"]
            if policy != "None"
            else []
        ),
        *_converter_imports(answer),
        f"from torchtitan.models.{flavor.module} import model_registry",
        f"from torchtitan.models.{flavor.module}.config_registry import {base}",
        "from torchtitan.trainer import Trainer",
        "",
        "",
        "def meshplan() -> Trainer.Config:",
        f"    config = {base}()",
        *_model_lines(answer, flavor),
        *(f"    config.training.{name} = {value!r}" for name, value in training.items()),
        "    config.parallelism = ParallelismConfig(",
        *(f"        {name}={value!r}," for name, value in sections["parallelism"].items()),
        "    )",
        f"    config.activation_checkpoint = {policy}",
        "    return config",
    ]
    return "\n".join(lines) + "\n"


def _converter(answer: Answer) -> str | None:
    kinds = {kind: name for name, kind in CONVERTER_CLASSES.items()}
    return kinds.get(answer.training.precision)


def _converter_imports(answer: Answer) -> list[str]:
    name = _converter(answer)
    return [f"from torchtitan.components.quantization import {name}"] if name else []


def _model_lines(answer: Answer, flavor: Flavor) -> list[str]:
    name = _converter(answer)
    if name is None:
        return [f"    config.model_spec = model_registry({flavor.flavor!r})"]
    arguments = "" if name == "Float8LinearConverter" else 'fqns=["layers"], '
    return [
        "    config.compile.enable = True",
        "    config.model_spec = model_registry(",
        f"        {flavor.flavor!r},",
        f"        converters=[{name}.Config({arguments}model_compile_enabled=True)],",
        "    )",
    ]


def read_python(text: str) -> dict[str, Fact]:
    """Facts by TOML's names (`parallelism.tensor_parallel_degree`); raises `UnreadableConfig`."""
    check_size(text, "a Python file")
    check_lines(text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's own, of the text: `2if` is no config of ours
            tree = ast.parse(text)
    except SyntaxError as error:
        raise UnreadableConfig(f"not Python: {error.msg}", error.lineno or 1) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise UnreadableConfig(f"not Python that a config needs: {error}") from None
    functions = _configurations(tree)
    if len(functions) != 1:
        names = ", ".join(function.name for function in functions[:5]) or "none"
        raise UnreadableConfig(
            f"it must hold one configuration function, not {len(functions)} ({names}); copy the "
            "one to check into a file of its own"
        )
    found: dict[str, Fact] = {}
    module = _module(tree)
    for node in _in_order(functions[0]):
        if isinstance(node, ast.Call):
            _call(node, module, found)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            _assignment(node, found)
    return found


def _configurations(tree: ast.Module) -> list[ast.FunctionDef]:
    """The functions that say they return a configuration; all, where none says what it returns."""
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    said = [f for f in functions if f.returns and _dotted(f.returns).endswith("Trainer.Config")]
    return said or functions


def _in_order(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Nodes in the order of their lines, so that a later assignment wins."""
    nodes = [node for node in ast.walk(function) if isinstance(node, ast.expr | ast.stmt)]
    return iter(sorted(nodes, key=lambda node: (node.lineno, node.col_offset)))


def _module(tree: ast.Module) -> str:
    for node in ast.walk(tree):
        name = node.module if isinstance(node, ast.ImportFrom) else None
        if name and name.startswith("torchtitan.models."):
            return name.split(".")[2]
    return ""


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _literal(node: ast.expr) -> object:
    """The value of a literal expression (products of numbers too), else None."""
    try:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            left, right = _literal(node.left), _literal(node.right)
            product = left * right if isinstance(left, int) and isinstance(right, int) else None
            return product if product is not None and abs(product) <= MAX_COUNT**2 else None
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _call(node: ast.Call, module: str, found: dict[str, Fact]) -> None:
    name = _dotted(node.func)
    if name in _SECTION:
        for keyword in node.keywords:
            if keyword.arg:
                line = keyword.value.lineno
                found[f"{_SECTION[name]}.{keyword.arg}"] = Fact(_literal(keyword.value), line)
    elif name == "Trainer.Config":
        if any(k.arg == "activation_checkpoint" and _is_none(k.value) for k in node.keywords):
            found["activation_checkpoint.mode"] = Fact("none", node.lineno)
    elif name.endswith(".Config") and name.split(".")[-2] in _CHECKPOINT:
        found["activation_checkpoint.mode"] = Fact(_CHECKPOINT[name.split(".")[-2]], node.lineno)
    elif name.endswith(".Config") and name.split(".")[-2] in CONVERTER_CLASSES:
        found["model.precision"] = Fact(CONVERTER_CLASSES[name.split(".")[-2]], node.lineno)
    elif name == "model_registry" and node.args:
        ours = model_named(module, _literal(node.args[0]))
        found["model.ours"] = Fact(ours, node.lineno)
    elif model := model_of_function(name):
        found["model.ours"] = Fact(model, node.lineno)


def _assignment(node: ast.Assign, found: dict[str, Fact]) -> None:
    name = _dotted(node.targets[0])
    _, _, below = name.partition(".")
    if below.startswith(("parallelism.", "training.")):
        found[below] = Fact(_literal(node.value), node.lineno)
    elif below == "activation_checkpoint" and _is_none(node.value):
        found["activation_checkpoint.mode"] = Fact("none", node.lineno)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
