"""The options of verl's SFT trainers that go into a plan, by its names, where no reader takes them:
those of the trainer before, and of the engines but FSDP's (`verl.read` takes that one).

The script is followed, so variables and arrays have their values; of a key that is stated twice the
last one counts. What the script leaves out is the trainer's default. Micro-batches are packed up to
so many tokens of a GPU unless `data.use_dynamic_bsz` is off; only then does
`data.micro_batch_size_per_gpu` count, as it always did in the FSDP trainer before this one, whose
defaults changed between releases and are not said. Source: verl-project/verl@06bc583f
`verl/trainer/sft_trainer.py`, @059eb268 `verl/trainer/config/sft_trainer_engine.yaml`, @0db13434
`verl/trainer/config/model/hf_model.yaml`; volcengine/verl@17aa18cb
`verl/trainer/config/engine/fsdp.yaml`, @005a83db `verl/trainer/config/sft_trainer.yaml`.
"""

import re
from collections.abc import Mapping, Sequence

from meshplan.executor.frameworks.shell.script import read_script
from meshplan.planner.case.reading import UnreadableConfig

MODULE, BEFORE = "verl.trainer.sft_trainer", "verl.trainer.fsdp_sft_trainer"
_KEY = r"(?:data|engine|model)(?:\.\w+)*|ulysses_sequence_parallel_size"
_OPTION = re.compile(rf"\+{{0,2}}({_KEY})=(.*)", re.S)
_DEFAULTS = {
    "data.train_batch_size": "256", "data.max_token_len_per_gpu": "8192",
    "data.micro_batch_size_per_gpu": "4", "data.max_length": "1024",
}  # fmt: skip
_FIELDS = (
    ("model", "model.path"),
    ("model", "model.partial_pretrain"),
    ("engine", "engine"),
    ("tensor_parallel", "engine.tensor_model_parallel_size"),
    ("pipeline_parallel", "engine.pipeline_model_parallel_size"),
    ("context_parallel", "engine.context_parallel_size"),
    ("context_parallel", "engine.ulysses_sequence_parallel_size"),
    ("context_parallel", "ulysses_sequence_parallel_size"),
    ("expert_parallel", "engine.expert_model_parallel_size"),
    ("global_batch_size", "data.train_batch_size"),
    ("longest document", "data.max_length"),
    ("lora_rank", "model.lora_rank"),
    ("FSDP's weights", "engine.model_dtype"),
    ("recompute", "model.enable_gradient_checkpointing"),
)
_PACKED = (("tokens of a packed micro-batch and GPU", "data.max_token_len_per_gpu"),)
_COUNTED = (("micro_batch_size", "data.micro_batch_size_per_gpu"),)


def plan_fields(text: str, path: str) -> str:
    """What the script's last command of a trainer says of a plan; nothing where it cannot be
    followed.
    """
    try:
        commands = read_script(text, path=path).commands
    except UnreadableConfig:
        return ""
    said = (fields_of([str(word.value) for word in words]) for words in reversed(commands))
    return next(filter(None, said), "")


def fields_of(words: Sequence[str]) -> str:
    """What one command says; nothing where it starts neither trainer."""
    if MODULE not in words and BEFORE not in words:
        return ""
    stated = {each[1]: each[2] for each in map(_OPTION.fullmatch, words) if each}
    known = _with_defaults(stated) if MODULE in words else stated
    packed = MODULE in words and stated.get("data.use_dynamic_bsz", "True").lower() != "false"
    fields = _FIELDS + (_PACKED if packed else _COUNTED)
    return "; ".join(f"{ours}: {key}={known[key]}" for ours, key in fields if key in known)


def _with_defaults(stated: Mapping[str, str]) -> dict[str, str]:
    return {key: f"{value} by default" for key, value in _DEFAULTS.items()} | dict(stated)
