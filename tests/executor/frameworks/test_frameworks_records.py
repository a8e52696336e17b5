"""What a run wrote about itself, sections that a launcher never reads, and names of folders."""

import json
from pathlib import Path

import pytest
from unread import unread_of

from meshplan.executor.frameworks import read_config
from meshplan.hardware_profiles.load_models import in_catalogue
from meshplan.planner.case.reading import NothingToRead, Start, UnreadableConfig

STATE = {
    "global_step": 3, "train_batch_size": 2, "gradient_accumulation_steps": 1,
    "per_device_train_batch_size": 2, "log_history": [{"loss": 1.0, "step": 3}],
}  # fmt: skip
ARGUMENTS = ["--model_name_or_path", "x", "--per_device_train_batch_size", "2"]
WANDB = """_wandb:
    value:
        cli_version: 0.23.1
per_device_train_batch_size:
    value: 2
output_dir:
    value: out
"""


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("checkpoint-3/trainer_state.json", json.dumps(STATE, indent=2), "meshplan learn"),
        ("files/config.yaml", WANDB, "W&B wrote of a run"),
        ("files/wandb-metadata.json", json.dumps(
            {"startedAt": "2025-01-01", "args": ARGUMENTS, "program": "accelerate launch a.py"},
            indent=2), "W&B wrote of a run"),
    ],
    ids=["trainer_state.json", "W&B's config.yaml", "W&B's metadata"],
)  # fmt: skip
def test_a_record_of_a_run_is_no_configuration(name: str, text: str, said: str) -> None:
    """In a folder of checkpoints it is skipped."""
    with pytest.raises(NothingToRead, match=said):
        read_config(text, name)


def test_arguments_with_a_key_of_a_record_are_still_read() -> None:
    """`global_step` or `_wandb` alone makes none."""
    text = "model_name_or_path: Qwen/Qwen3-8B\nper_device_train_batch_size: 2\noutput_dir: x\n"
    reading = read_config(f"{text}_wandb: 1\n", "a.yaml", None, Start(launched_by="none"))
    assert reading.facts["micro_batch_size"].value == 2


ACCELERATE = """distributed_type: DEEPSPEED
num_processes: 2
mixed_precision: bf16
deepspeed_config:
  zero_stage: 3
  zero_optimization:
    stage: 2
    offload_param:
      device: cpu
  optimizer:
    type: AdamW
  train_micro_batch_size_per_gpu: 8
"""


def test_accelerate_takes_nothing_of_deepspeeds_own_sections() -> None:
    """Neither the stage nor the weights on the host that a section says."""
    reading = read_config(ACCELERATE, "accelerate.yaml")
    assert reading.facts["zero_stage"].value == 3
    assert unread_of(reading) == ""
    assert [note for note in reading.notes if "zero_optimization, optimizer" in note]
    plain = read_config(ACCELERATE.partition("  zero_opt")[0], "accelerate.yaml")
    assert not any("Accelerate takes nothing" in note for note in plain.notes)


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("models/AI-ModelScope/Llama-3___2-3B-Instruct", "llama-3.2-3b"),
        ("../model_hub/Qwen2___5-Coder-7B", "qwen2.5-7b"),
        ("qwen/Qwen1___5-1___8B", None),
        ("LLM-Research/Mistral-7B-Instruct-v0___3", None),
    ],
)
def test_a_folder_of_modelscope_has_three_lines_for_a_point(folder: str, name: str | None) -> None:
    """`Llama-3.2` as `Llama-3___2`."""
    assert in_catalogue(folder) == name


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("litgpt finetune_full --config full.yaml\n", "LitGPT"),
        ("srun litgpt pretrain pythia-14m --data TextFiles\n", "LitGPT"),
        ("deepspeed cli/train_sft.py --pretrain meta-llama/Llama-3.1-8B \\\n"
         "  --micro_train_batch_size 1 --train_batch_size 64 --zero_stage 3\n", "OpenRLHF"),
    ],
)  # fmt: skip
def test_programs_that_are_refused_by_name(tmp_path: Path, text: str, said: str) -> None:
    """By their commands and arguments, wherever the program lies."""
    with pytest.raises(UnreadableConfig, match=f"{said}: not read"):
        read_config(text, str(tmp_path / "run.sh"))
