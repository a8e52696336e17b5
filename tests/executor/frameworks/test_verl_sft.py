"""What is said of scripts of verl's SFT trainers. Run: pytest tests/executor/frameworks."""

import pytest

from meshplan.executor.frameworks import read_config
from meshplan.planner.case.reading import UnreadableConfig

# verl-project/verl@5cac7f89 examples/sft/gsm8k/run_qwen3_8b_fsdp.sh, in short
SCRIPT = """\
if [ "$#" -lt 2 ]; then exit 1; fi
SP_SIZE=${{SP_SIZE:-2}}
extra=("model.lora_rank=32")
torchrun --nproc_per_node=$1 -m verl.trainer.{trainer} {options} \\
    data.micro_batch_size_per_gpu=64 data.train_batch_size=128 data.train_batch_size=512 \\
    {prefix}ulysses_sequence_parallel_size=${{SP_SIZE}} "${{extra[@]}}" "$@"
"""


def said(trainer: str, options: str = "", prefix: str = "engine.") -> list[str]:
    """The fields that the refusal names."""
    text = SCRIPT.format(trainer=trainer, options=options, prefix=prefix)
    with pytest.raises(UnreadableConfig) as refusal:
        read_config(text, "run.sh")
    assert str(refusal.value).startswith("verl's SFT trainer: not read")
    return str(refusal.value).rstrip(")").split("; ")


def test_variables_arrays_and_defaults_are_followed() -> None:
    """Micro-batches are packed by default, so the sequences of one do not count."""
    assert said("sft_trainer")[2:] == [
        "engine: engine=fsdp by default",
        "context_parallel: engine.ulysses_sequence_parallel_size=2",
        "global_batch_size: data.train_batch_size=512",
        "longest document: data.max_length=1024 by default",
        "lora_rank: model.lora_rank=32",
        "FSDP's weights: engine.model_dtype=fp32 by default",
        "recompute: model.enable_gradient_checkpointing=True by default",
        "tokens of a packed micro-batch and GPU: data.max_token_len_per_gpu=8192 by default",
    ]


def test_micro_batches_are_counted_where_they_are_not_packed() -> None:
    """Megatron's engine has no weights of FSDP, and reads no key of checkpointing."""
    found = said("sft_trainer", "engine=megatron data.use_dynamic_bsz=False")
    assert found[2] == "engine: engine=megatron"
    assert found[-2:] == [
        "lora_rank: model.lora_rank=32",
        "micro_batch_size: data.micro_batch_size_per_gpu=64",
    ]


def test_the_trainer_before_says_what_it_states() -> None:
    """Its defaults are not this one's."""
    assert said("fsdp_sft_trainer", prefix="")[2:] == [
        "context_parallel: ulysses_sequence_parallel_size=2",
        "global_batch_size: data.train_batch_size=512",
        "lora_rank: model.lora_rank=32",
        "micro_batch_size: data.micro_batch_size_per_gpu=64",
    ]
