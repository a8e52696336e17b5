"""The recipe that a launch of Megatron-Bridge's `run_recipe.py` names, where its clone is there.

    torchrun scripts/training/run_recipe.py --recipe llama3_8b_pretrain_config model.x=2

The program is found as the script names it; the recipe is the function of that name in the clone's
`src/megatron/bridge/perf_recipes`, or else in `recipes` beside it, or one that an import of the
same package calls so: both packages have a `llama3_70b_peft_8gpu_h100_bf16_config`, not the same.
Words win over what it says. Source: NVIDIA-NeMo/Megatron-Bridge@067f987d
`scripts/training/recipe_runner.py` (load_recipe, sync_model_dataset_sequence_length).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from meshplan.executor.frameworks.documents.composed import merged
from meshplan.executor.frameworks.documents.values import shown
from meshplan.executor.frameworks.nemo.recipe import data_length
from meshplan.executor.frameworks.nemo.recipe_functions import run_of_function
from meshplan.executor.frameworks.nemo.run import Run
from meshplan.executor.frameworks.shell.sourced import file_of
from meshplan.planner.case.config_files import text_of
from meshplan.planner.case.reading import Fact, UnreadableConfig

RUNNER = "run_recipe.py"
_PACKAGES = ("src/megatron/bridge/perf_recipes", "src/megatron/bridge/recipes")
_HANDED_ON = ("peft_scheme", "hf_path", "packed_sequence")
"""Options that the program hands to the recipe, which is followed without arguments."""

_DEGREES = ("model.pipeline_model_parallel_size", "model.virtual_pipeline_model_parallel_size")
_BY_STAGE = ("model.pipeline_model_parallel_layout", "model.num_layers_in_first_pipeline_stage",
             "model.num_layers_in_last_pipeline_stage")  # fmt: skip


def named_recipe(
    recipe: Fact, program: str, path: str, environment: Mapping[str, str]
) -> Run | None:
    """What the recipe says, at the line that names it; None where no clone beside the script at
    `path` has it.
    """
    file = file_of(program, path)
    found = file and _definition(file.absolute().parents[2:3], str(recipe.value))
    if not found:
        return None
    where, name = found
    run = run_of_function(text_of(where), str(where), name, environment)
    return _at(run, recipe.line, f"line {recipe.line}: the recipe {shown(name)} of {where.name}")


def _definition(roots: Sequence[Path], name: str) -> tuple[Path, str] | None:
    """The file that defines the recipe, and its name there."""
    packages = (sorted((root / package).rglob("*.py")) for root in roots for package in _PACKAGES)
    return next(filter(None, (_defined(package, name) for package in packages)), None)


def _defined(package: Sequence[Path], name: str) -> tuple[Path, str] | None:
    texts = {file: _text(file) for file in package}
    seen: set[str] = set()
    while name.isidentifier() and name not in seen:
        seen.add(name)
        for file, text in texts.items():
            if re.search(rf"^def {name}\(", text, re.M):
                return file, name
        imported = re.compile(rf"\b(\w+) as {name}\b")
        found = filter(None, map(imported.search, texts.values()))
        name = next((each[1] for each in found if each[1] != name), "")
    return None


def _text(file: Path) -> str:
    """A module's text; none of an empty one, and of one that cannot be read."""
    try:
        return text_of(file)
    except UnreadableConfig:
        return ""


def _at(run: Run, line: int, said: str) -> Run:
    """With every entry at the `line` of the script."""
    return replace(
        run,
        found={name: Fact(fact.value, line) for name, fact in run.found.items()},
        unknown={name: Fact(fact.value, line) for name, fact in run.unknown.items()},
        unread=tuple(Fact(fact.value, line) for fact in run.unread),
        model=run.model and Fact(run.model.value, line),
        notes=(said, *run.notes),
    )


def with_overrides(run: Run, stated: Mapping[str, Fact], given: Mapping[str, Fact]) -> Run:
    """A recipe under the words of its launch; either may have megatron-core's name of the data's
    length. The model's sequences are as long as the data's.
    """
    unread = (*run.unread, *_arguments(given), *_stages(run, stated))
    found = merged(data_length(run.found), data_length(stated))
    if (length := found.get("dataset.seq_length")) is not None:
        found = found | {"model.seq_length": length}
    unknown = {name: fact for name, fact in run.unknown.items() if name not in stated}
    return replace(run, found=found, unknown=unknown, unread=unread)


def _arguments(given: Mapping[str, Fact]) -> Iterator[Fact]:
    for name in _HANDED_ON:
        if (stated := given.get(name)) is not None:
            why = "an argument of the recipe, which is followed without any"
            yield Fact(f"--{name} {shown(stated.value)} ({why})", stated.line)


def _stages(run: Run, stated: Mapping[str, Fact]) -> Iterator[Fact]:
    """The recipe's layers by stage, where words change the number of stages: the program may make
    others (sync_model_pipeline_layout).
    """
    said = {name: _word(run.found.get(name)) for name in _DEGREES}
    changed = [name for name in _DEGREES if name in stated and _word(stated[name]) != said[name]]
    for name in _BY_STAGE if changed else ():
        fact = run.found.get(name) or run.unknown.get(name)
        if name not in stated and fact is not None and fact.value is not None:
            last = name.rpartition(".")[2]
            why = "the program may make others for the stages that the launch states"
            yield Fact(f"the recipe's {last} ({why})", stated[changed[0]].line)


def _word(fact: Fact | None) -> str:
    """A number as words of a launch may state it."""
    return str(fact.value if fact else None)
