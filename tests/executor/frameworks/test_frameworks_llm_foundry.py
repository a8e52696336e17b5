"""llm-foundry's YAML: what is read of it, and what is named instead of misread.

Expected readings follow mosaicml/llm-foundry@8c8dd48f llmfoundry/utils/config_utils.py and
llmfoundry/models/mpt/configuration_mpt.py.
"""

import dataclasses
from pathlib import Path

import pytest
from trainer_texts import FOUNDRY, with_line

from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.parameters import model_parameters
from meshplan.executor.frameworks import read_config, recognise
from meshplan.planner.case.reading import IllegalConfig, Reading
from meshplan.planner.case.settings import Settings
from meshplan.planner.check.check import check_paths
from meshplan.planner.check.verdicts import Finding
from meshplan.planner.cli.check import tools

GIVEN = Settings(cluster="dgx-h100", gpus=8)
LLAMA = """\
model:
  name: hf_causal_lm
  pretrained: true
  pretrained_model_name_or_path: meta-llama/Meta-Llama-3-8B
  use_flash_attention_2: true
"""
PLATFORM = """\
name: mpt-1b
compute: {gpus: 16}
command: |
  composer train/train.py /mnt/config/parameters.yaml
parameters:
"""


def read(*lines: str) -> Reading:
    """The reading of the text with some lines of its own."""
    return read_config(changed(*lines), "mpt.yaml")


def changed(*lines: str) -> str:
    """The text with some lines of its own."""
    text = FOUNDRY
    for line in lines:
        text = with_line(text, line)
    return text


def with_model(model: str) -> str:
    """The text with another section `model`."""
    start, end = FOUNDRY.index("model:"), FOUNDRY.index("tokenizer:")
    return FOUNDRY[:start] + model + FOUNDRY[end:]


def mpt(*lines: str) -> Reading:
    """The reading of an MPT with lines of its own in place of the text's attention."""
    body = "\n".join(f"  {line}" for line in lines)
    return read_config(with_model(f"model:\n  name: mpt_causal_lm\n{body}\n"), "mpt.yaml")


def named(found: Reading) -> str:
    """What is not understood, in one line."""
    return ", ".join(str(fact.value) for fact in found.unread)


def finding(path: Path, text: str, given: Settings = GIVEN) -> Finding:
    """What `check` says of one file."""
    path.write_text(text)
    (found,) = check_paths([path], tools(), given)
    return found


def test_facts() -> None:
    """Interpolations resolve; FULL_SHARD is ZeRO-3; nothing recomputes."""
    found = read()
    assert (found.framework, found.engine) == ("llm-foundry", "llm-foundry")
    assert (found.recompute.mode, found.unread, found.notes) == ("none", (), ())
    expected = {
        "global_batch_size": 512, "micro_batch_size": 4, "seq_len": 2048, "zero_stage": 3,
        "precision": "bf16", "optimizer": "adamw", "tensor_parallel": 1, "pipeline_parallel": 1,
    }  # fmt: skip
    assert {name: found.facts[name].value for name in expected} == expected


def test_a_config_is_checked_end_to_end(tmp_path: Path) -> None:
    """1.3B on 8 H100 fits without a word from outside: the file states even the vocabulary."""
    found = finding(tmp_path / "mpt-1b.yaml", FOUNDRY)
    assert found.verdict == "fits"


L, D, V, S = 24, 2048, 50368, 2048
PLAIN = V * D + L * (12 * D * D + 2 * D) + D  # matrices and the norms' weights, one table
BIASES = L * (9 * D + 2 * D) + D  # 3 + 1 + 4 + 1 of a layer's matrices, its two norms, the last


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param((), PLAIN + S * D + BIASES, id="defaults: biases, learned positions"),
        pytest.param(("no_bias: true",), PLAIN + S * D, id="no_bias: none, of norms neither"),
        pytest.param(("attn_config: {alibi: true}",), PLAIN + BIASES, id="alibi: no table"),
        pytest.param(("attn_config: {rope: true}",), PLAIN + BIASES, id="rope: no table"),
        pytest.param(("max_seq_len: 8192",), PLAIN + 8192 * D + BIASES, id="a table of 8192"),
        pytest.param(("tie_word_embeddings: false",), PLAIN + V * D + S * D + BIASES,
                     id="untied: a second table"),
        pytest.param(
            ("no_bias: true", "attn_config: {attn_type: multiquery_attention}"),
            PLAIN + S * D - L * 2 * D * (D - 128), id="multi-query: one head of 128 of 16",
        ),
        pytest.param(
            ("no_bias: true",
             "attn_config: {attn_type: grouped_query_attention, kv_n_heads: 4, rope: true}"),
            PLAIN - L * 2 * D * (D - 512), id="grouped: four heads of 128 of 16",
        ),
        pytest.param(
            ("no_bias: true", "attn_config: {rope: true}", "norm_type: rmsnorm",
             "ffn_config: {ffn_type: mptglu, ffn_hidden_size: 5632}"),
            V * D + L * (4 * D * D + 3 * D * 5632 + 2 * D) + D, id="gated: three matrices",
        ),
    ],
)  # fmt: skip
def test_numbers_of_parameters_of_an_mpt(lines: tuple[str, ...], expected: int) -> None:
    """Counted by hand from llm-foundry's modules."""
    found = mpt(*lines)
    assert found.unread == ()
    assert found.model_config is not None
    counts = model_parameters(model_from_config(found.model_config, "mpt"))
    total = sum(getattr(counts, each.name) for each in dataclasses.fields(counts))
    tied = found.model_config.get("tie_word_embeddings", True)
    assert total - (counts.head if tied else 0) == expected


def test_a_model_of_hugging_face_comes_from_the_catalogue() -> None:
    """By its repository; that its kernels are taken for MPT's is said."""
    found = read_config(with_model(LLAMA), "llama.yaml")
    assert found.facts["model"].value == "llama-3-8b"
    assert found.unread == ()
    assert "assumed of a model of Hugging Face" in " ".join(found.notes)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("  use_flash_attention_2: false", "no FlashAttention"),
        ("  peft_config: {peft_type: LORA, r: 64}", "model.peft_config (adapters"),
        ("  config_overrides: {num_hidden_layers: 2}", "model.config_overrides.num_hidden_layers"),
        ("  load_in_8bit: true", "model.load_in_8bit"),
        ("  name: hf_t5", "model.name 'hf_t5'"),
    ],
)
def test_what_is_not_modelled_of_a_repository_is_named(line: str, said: str) -> None:
    """Adapters, other sizes, attention that keeps its scores, encoder-decoders."""
    assert said in named(read_config(with_model(with_line(LLAMA, line)), "llama.yaml"))


def test_a_longer_context_of_rope_is_no_other_shape() -> None:
    """`max_position_embeddings` counts no weights where positions rotate."""
    text = with_model(f"{LLAMA}  config_overrides: {{max_position_embeddings: 4096}}\n")
    assert read_config(text, "llama.yaml").unread == ()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("optimizer: {name: decoupled_lionw, lr: 1.0e-4}", "optimizer.name 'decoupled_lionw'"),
        ("tp_config: {strategy: ffn, tensor_parallel_degree: 2}", "tp_config (tensor"),
        ("algorithms: {seq_length_warmup: {duration: 0.3}}", "algorithms.seq_length_warmup"),
        ("callbacks: {layer_freezing: {layer_names: [a]}}", "callbacks.layer_freezing"),
        ("callbacks: {of_next_year: {}}", "callbacks.of_next_year (not known)"),
        ("  mixed_precision: FULL", "fsdp_config.mixed_precision 'FULL'"),
        ("  sharding_strategy: HYBRID_SHARD", "fsdp_config.sharding_strategy HYBRID_SHARD"),
        ("  activation_cpu_offload: true", "fsdp_config.activation_cpu_offload"),
        ("  a_key_of_next_year: 7", "a_key_of_next_year (not known)"),
        ("  mixed_precision: {param_dtype: fp32}", "mixed_precision (a section"),
        ("    attn_impl: torch", "attn_impl 'torch'"),
        ("  expansion_ratio: 2.75", "feed-forward width 5632"),
        ("a_key_of_next_year: 7", "a_key_of_next_year (not known)"),
    ],
)
def test_what_is_not_modelled_is_named(tmp_path: Path, line: str, said: str) -> None:
    """A key that changes shape, memory or layout and has no words here: incomplete, by name."""
    text = FOUNDRY + line + "\n" if "next_year: 7" in line else with_line(FOUNDRY, line)
    if line == "  a_key_of_next_year: 7":
        text = FOUNDRY.replace("  mixed_precision: PURE", f"  mixed_precision: PURE\n{line}")
    if "activation_cpu_offload" in line:
        text = FOUNDRY.replace("  mixed_precision: PURE", f"  mixed_precision: PURE\n{line}")
    assert said in named(read_config(text, "mpt.yaml"))
    assert finding(tmp_path / "mpt.yaml", text).verdict == "incomplete"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (("ffn_config: {ffn_type: mb_dmoe, moe_num_experts: 4}",), "ffn_type 'mb_dmoe'"),
        (("ffn_config: {ffn_type: mptglu}",), "ffn_type mptglu (with biases"),
        (("attn_config: {qk_ln: true}",), "qk_ln"),
        (("attn_config: {sliding_window_size: 256}",), "sliding_window_size"),
        (("attn_config: {attn_type: native_sparse_attention}",), "attn_type"),
        (("norm_type: rmsnorm",), "norm_type 'rmsnorm' (it is not modelled beside biases)"),
        (("no_bias: true", "attention_bias: true"), "attention_bias"),
        (("block_overrides: {order: [{name: default}]}",), "model.block_overrides"),
        (("loss_fn: torch_crossentropy",), "model.loss_fn"),
        (("size_of_next_year: 7",), "model.size_of_next_year (not known)"),
    ],
)
def test_what_is_not_modelled_of_an_mpt_is_named(lines: tuple[str, ...], said: str) -> None:
    """Shapes that no family of configurations has."""
    assert said in named(mpt(*lines))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("  sharding_strategy: SHARD_GRAD_OP", {"zero_stage": 2}),
        ("  sharding_strategy: NO_SHARD", {"zero_stage": 0}),
        ("precision: amp_fp16", {"precision": "fp16"}),
    ],
)
def test_how_keys_are_taken(line: str, expected: dict[str, object]) -> None:
    """Composer's words for sharding and precision."""
    found = read(line).facts
    assert {name: found[name].value for name in expected} == expected


def test_hybrid_shards_need_their_degree() -> None:
    """`data_parallel_shard_degree` is the group that holds one copy of the state."""
    text = FOUNDRY.replace("FULL_SHARD", "HYBRID_SHARD\n  data_parallel_shard_degree: 4")
    found = read_config(text, "mpt.yaml")
    assert found.unread == ()
    assert found.facts["shard_group"].value == 4


def test_without_fsdp_nothing_is_sharded() -> None:
    """No `fsdp_config` is DDP."""
    text = FOUNDRY[: FOUNDRY.index("fsdp_config:")]
    assert read_config(text, "mpt.yaml").facts["zero_stage"].value == 0


def test_an_empty_fsdp_config_is_asked_about() -> None:
    """Null is DDP, and an empty mapping is FSDP with its defaults."""
    text = FOUNDRY[: FOUNDRY.index("fsdp_config:")]
    assert "fsdp_config without a key" in named(read_config(f"{text}fsdp_config:\n", "mpt.yaml"))


def test_a_search_for_the_micro_batch_is_asked_for(tmp_path: Path) -> None:
    """`auto` is found while it runs: the question is what to take instead."""
    found = finding(tmp_path / "mpt.yaml", with_line(FOUNDRY, "device_train_microbatch_size: auto"))
    assert found.verdict == "incomplete"
    assert "--micro-batch" in found.text


@pytest.mark.parametrize(
    ("gpus", "micro", "verdict", "said"),
    [
        pytest.param(8, 128, "fits", "mbs64", id="512 / 8 = 64: 128 is cut to it"),
        pytest.param(8, 48, "incomplete", "of 64 samples", id="64 = 48 + 16: two sizes"),
        pytest.param(3, 4, "illegal", "512", id="512 / 3: llm-foundry stops"),
    ],
)
def test_a_micro_batch_is_at_most_a_share(
    tmp_path: Path, gpus: int, micro: int, verdict: str, said: str
) -> None:
    """calculate_batch_size_info: a GPU's share is cut into micro-batches, the last maybe short."""
    text = with_line(FOUNDRY, f"device_train_microbatch_size: {micro}")
    text = text.replace("activation_checkpointing: false", "activation_checkpointing: true")
    found = finding(tmp_path / "mpt.yaml", text, Settings(cluster="dgx-h100", gpus=gpus))
    assert found.verdict == verdict
    assert said in " ".join((found.text, found.label or ""))


def test_a_file_for_the_platform_holds_it_below_parameters() -> None:
    """GPUs from `compute`; what the command sets beside the file is named."""
    inner = "".join(f"  {line}\n" for line in FOUNDRY.splitlines())
    inner = inner.replace("${variables.max_seq_len}", "${max_seq_len}", 1).replace(
        "max_seq_len: ${max_seq_len}", "max_seq_len: 2048", 1
    )
    found = read_config(PLATFORM + inner, "mcli.yaml")
    assert found.facts["gpus"].value == 16
    assert found.facts["seq_len"].value == 2048
    assert found.unread == ()
    command = PLATFORM.replace("parameters.yaml", "parameters.yaml max_seq_len=8192")
    assert "'max_seq_len' (set by the command" in named(read_config(command + inner, "mcli.yaml"))


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (("n_heads: 12",), "d_model 2048 does not divide by n_heads 12"),
        (("expansion_ratio: 2.7001",), "must be a whole number"),
        (("attn_config: {attn_type: grouped_query_attention}",), "no kv_n_heads"),
    ],
)
def test_what_llm_foundry_stops_at_is_illegal(lines: tuple[str, ...], said: str) -> None:
    """The checks of MPT's configuration."""
    with pytest.raises(IllegalConfig, match=said):
        mpt(*lines)


@pytest.mark.parametrize(
    "line",
    [
        "global_train_batch_size: ${oc.env:HOME}",
        "global_train_batch_size: [8]",
        "global_train_batch_size: 1e400",
        f"global_train_batch_size: {'9' * 400}",
        "max_seq_len: ${max_seq_len}",
        "max_seq_len: ${a.b",
        "device_train_microbatch_size: 0.5",
        "precision: [amp_bf16]",
        "model: mpt_causal_lm",
        "fsdp_config: FULL_SHARD",
    ],
)
def test_hostile_values_are_one_line(tmp_path: Path, line: str) -> None:
    """A value of another type or size ends in one printable line, and is not priced."""
    found = finding(tmp_path / "mpt.yaml", with_line(FOUNDRY, line))
    assert found.text.isprintable()


@pytest.mark.parametrize("text", ["${" * 5000, "${a" * 30, "&a [*a, *a]"])
def test_interpolations_without_end_are_one_line(tmp_path: Path, text: str) -> None:
    """Hostile depth of `${...}` is left as it is written, or refused."""
    found = finding(tmp_path / "mpt.yaml", f"{FOUNDRY}run_name: {text}\n")
    assert found.text.isprintable()


def test_it_is_recognised_by_its_own_keys() -> None:
    """Batch, length and model together; an evaluation has no batch to train on."""
    found = recognise("a.yaml", FOUNDRY)
    assert found is not None
    assert found.name == "llm-foundry"
    assert recognise("a.yaml", "max_seq_len: 1024\nmodels: []\ndevice_eval_batch_size: 4\n") is None
