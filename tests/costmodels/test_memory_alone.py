"""The bytes that are priced without seconds are those of the whole price."""

import numpy as np
import pytest

from meshplan.costmodels.prices.prices import memory_bytes, price
from meshplan.planner.answer.question import Arguments, ask
from meshplan.planner.search.rows.priced_space import space_of


@pytest.mark.parametrize(
    ("model", "engine", "image_tokens"),
    [
        pytest.param("llama-3.2-1b", "megatron", None, id="dense, tied"),
        pytest.param("qwen2.5-vl-7b", "automodel", "1k", id="a tower"),
        pytest.param("deepseek-v3", "megatron", None, id="modules on stages"),
        pytest.param("deepseek-v3", "torchtitan", None, id="modules with the loss"),
    ],
)
def test_bytes_alone_are_those_of_the_price(
    model: str, engine: str, image_tokens: str | None
) -> None:
    """To the last digit, so that a row fits by one if it fits by the other."""
    asked = Arguments(
        model=model, gpus=16, cluster="dgx-h100", engine=engine, global_batch=64,
        image_tokens=image_tokens,
    )  # fmt: skip
    question = ask(asked).question
    layouts = space_of(question).layouts
    layouts = layouts.take(np.arange(0, len(layouts), 1 + len(layouts) // 500))
    whole = price(layouts, question.setting)
    for name, column in memory_bytes(layouts, question.setting).items():
        assert np.array_equal(column, getattr(whole, name)), name
