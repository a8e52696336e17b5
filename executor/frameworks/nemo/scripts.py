"""The overrides of each launch in a script, as bash would pass them to Megatron-Bridge or NeMo.

    run_recipe.py --recipe llama3_8b_pretrain_config -tp 2 -mb 1 model.sequence_parallel=true

Its short options are overrides too; a word `KEY=VALUE` wins over them. Source:
NVIDIA-NeMo/Megatron-Bridge@067f987d `scripts/training/run_recipe.py` (COMMON_OVERRIDE_FIELDS),
`scripts/training/recipe_metadata.py` (TEXT_FORWARD_STEPS).
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import zip_longest

from meshplan.executor.frameworks.documents.values import Values, shown
from meshplan.executor.frameworks.nemo.launched_config import launched_config, with_words
from meshplan.executor.frameworks.nemo.named_recipe import RUNNER, named_recipe, with_overrides
from meshplan.executor.frameworks.nemo.overrides import override
from meshplan.executor.frameworks.nemo.run import Run
from meshplan.executor.frameworks.shell.launching.arguments import arguments
from meshplan.executor.frameworks.shell.launching.gpus import gpus_of
from meshplan.executor.frameworks.shell.launching.launches import (
    first_of,
    is_launched,
    launches,
    left_open,
    said_elsewhere,
)
from meshplan.executor.frameworks.shell.launching.ranks import started
from meshplan.executor.frameworks.shell.launching.starters import open_count
from meshplan.executor.frameworks.shell.record import Script
from meshplan.executor.frameworks.shell.script import SCRIPTS, read_script
from meshplan.planner.case.reading import Fact, Start

_OVERRIDE = re.compile(r"\+{0,2}(\w+\.)+\w+=")
_TOWERS = re.compile(r"(^|_)(vl|vlm|omni|audio|vision|diffusion|flux|wan)(_|$)|\dv_|llava", re.I)
_OTHERS = re.compile(
    r"(^|_)(ppo|dpo|kto|rm|rs|reward|reinforce|spin|critic|actor|grpo|distill\w*|draft|steerlm\w*|"
    r"knowledge|retro|t5|bert|embedding)(_|$)"
)
"""Programs of NeMo and NeMo-Aligner that train otherwise than by the next token."""
_TEXT_STEPS = ("gpt_step", "llm_step", "dsv4_step")
_OPTIONS = {
    "-gb": "train.global_batch_size", "--global_batch_size": "train.global_batch_size",
    "-mb": "train.micro_batch_size", "--micro_batch_size": "train.micro_batch_size",
    "-sl": "dataset.seq_length", "--seq_length": "dataset.seq_length",
    **{
        option: f"model.{name}"
        for short, name in (
            ("-tp", "tensor_model_parallel_size"), ("-pp", "pipeline_model_parallel_size"),
            ("-cp", "context_parallel_size"), ("-vp", "virtual_pipeline_model_parallel_size"),
            ("-ep", "expert_model_parallel_size"), ("-etp", "expert_tensor_parallel_size"),
        )
        for option in (short, f"--{name}")
    },
}  # fmt: skip
"""Options of `run_recipe.py`, and the override that each is."""
_SHORT = re.compile(r"--(?:tp|pp|cp|vp|ep|etp)")


def runs_of(text: str, path: str, start: Start | None) -> list[Run]:
    """The different launches of a script; none where `path` is no script, or none takes overrides.

    Raises `UnreadableConfig`.
    """
    if not path.endswith(SCRIPTS):
        return []
    script = read_script(text, start.environment if start else None, path)
    if not is_launched(script, _is_override):
        return []
    commands = launches(script, _is_override)
    judged, more = first_of(commands)
    notes = (*script.notes, *left_open(commands), *more)
    environment = start.environment if start else {}
    runs = (_run(words, text, path, notes, script, environment) for words in judged)
    return [
        replace(run, gpus_open=open_count(Values(started(words) | arguments(words))))
        for run, words in zip(runs, judged, strict=True)
    ]


def of_arrays(text: str, path: str, start: Start | None) -> tuple[Fact, ...]:
    """What is not read of a script's arrays of words, which another one takes."""
    arrays = read_script(text, start.environment if start else None, path).variables.values()
    words = [word for array in arrays if len(array) > 1 for word in array]
    return (*_groups(words), *_loose_sizes(words))


_SIZE = re.compile(
    r"\+{0,2}(?:[mg]bs|[tpcev]p|etp|(?:micro|global)_batch_size|seq_len(?:gth)?|"
    r"(?:tensor|pipeline|context|expert)(?:_model)?_parallel(?:ism|_size)?)=.+", re.S
)  # fmt: skip


def _loose_sizes(words: Iterable[Fact]) -> Iterator[Fact]:
    """Sizes beside the overrides, by names of the program's own (`mbs=4`)."""
    why = "in no section of the configuration: what the program does with it is not known"
    for word in words:
        if _SIZE.fullmatch(str(word.value)):
            yield Fact(f"{shown(word.value)} ({why})", word.line)


def _is_override(word: str) -> bool:
    """Or the program that takes them: a launch may leave all to its recipe."""
    option = word.partition("=")[0]
    return _OVERRIDE.match(word) is not None or option in _OPTIONS or word.endswith(RUNNER)


def _by_option(words: list[Fact]) -> dict[str, Fact]:
    """The overrides that options of `run_recipe.py` state. `--tp`, of a release before, sets
    sequence parallelism too (NVIDIA-NeMo/Megatron-Bridge@07a69e80
    `scripts/training/recipe_runner.py`, apply_launcher_overrides).
    """
    texts = [str(word.value) for word in words]
    at = next((at for at, text in enumerate(texts) if text.endswith(RUNNER)), len(texts))
    found: dict[str, Fact] = {}
    for word, after in zip_longest(words[at:], words[at + 1 :]):
        option, _, value = str(word.value).partition("=")
        field, stated = _OPTIONS.get(_as_now(option)), word if value else after
        if field is None or stated is None:
            continue
        value = value or str(stated.value)
        found |= override(f"{field}={value}", word.line)
        if option == "--tp" and value.isdecimal():
            found |= override(f"model.sequence_parallel={int(value) > 1}", word.line)
    return found


def _as_now(option: str) -> str:
    """As the newest release writes it; one before wrote `--tp`, and words with dashes between."""
    if _SHORT.fullmatch(option):
        return option[1:]
    return f"--{option[2:].replace('-', '_')}" if option.startswith("--") else option


def _run(
    words: list[Fact], text: str, path: str, notes: tuple[str, ...], script: Script,
    environment: Mapping[str, str],
) -> Run:  # fmt: skip
    found = _by_option(words)
    for word in words:
        found |= override(str(word.value), word.line)
    given = _with_scheme(arguments(words))
    followed = _followed(words, given, path, environment)
    if followed is not None:
        followed = with_overrides(followed, found, given)
        found = dict(followed.found)
    by_name, more = of_recipe(given, found)
    unread = (*more, *_program(words), *_loose_sizes(words), *said_elsewhere(words, script.missed))
    found |= by_name
    gpus = gpus_of(Values(started(words) | given), text)
    if (launched := launched_config(words, given, path)) is not None:
        whole, named = launched
        said = f"line {named.line}: read with {shown(named.value)}"
        found = with_words(whole, found, words, environment, named.line)
        unread, notes = (*unread, *whole.left), (*notes, said, *whole.notes())
        return Run(found, gpus, unread, notes, script.waits, whole=True)
    unread = (*unread, *_composed(given), *_groups(words), *_not_taken(words))
    if followed is not None:
        unread, notes = (*followed.unread, *unread), (*notes, *followed.notes)
        known = replace(followed, found=found, waits=script.waits)
        return replace(known, gpus=gpus, unread=unread, notes=notes)
    return Run(found, gpus, unread, notes, script.waits)


def _with_scheme(given: Mapping[str, Fact]) -> dict[str, Fact]:
    """Without `--peft_scheme none`, which hands the recipe no adapters."""
    none = str(given.get("peft_scheme", Fact("", 1)).value).lower() == "none"
    return {name: fact for name, fact in given.items() if not (none and name == "peft_scheme")}


def _followed(
    words: Iterable[Fact], given: Mapping[str, Fact], path: str, environment: Mapping[str, str]
) -> Run | None:
    """The recipe that the launch names, where it can be followed."""
    programs = (str(word.value) for word in words if str(word.value).endswith(RUNNER))
    program, recipe = next(programs, None), given.get("recipe")
    if program is None or recipe is None:
        return None
    return named_recipe(recipe, program, path, environment)


_FORMATS = {
    "bf16": "bf16_mixed", "fp8cs": "bf16_with_fp8_current_scaling_mixed",
    "fp8ds": "bf16_with_fp8_delayed_scaling_mixed", "fp8mx": "bf16_with_mxfp8_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed", "fp8sc": "bf16_with_fp8_subchannel_scaling_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}  # fmt: skip
"""What the parts of recipes' names say (NVIDIA-NeMo/Megatron-Bridge@067f987d
src/megatron/bridge/recipes, src/megatron/bridge/perf_recipes)."""
_NO_FORMAT = ("fp8", "fp4", "fp16", "fp32")
_SAY_FORMAT = {"mixed_precision", "precision", "bf16", "fp16", "fp8", "fp4", "fp8_recipe"}


def _named_by(recipe: Fact, found: Mapping[str, Fact]) -> tuple[dict[str, Fact], list[Fact]]:
    """Format and optimizer that a recipe's name says and no override, and parts of the name that
    leave open which format is meant.
    """
    parts = str(recipe.value).lower().split("_")
    by_name: dict[str, Fact] = {}
    unread: list[Fact] = []
    if not any(_SAY_FORMAT & set(name.split(".")) for name in found):
        said = [part for part in parts if part in _FORMATS and part != "bf16"]
        if said or "bf16" in parts:
            by_name["mixed_precision"] = Fact(_FORMATS[(said or ["bf16"])[0]], recipe.line)
        elif open_ := [part for part in parts if part in _NO_FORMAT]:
            why = f"its name says {open_[0]}; mixed_precision=... states which"
            unread.append(Fact(f"recipe {shown(recipe.value)} ({why})", recipe.line))
    if "muon" in parts and "optimizer.optimizer" not in found:
        by_name["optimizer.optimizer"] = Fact("muon", recipe.line)
    return by_name, unread


_NO_OVERRIDE = re.compile(r"(~|--)(?:\w+\.)+\w+(?:=.*)?", re.S)


def _not_taken(words: Iterable[Fact]) -> Iterator[Fact]:
    """Words that take a field away (`~model.x`), or that Hydra's grammar refuses (`--model.x=1`):
    NVIDIA-NeMo/Megatron-Bridge hands what its parser does not know to Hydra's.
    """
    whys = {"~": "takes a field of the recipe away, which is not read",
            "--": "Hydra takes no dashes: write it without them"}  # fmt: skip
    for word in words:
        if match := _NO_OVERRIDE.fullmatch(str(word.value)):
            yield Fact(f"{shown(word.value)} ({whys[match[1]]})", word.line)


def _program(words: Iterable[Fact]) -> Iterator[Fact]:
    """A program whose file's name says that it trains a model with a tower, or no text."""
    for word in words:
        name = str(word.value).rpartition("/")[2]
        if name.endswith(".py"):
            if "scripts/performance/" in str(word.value):
                why = "its recipes and options, which are not read, set layout and precision"
                yield Fact(f"{shown(name)} ({why})", word.line)
            if _OTHERS.search(name.removesuffix(".py")):
                why = "its name says preferences, rewards or another loss: not modelled"
                yield Fact(f"{shown(name)} ({why})", word.line)
            if _TOWERS.search(name.removesuffix(".py")):
                why = "its name says images, sound or video: not modelled"
                yield Fact(f"{shown(name)} ({why})", word.line)
            return


def of_recipe(
    given: Mapping[str, Fact], found: Mapping[str, Fact]
) -> tuple[dict[str, Fact], tuple[Fact, ...]]:
    """What a recipe's name says beside the overrides `found`, and what the program's arguments
    `given` say that is not modelled.
    """
    unread = (*_towers(given), *_adapters(given, found))
    if (recipe := given.get("recipe")) is None:
        return {}, unread
    by_name, more = _named_by(recipe, found)
    return by_name, (*unread, *more)


def _composed(given: Mapping[str, Fact]) -> Iterator[Fact]:
    """A file that the words only override: Hydra's, or Megatron-Bridge's own (run_recipe.py,
    `--config-file`; facebookresearch/hydra `hydra/_internal/utils.py`, `--config-name`).
    """
    for name in ("config_name", "config_file"):
        if (stated := given.get(name)) is not None:
            why = "what these words do not replace is in that file; check it with them in it"
            yield Fact(f"--{name.replace('_', '-')} {shown(stated.value)} ({why})", stated.line)


def _groups(words: list[Fact]) -> Iterator[Fact]:
    """A file of Hydra's groups that overrides only change: `training=gpt3/20b` beside
    `training.model.micro_batch_size=2` (facebookresearch/hydra,
    `hydra/_internal/defaults_list.py`; NVIDIA/NeMo-Framework-Launcher `launcher_scripts/main.py`).
    """
    texts = [str(word.value).lstrip("+") for word in words]
    changed = {text.partition(".")[0] for text in texts if _OVERRIDE.match(text)}
    for word, text in zip(words, texts, strict=True):
        name, _, value = text.partition("=")
        if name in changed and value:
            why = "what these words do not replace is in that file; check it with them in it"
            yield Fact(f"{name}={shown(value)} ({why})", word.line)


def _towers(given: Mapping[str, Fact]) -> Iterator[Fact]:
    """A recipe, a step or a data set of a model with a tower (run_recipe.py, `--recipe`,
    `--step_func`, `--dataset`), and a step of somebody's own.
    """
    for name in ("recipe", "step_func", "dataset"):
        stated = given.get(name)
        if stated is None:
            continue
        word = str(stated.value).replace("-", "_")
        if _TOWERS.search(word) or "energon" in word:
            why = "a vision or sound tower is not read from a recipe"
            yield Fact(f"{name} {shown(stated.value)} ({why})", stated.line)
        elif name == "step_func" and word not in _TEXT_STEPS:
            why = f"not one of {', '.join(_TEXT_STEPS)}, which train by next tokens of text"
            yield Fact(f"{name} {shown(stated.value)} ({why})", stated.line)


def _adapters(given: Mapping[str, Fact], found: Mapping[str, Fact]) -> tuple[Fact, ...]:
    """A recipe of adapters that the overrides do not state: what has them is the recipe's own."""
    recipe = given.get("recipe") or given.get("peft_scheme")
    mode = given.get("mode")
    adapts = mode is not None and mode.value in ("lora", "dora")
    recipe = recipe or (mode if adapts else None)
    marked = "peft_scheme" in given or (recipe is not None and "_peft" in str(recipe.value))
    stated = any(name.startswith("peft.") for name in found)
    if mode is not None and mode.value == "dora":
        return (Fact("--mode dora (adapters other than LoRA are not modelled)", mode.line),)
    if recipe is None or not (marked or adapts) or stated:
        return ()
    why = "the adapters of this recipe are not stated; peft.dim=32 states them"
    return (Fact(f"{shown(recipe.value)} ({why})", recipe.line),)
