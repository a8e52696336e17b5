"""What a row says of routers that choose."""

import pytest

from meshplan.planner.runs.rows import SkippedRow
from meshplan.planner.runs.runs import run_of

ROW = {
    "id": "x", "framework": "megatron", "config": "mixtral-8x7b", "gpu": "h100-sxm", "gpus": "8",
    "seq_len": "4096", "global_batch": "8", "precision": "bf16", "ep": "8", "zero": "1",
}  # fmt: skip


@pytest.mark.parametrize(
    ("gate", "expected"),
    [("", 1.0), ("dealt", 1.0), ("capacity", 1.0), ("natural 1", 1.0), ("natural 1.5", 1.5)],
)
def test_the_busiest_rank_gets_what_the_row_says(gate: str, expected: float) -> None:
    """A dealt gate is balanced, a natural one as uneven as stated."""
    assert run_of(ROW | {"gate": gate}).training.expert_imbalance == expected


@pytest.mark.parametrize("gate", ["natural", "natural 0.5", "natural nan", "natural 1 2"])
def test_an_imbalance_that_cannot_be_skips_the_row(gate: str) -> None:
    """Below 1, no number, or two: the reason shows one that can be."""
    with pytest.raises(SkippedRow, match=r"natural 1\.5"):
        run_of(ROW | {"gate": gate})
