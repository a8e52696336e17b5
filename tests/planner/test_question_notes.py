"""What a question's notes say of it."""

import pytest

from meshplan.planner.answer.question import Arguments, ask


@pytest.mark.parametrize(
    ("seq_len", "said"),
    [
        ("2048", False),
        pytest.param("8k", True, id="a table of 2,048 positions"),
    ],
)
def test_sequences_that_the_model_is_not_made_for_are_said(seq_len: str, said: bool) -> None:
    """GPT-3's configuration has 2,048 learned positions; longer ones are planned, and named."""
    asked = ask(
        Arguments(model="gpt3-125m", gpus=8, cluster="dgx-h100", global_batch=64, seq_len=seq_len)
    )
    words = "8,192 tokens, beyond the 2,048 of the model's configuration (n_positions)"
    assert any(words in note for note in asked.notes) is said
