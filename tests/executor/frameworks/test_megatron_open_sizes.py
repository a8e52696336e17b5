"""Sizes of the model that a Megatron script leaves to the environment."""

import re
from pathlib import Path

import pytest
from random_plans import model_named

from meshplan.executor.frameworks import read_config
from meshplan.planner.case.resolve import resolve
from meshplan.planner.case.settings import Settings

SIZES = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --swiglu --ffn-hidden-size 14336 "
    "--group-query-attention --num-query-groups 8 --kv-channels 128"
)


@pytest.mark.parametrize("flag", ["num-layers", "ffn-hidden-size", "num-query-groups"])
def test_a_size_that_is_left_open_is_no_default(tmp_path: Path, flag: str) -> None:
    """Where a settings file says the model, all of its shape is taken, and said: Megatron's default
    beside the other sizes (1 group, a width of 8/3) would be a model that nobody trains.
    """
    sizes = re.sub(rf"--{flag} \d+", f"--{flag} $SIZE", SIZES)
    text = (
        f"torchrun --nproc-per-node 8 pretrain_gpt.py {sizes} --vocab-size 128256 --bf16 "
        "--untie-embeddings-and-output-weights --disable-bias-linear --position-embedding-type "
        "rope --tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 8 "
        "--seq-length 4096"
    )
    near = Settings(cluster="dgx-h100", gpus=8, model="llama-3.1-8b")
    reading = read_config(text, str(tmp_path / "run.sh"), start=near.start)
    case = resolve(reading, Settings(), near)
    assert case.model == model_named("llama-3.1-8b")
    said = "the whole shape of the model that is given"
    assert f"the script leaves --{flag} open: priced with {said}" in case.notes
    assert reading.model_config is None


def test_a_length_of_positions_that_are_not_learnt_leaves_the_shape(tmp_path: Path) -> None:
    """`--max-position-embeddings $N` beside rotary positions changes no size of the script's."""
    text = f"torchrun pretrain_gpt.py --micro-batch-size 1 {SIZES} --max-position-embeddings $N"
    settings = Settings(model="qwen3-8b")
    for positions, is_stated in (("rope", True), ("learned_absolute", False)):
        words = f"{text} --position-embedding-type {positions}"
        reading = read_config(words, str(tmp_path / "run.sh"), start=settings.start)
        assert (reading.model_config is not None) == is_stated
