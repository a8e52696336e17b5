"""torchtune's YAML, in. The text is ours and states what its recipes state
(pytorch/torchtune@bd2a0fc recipes/configs/llama3_3/70B_full_multinode.yaml, BSD-3-Clause).
"""

import re

import pytest

from meshplan.costmodels.training import Lora, LoraTargets
from meshplan.executor.frameworks import read_config
from meshplan.planner.case.reading import NothingToRead, Reading, Recompute
from meshplan.planner.case.resolve import resolve
from meshplan.planner.case.settings import Settings

FULL = """
output_dir: /tmp/run
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 8192}
dataset: {_component_: torchtune.datasets.alpaca_cleaned_dataset, packed: true}
batch_size_val: ${batch_size}
model: {_component_: torchtune.models.llama3_3.llama3_3_70b}
tensor_parallel_dim: 8
tensor_parallel_plan: {_component_: torchtune.models.llama3.base_llama_tp_plan}
data_parallel_shard_dim: -1
batch_size: 4
optimizer: {_component_: torch.optim.AdamW, lr: 2e-5, fused: true}
loss: {_component_: torchtune.modules.loss.LinearCrossEntropyLoss}
gradient_accumulation_steps: 2
enable_activation_checkpointing: true
enable_activation_offloading: false
fsdp_cpu_offload: false
optimizer_in_bwd: false
compile: false
dtype: bf16
"""
LORA = (
    "_component_: torchtune.models.llama3_1.{}lora_llama3_1_8b, lora_rank: 16, lora_alpha: 32, "
    "lora_attn_modules: [q_proj, k_proj, v_proj, output_proj], apply_lora_to_mlp: {}"
)


def edited(old: str, new: str) -> Reading:
    """The text with one change."""
    assert old in FULL
    return read_config(FULL.replace(old, new), "a.yaml")


def test_a_recipe_is_read() -> None:
    """70B over 32 GPUs: tp8, so dp4; batch 4 x 2 x 4 = 32; weights and states of 16 bits."""
    reading = read_config(FULL, "a.yaml")
    assert reading.framework == "torchtune"
    assert not reading.unread
    assert reading.recompute == Recompute("full")
    case = resolve(reading, Settings(cluster="dgx-h100", gpus=32), Settings())
    la, training = case.layout, case.training
    assert (la.tensor_parallel, la.data_parallel, la.zero_stage) == (8, 4, 3)
    assert (training.seq_len, training.global_batch_size) == (8192, 32)
    assert (training.precision, training.optimizer_states) == ("bf16", "bf16")
    assert case.model.name == "llama-3.3-70b"


def test_a_name_of_one_device_is_one_gpu() -> None:
    """As torchtune names the files of its single-device recipes; an option wins, a settings file
    does not.
    """
    text = FULL.replace("tensor_parallel_dim: 8", "tensor_parallel_dim: 1")
    alone, free = (read_config(text, f"70B_full{end}.yaml") for end in ("_single_device", ""))
    near = Settings(cluster="dgx-h100", gpus=64)
    assert resolve(alone, Settings(), near).layout.world_size == 1
    assert resolve(free, Settings(), near).layout.world_size == 64
    assert resolve(alone, Settings(gpus=8), near).layout.world_size == 8
    assert any("one device" in note for note in alone.notes)
    assert not any("one device" in note for note in free.notes)


@pytest.mark.parametrize(
    ("quantised", "ffn", "expected"),
    [
        ("", "true", Lora(rank=16, targets="all_linear")),
        ("", "false", Lora(rank=16, targets="attention")),
        ("q", "true", Lora(rank=16, targets="all_linear", base_precision="nf4")),
    ],
)
def test_adapters_by_the_builders_name(quantised: str, ffn: str, expected: Lora) -> None:
    """`lora_` adapts, `qlora_` keeps the base in four bits; the model is the rest of the name."""
    model = LORA.format(quantised, ffn)
    reading = edited("_component_: torchtune.models.llama3_3.llama3_3_70b", model)
    assert not reading.unread
    assert reading.facts["lora"].value == expected
    assert reading.facts["model"].value == "llama-3.1-8b"


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("offloading: false", "offloading: true", "enable_activation_offloading"),
        ("fsdp_cpu_offload: false", "fsdp_cpu_offload: true", "fsdp_cpu_offload"),
        ("in_bwd: false", "in_bwd: true", "optimizer_in_bwd"),
        ("dtype: bf16", "dtype: fp16", "dtype 'fp16'"),
        ("torch.optim.AdamW", "bitsandbytes.optim.PagedAdamW", "PagedAdamW"),
        ("modules.loss.LinearCrossEntropyLoss", "rlhf.loss.DPOLoss", "another than of next tokens"),
        ("llama3.base_llama_tp_plan", "llama4.decoder_only_tp_plan", "how this plan splits"),
        ("compile: false", "ac_mode: selective", "ac_mode"),
        ("compile: false", "teacher_model: {_component_: torchtune.models.x}", "teacher_model"),
        ("compile: false", "of_a_later_release: 2", "of_a_later_release (not known)"),
        ("llama3_3_70b}", "llama3_3_70b, num_layers: 2}", "model.num_layers (not known)"),
        ("fused: true", "fused: true, state_bits: 4", "optimizer.state_bits (not known)"),
    ],
)
def test_what_is_not_modelled_is_named(old: str, new: str, named: str) -> None:
    """Nothing that changes memory, batch or layout is passed over."""
    assert named in ", ".join(str(fact.value) for fact in edited(old, new).unread)


@pytest.mark.parametrize(
    ("left_out", "ffn", "targets"),
    [
        pytest.param("k_proj, ", "true", "all_but_key", id="as most of its recipes have them"),
        pytest.param("k_proj, ", "false", "attention_but_key", id="q, v and the output"),
        pytest.param("k_proj, |, output_proj", "false", "qv", id="as LoRA's paper has them"),
    ],
)
def test_adapters_without_the_key(left_out: str, ffn: str, targets: LoraTargets) -> None:
    """The key's projection is left out in most recipes."""
    model = re.sub(left_out, "", LORA.format("", ffn))
    reading = edited("_component_: torchtune.models.llama3_3.llama3_3_70b", model)
    assert not reading.unread
    assert reading.facts["lora"].value == Lora(rank=16, targets=targets)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(LORA.format("", "true").replace("q_proj, ", ""), id="no query"),
        pytest.param(LORA.format("", "true, apply_lora_to_output: true"), id="the head"),
    ],
)
def test_adapters_beside_another_set_are_named(model: str) -> None:
    """What no target set says is not guessed."""
    reading = edited("_component_: torchtune.models.llama3_3.llama3_3_70b", model)
    assert "adapters beside this set" in str(reading.unread[0].value)


def test_copies_of_the_shards() -> None:
    """Two copies of shards over 2 ranks are four replicas of the batch."""
    reading = edited("shard_dim: -1", "shard_dim: 2\ndata_parallel_replicate_dim: 2")
    case = resolve(reading, Settings(cluster="dgx-h100", gpus=32), Settings())
    assert (case.layout.data_parallel, case.layout.shard_group) == (4, 2)


def test_a_name_that_stands_for_other_values_is_read_with_them() -> None:
    """SWE-Gym/SWE-Gym scripts/training/openhands/configs: `exp_name`, of `${exp_name}`; a name that
    nothing refers to may be a fork's.
    """
    reading = edited("batch_size: 4\n", "batch_size: ${mine}\nmine: 2\nyours: 2\n")
    assert reading.facts["micro_batch_size"].value == 2
    assert [fact.value for fact in reading.unread] == ["yours (not known)"]


def test_a_file_that_trains_nothing_is_skipped() -> None:
    """Generation, evaluation and quantisation have no optimizer."""
    with pytest.raises(NothingToRead, match="trains nothing"):
        edited("optimizer: {_component_: torch.optim.AdamW, lr: 2e-5, fused: true}\n", "")
