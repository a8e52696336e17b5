"""Lists of Megatron-Bridge's overrides: KEY=VALUE words in a file."""

import pytest

from meshplan.executor.frameworks import read_config

OVERRIDES = "model.tensor_model_parallel_size=2\n{}\ntrain.micro_batch_size=1\n"


@pytest.mark.parametrize(
    ("word", "stages", "named"),
    [
        pytest.param("model.pipeline_model_parallel_size=4", 4, "", id="a word"),
        pytest.param("'model.pipeline_model_parallel_size=4'", 4, "", id="in quotes"),
        pytest.param("# pipeline_model_parallel_size=4", None, "", id="a comment"),
        *(
            pytest.param(word, None, word.partition(" ")[0], id=word)
            for word in (
                "pipeline_model_parallel_size=4", "--model.pipeline_model_parallel_size=4",
                "model.pipeline_model_parallel_size = 4", "model.pipeline_model_parallel_size: 4",
                "~model.pipeline_model_parallel_size", "model/pipeline_model_parallel_size=4",
                "$EXTRA",
            )
        ),
    ],
)  # fmt: skip
def test_no_word_of_a_list_of_overrides_is_lost(word: str, stages: int | None, named: str) -> None:
    """One that Hydra does not take is named: without it another layout was priced."""
    reading = read_config(OVERRIDES.format(word), "overrides.txt")
    found = reading.facts.get("pipeline_parallel")
    assert (found and found.value) == stages
    assert [named in str(each.value) for each in reading.unread] == [True] * bool(named)


@pytest.mark.parametrize(
    ("precision", "read", "named"),
    [
        ("bf16:true", "bf16", False),
        ("bf16:false", None, True),
        ("bf16:false,fp16:true", "fp16", False),
        ("bf16:false,fp8:hybrid", "fp8", False),
    ],
)
def test_bf16_that_is_off_is_not_assumed(precision: str, read: str | None, named: bool) -> None:
    """`check` said that nothing was stated, and priced bf16 as recipes have it."""
    words = f"mixed_precision={{_target_:megatron.MixedPrecisionConfig,{precision}}}"
    reading = read_config(OVERRIDES.format(words), "overrides.txt")
    found = reading.facts.get("precision")
    assert (found and found.value) == read
    assert any("bf16 false" in str(each.value) for each in reading.unread) == named
