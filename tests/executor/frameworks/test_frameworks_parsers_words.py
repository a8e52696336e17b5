"""Words as the frameworks' own parsers take them: argparse, HfArgumentParser, PyYAML."""

import argparse

import pytest
import yaml

from meshplan.executor.frameworks import read_config
from meshplan.executor.frameworks.documents.parse import read_yaml
from meshplan.planner.case.reading import IllegalConfig, UnreadableConfig

GPT = (
    "--tensor-model-parallel-size 4 --num-layers 32 --hidden-size 4096 --num-attention-heads 32 "
    "--seq-length 4096 --global-batch-size 128 --bf16"
)
HF = (
    "torchrun --nproc_per_node 8 train.py --model_name_or_path meta-llama/Llama-3.1-8B "
    "--per_device_train_batch_size 2 --gradient_accumulation_steps 8 --max_seq_length 4096"
)
WORDS = ("2", "08", "1_6", " 2", "2.0", "2e0", "1e3", "0x8", "2k", "-2", "+2", "")


@pytest.mark.parametrize("word", WORDS)
def test_a_size_is_what_argparse_makes_of_it(word: str) -> None:
    """`type=int` of Megatron's parser is Python's `int`; what that refuses is no number here."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--micro-batch-size", type=int)
    try:
        theirs: int | None = parser.parse_args([f"--micro-batch-size={word}"]).micro_batch_size
    except argparse.ArgumentError:
        theirs = None
    text = f"python pretrain_gpt.py {GPT} '--micro-batch-size={word}'"
    try:
        ours = read_config(text, "run.sh").facts["micro_batch_size"].value
    except (UnreadableConfig, IllegalConfig):
        ours = None
    assert ours == (theirs if theirs and theirs > 0 else None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--micro_batch_size 2", "--micro_batch_size is refused .* is --micro-batch-size"),
        ("--micro-batch-size 2 --sequence_parallel", "--sequence_parallel is refused"),
        ("--micro-batch-size 2 --sequence-parallel true", "--sequence-parallel takes no value"),
        ("--micro-batch-size 2 --swiglu=false", "--swiglu takes no value, and 'false'"),
        ("--cross-entropy-loss-fusion false", "--cross-entropy-loss-fusion takes no value"),
        ("--micro-batch-size 2 9", "--micro-batch-size takes one value, and '9'"),
        ("--micro-batch-size=2 9", "--micro-batch-size takes one value, and '9'"),
        ("--micro-batch-size 2 --sequence-parallel", None),
        ("--micro-batch-size 2 --swiglu $MORE 2>&1", None),
        ("--micro-batch-size 2 --my_own_flag 4", None),
    ],
)
def test_an_option_is_as_megatrons_parser_declares_it(options: str, said: str | None) -> None:
    """argparse: dashes and underscores differ, and `store_true` takes no value."""
    text = f"python pretrain_gpt.py {options} {GPT}"
    if said is None:
        assert read_config(text, "run.sh").facts["micro_batch_size"].value == 2
    else:
        with pytest.raises(IllegalConfig, match=said):
            read_config(text, "run.sh")


@pytest.mark.parametrize(
    ("word", "precision"),
    [("", "bf16"), ("True", "bf16"), ("yes", "bf16"), ("t", "bf16"), ("1", "bf16"),
     ("no", "fp32"), ("f", "fp32"), ("0", "fp32"), ("False", "fp32")],
)  # fmt: skip
def test_a_switch_is_what_string_to_bool_makes_of_it(word: str, precision: str) -> None:
    """transformers 5.23 hf_argparser.py."""
    reading = read_config(f"{HF} --bf16 {word}", "run.sh")
    assert reading.facts["precision"].value == precision


def test_a_switch_of_another_word_is_no_switch() -> None:
    """It is refused, not taken as off."""
    with pytest.raises(UnreadableConfig, match="bf16 must be true or false, not 'maybe'"):
        read_config(f"{HF} --bf16 maybe", "run.sh")


def test_both_formats_are_refused() -> None:
    """`TrainingArguments`: at most one of fp16 and bf16."""
    with pytest.raises(IllegalConfig, match="bf16 and fp16 are both on"):
        read_config(f"{HF} --bf16 --fp16", "run.sh")


def test_options_may_have_dashes() -> None:
    """`HfArgumentParser` takes both."""
    launcher, _, rest = HF.partition("train.py")
    reading = read_config(f"{launcher}train.py{rest.replace('_', '-')} --bf16", "run.sh")
    assert reading.facts["micro_batch_size"].value == 2
    assert reading.facts["num_micro_batches"].value == 8


@pytest.mark.parametrize(
    "word", ["8", "010", "0x10", "0b11", "1_000", "+4", "-0", "0", "1.5", "on"]
)
def test_a_scalar_is_what_pyyaml_makes_of_it(word: str) -> None:
    """The loader of nanotron, axolotl and OmegaConf: `010` is 8."""
    assert read_yaml(f"a: {word}")["a"].value == yaml.safe_load(f"a: {word}")["a"]
