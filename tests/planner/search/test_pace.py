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
    """Layouts with these bounds, one of which is settled with each look."""

    bounds: list[float]

    @property
    def least_s(self) -> float:
        return min(self.bounds)

    def asked(self) -> tuple[Any, Any]:
        return np.arange(len(self.bounds)), np.array(self.bounds)


@pytest.mark.parametrize(
    ("layouts", "bound_s", "ends"),
    [
        pytest.param(60, 0.99, True, id="8 of 60 in a window: 1.5 * 8 * 3 < 52"),
        pytest.param(40, 0.99, False, id="8 of 40 in a window: 1.5 * 8 * 3 > 32"),
        pytest.param(60, 0.96, False, id="the gap is wide: there is more budget"),
        pytest.param(60, 1.01, False, id="nothing lacks"),
    ],
)
def test_a_proof_that_cannot_be_finished_is_in_vain(
    layouts: int, bound_s: float, ends: bool
) -> None:
    """Four windows of work, one layout of equal bounds for each look at it, of which a window has
    eight: the least bound stays.
    """
    pace, open_layouts = ProofPace(), OpenBounds([bound_s] * layouts)
    for left in range(4 * WINDOW, 3 * WINDOW, -LOOK):
        assert not pace.is_in_vain(open_layouts, 1.0, left)  # type: ignore[arg-type]
        open_layouts.bounds.pop()
    assert pace.is_in_vain(open_layouts, 1.0, 3 * WINDOW) == ends  # type: ignore[arg-type]
