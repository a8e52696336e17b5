"""GPT-NeoX's YAML: what is read of it, and what is named instead of misread.

Expected readings follow EleutherAI/gpt-neox@ea7aefd8 megatron/neox_arguments/arguments.py and
megatron/model/transformer.py; numbers of parameters are those of the published weights.
"""

import dataclasses
import json
from pathlib import Path

import pytest
from trainer_texts import NEOX, with_line

from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.parameters import model_parameters
from meshplan.executor.frameworks import read_config, recognise
from meshplan.planner.case.reading import IllegalConfig, Reading, UnreadableConfig
from meshplan.planner.case.settings import Settings
from meshplan.planner.check.check import check_paths
from meshplan.planner.check.verdicts import Finding
from meshplan.planner.cli.check import tools

GIVEN = Settings(cluster="dgx-h100", gpus=64, vocab_size=50304)


def read(*lines: str) -> Reading:
    """The reading of the text with some lines of its own."""
    text = NEOX
    for line in lines:
        text = with_line(text, line)
    return read_config(text, "config.yml")


def facts(*lines: str) -> dict[str, object]:
    """Facts by name."""
    return {name: fact.value for name, fact in read(*lines).facts.items()}


def named(*lines: str) -> str:
    """What is not understood, in one line."""
    return ", ".join(str(fact.value) for fact in read(*lines).unread)


def weights(reading: Reading, vocab: int) -> int:
    """Parameters of the model that the file states."""
    assert reading.model_config is not None
    model = model_from_config({**reading.model_config, "vocab_size": vocab}, "model")
    counts = model_parameters(model)
    return sum(getattr(counts, each.name) for each in dataclasses.fields(counts))


def finding(path: Path, text: str) -> Finding:
    """What `check` says of one file."""
    path.write_text(text)
    (found,) = check_paths([path], tools(), GIVEN)
    return found


def test_facts() -> None:
    """Degrees, batch, ZeRO, precision; every layer recomputes; FlashAttention picks the engine."""
    found = read()
    assert (found.framework, found.engine) == ("gpt-neox", "gpt-neox")
    assert found.recompute.mode == "full"
    assert found.unread == ()
    expected = {
        "pipeline_parallel": 1, "tensor_parallel": 1, "seq_len": 2048, "zero_stage": 1,
        "micro_batch_size": 16, "num_micro_batches": 4, "precision": "fp16", "optimizer": "adamw",
    }  # fmt: skip
    assert {name: found.facts[name].value for name in expected} == expected
    assert found.facts["micro_batch_size"].line == 18


def test_a_config_is_checked_end_to_end(tmp_path: Path) -> None:
    """1.4B on 64 H100 fits; attention that keeps its scores takes more memory, and longer."""
    text = with_line(NEOX, '"checkpoint-activations": false')
    text = with_line(text, '"train_micro_batch_size_per_gpu": 4')
    flash = finding(tmp_path / "1-4B.yml", text)
    unfused = finding(tmp_path / "plain.yml", text.replace('[[["flash"], 24]]', "null"))
    assert flash.verdict == unfused.verdict == "fits"
    assert flash.peak_bytes is not None
    assert unfused.peak_bytes is not None
    assert unfused.peak_bytes > flash.peak_bytes


@pytest.mark.parametrize(
    ("lines", "vocab", "published"),
    [
        pytest.param((), 50304, 1_414_647_808, id="pythia-1.4b: parallel residual, biases"),
        pytest.param(
            ('"num-layers": 44', '"hidden-size": 6144', '"num-attention-heads": 64',
             '"attention-config": [[["global"], 44]]'),
            50432, 20_554_567_680, id="gpt-neox-20b",
        ),
        pytest.param(
            ('"num-layers": 32', '"hidden-size": 4096', '"num-attention-heads": 32',
             '"attention-config": [[["flash"], "all"]]', '"norm": "rmsnorm"',
             '"gpt-j-residual": false', '"use_bias_in_attn_linear": false',
             '"use_bias_in_mlp": false', '"activation": "swiglu"', '"intermediate_size": 32768',
             '"mlp_multiple_of": 256'),
            32000, 6_738_415_616, id="llama-7b: a third of 32768, up to 43 x 256 = 11008",
        ),
        pytest.param(
            ('"num-layers": 32', '"hidden-size": 4096', '"num-attention-heads": 32',
             '"attention-config": [[["flash"], 32]]', '"norm": "rmsnorm"',
             '"gpt-j-residual": false', '"use_bias_in_attn_linear": false',
             '"mlp_type": "llama"', '"activation": "silu"'),
            32000, 6_738_415_616, id="llama-7b before 2024-09: 8 h / 3 up to 43 x 256 = 11008",
        ),
        pytest.param(
            ('"num-layers": 32', '"hidden-size": 4096', '"num-attention-heads": 32',
             '"attention-config": [[["flash"], 32]]', '"norm": "rmsnorm"',
             '"gpt-j-residual": false', '"use_bias_in_attn_linear": false', '"num_kv_heads": 8',
             '"mlp_type": "llama"', '"activation": "silu"', '"intermediate_size": 14336',
             '"sliding_window_width": 4096'),
            32000, 7_241_732_096, id="mistral-7b before 2024-09: 14336 as it is",
        ),
    ],
)  # fmt: skip
def test_numbers_of_parameters(lines: tuple[str, ...], vocab: int, published: int) -> None:
    """The shape has exactly the parameters of the weights that it trained."""
    found = read(*lines)
    assert found.unread == ()
    assert weights(found, vocab) == published


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (('"pipe-parallel-size": 0', '"model-parallel-size": 0'),
         {"pipeline_parallel": 1, "tensor_parallel": 1}),
        (('"pipe-parallel-size": 4', '"model-parallel-size": 2'),
         {"pipeline_parallel": 4, "tensor_parallel": 2}),
        (('"gradient_accumulation_steps": null',), {"num_micro_batches": 1}),
        (('"zero_optimization": null',), {"zero_stage": 0}),
        (('"num_nodes": 4', '"num_gpus": 8'), {"gpus": 32}),
        (('"fp16": {"enabled": true, "type": "bfloat16"}',), {"precision": "bf16"}),
        (('"fp16": {"enabled": false}',), {"precision": "fp32"}),
        (('"fp16": null', '"precision": "bfloat16"'), {"precision": "bf16"}),
        (('"use_bnb_optimizer": true',), {"optimizer": "adamw8bit"}),
    ],
)  # fmt: skip
def test_how_keys_are_taken(lines: tuple[str, ...], expected: dict[str, object]) -> None:
    """What a key, or its absence, means to GPT-NeoX."""
    found = facts(*lines)
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('"attention-config": [[["global", "local"], 12]]', "attention_config 'global, local'"),
        ('"attention-config": [[["mamba"], 24]]', "attention_config 'mamba'"),
        ('"moe_num_experts": 8', "moe_num_experts (experts"),
        ('"pos-emb": "alibi"', "pos_emb 'alibi'"),
        ('"norm": "rmsnorm"', "norm rmsnorm (with a plain feed-forward"),
        ('"activation": "geglu"', "activation geglu"),
        ('"gpt_j_tied": true', "gpt_j_tied"),
        ('"use_qk_layernorm": true', "use_qk_layernorm"),
        ('"use_bias_in_mlp": false', "gpt_j_residual"),
        ('"checkpoint-num-layers": 4', "checkpoint_num_layers 4"),
        ('"checkpoint_in_cpu": true', "checkpoint_in_cpu"),
        ('"zero_optimization": {"stage": 1, "cpu_offload": true}', "zero_optimization.cpu_offload"),
        ('"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}',
         "zero_optimization.offload_optimizer"),
        ('"zero_optimization": {"stage": 1, "of_next_year": 7}', "of_next_year (not known)"),
        ('"data_types": {"grad_accum_dtype": "fp32"}', "data_types.grad_accum_dtype 'fp32'"),
        ('"optimizer": {"type": "lion", "params": {"lr": 0.1}}', "optimizer.type 'lion'"),
        ('"train_impl": "dpo"', "train_impl"),
        ('"te_mha": true', "te_mha"),
        ('"mlp_type": "gated"', "mlp_type 'gated'"),
        ('"a-key-of-next-year": 7', "a_key_of_next_year (not known)"),
        ('"curriculum_learning": {"enabled": true}', "curriculum_learning"),
        ('"train_micro_batch_size_per_gpu": null', "no train_micro_batch_size_per_gpu"),
        ('"num-layers": null', "no num_layers"),
        ('"attention-config": {"flash": 24}', "attention_config (a section"),
        ('"pipe-parallel-size": {"size": 4}', "pipe_parallel_size (a section"),
    ],
)  # fmt: skip
def test_what_is_not_modelled_is_named(tmp_path: Path, line: str, said: str) -> None:
    """A key that changes shape, memory or layout and has no words here: incomplete, by name."""
    assert said in named(line)
    assert finding(tmp_path / "config.yml", with_line(NEOX, line)).verdict == "incomplete"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (('"partition-activations": true', '"model-parallel-size": 2'), "partition_activations"),
        (('"pipe-parallel-size": 5',), "24 layers do not divide"),
        (('"pipe-parallel-size": 2', '"pipe-partition-method": "parameters"'),
         "pipe_partition_method 'parameters'"),
        (('"fp16": null', '"precision": "bfloat16"',
          '"zero_optimization": {"stage": 0}'), "zero_optimization.stage 0 with bf16"),
        (('"pos-emb": "learned"', '"gpt-j-residual": true'), "gpt_j_residual"),
        (('"pos-emb": "learned"', '"gpt-j-residual": false', '"mlp-type": "llama"',
          '"norm": "rmsnorm"'), "pos_emb learned"),
        (('"pos-emb": "learned"', '"gpt-j-residual": false', '"use-bias-in-attn-linear": false'),
         "pos_emb learned"),
    ],
)  # fmt: skip
def test_what_is_not_modelled_together_is_named(lines: tuple[str, ...], said: str) -> None:
    """Keys that are understood apart, and not together."""
    assert said in named(*lines)


@pytest.mark.parametrize(
    "line",
    ['"partition-activations": true', '"curriculum_learning": {"enabled": false}',
     '"train_impl": "normal"', '"moe_num_experts": 1', '"pipe-partition-method": "parameters"',
     '"zero_optimization": {"stage": 1, "cpu_offload": false}', '"rpe_num_buckets": 32',
     '"te_mha": false', '"data_types": {"grad_accum_dtype": "fp16"}'],
)  # fmt: skip
def test_what_changes_nothing_is_not_named(line: str) -> None:
    """A switch that is off, or that one stage or one tensor rank leaves idle."""
    assert named(line) == ""


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (('"zero_optimization": {"stage": 2}',), "takes stages 0 and 1"),
        (('"zero_optimization": {"stage": 7}',), "zero_optimization.stage is 7"),
        (('"zero_optimization": {"reduce_scatter": true}',), "without a stage"),
        (('"attention-config": [[["flash"], 20]]',), "attention_config names 20 layers"),
        (('"num-attention-heads": 12',), "does not divide by num_attention_heads 12"),
        (('"num_kv_heads": 3',), "does not divide by num_kv_heads 3"),
        (('"max-position-embeddings": 1024',), "less than seq_length 2048"),
        (('"precision": "bfloat16"',), "fp16.enabled beside precision bf16"),
        (('"activation": "swiglu"', '"intermediate_size": 14336'),
         "gives 4779 columns and the second takes 4778"),
    ],
)  # fmt: skip
def test_what_gpt_neox_stops_at_is_illegal(lines: tuple[str, ...], said: str) -> None:
    """The comparisons that its arguments, DeepSpeed's engines and its first matmul make."""
    with pytest.raises(IllegalConfig, match=said):
        read(*lines)


def test_a_fork_may_take_what_gpt_neox_refuses() -> None:
    """Savanna (Zymrael/savanna configs/) trains 1M tokens with max_position_embeddings 8192."""
    with pytest.raises(UnreadableConfig, match="'operator_config' is no key of GPT-NeoX"):
        read('"max-position-embeddings": 1024', '"operator-config": [[["hyena"], 24]]')


@pytest.mark.parametrize(
    "lines",
    [
        ('"pipe-parallel-size": 0', '"zero_optimization": {"stage": 3}'),
        ('"num-attention-heads": 12', '"attention-config": [[["mamba"], 24]]'),
    ],
    ids=["no pipeline engine: any stage", "Mamba's heads need not divide"],
)
def test_what_gpt_neox_takes_is_not_illegal(lines: tuple[str, ...]) -> None:
    """The same keys where GPT-NeoX does not compare them."""
    assert read(*lines).framework == "gpt-neox"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (('"num_layers": 24',), "with dashes and without"),
        (('"num-layers": 24.5',), "num_layers must be a whole number"),
        (('"num-layers": [24]',), "num_layers must be a whole number"),
        (('"attention-config": [[["flash"]]]',), "attention_config must be like"),
        (('"attention-config": [[["flash"], -1]]',), "attention_config must be like"),
        (('"attention-config": [[["flash"], 99999999999999999999]]',), "attention_config names"),
        (('"zero_optimization": {"stage": [0, 1]}',), "zero_optimization.stage is"),
        (('"sequence_parallel": 3',), "sequence_parallel must be true or false"),
        (('"hidden-size": 99999999999999999999',), "hidden_size is"),
        (('"mlp_multiple_of": 2147483648',), "mlp_multiple_of"),
        (('"attention-config": "flash"',), "attention_config must be like"),
        (('"expansion_factor": 1e300',), "expansion_factor must be a number"),
    ],
)  # fmt: skip
def test_hostile_values_are_one_line(tmp_path: Path, lines: tuple[str, ...], said: str) -> None:
    """A value of another type or size ends in one line, and is not priced."""
    text = NEOX
    for line in lines:
        text = with_line(text, line)
    found = finding(tmp_path / "config.yml", text)
    assert found.verdict not in ("fits", "does not fit")
    assert said in found.text
    assert found.text.isprintable()


def test_a_fix_is_one_that_gpt_neox_takes(tmp_path: Path) -> None:
    """With its pipeline engine it runs ZeRO-0 and 1: neither 2 nor 3 is offered to make 13B fit."""
    text = NEOX
    for line in ('"num-layers": 40', '"hidden-size": 5120', '"num-attention-heads": 40',
                 '"attention-config": null', '"train_micro_batch_size_per_gpu": 4'):  # fmt: skip
        text = with_line(text, line)
    found = finding(tmp_path / "13B.yml", text)
    assert found.verdict == "does not fit"
    assert "zero_stage" not in (found.fix or "")


def test_a_part_of_a_configuration_is_said_to_be_one(tmp_path: Path) -> None:
    """A file with the optimizer alone is not priced as if its degrees were 1."""
    text = "train_micro_batch_size_per_gpu: 4\nlr_decay_style: cosine\nprecision: fp16\n"
    found = finding(tmp_path / "train.yml", text)
    assert found.verdict == "incomplete"
    assert "--joined-with FILE" in found.text


SHAPE = {
    "pipe-parallel-size": 1, "model-parallel-size": 2, "num-layers": 4, "hidden-size": 1024,
    "num-attention-heads": 16, "seq-length": 2048, "max-position-embeddings": 2048,
}  # fmt: skip


def test_learned_positions_are_priced(tmp_path: Path) -> None:
    """GPT-NeoX's own default; a layer has 12 h h weights and 13 h biases and norms."""
    text = "\n".join(f"{name}: {value}" for name, value in SHAPE.items())
    config = read_config(text, "a.yml").model_config
    assert config is not None
    model = model_from_config({**config, "vocab_size": 50304}, "small")
    h = 1024
    layer = 12 * h * h + 13 * h
    assert model_parameters(model).total == 4 * layer + (50304 + 2048) * h + 2 * h


def test_files_are_joined_as_gpt_neox_joins_them(tmp_path: Path) -> None:
    """The shape of one and the training of another make the verdict of both in one file; a key of
    both stops it, with dashes or without.
    """
    rest = {"train_micro_batch_size_per_gpu": 4, "lr_decay_style": "cosine", "precision": "fp16"}
    for name, part in (("a.yml", SHAPE), ("b.yml", rest), ("both.yml", SHAPE | rest),
                       ("twice.yml", rest | {"num_layers": 4})):  # fmt: skip
        (tmp_path / name).write_text(json.dumps(part, indent=1))

    def checked(name: str, *joined: str) -> Finding:
        given = Settings(cluster="dgx-h100", gpus=8, vocab_size=50304,
                         joined_with=tuple(str(tmp_path / each) for each in joined))  # fmt: skip
        (found,) = check_paths([tmp_path / name], tools(), given)
        return found

    whole = checked("both.yml")
    assert whole.verdict in ("fits", "does not fit"), whole.text
    for one, other in (("a.yml", "b.yml"), ("b.yml", "a.yml")):
        found = checked(one, other)
        assert (found.verdict, found.label) == (whole.verdict, whole.label), found.text
    twice = checked("a.yml", "twice.yml")
    assert (twice.verdict, "GPT-NeoX stops" in twice.text) == ("illegal", True)
    assert "--joined-with" in checked("a.yml", "absent.yml").text


@pytest.mark.parametrize("name", ["a.yml", "a.yaml"])
def test_it_is_recognised_by_its_own_keys(name: str) -> None:
    """Keys with dashes, with underscores, quoted or not."""
    for text in (NEOX, "pipe_parallel_size: 1\n", "'pipe-parallel-size': 1\n"):
        found = recognise(name, text)
        assert found is not None
        assert found.name == "gpt-neox"
