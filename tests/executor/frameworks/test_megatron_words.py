"""Words that Megatron's own parser refuses."""

import pytest

from meshplan.executor.frameworks import read_config

SIZES = (
    "--num-layers 4 --hidden-size 256 --num-attention-heads 4 --num-experts 4 --swiglu "
    "--micro-batch-size 1 --tensor-model-parallel-size 1"
)


@pytest.mark.parametrize(
    ("flag", "named"),
    [
        ("--normalization zzz", True), ("--normalization RMSNorm", False),
        ("--normalization rmsnorm", False), ("--normalization $NORM", False),
        ("--position-embedding-type zzz", True), ("--position-embedding-type rope", False),
        ("--moe-router-score-function zzz", True), ("--moe-router-score-function sigmoid", False),
    ],
)  # fmt: skip
def test_a_word_that_stops_megatron_is_a_note(flag: str, named: bool) -> None:
    """It changes no size, and a fork may have it."""
    notes = [
        note
        for note in read_config(f"torchrun pretrain_gpt.py {SIZES} {flag}", "a.sh").notes
        if "none of Megatron's words" in note
    ]
    assert bool(notes) is named
    assert all(flag.split()[0][2:] in note for note in notes)
