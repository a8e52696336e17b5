"""ms-swift's `swift sft` and `swift pt`, in scripts and in YAML: read, not written.

    theirs                                  ours
    model, max_length, packing_length       model, seq_len
    per_device_train_batch_size (1)         micro_batch_size
    gradient_accumulation_steps             num_micro_batches; without it at least 16 sequences a
                                            step: ceil(16 / micro-batch / processes)
    torch_dtype (the checkpoint's)          precision; without DeepSpeed or FSDP of the weights too
    gradient_checkpointing (on)             recompute full
    deepspeed zero0 ... zero3_offload       its own JSON of that name; a path, that file
    fsdp fsdp2, or a file of JSON           zero_stage 3, recompute full; what the file says
    tuner_type, train_type before 4 (lora)  lora: rank 8 beside all-linear, dropout 0.05; full
    NPROC_PER_NODE, NNODES                  gpus: with either set `swift` starts torchrun

All run Hugging Face's Trainer, and are priced as the other trainers are (`trainers`). The loss
takes logits of the trained tokens alone where it can (`use_logits_to_keep`), which no price holds.
Refused by name: ms-swift 2, whose arguments have other names, reinforcement learning, and
`megatron sft`, Megatron-LM's trainer with defaults of its own.

Source: modelscope/ms-swift v3.0.0, v3.9.3 (swift/llm/argument, swift/trainers/arguments.py,
swift/llm/ds_config) and v4.5.2 (swift/arguments, swift/config, swift/cli/main.py).
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshplan.executor.frameworks.documents.beside import beside
from meshplan.executor.frameworks.documents.parse import read_yaml
from meshplan.executor.frameworks.documents.values import Values, put, shown
from meshplan.executor.frameworks.hugging_face.launch_options import (
    processes_launched,
    with_options,
)
from meshplan.executor.frameworks.hugging_face.nearby import Nearby, known_files
from meshplan.executor.frameworks.hugging_face.trainer_command import launcher_file
from meshplan.executor.frameworks.hugging_face.trainer_file import facts_of, file_word, which_file
from meshplan.executor.frameworks.hugging_face.trainer_names import Trainer
from meshplan.executor.frameworks.hugging_face.trainers import read_values
from meshplan.executor.frameworks.shell.launching.arguments import Arguments, arguments
from meshplan.executor.frameworks.shell.launching.gpus import gpus_of
from meshplan.executor.frameworks.shell.launching.launches import (
    first_of,
    left_open,
    needed,
    said_elsewhere,
)
from meshplan.executor.frameworks.shell.launching.starters import open_count
from meshplan.executor.frameworks.shell.record import Script
from meshplan.executor.frameworks.shell.script import SCRIPTS, read_script
from meshplan.executor.frameworks.swift.fsdp import fsdp_of
from meshplan.planner.case.config_files import text_of
from meshplan.planner.case.reading import Fact, NothingToRead, Reading, Start, UnreadableConfig

_COMMAND = re.compile(r"^[ \t]*(?:[^#\n]*[ \t;&])?swift\)?[ \t]+(?:sft|pt)\b", re.M)
_PROGRAM = re.compile(r"(?:^|/)swift/cli/(?:sft|pt)\.py$")
_PROGRAMS = re.compile(r"^[^#\n]*\bswift/cli/(?:sft|pt)\.py\b", re.M)
_KEYS = re.compile(r"^([A-Za-z_]\w*)[ \t]*:", re.M)
_VERSION_2 = ("sft_type", "model_id_or_path", "template_type", "train_dataset_sample", "dtype")
_TRAINER = Trainer(
    name="ms-swift", marks=(), lists=("swift_keys.toml", "hf_trainer_keys.toml"), model="model",
    seq_len="packing_length", checkpoints=True, states_sharding=True, bf16_weights=True,
)  # fmt: skip
_SEQUENCES = 16  # of a step, where no accumulation is stated
_FORMATS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp16"}
"""What is autocast to, by `torch_dtype` (`_init_mixed_precision`)."""
_ZERO: Mapping[str, Mapping[str, Any]] = {
    **{f"zero{stage}": {"stage": stage} for stage in range(4)},
    "zero2_offload": {"stage": 2, "offload_optimizer.device": "cpu"},
    "zero3_offload": {"stage": 3, "offload_optimizer.device": "cpu", "offload_param.device": "cpu"},
}
"""Of the JSON files that it brings along, what a price depends on, beside `_ALONE`."""
_ALONE = {"overlap_comm": False}
"""In all of them: modelscope/ms-swift@3602360 swift/config/zero0.json to zero3_offload.json."""
_SAID_BY = {
    "model": "model", "per_device_train_batch_size": "micro_batch_size", "max_length": "seq_len",
    "gradient_accumulation_steps": "global_batch_size",
}  # fmt: skip


def claims(name: str, text: str) -> bool:
    """Whether a script runs `swift sft` or `swift pt`, or a YAML file holds its arguments."""
    if name.endswith(SCRIPTS):
        return bool(_COMMAND.search(text) or _PROGRAMS.search(text))
    keys = set(_KEYS.findall(text)) if name.endswith((".yaml", ".yml")) else set()
    return "model" in keys and bool(keys & {"tuner_type", "train_type"})


def read(text: str, path: str, start: Start | None = None) -> Reading:
    """The launches of a script, or a YAML file; raises `UnreadableConfig` and `IllegalConfig`."""
    if not path.endswith(SCRIPTS):
        found = read_yaml(text)
        launch = {name[4:]: fact for name, fact in found.items() if name.startswith("ENV.")}
        stated = {name: fact for name, fact in found.items() if not name.startswith("ENV")}
        return _reading(Values(_translated(stated)), stated, launch, Nearby(Path(path)), start)
    script = read_script(text, start.environment if start else None, path)
    launches = [
        (words, held)
        for words, held in zip(script.commands, script.beside, strict=True)
        if _arguments_at(words)
    ]
    if not launches:
        raise NothingToRead("no command of this script runs `swift sft` or `swift pt`")
    commands, more = first_of(launches)
    first, *others = (_case(*each, script, path, text, start) for each in commands)
    return replace(first, others=tuple(others), notes=(*more, *first.notes))


def _arguments_at(words: list[Fact]) -> int:
    """Where the arguments begin, behind `swift sft` or its program; 0: the command is another."""
    texts = [str(word.value) for word in words]
    for at, text in enumerate(texts):
        named = text.rpartition("/")[2] == "swift" and texts[at + 1 : at + 2] in (["sft"], ["pt"])
        if named or _PROGRAM.search(text):
            return at + 2 if named else at + 1
    return 0


def _case(
    words: list[Fact], held: dict[str, Fact], script: Script, path: str, text: str,
    start: Start | None,
) -> Reading:  # fmt: skip
    at, near = _arguments_at(words), Nearby(Path(path), script.files_of(words))
    said, in_file, its = _with_file(words[at:], near)
    stated = needed(said, start, _SAID_BY)
    if "model" not in said and not said.keys() & set(_VERSION_2):
        raise UnreadableConfig("no --model in the command: its arguments are left to the script's "
                               "start", words[0].line)  # fmt: skip
    given, near = with_options(arguments(words[:at]), near)
    stated, near = known_files(stated, near)
    known = Values(given)
    gpus = (gpus_of(known, text) or processes_launched(given)) if given else None
    launch = {**in_file, **held, **({"gpus": gpus} if gpus else {})}
    named, unread = launcher_file(given, near, start) if given else ("", ())
    begun = replace(start or Start(), launched_by=named)
    values = Arguments(_translated(stated), script.waits, _SAID_BY)
    reading = _reading(values, stated, launch, near, begun)
    notes = (*script.notes, *left_open([words]), *its, *reading.notes)
    facts = dict(reading.facts)
    put(facts, gpus_open=open_count(known))
    unread = (*unread, *said_elsewhere(words, script.missed), *reading.unread)
    return replace(reading, facts=facts, notes=notes, unread=unread)


def _with_file(
    words: list[Fact], near: Nearby
) -> tuple[dict[str, Fact], dict[str, Fact], tuple[str, ...]]:
    """The arguments with those of the file that they name, the environment that it sets, and a note
    which file it is.
    """
    named = file_word(words)
    if named is None:
        return arguments(words), {}, ()
    here = near.here(str(named.value))
    found = beside(str(named.value), near.path) if here is None else near.path
    if found is None:
        raise NothingToRead(f"{shown(named.value)} is not below this file or a folder above it: "
                            "check that file itself", named.line)  # fmt: skip
    facts = facts_of(words, named, text_of(found) if here is None else here)
    launch = {name[4:]: fact for name, fact in facts.items() if name.startswith("ENV.")}
    own = {name: fact for name, fact in facts.items() if not name.startswith("ENV")}
    return own, launch, (which_file(found, named, near),)


def _translated(stated: Mapping[str, Fact]) -> dict[str, Fact]:
    """The arguments by the names of the other trainers, with ms-swift's defaults."""
    old = [stated[name] for name in _VERSION_2 if name in stated]
    if old:
        raise UnreadableConfig("arguments of ms-swift 2: not read; those of 3 and 4 are",
                               old[0].line)  # fmt: skip
    found = dict(stated)
    kinds = [found.pop(name) for name in ("tuner_type", "train_type") if name in found]
    found["finetuning_type"] = kinds[0] if kinds else Fact("lora", 1)
    found.setdefault("per_device_train_batch_size", Fact(1, 1))
    dtype = found.pop("torch_dtype", None)
    dtype = dtype if dtype and dtype.value is not None else None
    if not {"bf16", "fp16"} & found.keys():
        said = dtype or Fact("bfloat16", 1)
        word = _FORMATS.get(str(said.value))
        found |= {word: Fact(True, said.line)} if word else {"torch_dtype": said}
    zero = found.get("deepspeed")
    if zero is not None and str(zero.value) in _ZERO:
        del found["deepspeed"]
        for name, value in (_ALONE | {**_ZERO[str(zero.value)]}).items():
            found[f"deepspeed.zero_optimization.{name}"] = Fact(value, zero.line)
        for name in ("bf16", "fp16"):
            found[f"deepspeed.{name}.enabled"] = Fact("auto", zero.line)
    return found


def _reading(
    values: Values, stated: Mapping[str, Fact], launch: Mapping[str, Fact], near: Nearby,
    start: Start | None,
) -> Reading:  # fmt: skip
    launched = start is not None and start.launched_by != ""
    gpus, placed = (launch.get("gpus"), []) if launched else _processes(launch, str(near.path))
    values.word(_FORMATS, "torch_dtype")  # there only where it is none of them: refused
    accumulated = values.found.get("gradient_accumulation_steps")
    micro = values.count("per_device_train_batch_size")
    if accumulated is None and gpus is not None and micro is not None:
        steps = -(-_SEQUENCES // (micro.value * gpus.value))
        values.found = {**values.found, "gradient_accumulation_steps": Fact(steps, 1)}
    keys, unfound = fsdp_of(stated["fsdp"], near) if stated.get("fsdp") else ({}, [])
    values.found = {**values.found, **keys}
    reading = read_values(_TRAINER, values, near, start.launched_by if start else "")
    facts = dict(reading.facts)
    notes = [*reading.notes]
    if "torch_dtype" not in stated and not {"bf16", "fp16"} & stated.keys():
        notes.append("torch_dtype is not stated: the checkpoint's, taken to be bfloat16")
    if gpus is not None:
        facts = {"gpus": gpus, **facts}
    if accumulated is None and gpus is None:
        del facts["num_micro_batches"]
        notes.append("gradient_accumulation_steps is not stated: as many as make 16 sequences")
    return replace(
        reading, facts=facts, notes=tuple(notes), unread=(*placed, *unfound, *reading.unread)
    )


def _processes(launch: Mapping[str, Fact], path: str) -> tuple[Fact | None, list[Fact]]:
    """The GPUs by torchrun's arguments or by the environment's, and what is named: one process for
    several GPUs places layers on them (`device_map`). A YAML file leaves them to its start.
    """
    if "gpus" in launch:
        return launch["gpus"], []
    if not path.endswith(SCRIPTS) and "NPROC_PER_NODE" not in launch:
        return None, []
    each, nodes = launch.get("NPROC_PER_NODE"), launch.get("NNODES")
    visible = launch.get("CUDA_VISIBLE_DEVICES")
    seen = len(str(visible.value).split(",")) if visible and "$" not in str(visible.value) else 0
    if each is None and nodes is None:
        if seen == 1 and visible is not None:
            return Fact(1, visible.line), []
        why = "not set: one process would place layers on the GPUs that it sees, not modelled"
        return None, [Fact(f"NPROC_PER_NODE ({why}; --env NPROC_PER_NODE=8 sets it)", 1)]
    counts = Values({name: fact for name, fact in launch.items() if "$" not in str(fact.value)})
    per_node, machines = counts.count("NPROC_PER_NODE"), counts.count("NNODES")
    if (each is not None and per_node is None) or (nodes is not None and machines is None):
        return None, []
    one = Fact(1, 1)
    processes = (per_node or one).value
    line = (each or nodes or one).line
    if seen > processes:
        why = f"fewer than the {seen} GPUs that CUDA_VISIBLE_DEVICES names: layers are placed"
        return None, [Fact(f"NPROC_PER_NODE {processes} ({why})", line)]
    return Fact(processes * (machines or one).value, line), []
