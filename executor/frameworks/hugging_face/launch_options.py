"""What `accelerate launch` says on its command line: its options by the names of its YAML.

    accelerate launch --use_deepspeed --zero_stage 3 --num_processes 8 train.py ...
    accelerate launch --config_file fsdp.yaml --fsdp_reshard_after_forward false train.py ...

An option wins over the file. `use_deepspeed` without a stage is ZeRO-2.

Source: huggingface/accelerate@16cb6eb8 src/accelerate/commands/launch.py (the options,
_validate_launch_command), utils/dataclasses.py (DeepSpeedPlugin, zero_stage).
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from meshplan.executor.frameworks.documents.nested import as_yaml
from meshplan.executor.frameworks.documents.parse import read_yaml
from meshplan.executor.frameworks.documents.values import Values
from meshplan.executor.frameworks.hugging_face.nearby import Nearby
from meshplan.planner.case.reading import Fact

OPTIONS = "the options of accelerate launch"
_JSON = "accelerate launch: deepspeed_config_file.json"
_DEEPSPEED = "deepspeed_config"
_OF_DEEPSPEED = (
    "zero_stage", "offload_optimizer_device", "offload_param_device", "gradient_accumulation_steps",
    "deepspeed_config_file",
)  # fmt: skip
_KINDS = {
    "use_deepspeed": "DEEPSPEED", "use_fsdp": "FSDP", "use_megatron_lm": "MEGATRON_LM",
    "multi_gpu": "MULTI_GPU",
}  # fmt: skip
_FILE = f"{_DEEPSPEED}.deepspeed_config_file"

ALL_OF_A_MACHINE = ("gpu", "auto", "cuda")
"""Accelerate's and torchrun's words for as many processes as a machine has GPUs."""


def processes_of(values: Values) -> Fact | None:
    """`num_processes`: GPUs of all machines; None where the machine, or a command that the script
    runs (`$(nvidia-smi -L | wc -l)`), says how many.
    """
    values.asked.add("num_processes")
    stated = values.found.get("num_processes")
    if stated is None or stated.value in ALL_OF_A_MACHINE or "$(" in str(stated.value):
        return None
    count = values.count("num_processes", least=-1)
    return count if count and count.value > 0 else None


def processes_launched(launcher: Mapping[str, Fact]) -> Fact | None:
    """The same of the launcher's own words; None where the script leaves them open (`$N`)."""
    stated = launcher.get("num_processes")
    if stated is not None and "$" in str(stated.value):
        return None
    return processes_of(Values(launcher))


def with_options(given: Mapping[str, Fact], near: Nearby) -> tuple[dict[str, Fact], Nearby]:
    """The launcher's arguments, and `near` with a file `OPTIONS` where some of them, or a DeepSpeed
    file that Accelerate's names, decide how the run is sharded. Raises `UnreadableConfig`.
    """
    stated = _by_name(given)
    file = given.get("config_file")
    text = near.text(str(file.value)) if file is not None else ""
    if text is None:  # named by who looks for it
        return dict(given), near
    inside = {name: fact.value for name, fact in read_yaml(text).items()} if text else {}
    kindless = not inside and "distributed_type" not in stated  # a file of the user's may say it
    if kindless or not (stated or _FILE in inside):
        return dict(given), near
    flat = _leaves({**inside, **stated})
    if flat.get("distributed_type") == "DEEPSPEED":
        flat.setdefault(f"{_DEEPSPEED}.zero_stage", 2)
    processes = flat.get("num_processes")
    added = dict(given)
    if processes is not None:
        added.setdefault("num_processes", Fact(processes, file.line if file else 1))
    named = flat.get(_FILE)
    inner = None if named is None else near.text(str(named))
    name, written = (OPTIONS, as_yaml(flat)) if inner is None else (_JSON, inner)
    return added, replace(near, written={**near.written, name: written})


def with_precision(stated: Mapping[str, Fact], given: Mapping[str, Fact]) -> dict[str, Fact]:
    """A program's arguments, with the launcher's format where they state none: the Trainer
    keeps it (transformers 5.23 training_args.py, ACCELERATE_MIXED_PRECISION).
    """
    word = given.get("mixed_precision")
    formats = ("bf16", "fp16", "fp8")
    if word is None or word.value not in formats or stated.keys() & set(formats):
        return dict(stated)
    return {**stated, str(word.value): Fact(True, word.line)}


def launcher_of(near: Nearby) -> str | None:
    """The name of the file that `with_options` added; None where it added none."""
    return next((name for name in (OPTIONS, _JSON) if name in near.written), None)


def _by_name(given: Mapping[str, Fact]) -> dict[str, object]:
    """The options that decide how the run is sharded, by the names of the YAML."""
    found: dict[str, object] = {}
    for option, fact in given.items():
        section = _section(option)
        if section is not None:
            found[f"{section}{option}"] = _plain(fact.value)
    kinds = [kind for option, kind in _KINDS.items() if option in given]
    if kinds:
        found["distributed_type"] = kinds[0]
    return found


def _section(option: str) -> str | None:
    if option.startswith("fsdp_"):
        return "fsdp_config."
    if option.startswith("parallelism_config_"):
        return "parallelism_config."
    if option in _OF_DEEPSPEED:
        return f"{_DEEPSPEED}."
    return "" if option == "mixed_precision" else None


def _plain(value: object) -> object:
    """A word of the command line as YAML has it; `no` stays the word that it is."""
    if not isinstance(value, str):
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    return int(value) if re.fullmatch(r"[0-9]{1,9}", value) else value


def _leaves(found: Mapping[str, object]) -> dict[str, object]:
    """The entries that no other one lies below."""
    above = {name.rpartition(".")[0] for name in found}
    return {name: value for name, value in found.items() if name not in above}
