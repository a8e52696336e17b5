"""When a measurement may stop, and what is kept of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshplan.executor.profile.statistics import (
    confident,
    kept,
    kept_quantile,
    slow_members,
    summarise,
)

SECONDS = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=60)


def test_summary_by_hand() -> None:
    """Median, quartiles and the order-statistic interval of nine repeats are those of the text."""
    summary = summarise([9, 1, 2, 3, 4, 5, 6, 7, 8])
    assert summary.median_s == 5
    assert summary.spread == pytest.approx((7 - 3) / 5)  # quartiles at positions 2 and 6 of 0..8
    # 9/2 - 0.98 x 3 = 1.56 -> 1st; 9/2 + 1 + 2.94 = 8.44 -> 9th
    assert (summary.low_s, summary.high_s) == (1, 9)
    assert summary.outliers == 0


def test_an_interrupted_repeat_is_an_outlier_and_leaves_the_median() -> None:
    """One repeat far beyond the third quartile is counted, and does not move the median."""
    quiet = [1.0, 1.01, 1.02, 1.03, 1.04, 1.05, 1.06]
    summary = summarise([*quiet, 50.0])
    assert summary.outliers == 1
    assert summary.median_s == pytest.approx(1.035)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        pytest.param([1.0] * 5, False, id="5 repeats cannot reach 95 %"),
        pytest.param([1.0] * 6, True, id="6 equal repeats"),
        pytest.param([1.0, 1.5] * 5, False, id="interval 1 to 1.5 around 1.25 is +-20 %"),
    ],
)
def test_confident_by_hand(seconds: list[float], expected: bool) -> None:
    """Enough repeats whose median is known to the fraction asked for, and not before."""
    assert confident(seconds, 0.02) is expected


@pytest.mark.parametrize(
    ("quantile", "expected"),
    [
        pytest.param(0.0, (1.0, 1.0), id="the fastest, 1; 2 is next: (2 - 1) / 1"),
        pytest.param(0.25, (2.0, 1.0), id="position 0.25 x 4, 2; next to it 1 and 3: 2 / 2"),
        pytest.param(0.5, (3.0, 2 / 3), id="the median, 3; next to it 2 and 4: 2 / 3"),
    ],
)
def test_kept_by_hand(quantile: float, expected: tuple[float, float]) -> None:
    """A quantile of 1 to 5 s in any order, and how far its neighbours are apart."""
    assert kept([5.0, 3.0, 1.0, 4.0, 2.0], quantile) == pytest.approx(expected)


def test_what_is_kept_of_which_device() -> None:
    """The fastest of a CPU that others use too; medians of a GPU and of any collective."""
    assert kept_quantile(shared=False, together=True) == 0.5
    assert kept_quantile(shared=True, together=False) == 0.0
    assert kept_quantile(shared=True, together=True) == 0.5


@given(SECONDS)
def test_the_interval_holds_the_median(seconds: list[float]) -> None:
    """low <= median <= high, within the repeats, in whatever order they came."""
    summary = summarise(seconds)
    assert min(seconds) <= summary.low_s <= summary.median_s <= summary.high_s <= max(seconds)
    assert summarise(seconds[::-1]) == summary


@given(SECONDS, st.floats(0.1, 100))
def test_a_slower_clock_changes_no_verdict(seconds: list[float], factor: float) -> None:
    """Spread and uncertainty are relative: scaling all repeats leaves them as they are."""
    before, after = summarise(seconds), summarise([factor * value for value in seconds])
    assert after.spread == pytest.approx(before.spread, rel=1e-9, abs=1e-9)
    assert after.uncertainty == pytest.approx(before.uncertainty, rel=1e-9, abs=1e-9)


def test_slow_member_is_named_with_how_much() -> None:
    """A member is slow by the median of its ratios: one bad measurement does not make it so."""
    ratios = {"rank 0": [1.0, 1.0, 1.5], "rank 1": [1.11, 1.12, 1.13]}
    assert slow_members(ratios, 0.05) == pytest.approx({"rank 1": 0.12})
