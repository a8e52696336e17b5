"""Traffic that comes late, of the mean rank: what is never hidden, or what exceeds its room."""

import numpy as np
import pytest

from meshplan.planner.bounds.late import Lines


@pytest.mark.parametrize(("counts", "expected_s"), [
    pytest.param(4, 5.5, id="half shown: max(0.5 x 11, 11 - 6) of 1 + (4 x 4 + 4) / 2"),
    pytest.param(2, 3.5, id="max(0.5 x 7, 7 - 4) of 1 + (2 x 4 + 4) / 2"),
])  # fmt: skip
def test_late_traffic_of_the_mean_rank_by_hand(counts: int, expected_s: float) -> None:
    """Of two ranks that hold so many layers of 4 s and ends of 4 s, with rooms of 2 s each and 4 s,
    and a latency of 1 s: the larger of what is never hidden and what exceeds the room.
    """
    shown, beyond = 0.5, np.array([[4.0 - 2.0]])
    lines = Lines(
        layer=np.stack([shown * np.array([[4.0]]), beyond], axis=1),
        ends=np.array([[[shown * 4.0, 0.0], [4.0 - 4.0, 0.0]]]),
        fixed=np.array([[shown * 1.0, 1.0]]),
    )
    assert lines.mean_s(np.array([counts]), 2)[0] == pytest.approx(expected_s)
