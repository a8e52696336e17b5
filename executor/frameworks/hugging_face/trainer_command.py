"""Scripts that launch a program with the arguments of transformers' Trainer.

    torchrun --nproc_per_node=8 train.py --per_device_train_batch_size 2 --fsdp "full_shard" ...
    accelerate launch --config_file zero3.yaml -m pkg.train --per_device_train_batch_size 2 ...
    deepspeed --num_gpus 8 train.py --deepspeed zero3.json --per_device_train_batch_size 2 ...
    llamafactory-cli train --stage sft --finetuning_type lora --per_device_train_batch_size 2 ...

The arguments are `TrainingArguments` (transformers 5.23, training_args.py) and a program's own, of
which those that are in no list make the verdict incomplete. The files that a command names are
looked for beside the script and below the folders above it.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from meshplan.executor.frameworks.documents.beside import beside
from meshplan.executor.frameworks.documents.values import Values, put, shown
from meshplan.executor.frameworks.hugging_face.launch_options import (
    launcher_of,
    processes_launched,
    with_options,
    with_precision,
)
from meshplan.executor.frameworks.hugging_face.nearby import Nearby, known_files
from meshplan.executor.frameworks.hugging_face.trainer_names import LENGTHS, TRAINERS, Trainer
from meshplan.executor.frameworks.hugging_face.trainers import read_values
from meshplan.executor.frameworks.shell.launching.arguments import (
    Arguments,
    arguments,
    launcher_arguments,
)
from meshplan.executor.frameworks.shell.launching.gpus import launched
from meshplan.executor.frameworks.shell.launching.hosts import seen_by_deepspeed
from meshplan.executor.frameworks.shell.launching.launches import (
    first_of,
    is_launched,
    launches,
    left_open,
    needed,
    said_elsewhere,
)
from meshplan.executor.frameworks.shell.record import Script
from meshplan.executor.frameworks.shell.script import SCRIPTS, read_script
from meshplan.planner.case.reading import Fact, NothingToRead, Reading, Start, UnreadableConfig

MARK = "--per_device_train_batch_size"
_DASHED = "--per-device-train-batch-size"
"""The same, as `HfArgumentParser` takes it too (transformers 5.23, hf_argparser.py)."""
_TRAINER = replace(
    next(each for each in TRAINERS if each.name == "hf-trainer"),
    lists=("hf_program_keys.toml", "hf_trainer_keys.toml"),
)
_FACTORY, _TRL = (next(each for each in TRAINERS if each.name == name)
                  for name in ("llama-factory", "trl"))  # fmt: skip
"""Whose programs have their own arguments beside the Trainer's: the keys of their YAML."""
_IS_TRL = re.compile(r"sft|(?:.*/)?(?:trl|examples)/scripts/sft\.py|trl\.scripts\.sft")
"""`trl sft`, and the program that it starts (huggingface/trl@f2cd5771 trl/scripts/sft.py; in 2024
examples/scripts/sft.py)."""
_ACCUMULATED = "gradient_accumulation_steps"
_SAID_BY = {
    _TRAINER.model: "model", _TRAINER.micro_batch: "micro_batch_size",
    _ACCUMULATED: "global_batch_size",
    **dict.fromkeys((_TRAINER.seq_len, *LENGTHS), "seq_len"),
}  # fmt: skip
"""Arguments, and the options that say the same."""


def claims(name: str, text: str) -> bool:
    """Whether a script's text has the Trainer's batch and no launch of a format of its own."""
    return name.endswith(SCRIPTS) and (MARK in text or _DASHED in text)


def read(text: str, path: str, start: Start | None = None) -> Reading:
    """The script's launches, each a case; raises `UnreadableConfig` and `IllegalConfig`."""
    script = read_script(text, start.environment if start else None, path)
    if not is_launched(script, _is_mark):
        raise NothingToRead(f"no command of this script takes {MARK}")
    commands, more = first_of(launches(script, _is_mark))
    first, *others = (_case(words, script, path, text, start) for words in commands)
    return replace(first, others=tuple(others), notes=(*more, *first.notes))


def _is_mark(word: str) -> bool:
    return word.partition("=")[0] in (MARK, _DASHED)


def _case(words: list[Fact], script: Script, path: str, text: str, start: Start | None) -> Reading:
    at = program_at(words)
    if at is None:
        raise UnreadableConfig("no Python program in the command that trains", words[0].line)
    began = launcher_arguments(words[:at], script.inherited_by(words))
    launcher, near = with_options(began, Nearby(Path(path), script.files_of(words)))
    stated = with_precision(_model_named(arguments(words[at + 1 :])), launcher)
    stated, near = known_files(stated, near)
    values = Arguments(needed(stated, start, _SAID_BY), script.waits, _SAID_BY)
    values.asked.add("")
    own = str(words[at].value) == "train"  # llamafactory-cli starts torchrun itself (launcher.py)
    named, unread = ("none", ()) if own else launcher_file(launcher, near, start)
    trainer = _trainer_of(words[at], stated)
    reading = read_values(trainer, values, near, named)
    launcher |= seen_by_deepspeed(words[:at], launcher, script.held_by(words))
    begun = launched(Values(launcher), text, read=near.text)
    foreign = trainer is _TRAINER
    unread += other_training(words[at], adapters=foreign)
    unread += tuple(said_elsewhere(words, script.missed))
    assumed = (next_tokens(words[at]),) if foreign else ()
    notes = (*script.notes, *left_open([words]), *reading.notes, *assumed)
    facts = {**begun, **reading.facts}
    put(facts, gpus=processes_launched(launcher))  # accelerate launch: all of them
    if _ACCUMULATED in stated.keys() - values.found.keys():
        del facts["num_micro_batches"]
    return replace(reading, facts=facts, notes=notes, unread=(*unread, *reading.unread))


def _trainer_of(program: Fact, stated: Mapping[str, Fact]) -> Trainer:
    """Whose arguments and defaults the program has."""
    if any(mark <= stated.keys() for mark in _FACTORY.marks):
        return _FACTORY
    return of_trl(program) or _TRAINER


def of_trl(program: Fact) -> Trainer | None:
    """TRL where the program is its own, whose arguments it has whatever keys a file states."""
    return _TRL if _IS_TRL.fullmatch(str(program.value)) else None


_MODEL_NAMES = ("model_name", "model_path", "model_id", "model", "base_model", "model_dir")
"""What programs call the model, where no argument is transformers' `model_name_or_path`."""


def _model_named(stated: dict[str, Fact]) -> dict[str, Fact]:
    """The arguments with the model by transformers' name."""
    other = next((name for name in _MODEL_NAMES if name in stated), None)
    if other is None or _TRAINER.model in stated:
        return stated
    return {_TRAINER.model if name == other else name: fact for name, fact in stated.items()}


_OTHER_TRAINING = re.compile(
    r"(?:^|[_.-])(?:dpo|grpo|gspo|ppo|orpo|kto|simpo|cpo|rloo|rlhf|reward|rm|mlm|glue|ner|squad|qa"
    r"|seq2seq|embedd(?:ing|er)s?|retriever|reranker)(?=[_.-])|classif|distill",
    re.I,
)


def next_tokens(program: Fact) -> str:
    """What is assumed of a program of somebody's own."""
    return f"{program.value} is taken to train all weights of one model by next tokens: assumed"


_ADAPTS = re.compile(r"(?:^|[_.-])(?:q?lora|peft|adapters?)(?=[_.-])", re.I)


def other_training(program: Fact, *, adapters: bool = True) -> tuple[Fact, ...]:
    """A program whose name says that it does not train by next tokens; or, with `adapters`, that it
    trains adapters, which are its own.
    """
    name = str(program.value).rpartition("/")[2]
    said = {
        "its name says another training than by next tokens": _OTHER_TRAINING,
        "its name says adapters, and what this program adapts is not known": _ADAPTS,
    }
    found = [why for why, mark in said.items() if mark.search(f"{name}.")]
    kept = (why for why in found if adapters or said[why] is not _ADAPTS)
    return tuple(Fact(f"{shown(name)} ({why})", program.line) for why in kept)


_COMMANDS = (("llamafactory-cli", "train"), ("axolotl", "train"), ("trl", "sft"))
"""Programs with the word that trains."""
_LAUNCHERS = ("torch.distributed.", "accelerate.", "deepspeed.launcher")


def program_at(words: list[Fact]) -> int | None:
    """Where the program stands: a file, or `-m` with a module that is no launcher itself."""
    texts = [str(word.value) for word in words]
    for at, text in enumerate(texts):
        module = texts[at - 1] in ("-m", "--module") and at > 0
        factory = at > 0 and (texts[at - 1].rpartition("/")[2], text) in _COMMANDS
        if text.endswith(".py") or factory or (module and not text.startswith(_LAUNCHERS)):
            return at
    return None


def launcher_file(
    given: dict[str, Fact], near: Nearby, start: Start | None
) -> tuple[str, tuple[Fact, ...]]:
    """The launcher's file: as the user says, or as `accelerate launch --config_file` names it.

    torchrun's and DeepSpeed's launchers shard nothing by themselves.
    """
    if start and start.launched_by:
        return start.launched_by, ()
    own, stated = launcher_of(near), given.get("config_file")
    if own is not None:
        return own, ()
    if stated is None:
        accelerated = any(name.startswith(("use_fsdp", "use_deepspeed", "fsdp_", "zero_"))
                          for name in given)  # fmt: skip
        known = given.keys() & {"nproc_per_node", "num_gpus", "num_nodes", "include", "hostfile"}
        return ("none" if known and not accelerated else ""), ()
    if near.here(str(stated.value)) is not None:
        return str(stated.value), ()
    found = beside(str(stated.value), near.path)
    if found is not None:
        return str(found), ()
    why = "not below this file or a folder above it: give it by --launched-by FILE"
    return "none", (Fact(f"--config_file {shown(stated.value)} ({why})", stated.line),)
