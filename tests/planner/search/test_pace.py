"""Whether a budget is enough, by the pace of what was spent last: worked by hand."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from meshplan.planner.search.simulation.pace import (
    ENOUGH_WORK,
    LOOK,
    WINDOW,
    ProofPace,
    WorkPace,
)


def test_work_is_enough_where_what_lacks_falls_fast_enough() -> None:
    """A window of work takes 1 of 5: with half as much again the 4 that are left take 2.67 more."""
    unit = ENOUGH_WORK
    assert WorkPace((4 * unit, 5.0)).is_enough(3 * unit, 4.0)
    assert not WorkPace((int(3.6 * unit), 5.0)).is_enough(int(2.6 * unit), 4.0)
    assert WorkPace((unit, 5.0)).is_enough(unit // 2, 5.0), "nothing is said of the first work"


def test_work_long_ago_does_not_count() -> None:
    """All that was gained was gained in the first window of three."""
    unit = ENOUGH_WORK
    pace = WorkPace((10 * unit, 5.0))
    found = [pace.is_enough((10 - n) * unit, 2.0) for n in (1, 2, 3)]
    assert found == [True, False, False]


def test_work_long_ago_counts_in_a_wide_window() -> None:
    """All that was gained was gained at first: of 5, 2 are left."""
    unit = ENOUGH_WORK
    pace = WorkPace((10 * unit, 5.0), window=10 * unit)
    assert all(pace.is_enough((10 - n) * unit, 2.0) for n in (1, 2, 3))
    assert not pace.is_enough(unit, 2.0), "9 windows took 3: the last one takes half of one more"


def test_the_first_work_may_be_longer() -> None:
    """What is begun gains nothing at first: three windows are asked for, so two say nothing."""
    unit = ENOUGH_WORK
    pace = WorkPace((10 * unit, 5.0), window=9 * unit, first=3 * unit)
    assert [pace.is_enough((10 - n) * unit, 5.0) for n in (1, 2, 3)] == [True, True, False]


@dataclass
class OpenBounds:
    """Layouts with these bounds."""

    bounds: list[float]

    @property
    def least_s(self) -> float:
        return min(self.bounds)

    def asked(self) -> tuple[Any, Any]:
        return np.arange(len(self.bounds)), np.array(self.bounds)


@pytest.mark.parametrize(
    ("bound_s", "settled", "ends"),
    [
        pytest.param(0.99, 0, True, id="60 layouts lack 0.01 s each, as a window before"),
        pytest.param(0.99, 1, False, id="59 of them do: the least bound stays"),
        pytest.param(0.99, -1, True, id="61 do: one was opened into two"),
        pytest.param(0.96, 0, False, id="the gap is wide: that has a budget of its own"),
    ],
)
def test_a_proof_is_in_vain_where_a_window_of_work_gains_nothing(
    bound_s: float, settled: int, ends: bool
) -> None:
    """A step of 1 s; less work than a window says nothing, nor does what was gained before it."""
    pace, end = ProofPace(), 3 * WINDOW
    before: Any = OpenBounds([bound_s] * 70)
    for left in range(4 * WINDOW + 2 * LOOK, end, -LOOK):
        open_layouts: Any = OpenBounds([bound_s] * 60)
        now = before if left > 4 * WINDOW else open_layouts
        assert not pace.is_in_vain(now, 1.0, left)
    assert pace.is_in_vain(OpenBounds([bound_s] * (60 - settled)), 1.0, end) == ends  # type: ignore[arg-type]


def test_a_faster_plan_is_a_gain() -> None:
    """Of the same bounds less lacks below 0.995 s than below 1 s."""
    pace, open_layouts = ProofPace(), OpenBounds([0.99] * 60)
    assert not pace.is_in_vain(open_layouts, 1.0, 4 * WINDOW)  # type: ignore[arg-type]
    assert not pace.is_in_vain(open_layouts, 0.995, 3 * WINDOW)  # type: ignore[arg-type]
