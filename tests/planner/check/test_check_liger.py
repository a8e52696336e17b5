"""Liger's loss, which some trainers are offered where all logits at once do not fit."""

from pathlib import Path

import pytest

from meshplan.planner.case.settings import Settings
from meshplan.planner.check.check import check_paths
from meshplan.planner.cli.check import tools

FACTORY = """model_name_or_path: Qwen/Qwen3-14B
stage: sft
finetuning_type: full
deepspeed: examples/deepspeed/ds_z3_config.json
cutoff_len: 8192
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
bf16: true
"""
AXOLOTL = """base_model: Qwen/Qwen3-14B
datasets: [{path: mine, type: alpaca}]
deepspeed: deepspeed_configs/zero3.json
sequence_len: 8192
micro_batch_size: 2
gradient_accumulation_steps: 4
gradient_checkpointing: true
bf16: true
optimizer: adamw_torch_fused
"""
ON_16_A100 = Settings(cluster="aws-p4d", gpus=16)


@pytest.mark.parametrize(
    ("text", "switch"),
    [(FACTORY, "enable_liger_kernel"), (AXOLOTL, "liger_fused_linear_cross_entropy")],
)
def test_a_trainer_is_offered_ligers_loss(text: str, switch: str, tmp_path: Path) -> None:
    """The file as the fix says fits: 2 x 8,192 x 151,936 logits of 14 bytes are 32 GiB of 40."""
    file = tmp_path / "sft.yaml"
    file.write_text(text)
    (found,) = check_paths([file], tools(), ON_16_A100)
    assert (found.verdict, found.fix) == ("does not fit", f"{switch} true (the loss in pieces)")
    file.write_text(f"{text}{switch}: true\n")
    (mended,) = check_paths([file], tools(), ON_16_A100)
    assert mended.verdict == "fits"


def test_ligers_loss_beside_a_smaller_micro_batch(tmp_path: Path) -> None:
    """Where neither fits alone, both are named; made together they fit."""
    file = tmp_path / "sft.yaml"
    text = FACTORY.replace("8192", "20480")
    file.write_text(text)
    (found,) = check_paths([file], tools(), ON_16_A100)
    assert found.fix == "enable_liger_kernel true (the loss in pieces), micro_batch_size 1"
    smaller = text.replace("size: 2", "size: 1").replace("steps: 4", "steps: 8")
    file.write_text(f"{smaller}enable_liger_kernel: true\n")
    (mended,) = check_paths([file], tools(), ON_16_A100)
    assert mended.verdict == "fits"


@pytest.mark.parametrize("more", ["use_dft_loss: true\n", "enable_liger_kernel: true\n"])
def test_ligers_loss_is_not_offered_where_it_saves_nothing(more: str, tmp_path: Path) -> None:
    """Beside a loss of the trainer's own, which needs all logits, and where it is on."""
    file = tmp_path / "sft.yaml"
    file.write_text(FACTORY.replace("8192", "32768") + more)
    (found,) = check_paths([file], tools(), ON_16_A100)
    assert found.verdict == "does not fit"
    assert "liger" not in (found.fix or "")
