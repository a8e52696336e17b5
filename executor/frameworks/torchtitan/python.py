"""torchtitan 0.3's configuration function: written from a plan, and read without running it.

Reading looks at the syntax only: the keyword arguments of `ParallelismConfig(...)`,
`TrainingConfig(...)` and `X.Config()`, assignments such as `config.parallelism.x = 8`, and the base
configuration that the function starts from, of the same file. Each function of a file is a
configuration. What is no literal, and what else may change a section, is named (`python_unclear`).

Source: torchtitan 0.3.0 `torchtitan/config/README.md` (a configuration is a function),
`torchtitan/models/llama3/config_registry.py`.
"""

import ast
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from meshplan.costmodels.units import counted
from meshplan.executor.frameworks.export_notes import Answer, nearest_recompute
from meshplan.executor.frameworks.torchtitan.names import (
    CONVERTED_WHOLE,
    CONVERTER_CLASSES,
    CONVERTER_SWITCHES,
    HARMLESS_CONVERTERS,
    MODELS,
    Flavor,
    model_named,
    model_of_function,
)
from meshplan.executor.frameworks.torchtitan.python_models import (
    REGISTRY,
    changes_of,
    flavor_of,
    spec_facts,
    with_models,
)
from meshplan.executor.frameworks.torchtitan.python_unclear import (
    imported_registries,
    is_none,
    of_another_file,
    unclear,
    with_constants,
)
from meshplan.planner.case.limits import MAX_COUNT, check_lines, check_size
from meshplan.planner.case.reading import Fact, UnreadableConfig

MAX_FUNCTIONS = 200  # of one file; torchtitan's largest registry has 27
MAX_CONFIGURATIONS = 64
MAX_BASES = 8  # functions of the file that one starts from; in torchtitan it is one
MAX_SETTINGS = 2_000  # of one configuration
MAX_NESTED = 100  # nodes of syntax in each other, from the file down
_SECTION = {
    "ParallelismConfig": "parallelism",
    "TrainingConfig": "training",
    "CompileConfig": "compile",
    "FaultTolerance": "fault_tolerance",
}
UNCLEAR = "unclear"  # not a key of torchtitan's: what the syntax does not say, by its lines
_OPTION = "selective_ac_option"
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
        repr(f"{model}: {answer.layout.label} on {counted(answer.layout.world_size, 'GPU')}."),
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
        f"    config.compile.enable = {sections['compile']['enable']}",
        *_model_lines(answer, flavor, compiled=sections["compile"]["enable"]),
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


def _model_lines(answer: Answer, flavor: Flavor, *, compiled: bool) -> list[str]:
    name = _converter(answer)
    if name is None:
        return [f"    config.model_spec = model_registry({flavor.flavor!r})"]
    arguments = "" if name == "Float8LinearConverter" else 'fqns=["layers"], '
    return [
        "    config.model_spec = model_registry(",
        f"        {flavor.flavor!r},",
        f"        converters=[{name}.Config({arguments}model_compile_enabled={compiled})],",
        "    )",
    ]


def read_python(text: str) -> dict[str, dict[str, Fact]]:
    """The facts of each configuration function, by TOML's names
    (`parallelism.tensor_parallel_degree`); raises `UnreadableConfig`.
    """
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
    _check_depth(tree)
    tree = with_constants(tree)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if not 0 < len(functions) <= MAX_FUNCTIONS:
        raise UnreadableConfig(
            f"{len(functions)} functions; a file of configurations has from 1 to {MAX_FUNCTIONS}"
        )
    registry = _Registry(functions, _module(tree), imported_registries(tree))
    names = _configurations(functions)
    return {name: registry.facts(name) for name in names[:MAX_CONFIGURATIONS]}


def _check_depth(tree: ast.Module) -> None:
    """Raise `UnreadableConfig` for expressions or blocks in each other deeper than any config's."""
    level: list[ast.AST] = [tree]
    for _ in range(MAX_NESTED):
        level = [inner for node in level for inner in ast.iter_child_nodes(node)]
    if level:
        line = next((node.lineno for node in level if isinstance(node, ast.expr | ast.stmt)), 1)
        raise UnreadableConfig(f"nested more than {MAX_NESTED} deep", line)


def _configurations(functions: Mapping[str, ast.FunctionDef]) -> list[str]:
    """The functions that say they return a configuration; all, where none says what it returns.

    One whose name begins with an underscore is a part of others.
    """
    said = [
        name
        for name, function in functions.items()
        if function.returns and _dotted(function.returns).endswith("Trainer.Config")
    ]
    return [name for name in said or functions if not name.startswith("_")] or said


class _Registry:
    """The functions of a file, each followed once; those that one calls come first in it."""

    def __init__(
        self, functions: Mapping[str, ast.FunctionDef], module: str, imported: set[str]
    ) -> None:
        self._functions, self._module, self._imported = functions, module, imported
        self._known: dict[str, dict[str, Fact]] = {}

    def facts(self, name: str) -> dict[str, Fact]:
        """The facts of a function, and of those of the file that it starts from."""
        if name not in self._known:
            self._known[name] = {}  # what a function that calls itself starts from
            self._known[name] = self._follow(self._functions[name])
        return self._known[name]

    def _follow(self, function: ast.FunctionDef) -> dict[str, Fact]:
        function = with_models(function)
        found: dict[str, Fact] = {}
        called: set[str] = set()
        for node in _in_order(function):
            if isinstance(node, ast.Call):
                name = _dotted(node.func)
                if name in self._imported:
                    found.clear()  # it begins anew, from what another file says
                if name in self._functions and name not in called and len(called) < MAX_BASES:
                    called.add(name)
                    found |= self.facts(name)
                else:
                    _call(node, self._module, found)
            elif isinstance(node, ast.Assign) and len(node.targets) == 1:
                _assignment(node.targets[0], node.value, found)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                _assignment(node.target, node.value, found)
        _name_unclear(
            found,
            [*unclear(function, self._functions),
             *of_another_file(function, self._imported, found)],
        )  # fmt: skip
        stated = found.get("model.ours", Fact(None, 1))
        named = model_of_function(function.name)  # a registry's own name for its model
        if stated.value is None and named:
            found["model.ours"] = Fact(named, function.lineno)
        elif stated.value is False:  # another function's, whatever this one is called
            found["model.ours"] = Fact(None, stated.line)
        if len(found) > MAX_SETTINGS:
            raise UnreadableConfig(f"{function.name}: more than {MAX_SETTINGS} settings")
        return found


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
    if name.endswith("Trainer.Config"):  # also that of flux, which trains beside its encoders
        for keyword in node.keywords:
            if keyword.arg == "encoder":
                found["encoder"] = Fact(None, keyword.value.lineno)
    if name in _SECTION:
        _new_section(_SECTION[name], node, found)
    elif name == "Trainer.Config":
        for keyword in node.keywords:
            if keyword.arg == "activation_checkpoint":
                _policy(keyword.value, found)
            elif keyword.arg == "model_spec":
                _spec(keyword.value, found)
    elif name.endswith(".Config") and name.split(".")[-2] in _CHECKPOINT:
        found["activation_checkpoint.mode"] = Fact(_CHECKPOINT[name.split(".")[-2]], node.lineno)
    elif name.endswith(".Config") and name.split(".")[-2] in CONVERTER_CLASSES:
        found["model.precision"] = Fact(CONVERTER_CLASSES[name.split(".")[-2]], node.lineno)
        _name_unclear(found, list(_converted_in_part(node)))
    elif name.endswith("Converter.Config") and name.split(".")[-2] not in HARMLESS_CONVERTERS:
        found["model.converters"] = Fact([name.split(".")[-2]], node.lineno)
    elif name == REGISTRY:
        _registered(node, module, found)
    elif model := model_of_function(name):
        found["model.ours"] = Fact(model, node.lineno)


def _registered(node: ast.Call, module: str, found: dict[str, Fact]) -> None:
    """The model of `model_registry(flavor, ...)`; an argument that may change it is named."""
    flavor = flavor_of(node)
    ours = model_named(module, _literal(flavor)) if flavor is not None else None
    found["model.ours"] = Fact(ours, node.lineno)
    found.pop("model.moe_comm_backend", None)
    for keyword in node.keywords:
        if keyword.arg == "moe_comm_backend":
            _put("model.moe_comm_backend", keyword.value, found)
    _name_unclear(found, [*changes_of(node)])


def _converted_in_part(node: ast.Call) -> Iterator[Fact]:
    """Arguments of a converter that leave layers in 16 bit, or compute otherwise than it says."""
    for keyword in node.keywords:
        if keyword.arg in (None, *CONVERTER_SWITCHES) or _literal(keyword.value) in (False, []):
            continue
        value = _literal(keyword.value)
        words = set(map(str, value)) if isinstance(value, list) else {""}
        if not words <= CONVERTED_WHOLE.get(str(keyword.arg), frozenset()):
            said = ast.unparse(keyword)[:60]
            yield Fact(f"{_dotted(node.func)}({said}) (of some layers, or another)", node.lineno)


def _new_section(section: str, node: ast.Call, found: dict[str, Fact]) -> None:
    """A section as it is made: what the one before it said is gone."""
    for name in [name for name in found if name.startswith(f"{section}.")]:
        del found[name]
    found[section] = Fact(None, node.lineno)
    for keyword in node.keywords:
        if keyword.arg:
            _put(f"{section}.{keyword.arg}", keyword.value, found)


def _put(name: str, value: ast.expr, found: dict[str, Fact]) -> None:
    literal = _literal(value)
    found[name] = Fact(literal, value.lineno)
    if literal is None and not is_none(value):
        _name_unclear(found, [Fact(f"{name} = {ast.unparse(value)[:40]}", value.lineno)])


def _name_unclear(found: dict[str, Fact], more: list[Fact]) -> None:
    before = found[UNCLEAR].value if UNCLEAR in found else ()
    if more:
        found[UNCLEAR] = Fact((*before, *more), more[0].line)


def _assignment(target: ast.expr, value: ast.expr, found: dict[str, Fact]) -> None:
    _, _, below = _dotted(target).partition(".")
    if below.startswith(("compile.", "parallelism.", "training.")):
        _put(below, value, found)
    elif below == "activation_checkpoint":
        _policy(value, found)
    elif below == "model_spec":
        _spec(value, found)


def _spec(value: ast.expr, found: dict[str, Fact]) -> None:
    if not is_none(value):
        found.update(spec_facts(value, _dotted(value.func) if isinstance(value, ast.Call) else ""))


def _policy(value: ast.expr, found: dict[str, Fact]) -> None:
    """What recomputes: nothing, a policy's class, or the mode that releases before 0.3 named; a
    call of anything else is named as not understood.
    """
    place, name = "activation_checkpoint", ""
    if is_none(value):
        found[f"{place}.mode"] = Fact("none", value.lineno)
    elif isinstance(value, ast.Call):
        name = _dotted(value.func)
    if not name or name.rpartition(".Config")[0].split(".")[-1] in _CHECKPOINT:
        return
    said = {word.arg: _literal(word.value) for word in getattr(value, "keywords", ())}
    mode = said.get("mode", "selective")
    older = name.split(".")[-1] == "ActivationCheckpointConfig"
    if older and mode in ("none", "full", "selective"):
        found[f"{place}.mode"] = Fact(mode, value.lineno)
        if _OPTION in said:
            found[f"{place}.{_OPTION}"] = Fact(said[_OPTION], value.lineno)
    else:
        _name_unclear(found, [Fact(f"{place} = {ast.unparse(value)[:40]}", value.lineno)])
