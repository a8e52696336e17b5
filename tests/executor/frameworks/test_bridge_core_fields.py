"""A Megatron-Bridge configuration that states its model by Megatron-Core's own fields."""

import pytest

from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.parameters import model_parameters
from meshplan.executor.frameworks import read_config
from meshplan.planner.case.reading import IllegalConfig, Reading

SIZES = (
    "  num_layers: 32\n  hidden_size: 4096\n  ffn_hidden_size: 14336\n  num_attention_heads: 32\n"
    "  vocab_size: 128256\n  seq_length: 8192\n  tensor_model_parallel_size: 2\n"
    "  normalization: RMSNorm\n  position_embedding_type: rope\n"
)
OWN = (
    "  num_query_groups: 8\n  gated_linear_unit: true\n"
    "  share_embeddings_and_output_weights: false\n  add_bias_linear: false\n"
)


def _read(model: str) -> Reading:
    text = f"model:\n{model}train:\n  micro_batch_size: 1\n  global_batch_size: 512\n"
    return read_config(text, "run_config.yaml")


def test_a_dump_is_the_model_that_it_states() -> None:
    """Llama 3 8B: 8,030,261,248 parameters, not one with 32 key heads, a tied head and no gate."""
    config = _read(SIZES + OWN).model_config
    assert config is not None
    assert model_parameters(model_from_config(config, "x")).total == 8_030_261_248


@pytest.mark.parametrize("gone", OWN.splitlines()[:3])
def test_a_shape_in_part_is_no_model(gone: str) -> None:
    """The rest is the recipe's, which is not read; --model closes it."""
    reading = _read(SIZES + OWN.replace(gone + "\n", ""))
    assert reading.model_config is None
    assert any(gone.split(":")[0].strip() in note and "--model" in note for note in reading.notes)


def test_a_field_that_is_null_is_stated() -> None:
    """As many key heads as heads."""
    reading = _read(SIZES + OWN.replace("num_query_groups: 8", "num_query_groups: null"))
    assert reading.model_config is not None
    assert reading.model_config["num_key_value_heads"] == 32


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("~model.context_parallel_size", "takes a field"),
        ("--model.context_parallel_size=2", "dash"),
    ],
)
def test_a_word_that_is_no_override_is_named(word: str, why: str) -> None:
    """It was passed over."""
    text = (
        "torchrun --nproc_per_node 8 run_recipe.py --recipe llama3_8b_pretrain_config "
        f"model.tensor_model_parallel_size=4 model.context_parallel_size=1 '{word}'\n"
    )
    unread = [str(fact.value) for fact in read_config(text, "run.sh").unread]
    assert any(word in each and why in each for each in unread)


def test_two_formats_of_deepspeed_are_refused() -> None:
    """deepspeed/runtime/config.py asserts that one is on at most."""
    both = '"bf16": {"enabled": true}, "fp16": {"enabled": true}'
    text = f'{{"train_micro_batch_size_per_gpu": 1, {both}}}'
    with pytest.raises(IllegalConfig, match="bf16 and fp16 are both enabled"):
        read_config(text, "ds.json")
