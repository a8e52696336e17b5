"""Bytes that an optimizer's step moves of a parameter, counted by hand."""

import pytest

from meshplan.costmodels.training import Optimizer, OptimizerStates, Training
from meshplan.costmodels.weights.update import moved_of


@pytest.mark.parametrize(
    ("states", "fused", "by_operator"),
    [
        pytest.param("fp32", 7 * 4.0, 20 * 4.0, id="seven numbers, or twenty, of 4 bytes"),
        pytest.param("bf16", 7 * 2.0, 20 * 2.0, id="of 2"),
    ],
)
def test_adamw_moves_more_operator_by_operator(
    states: OptimizerStates, fused: float, by_operator: float
) -> None:
    """Decay 2, moments 3 and 5, root 2, divided 2, epsilon 2, the update 4: 20 numbers; the rest
    (gradients clipped) moves the same.
    """
    training = Training(seq_len=4096, global_batch_size=64, optimizer_states=states)
    one, several = moved_of(training), moved_of(training, by_operator=True)
    assert (one.update_bytes, several.update_bytes) == (fused, by_operator)
    assert one.around_bytes == several.around_bytes


@pytest.mark.parametrize("optimizer", ["adamw8bit", "muon", "sgd"])
def test_other_optimizers_move_what_they_moved(optimizer: Optimizer) -> None:
    """Only AdamW's step is counted operator by operator."""
    training = Training(seq_len=4096, global_batch_size=64, optimizer=optimizer)
    assert moved_of(training, by_operator=True) == moved_of(training)
