"""The tokens that a rank trains on; `test_execute_command` has ranks train."""

import numpy as np
import pytest

from meshplan.costmodels.training import Training
from meshplan.executor.engine.step.data import Sequences, UnreadableData


def test_token_file_too_short(tmp_path):
    """A file that holds less than one sequence is refused with the counts."""
    path = tmp_path / "tokens.bin"
    np.arange(8, dtype=np.uint16).tofile(path)
    training = Training(seq_len=32, global_batch_size=1)
    with pytest.raises(UnreadableData, match="8 uint16 tokens; one sequence needs 33"):
        Sequences(training, 128, seed=0, path=path)


def test_token_outside_the_vocabulary(tmp_path):
    """A token that the model has no row for is refused, not clamped."""
    path = tmp_path / "tokens.bin"
    np.full(64, 200, dtype=np.uint16).tofile(path)
    sequences = Sequences(Training(seq_len=32, global_batch_size=1), 128, seed=0, path=path)
    with pytest.raises(UnreadableData, match="token 200 at or after position 0"):
        sequences.sequence(0, 0)


def test_sequences_come_from_the_file_in_order(tmp_path):
    """Sequence i of step s starts at token (s x batch + i) x length of the file."""
    path = tmp_path / "tokens.bin"
    np.arange(1000, dtype=np.uint16).tofile(path)
    sequences = Sequences(Training(seq_len=10, global_batch_size=4), 1000, seed=0, path=path)
    assert sequences.sequence(2, 3).tolist() == list(range(110, 121))
