"""The configuration function that `--module M --config NAME` names, where its file lies beside the
script or below a folder above it.

    llama3                      torchtitan/models/llama3/config_registry.py, or an experiment's
    torchtitan_recipes.llama3   torchtitan_recipes/llama3.py, or config_registry.py in that folder

Source: pytorch/torchtitan@b5bcd76 torchtitan/config/manager.py (`_load_config`).
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from meshplan.executor.frameworks.documents.values import shown
from meshplan.executor.frameworks.shell.launching.launches import started_with
from meshplan.executor.frameworks.shell.record import Script
from meshplan.executor.frameworks.shell.sourced import file_of
from meshplan.executor.frameworks.torchtitan.functions import read_python
from meshplan.planner.case.config_files import text_of
from meshplan.planner.case.reading import Fact, NothingToRead, UnreadableConfig

_FOLDERS = ("models", "experiments", "experiments/rl/examples")


def of_function(
    name: Fact, module: Fact, script: Script, path: str, environment: Mapping[str, str]
) -> dict[str, Fact]:
    """What the function says; raises `NothingToRead` where its file is not there or has no such
    function.
    """
    for each in (name, module):
        if not re.fullmatch(r"[\w.]+", str(each.value)):
            how = f"; {started_with(str(each.value), script.waits)}" if each.value else ""
            raise NothingToRead(
                "a launch script of torchtitan: not read (check the function that --module "
                f"{shown(module.value)} --config {shown(name.value)} means{how})", name.line
            )  # fmt: skip
    for file in _files(str(module.value)):
        found = file_of(file, path)
        if found is not None:
            return _of_file(found, str(name.value), name.line, environment)
    raise NothingToRead(
        f"a launch script of torchtitan whose module {shown(module.value)} is not below it or a "
        "folder above it: check its config_registry.py", name.line
    )  # fmt: skip


def _files(module: str) -> Iterator[str]:
    place = module.replace(".", "/")
    if "." not in module:
        for folder in _FOLDERS:
            yield f"torchtitan/{folder}/{place}/config_registry.py"
    yield f"{place}/config_registry.py"
    yield f"{place}.py"


def _of_file(found: Path, name: str, line: int, environment: Mapping[str, str]) -> dict[str, Fact]:
    try:
        functions = read_python(text_of(found), str(found), environment)
    except UnreadableConfig as error:
        raise NothingToRead(f"{found}, line {error.line}: {error}", line) from None
    if name not in functions:
        raise NothingToRead(f"{found} has no configuration function {shown(name)}", line)
    return functions[name]
