"""Whether a budget is enough, by the pace of what was spent last: worked by hand."""

from meshplan.planner.search.simulation.pace import ENOUGH_WORK, WorkPace


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
