"""Reads scripts that start torchtune's recipes with a file of the script's own.

    tune run --nproc_per_node 4 lora_finetune_distributed --config 8B_lora.yaml batch_size=2

A word `KEY=VALUE` wins over the file, `~KEY` takes an entry out; of a component the name alone says
`_component_`. All facts stand at the line of the launch. Where the file is not there, or is one of
torchtune's own by its name, the script is refused by name.

Source: pytorch/torchtune v0.6.1 (0472205f of a copy) torchtune/_cli/run.py (what stands before the
recipe is torchrun's; without it one process runs), torchtune/config/_utils.py
(_merge_yaml_and_cli_args).
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from meshplan.executor.frameworks import refused_scripts
from meshplan.executor.frameworks.documents.parse import read_yaml
from meshplan.executor.frameworks.documents.references import resolved
from meshplan.executor.frameworks.documents.values import shown
from meshplan.executor.frameworks.hugging_face.nearby import Nearby
from meshplan.executor.frameworks.shell.launching.arguments import Arguments, launcher_arguments
from meshplan.executor.frameworks.shell.launching.gpus import launched
from meshplan.executor.frameworks.shell.launching.launches import (
    first_of,
    left_open,
    needed,
    said_elsewhere,
)
from meshplan.executor.frameworks.shell.record import Script
from meshplan.executor.frameworks.shell.script import SCRIPTS, read_script
from meshplan.executor.frameworks.torchtune.read import claims as is_configuration
from meshplan.executor.frameworks.torchtune.read import read_values
from meshplan.planner.case.reading import Fact, NothingToRead, Reading, Start

_COMMAND = re.compile(r"^[^#\n]*\btune[ \t]+run[ \t\\]", re.M)
_RECIPES = re.compile(r"(?:full|lora)_finetune_(?:distributed|single_device)")
_NO_TRAINING = re.compile(r"(?:^|[_/.])(?:eval\w*|eleuther_eval|generate\w*|quantize)$")
_ALONE = re.compile(r"_single_device(?:\.py)?$")
_SWITCHES = (
    "--standalone",
    "--no-python",
    "--no_python",
    "--run-path",
    "--run_path",
    "-m",
    "--module",
)
_SAID_BY = {"batch_size": "micro_batch_size", "tokenizer.max_seq_len": "seq_len",
            "model._component_": "model"}  # fmt: skip
_ONE_DEVICE = "its recipe is of one device: priced on one GPU, unless --gpus says more"


class Overrides(Arguments):
    """A recipe's entries; one that the script leaves open is named as it writes it."""

    before = ""


def claims(name: str, text: str) -> bool:
    """Whether a script starts a recipe."""
    return name.endswith(SCRIPTS) and _COMMAND.search(text) is not None


def read(text: str, path: str, start: Start | None = None) -> Reading:
    """The script's launches, each a case; raises `UnreadableConfig` and `IllegalConfig`."""
    script = read_script(text, start.environment if start else None, path)
    found = [(words, at, *named) for words in script.commands if (at := _recipe_at(words))
             and (named := _file_of(words[at:], script.files_of(words), path))]  # fmt: skip
    if not found and claims(path, text):
        return refused_scripts.refuse(text, path)
    if not found:
        raise NothingToRead("no command of this script starts a recipe with its file")
    commands, more = first_of(found)
    first, *others = (_case(*each, script, path, text, start) for each in commands)
    return replace(first, others=tuple(others), notes=(*more, *first.notes))


def _recipe_at(words: list[Fact]) -> int:
    """Where the recipe stands, behind torchrun's options; 0 where the command starts none."""
    texts = [str(word.value) for word in words]
    runs = (at + 2 for at, text in enumerate(texts[:-1])
            if text.rpartition("/")[2] == "tune" and texts[at + 1] == "run")  # fmt: skip
    at = next(runs, len(texts))
    while at < len(texts) and texts[at].startswith("-"):
        at += 1 if "=" in texts[at] or texts[at] in _SWITCHES else 2
    is_recipe = at < len(texts) and not _NO_TRAINING.search(texts[at].removesuffix(".py"))
    return at if is_recipe else 0


def _file_of(words: list[Fact], files: Mapping[str, str], path: str) -> tuple[Fact, str] | None:
    """The word behind `--config` and the text of its file; None where it is not there."""
    texts = [str(word.value) for word in words]
    at = texts.index("--config") + 1 if "--config" in texts[:-1] else 0
    whole = next((word for word in words if str(word.value).startswith("--config=")), None)
    named = words[at] if at else whole and Fact(str(whole.value)[9:], whole.line)
    text = Nearby(Path(path), files).text(str(named.value)) if named else None
    known = named and text is not None and is_configuration(str(named.value), text)
    return (named, text) if named and text is not None and known else None


def _case(
    words: list[Fact], at: int, named: Fact, content: str, script: Script, path: str, text: str,
    start: Start | None,
) -> Reading:  # fmt: skip
    recipe = str(words[at].value)
    stated = needed(_stated(words[at + 1 :], named, content), start, _SAID_BY)
    values = Overrides(resolved(stated, content), script.waits, _SAID_BY)
    reading = read_values(values, content, path, alone=_ONE_DEVICE if _ALONE.search(recipe) else "")
    begun = [
        Fact("torchrun", word.line) if str(word.value) == "tune" else word
        for word in words[:at]
        if str(word.value) != "run"
    ]
    inherited = script.inherited_by(words)
    facts = dict(reading.facts)
    if not _ALONE.search(recipe):
        facts |= launched(Overrides(launcher_arguments(begun, inherited), script.waits), text)
    own = [] if _RECIPES.fullmatch(recipe) else [
        Fact(f"{shown(recipe)} (what this recipe trains is not known)", words[at].line)
    ]  # fmt: skip
    return replace(
        reading, facts=facts, unread=(*own, *said_elsewhere(words, script.missed), *reading.unread),
        notes=(*script.notes, *left_open([words]), f"its file is {shown(named.value)}",
               *reading.notes),
    )  # fmt: skip


def _stated(words: list[Fact], named: Fact, content: str) -> dict[str, Fact]:
    """The file's entries with what the words behind the recipe replace, at the launch's line."""
    found = {name: Fact(fact.value, named.line) for name, fact in read_yaml(content).items()}
    for word in words:
        key, equals, value = str(word.value).partition("=")
        if key.startswith("~"):
            gone = key[1:]
            found = {name: fact for name, fact in found.items()
                     if name != gone and not name.startswith(f"{gone}.")}  # fmt: skip
        elif equals and not key.startswith("-"):
            key = f"{key}._component_" if f"{key}._component_" in found else key
            for name, fact in read_yaml(f"{key}: {value}").items():
                found[name] = Fact(fact.value, word.line)
    return found
