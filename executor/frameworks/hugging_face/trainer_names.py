"""The trainers of which a configuration is read: their names for what counts, and their marks."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """One trainer's names for what counts.

    marks  keys of which a file of this trainer has all of one group
    lists  files of this folder that judge the keys nobody reads
    liger  its switch of Liger's product with its loss
    states_sharding
           no word of DeepSpeed or FSDP means none; of the others an Accelerate file may say it
    checkpoints
           all layers recompute where the file does not say
    bf16_weights
           `bf16` loads all weights so, where neither FSDP nor DeepSpeed keeps fp32 ones (axolotl
           src/axolotl/utils/config/__init__.py, `torch_dtype`); the others' scripts choose
    """

    name: str
    marks: tuple[frozenset[str], ...]
    lists: tuple[str, ...]
    model: str = "model_name_or_path"
    seq_len: str = ""
    micro_batch: str = "per_device_train_batch_size"
    optimizer: str = "optim"
    liger: str = "use_liger_kernel"
    checkpoints: bool = False
    states_sharding: bool = False
    bf16_weights: bool = False


_TRL = (
    *("accelerate_config", "assistant_only_loss", "chat_template", "completion_only_loss"),
    *("dataset_config", "dataset_kwargs", "dataset_mixer", "dataset_mixture", "dataset_num_proc"),
    *("dataset_text_field", "dataset_train_split", "hub_model_revision", "max_completion_length"),
    *("max_prompt_length", "model_revision", "num_generations", "packing_strategy", "use_peft"),
)
"""Keys that TRL has and transformers' `TrainingArguments` have not."""

LENGTHS = ("max_length", "model_max_length", "block_size")
"""What programs call the tokens of a sequence, beside their trainer."""

TRAINERS = (
    Trainer(
        name="llama-factory",
        marks=(frozenset(("model_name_or_path", "stage", "finetuning_type")),),
        lists=("llama_factory_keys.toml", "hf_trainer_keys.toml"), seq_len="cutoff_len",
        liger="enable_liger_kernel",
    ),
    Trainer(
        name="axolotl",
        marks=(frozenset(("base_model", "datasets")), frozenset(("base_model", "sequence_len")),
               frozenset(("base_model", "pretraining_dataset"))),
        lists=("axolotl_keys.toml", "hf_trainer_keys.toml"), model="base_model",
        seq_len="sequence_len", micro_batch="micro_batch_size", optimizer="optimizer",
        liger="liger_fused_linear_cross_entropy", states_sharding=True, bf16_weights=True,
    ),
    Trainer(
        name="trl", marks=tuple(frozenset(("model_name_or_path", key)) for key in _TRL),
        lists=("trl_keys.toml", "hf_trainer_keys.toml"), seq_len="max_seq_length",
        checkpoints=True,
    ),
    Trainer(
        name="hf-trainer",
        marks=(frozenset(("per_device_train_batch_size", "output_dir")),
               frozenset(("per_device_train_batch_size", "gradient_accumulation_steps"))),
        lists=("hf_trainer_keys.toml",), seq_len="max_seq_length",
    ),
)  # fmt: skip


def claims_of(trainer: Trainer, name: str, text: str) -> bool:
    """Whether a YAML or JSON file states the keys that mark this trainer."""
    if not name.endswith((".yaml", ".yml", ".json")):
        return False
    pattern = r'"([A-Za-z_]\w*)"\s*:' if name.endswith(".json") else r"^([A-Za-z_]\w*)\s*:"
    keys = set(re.findall(pattern, text, re.M))
    return any(mark <= keys for mark in trainer.marks)
