"""What is found of all splits of a list before any of their chunks is looked at."""

import numpy as np
import pytest
from listed_layouts import listed_layouts

from meshplan.planner.bounds.simulated import Passes
from meshplan.planner.bounds.split_times import SplitTimes, rows_below, split_chains


@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ["megatron", "native"])
def test_no_row_is_left_out_that_has_a_split_below_the_limit(engine: str) -> None:
    """Of the chains of all chunks those of the ranks are at least as long with every split of a row
    that is left out; at each row's own least bound, and above it, it stays. Often enough one goes.
    """
    gone = stayed = 0
    for proof, _, rows, same in listed_layouts(engine, range(10)):
        passes = Passes.of(proof.passes, rows, same)
        least = split_chains(same, SplitTimes.of(same, passes)).max(axis=0).min(axis=1)
        for limit_s in np.concatenate([least * (1 + 1e-9), least * 1.01, least * 0.9]).tolist():
            left = set(rows_below(same, passes, limit_s).tolist())
            below = set(np.flatnonzero(least < limit_s).tolist())
            assert below <= left
            gone += len(rows) - len(left)
            stayed += len(left)
    assert min(gone, stayed) > 50
