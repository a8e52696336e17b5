"""A configuration that is read whole, and one key more that changes memory or the batch: it is
named, or a note says what the price leaves out.
"""

import pytest

from meshplan.executor.frameworks import read_config

TRAINER = (
    "model_name_or_path: meta-llama/Llama-3.1-8B\nper_device_train_batch_size: 2\nbf16: true\n"
    "output_dir: x\nmax_length: 4096\nfsdp: full_shard auto_wrap\n"
)
TUNE = (
    "model: {_component_: torchtune.models.llama3_1.llama3_1_8b}\nbatch_size: 1\ndtype: bf16\n"
    "tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 4096}\n"
    "optimizer: {_component_: torch.optim.AdamW}\ndataset: {packed: true}\n"
    "loss: {_component_: torchtune.modules.loss.LinearCrossEntropyLoss}\n"
)
NANOTRON = (
    "parallelism: {dp: 2, tp: 2, pp: 1, tp_mode: REDUCE_SCATTER, pp_engine: 1f1b}\n"
    "tokens:\n  sequence_length: 4096\n  micro_batch_size: 1\n"
)
FOUNDRY = (
    "max_seq_len: 2048\nmodel: {name: mpt_causal_lm, d_model: 1024, n_heads: 8, n_layers: 8, "
    "max_seq_len: 2048, vocab_size: 50368}\noptimizer: {name: decoupled_adamw}\n"
    "global_train_batch_size: 8\ndevice_train_microbatch_size: 1\nprecision: amp_bf16\n"
    "fsdp_config: {sharding_strategy: FULL_SHARD, mixed_precision: PURE}\n"
)
ACCUMULATES = "accelerator_config: {gradient_accumulation_kwargs: {num_steps: 8}}\n"


@pytest.mark.parametrize(
    ("config", "more", "named"),
    [
        pytest.param(TRAINER, "accelerator_config: {split_batches: true}\n",
                     "accelerator_config.split_batches", id="ranks share a micro-batch"),
        pytest.param(TRAINER, "accelerator_config: '{\"split_batches\": true}'\n",
                     "accelerator_config.split_batches", id="the same as JSON"),
        pytest.param(TRAINER, "accelerator_config: batches.json\n",
                     "accelerator_config 'batches.json'", id="or in a file that is not there"),
        pytest.param(TRAINER, ACCUMULATES, "num_steps 8 (state it as", id="accumulates by 8"),
        pytest.param(TRAINER, "split_batches: true\n", "split_batches", id="transformers 4.36"),
        pytest.param(TRAINER, "label_smoothing_factor: 0.1\n", "label_smoothing_factor",
                     id="a second copy of the logits"),
        pytest.param(TUNE.replace("Loss}", "Loss, num_output_chunks: 1}"), "",
                     "loss.num_output_chunks 1", id="all logits at once"),
        pytest.param(NANOTRON, "data_stages:\n- name: long\n  sequence_length: 32768\n",
                     "sequence_length 32768 (the sequences of tokens have 4096",
                     id="a stage of longer sequences"),
    ],
)  # fmt: skip
def test_what_changes_the_batch_or_the_memory_is_named(config: str, more: str, named: str) -> None:
    """The verdict is incomplete, by the name of the key."""
    assert named in " ".join(
        str(each.value) for each in read_config(config + more, "a.yaml").unread
    )


@pytest.mark.parametrize(
    ("config", "more"),
    [
        (TRAINER, "accelerator_config: {split_batches: false, dispatch_batches: true}\n"),
        (TRAINER, ACCUMULATES.replace("8", "1")),
        (TRAINER, "label_smoothing_factor: 0.0\n"),
        (TUNE.replace("Loss}", "Loss, num_output_chunks: 16}"), ""),
        (NANOTRON, "data_stages:\n- name: same\n  sequence_length: 4096\n"),
    ],
)
def test_the_same_keys_with_what_is_usual_change_nothing(config: str, more: str) -> None:
    """What says the default again leaves nothing open."""
    plain = {str(each.value) for each in read_config(config, "a.yaml").unread}
    assert {str(each.value) for each in read_config(config + more, "a.yaml").unread} == plain


def test_fsdp_without_its_wrapping_says_so() -> None:
    """transformers 4 then makes the model one unit of FSDP, 5 each layer."""
    notes = read_config(TRAINER.replace(" auto_wrap", ""), "a.yaml").notes
    assert "transformers 4 gathers the whole model at once" in " ".join(notes)
    assert "gathers the whole model" not in " ".join(read_config(TRAINER, "a.yaml").notes)
    wraps = "fsdp_config: {auto_wrap_policy: TRANSFORMER_BASED_WRAP}\n"
    notes = read_config(TRAINER.replace(" auto_wrap", "") + wraps, "a.yaml").notes
    assert "gathers the whole model" not in " ".join(notes)


def test_gradients_of_32_bits_under_composer_are_noted() -> None:
    """DEFAULT adds gradients in 32 bits, where PURE is priced."""
    wide = read_config(FOUNDRY.replace("PURE", "DEFAULT"), "a.yaml")
    assert "DEFAULT sends gradients in 32 bits" in " ".join(wide.notes)
    assert "in 32 bits" not in " ".join(read_config(FOUNDRY, "a.yaml").notes)


def test_a_section_of_fsdp_left_behind_recomputes_nothing() -> None:
    """Accelerate takes `fsdp_config` where the kind is FSDP, not beside plain replicas."""
    section = "num_processes: 8\nfsdp_config:\n  fsdp_activation_checkpointing: true\n"
    wrap = "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
    modes = [
        read_config(f"distributed_type: {kind}\n{section}{wrap}", "a.yaml").recompute.mode
        for kind in ("FSDP", "MULTI_GPU")
    ]
    assert modes == ["full", "none"]


SCRIPT = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 2 --bf16 "
    "--num-layers 8 --hidden-size 1024 --num-attention-heads 8 --seq-length 2048 "
    "--max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 8 {}\n"
)


def test_what_megatron_takes_from_a_checkpoint_is_said() -> None:
    """Its degrees are named, where its arguments count at all; its sizes, which a script mostly
    repeats, are a note.
    """
    alone, both = "--use-mp-args-from-checkpoint-args", "--use-checkpoint-args"
    assert not read_config(SCRIPT.format(alone), "a.sh").unread
    degrees = read_config(SCRIPT.format(f"{alone} {both}"), "a.sh")
    assert "the degrees are the checkpoint's" in " ".join(str(e.value) for e in degrees.unread)
    sizes = read_config(SCRIPT.format("--use-checkpoint-args"), "a.sh")
    assert not sizes.unread
    assert "--use-checkpoint-args" in " ".join(sizes.notes)
