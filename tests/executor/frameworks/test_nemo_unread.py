"""What of a NeMo file is read, and what of it is named as not understood."""

import time

import pytest
from unread import unread_of

from meshplan.executor.frameworks import read_config
from meshplan.planner.case.reading import (
    Recompute,
    UnreadableConfig,
)

NEMO = """
trainer: {devices: 8, num_nodes: 2, precision: bf16}
model:
  megatron_amp_O2: true
  micro_batch_size: 1
  global_batch_size: 32
  tensor_model_parallel_size: 2
  encoder_seq_length: 4096
  num_layers: 4
  hidden_size: 512
  ffn_hidden_size: ${multiply:4, ${.hidden_size}}
  num_attention_heads: 8
  num_query_groups: 2
  bias: false
  activation: fast-swiglu
  share_embeddings_and_output_weights: false
  max_position_embeddings: ${.encoder_seq_length}
  precision: ${training.trainer.precision}
  activations_checkpoint_granularity: full
  activations_checkpoint_method: block
  activations_checkpoint_num_layers: 2
  fp8: false
  fp8_hybrid: true
  optim: {name: mcore_distributed_optim}
"""


@pytest.mark.parametrize(
    ("value", "waits_for"),
    [
        ("${multiply:4,${oc.env:HID}}", "the environment sets"),
        ("${oc.env:HID}", "the environment sets"),
        ("${multiply:4, ${.hid}}", "the environment sets"),
        ("${multiply:4, ${.nowhere}}", "the file does not set"),
    ],
)
def test_a_value_that_stays_open_says_what_it_waits_for(value: str, waits_for: str) -> None:
    """Of the environment, also through another entry; else of another file."""
    text = NEMO.replace("${multiply:4, ${.hidden_size}}", value) + "  hid: ${oc.env:HID}\n"
    with pytest.raises(UnreadableConfig, match=f"ffn_hidden_size is .*, which {waits_for}"):
        read_config(text, "nemo.yaml")


@pytest.mark.parametrize("text", ["${A:-" * 3000, "${v" + "9" * 120_000 + "}"])
def test_interpolations_of_hostile_length_are_refused(text: str) -> None:
    """OmegaConf's grammar recurses, and takes minutes for long names: it is not asked."""
    start = time.process_time()
    with pytest.raises(UnreadableConfig, match="more than 10000 characters"):
        read_config(f"{NEMO}  load_from: '{text}'\n", "nemo.yaml")
    assert time.process_time() - start < 2


def test_deep_interpolations_stay_as_written() -> None:
    """Thirty resolvers inside each other are no config's, and are not answered."""
    text = "${multiply:" * 30 + "1" + "}" * 30
    reading = read_config(f"{NEMO}  load_from: '{text}'\n", "nemo.yaml")
    assert reading.facts["micro_batch_size"].value == 1


def test_nemo() -> None:
    """NeMo's YAML says ZeRO-1, SwiGLU, grouped heads and what `${...}` resolves to."""
    reading = read_config(NEMO, "a.yaml")
    facts = {name: fact.value for name, fact in reading.facts.items()}
    stated = {"zero_stage": 1, "seq_len": 4096, "gpus": 16, "precision": "bf16"}
    assert stated.items() <= facts.items()
    assert reading.recompute == Recompute("full", first=2)
    assert reading.model_config is not None
    shape = {"intermediate_size": 2048, "num_key_value_heads": 2, "model_type": "llama"}
    assert shape.items() <= reading.model_config.items()
    assert reading.model_config["tie_word_embeddings"] is False
    assert not reading.unread


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        pytest.param("mcore_distributed_optim", "adafactor", "adafactor", id="an optimizer"),
        pytest.param("fast-swiglu", "swish2", "swish2", id="an activation"),
        pytest.param("bias: false", "no_such_key: 3", "no_such_key (not known)", id="a key"),
        pytest.param("bias: false", "bert_binary_head: false", "another model", id="BERT"),
        pytest.param("bias: false", "encoder: {hidden_size: 4}", "encoder", id="T5"),
        pytest.param("amp_O2: true", "amp_O2: false", "megatron_amp_O2 false", id="fp32 weights"),
        # NVIDIA/NeMo-Framework-Launcher@26e42fa9 conf/training/mistral/mistral_7b.yaml (Apache-2.0)
        pytest.param(
            "bias: false", "data: {seq_length: 2048}", "data.seq_length 2048", id="two lengths"
        ),
    ],
)
def test_a_key_of_nemo_that_is_not_understood_is_named(old: str, new: str, named: str) -> None:
    """What NeMo's YAML states and nobody reads is named."""
    assert named in unread_of(read_config(NEMO.replace(old, new), "a.yaml"))


def test_an_unfused_optimizer_shards_nothing() -> None:
    """Without the distributed optimizer NeMo's states are whole on each rank."""
    reading = read_config(NEMO.replace("mcore_distributed_optim", "fused_adam"), "a.yaml")
    assert reading.facts["zero_stage"].value == 0


RUN = """\
trainer:
  devices: 8
  num_nodes: 1
  precision: bf16
{trainer}
model:
  tensor_model_parallel_size: 1
  micro_batch_size: 1
  global_batch_size: 8
  optim:
    name: distributed_fused_adam
    sched:
      warmup_steps: 5
{optim}
"""


@pytest.mark.parametrize(
    ("trainer", "optim", "unread", "gradient"),
    [
        ("  accumulate_grad_batches: 1", "    lr: 1e-4", 0, 0.0),
        ("  accumulate_grad_batches: 4", "", 1, 0.0),
        ("  strategy: ddp", "", 0, 0.0),
        ("  strategy: fsdp", "", 1, 0.0),
        ("  shards_of_a_fork: 4", "", 1, 0.0),
        ("", "    dtype: float32", 0, 0.0),
        ("", "    dtype: bf16", 1, 0.0),
        ("", "    store_param_remainders: true", 1, 0.0),
        ("", "    bytes_of_a_fork: 4", 1, 0.0),
        ("", "    grad_sync_dtype: bf16", 0, 2.0),  # gradients of 16 bits
    ],
)
def test_what_the_trainer_and_the_optimizer_say(
    trainer: str, optim: str, unread: int, gradient: float
) -> None:
    """All of them were passed over; a list has what changes bytes, sharding or seconds."""
    reading = read_config(RUN.format(trainer=trainer, optim=optim), "nemo.yaml")
    assert len(reading.unread) == unread
    assert reading.gradient_bytes == gradient


def test_a_switch_of_overlap_is_noted() -> None:
    """Off, which is not as usual; on it is."""
    off, on = (
        read_config(RUN.format(trainer="", optim=f"    overlap_grad_sync: {word}"), "nemo.yaml")
        for word in ("false", "true")
    )
    assert sum("overlap_grad_sync" in note for note in off.notes) == 1
    assert not any("overlap_grad_sync" in note for note in on.notes)


@pytest.mark.parametrize(
    ("lines", "length", "said"),
    [
        ("  encoder_seq_length: 8192\n", 8192, 0),
        ("", 2048, 1),  # NVIDIA/NeMo-Megatron-Launcher conf/fine_tuning: left to a settings file
    ],
)
def test_samples_to_tune_on_are_as_long_as_the_data_says(
    lines: str, length: int, said: int
) -> None:
    """Where the file has no length of the model's."""
    data = f"{lines}  data:\n    train_ds:\n      max_seq_length: 2048\n"
    reading = read_config(RUN.format(trainer="", optim="").rstrip() + "\n" + data, "sft.yaml")
    assert reading.facts["seq_len"].value == length
    assert sum("max_seq_length" in note for note in reading.notes) == said


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ("transformer_engine: false", 1),
        ("transformer_engine: false\n  use_flash_attention: true", 0),
        ("transformer_engine: false\n  mcore_gpt: true", 0),  # Megatron-Core's, fused
        ("transformer_engine: false\n  activations_checkpoint_granularity: selective", 0),
        ("transformer_engine: true", 0),
        ("mcore_gpt: false", 0),
    ],
)
def test_layers_of_nemo_that_keep_scores(lines: str, named: int) -> None:
    """They were priced as fused attention."""
    text = RUN.format(trainer="", optim="").rstrip() + f"\n  {lines}\n"
    unread = read_config(text, "nemo.yaml").unread
    assert sum("keep the scores" in str(fact.value) for fact in unread) == named == len(unread)


@pytest.mark.parametrize(("enabled", "named"), [("true", 1), ("false", 0)])
def test_averaged_weights_are_a_second_copy(enabled: str, named: int) -> None:
    """`exp_manager`, which else says nothing of memory, may keep them on the GPU."""
    text = RUN.format(trainer="", optim="") + f"exp_manager:\n  ema: {{enable: {enabled}}}\n"
    unread = read_config(text, "nemo.yaml").unread
    assert sum("a second copy of" in str(fact.value) for fact in unread) == named == len(unread)
    (host, *_) = (
        *read_config(text.replace("}\n", ", cpu_offload: true}\n"), "nemo.yaml").unread,
        None,
    )
    assert ("to the host" in str(host)) == named
