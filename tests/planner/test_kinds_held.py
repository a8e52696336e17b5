"""What of a model of several kinds of layers fits beyond its priced memory, and its budget."""

from types import SimpleNamespace

import pytest

from meshplan.planner.cuts.budget import Tally
from meshplan.planner.search.kinds_held import KindsHeld


@pytest.mark.parametrize(
    ("bound_s", "left", "more", "expected"),
    [
        pytest.param(0.96, -200_000, 5_000_000, 800_000, id="0.96 < 0.97: -0.2 + 1 million"),
        pytest.param(0.96, -2_300_000, 5_000_000, 700_000, id="-2.3 + 3 x 1 million"),
        pytest.param(0.96, 400_000, 5_000_000, 1_400_000, id="0.4 million may end amid a layout"),
        pytest.param(0.96, 600_000, 5_000_000, 600_000, id="0.6 million are enough to begin"),
        pytest.param(0.98, -200_000, 5_000_000, -200_000, id="0.98 > 0.97: the gap is not wide"),
        pytest.param(0.96, -2_300_000, 1_000_000, -1_300_000, id="no more than 1 million left"),
    ],
)
def test_a_wide_gap_has_more_of_the_budget(
    bound_s: float, left: int, more: int, expected: int
) -> None:
    """A million at a time, as long as a bound is below 0.97 of the best step."""
    held = KindsHeld.__new__(KindsHeld)
    held.__dict__ |= {
        "proof": SimpleNamespace(best_s=1.0),
        "tally": Tally(left=left),
        "_more": more,
    }
    held._widen(bound_s)
    assert held.tally.left == expected
    assert held._more == more - (expected - left)
