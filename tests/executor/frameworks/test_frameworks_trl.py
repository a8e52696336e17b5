"""TRL's arguments: what `trl sft` trains, how it is launched, and what is another trainer's."""

from pathlib import Path

import pytest

from meshplan.costmodels.training import Lora
from meshplan.executor.frameworks import read_config
from meshplan.hardware_profiles.engines import engine_names, load_engine
from meshplan.planner.case.settings import Settings
from meshplan.planner.check.check import check_paths
from meshplan.planner.cli.check import tools

# keys of huggingface/alignment-handbook@925acdf recipes/smollm2/sft/config.yaml (Apache-2.0)
SFT = """\
model_name_or_path: Qwen/Qwen3-8B
model_revision: main
dtype: bfloat16
attn_implementation: flash_attention_2
chat_template: "{{ x }}"
dataset_mixture:
  datasets:
    - id: a/b
      config: default
      split: train
  test_split_size: 2000
dataset_num_proc: 12
bf16: true
gradient_accumulation_steps: 4
gradient_checkpointing: true
gradient_checkpointing_kwargs: {use_reentrant: false}
max_length: 4096
packing: true
optim: adamw_torch
output_dir: data/x
per_device_train_batch_size: 2
"""
ADAPTED = "use_peft: true\nlora_target_modules: all-linear\n"


IN_PIECES = "accelerate-chunked-loss"


def launched(name: str) -> str:
    """With one of TRL's own launch files."""
    return f"{SFT}accelerate_config: {name}\n"


@pytest.mark.parametrize(
    ("name", "engine", "stage", "states"),
    [
        ("zero3", "deepspeed-chunked-loss", 3, None),
        ("zero1", "deepspeed-chunked-loss", 1, None),
        ("fsdp2", IN_PIECES, 3, None),
        (
            "multi_gpu",
            IN_PIECES,
            0,
            "bf16",
        ),  # DDP on the 16-bit weights that dtype loads
    ],
)
def test_what_is_trained_and_how(name: str, engine: str, stage: int, states: str | None) -> None:
    """Batch, length, recompute and the launch that `accelerate_config` names."""
    reading = read_config(launched(name), "sft.yaml")
    assert (reading.framework, reading.engine, reading.unread) == ("trl", engine, ())
    facts = {key: fact.value for key, fact in reading.facts.items()}
    expected = {"model": "qwen3-8b", "seq_len": 4096, "micro_batch_size": 2, "num_micro_batches": 4,
                "zero_stage": stage, "optimizer": "adamw"}  # fmt: skip
    assert {key: facts[key] for key in expected} == expected
    assert facts.get("optimizer_states") == states
    assert reading.exposed == ("data_reduce",) * (stage == 1)  # streams of their own, in stage 3
    assert reading.recompute.mode == "full"


@pytest.mark.parametrize(
    ("more", "engine"),
    [
        pytest.param("", IN_PIECES, id="chunks, the default since 2026"),
        pytest.param("loss_type: nll\n", "accelerate", id="all logits at once"),
        pytest.param("loss_type: nll\nuse_liger_kernel: true\n", IN_PIECES, id="Liger's loss"),
        pytest.param("loss_type: dft\n", "accelerate", id="weighed by probabilities"),
        pytest.param("torch_dtype: null\nloss_type: null\n", IN_PIECES, id="nothing stated"),
        pytest.param("torch_dtype: bfloat16\n", "accelerate", id="a name that TRL dropped in 0.27"),
        pytest.param("max_seq_length: 4096\n", "accelerate", id="and in 0.20"),
        pytest.param("max_seq_length: 4096\nloss_type: chunked_nll\n", IN_PIECES, id="yet stated"),
    ],
)
def test_which_loss_has_all_logits_at_once(more: str, engine: str) -> None:
    """huggingface/trl@f2cd5771 trl/trainer/sft_config.py, loss_type: in chunks by default since
    1.7, so a name that an earlier release dropped is of a TRL whose logits are there at once.
    """
    reading = read_config(launched("fsdp2") + more, "sft.yaml")
    assert reading.engine == engine
    defaults = any("TRL's default since 1.7" in note for note in reading.notes)
    assert defaults == (more in ("", "torch_dtype: null\nloss_type: null\n"))


@pytest.mark.parametrize(
    ("more", "verdict"),
    [
        pytest.param("", "fits", id="256 tokens' logits at once"),
        pytest.param("loss_type: nll\n", "does not fit", id="14 bytes x 32,768 x 151,936 = 69.7e9"),
    ],
)
def test_a_long_sequence_needs_a_loss_in_pieces(tmp_path: Path, more: str, verdict: str) -> None:
    """8B under ZeRO-3 on 8 H100, one sequence of 32,768 tokens each."""
    text = launched("zero3").replace("max_length: 4096", "max_length: 32768") + more
    path = tmp_path / "sft.yaml"
    path.write_text(text.replace("train_batch_size: 2", "train_batch_size: 1"))
    (found,) = check_paths([path], tools(), Settings(cluster="dgx-h100", gpus=8))
    assert found.verdict == verdict, found.text


def test_it_is_checked_end_to_end(tmp_path: Path) -> None:
    """8B under ZeRO-3 on 8 H100; that it is trained by next tokens is said to be assumed."""
    path = tmp_path / "sft.yaml"
    path.write_text(launched("zero3"))
    (found,) = check_paths([path], tools(), Settings(cluster="dgx-h100", gpus=8))
    assert found.verdict == "fits", found.text
    assert "as `trl sft` does: assumed" in " ".join(found.notes)


def test_what_is_not_said_is_the_default_of_trl() -> None:
    """Checkpoints are on since 2025, and a launch that is not named may shard."""
    text = launched("zero3").replace("gradient_checkpointing: true\n", "")
    reading = read_config(text, "sft.yaml")
    assert reading.recompute.mode == "full"
    assert any("gradient_checkpointing is not stated" in note for note in reading.notes)
    off = launched("zero3").replace("checkpointing: true", "checkpointing: false")
    assert read_config(off, "sft.yaml").recompute.mode == "none"
    (named,) = read_config(SFT, "sft.yaml").unread
    assert "deepspeed or fsdp" in str(named.value)
    (other,) = read_config(launched("my/own.yaml"), "sft.yaml").unread
    assert "accelerate_config 'my/own.yaml' (not one of single_gpu" in str(other.value)


@pytest.mark.parametrize(
    ("more", "lora"),
    [
        pytest.param(ADAPTED, Lora(rank=16, dropout=0.05), id="TRL's rank and dropout"),
        pytest.param(ADAPTED + "lora_r: 8\nlora_dropout: 0\nload_in_4bit: true\n"
                     "use_bnb_nested_quant: true\n", Lora(rank=8, base_precision="nf4"),
                     id="QLoRA with nested constants"),
    ],
)  # fmt: skip
def test_adapters(more: str, lora: Lora) -> None:
    """`use_peft` and the keys beside it."""
    reading = read_config(launched("multi_gpu") + more, "sft.yaml")
    assert reading.unread == ()
    assert reading.facts["lora"].value == lora
    assert "optimizer_states" not in reading.facts  # PEFT keeps adapters in fp32


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ("beta: 0.1\n", "beta (training by preferences"),
        ("loss_type: sigmoid\n", "loss_type 'sigmoid'"),
        ("num_generations: 16\n", "num_generations"),
        ("use_peft: true\n", "PEFT's choice for the model"),
        (ADAPTED + "load_in_4bit: true\n", "constants of quantised weights in 32 bits"),
        ("load_in_8bit: true\n", "without adapters"),
        (ADAPTED + "lora_modules_to_save: [lm_head]\n", "lora_modules_to_save"),
        ("activation_offloading: true\n", "activation_offloading"),
        ("model_init_kwargs: {num_hidden_layers: 4}\n", "model_init_kwargs"),
    ],
)
def test_what_is_not_modelled_is_named(more: str, named: str) -> None:
    """Of another trainer, of adapters and of shapes that the file changes."""
    unread = read_config(launched("zero3") + more, "sft.yaml").unread
    assert any(named in str(fact.value) for fact in unread), unread


def test_an_engine_that_is_on_no_list_shares_what_its_base_has_learnt() -> None:
    """DeepSpeed's habits, constants and ranges, but for the loss."""
    own, base = load_engine("deepspeed-chunked-loss"), load_engine("deepspeed")
    assert own.name not in engine_names()
    assert (own.state, own.legality, own.overlap) == (base.state, base.legality, base.overlap)
    assert own.fitted_as == "deepspeed"
    assert own.kernels.loss_chunk_bytes > base.kernels.loss_chunk_bytes == 0
