"""What is found of all splits of a list before any of their chunks is looked at."""

import numpy as np
import pytest
from listed_layouts import listed_layouts

from meshplan.planner.bounds.simulated import Passes
from meshplan.planner.bounds.split_chains import bounds_of_splits, split_bounds_s
from meshplan.planner.bounds.split_times import SplitTimes, rows_below, split_chains
from meshplan.planner.problem.same_pipeline import SamePipeline

LONG_S = 1e6  # a limit above all steps


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


@pytest.mark.few(2)
@pytest.mark.parametrize("engine", ["megatron", "native", "generic"])
def test_a_limit_leaves_the_splits_below_it(engine: str) -> None:
    """A limit between the bounds of a layout's splits takes away those above it and no other; what
    is least of the rest is the bound of the layout.
    """
    thinned = 0
    for proof, _, rows, same in listed_layouts(engine, range(6)):
        passes = Passes.of(proof.passes, rows, same)
        every = bounds_of_pairs(same, passes, LONG_S)
        for part in (0.0, 0.2, 0.6) if every else ():
            limit_s = np.quantile([*every.values()], part) * (1 + 1e-9)
            found = bounds_of_pairs(same, passes, limit_s)
            assert found == {pair: each for pair, each in every.items() if each < limit_s}
            least = np.full(len(same), limit_s)
            for (row, _), bound_s in found.items():
                least[row] = min(least[row], bound_s)
                thinned += sum(of == row for of, _ in found) < sum(of == row for of, _ in every)
            assert (bounds_of_splits(same, passes, limit_s)[0] <= least).all()
    assert thinned > 20


def bounds_of_pairs(
    same: SamePipeline, passes: Passes, limit_s: float
) -> dict[tuple[int, int], float]:
    """The bound of each layout with each split that may be below the limit."""
    split, layout, bound_s, _ = split_bounds_s(same, passes, limit_s)
    return dict(zip(zip(layout.tolist(), split.tolist(), strict=True), bound_s, strict=True))
