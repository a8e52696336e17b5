"""The configuration functions of a Python file of torchtitan, each with what it says.

A function is followed, never run (`program.follow`): what it returns is a record of the arguments
of `Trainer.Config(...)` and of what it stores, also where it starts from a function of another file
of the repository. `function_facts` says it by TOML's names.

Source: pytorch/torchtitan@b5bcd76 `torchtitan/config/README.md`, `torchtitan/config/manager.py`
(`--module M --config NAME` calls NAME without arguments).
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from meshplan.executor.frameworks.program.budget import Budget, Unfollowed
from meshplan.executor.frameworks.program.calls import Rules
from meshplan.executor.frameworks.program.follow import Program
from meshplan.executor.frameworks.program.modules import Repository
from meshplan.executor.frameworks.torchtitan.function_facts import ASSUMED, UNCLEAR, facts_of
from meshplan.executor.frameworks.torchtitan.names import CONVERTER_CLASSES
from meshplan.planner.case.reading import Fact, UnreadableConfig

MAX_FUNCTIONS = 200  # of one file; torchtitan's largest registry has 27
MAX_CONFIGURATIONS = 64
MAX_SETTINGS = 2_000  # of one configuration
_RULED = ("torchtitan",)
_OPAQUE = (
    *("model_registry", "ParallelismConfig", "TrainingConfig", "CompileConfig", "Trainer.Config"),
    *("decoder_vocab_size", "FullAC.Config", "SelectiveAC.Config"),
    *(f"{name}.Config" for name in CONVERTER_CLASSES),
)
"""What the reader knows itself, by torchtitan's defaults."""
_OF_MODELS = re.compile(r"torchtitan[/.]models[/.](\w+)[/.]")


def read_python(
    text: str, path: str, environment: Mapping[str, str] | None = None
) -> dict[str, dict[str, Fact]]:
    """The facts of each configuration function, by TOML's names
    (`parallelism.tensor_parallel_degree`); raises `UnreadableConfig`.
    """
    repository, budget = Repository(text, path), Budget()
    functions = {node.name: node for node in repository.tree.body
                 if isinstance(node, ast.FunctionDef)}  # fmt: skip
    if not 0 < len(functions) <= MAX_FUNCTIONS:
        raise UnreadableConfig(
            f"{len(functions)} functions; a file of configurations has from 1 to {MAX_FUNCTIONS}"
        )
    module = _module(repository.tree, path)
    rules = Rules(opaque=_OPAQUE, ruled=_RULED, environment=environment)
    found = {}
    for name in islice(_configurations(functions.values()), MAX_CONFIGURATIONS):
        program = Program(repository, budget, rules)
        found[name] = _facts(program, functions[name], module)
        if len(found[name]) > MAX_SETTINGS:
            raise UnreadableConfig(f"{name}: more than {MAX_SETTINGS} settings")
    return found


def _facts(program: Program, function: ast.FunctionDef, module: str) -> dict[str, Fact]:
    """What one function says; what is not followed of it is named, and no more is known then."""
    try:
        found = facts_of(program.of(function.name), function, module)
        assumed = Fact(tuple(program.assumed.values()), function.lineno)
        return found | ({ASSUMED: assumed} if found and assumed.value else {})
    except Unfollowed as why:
        said = Fact((Fact(why.text, why.line),), why.line)
        return {"parallelism": Fact(None, function.lineno), UNCLEAR: said}


def _configurations(functions: Iterable[ast.FunctionDef]) -> Iterator[str]:
    """The functions that say they return a configuration; all, where none says what it returns.

    One whose name begins with an underscore, or that needs arguments, is a part of others.
    """
    said = [each for each in functions
            if each.returns and ast.unparse(each.returns).endswith("Trainer.Config")]  # fmt: skip
    candidates = said or list(functions)
    whole = [each.name for each in candidates if not each.name.startswith("_") and not _asks(each)]
    return iter(whole or [each.name for each in said])


def _asks(function: ast.FunctionDef) -> bool:
    """Whether a function cannot be called without arguments."""
    spec = function.args
    asked = len(spec.posonlyargs) + len(spec.args) - len(spec.defaults)
    return asked > 0 or any(default is None for default in spec.kw_defaults)


def _module(tree: ast.Module, path: str) -> str:
    """The module of torchtitan's models that a file belongs to: by what it imports, or its path."""
    for node in ast.walk(tree):
        name = node.module if isinstance(node, ast.ImportFrom) else None
        if name and name.startswith("torchtitan.models."):
            return name.split(".")[2]
    found = _OF_MODELS.search(path)
    return found[1] if found else ""
