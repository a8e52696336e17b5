"""What the name of a Megatron-Bridge recipe says and its overrides leave out."""

import pytest

from meshplan.executor.frameworks import read_config
from meshplan.planner.case.reading import Reading


def read(recipe: str, more: str = "") -> Reading:
    """The overrides of a launch of `recipe`."""
    text = "python scripts/training/run_recipe.py "
    text += f"--recipe {recipe} model.tensor_model_parallel_size=4 train.micro_batch_size=1 {more}"
    return read_config(text + "\n", "run.sh")


@pytest.mark.parametrize(
    ("recipe", "more", "precision"),
    [
        ("llama31_405b_pretrain_128gpu_b300_fp8mx_config", "", "mxfp8"),
        ("llama3_70b_sft_32gpu_h100_fp8cs_config", "", "fp8"),
        ("llama3_8b_pretrain_8gpu_b200_nvfp4_config", "", "nvfp4"),
        ("deepseek_v4_flash_pretrain_64gpu_gb200_bf16_muon_config", "", "bf16"),
        ("llama3_8b_pretrain_8gpu_b200_nvfp4_config", "mixed_precision=bf16_mixed", "bf16"),
        ("llama3_8b_pretrain_config", "", None),
    ],
)
def test_the_format_in_the_name_counts_where_no_override_says_it(
    recipe: str, more: str, precision: str | None
) -> None:
    """NVIDIA's recipes are named after their `mixed_precision`."""
    reading = read(recipe, more)
    found = reading.facts.get("precision")
    assert (found and found.value) == precision
    assert reading.unread == ()


@pytest.mark.parametrize(
    ("recipe", "more", "optimizer"),
    [
        ("deepseek_v4_flash_pretrain_muon_config", "", "muon"),
        ("deepseek_v4_flash_pretrain_muon_config", "optimizer.optimizer=adam", "adamw"),
        ("deepseek_v4_flash_pretrain_config", "", None),
    ],
)
def test_the_optimizer_in_the_name(recipe: str, more: str, optimizer: str | None) -> None:
    """Muon keeps one moment, AdamW two."""
    found = read(recipe, more).facts.get("optimizer")
    assert (found and found.value) == optimizer


def test_a_name_that_leaves_the_format_open_is_named() -> None:
    """Eight bits by which recipe the name does not say."""
    (named,) = read("llama3_8b_pretrain_fp8_config").unread
    assert "its name says fp8" in named.value
    assert (
        read("llama3_8b_pretrain_fp8_config", "mixed_precision=bf16_with_mxfp8_mixed").unread == ()
    )


def test_adapters_are_those_of_megatron_bridge() -> None:
    """NVIDIA-NeMo/Megatron-Bridge tutorials/recipes/llama/conf/llama32_1b_finetune.yaml: whatever
    the width of gradients, Megatron-LM itself has no LoRA.
    """
    text = "model:\n  tensor_model_parallel_size: 1\ntrain:\n  micro_batch_size: 2\n"
    assert read_config(text, "pretrain.yaml").engine == "megatron"
    adapted = read_config(f"{text}peft:\n  dim: 8\n  alpha: 16\n", "finetune.yaml")
    assert (adapted.engine, adapted.facts["lora"].value.rank) == ("megatron-bridge", 8)


RUN = (
    "torchrun --nproc_per_node=8 scripts/training/run_recipe.py --recipe llama3_8b_pretrain_config "
)


def test_options_of_the_runner_are_overrides() -> None:
    """`-tp 2` is model.tensor_model_parallel_size=2; a word that says the same wins."""
    text = f"{RUN} -tp 2 --context_parallel_size=4 -mb 1 -gb 64 -sl 8192 -pp 2 "
    text += "model.pipeline_model_parallel_size=1\n"
    facts = read_config(text, "run.sh").facts
    stated = {
        "tensor_parallel": 2, "context_parallel": 4, "pipeline_parallel": 1, "gpus": 8,
        "micro_batch_size": 1, "global_batch_size": 64, "seq_len": 8192,
    }  # fmt: skip
    assert {name: facts[name].value for name in stated} == stated


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--step_func vlm_step", "a vision or sound tower"),
        ("--step_func ov2_step", "not one of gpt_step"),
        ("--dataset vlm-energon", "a vision or sound tower"),
        ("--mode lora", "the adapters of this recipe are not stated"),
        ("--mode dora", "adapters other than LoRA"),
    ],
)
def test_what_the_runner_trains_otherwise_is_named(words: str, named: str) -> None:
    """Feilong607/LLaVA-OneVision-2-Megatron-Bridge ax_ov2_4b_midtrain.sh, and modes."""
    (unread,) = read_config(f"{RUN} -tp 2 {words}\n", "run.sh").unread
    assert named in unread.value
    assert read_config(f"{RUN} -tp 2 --step_func gpt_step --dataset mock\n", "run.sh").unread == ()


def test_recipes_for_performance_are_named() -> None:
    """Their options (`-m llama3 -s 8b -c fp8_cs`) decide what no override says."""
    text = "python scripts/performance/run_script.py -m llama3 model.tensor_model_parallel_size=2\n"
    (unread,) = read_config(text, "run.sh").unread
    assert "its recipes and options" in unread.value
