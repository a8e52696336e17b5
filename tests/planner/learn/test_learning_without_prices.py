"""What sources teach by the shares of their steps, beside what the cost model says of them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from two_layouts import APART, PLANS, timed

from benchmarks.accuracy.learn_sources import Row, Scaled, without_prices
from benchmarks.accuracy.priors import FREE
from meshplan.hardware_profiles.tunings import load_fit
from meshplan.planner.learn.shrink import errors_at, linearised, read_shrinkage, shrunk

STRANGER = read_shrinkage("stranger")


def test_what_constants_scale_is_added_up() -> None:
    """Half of a step of 1 s doubles, a fifth halves: 1 + 0.5 - 0.1 = 1.4 s, of which 1 / 1.4 and
    0.1 / 1.4 go with the constants.
    """
    found = Scaled(np.array([math.log(2.8)]), np.array([[0.5, 0.2]]))
    x = np.log([2.0, 0.5])
    assert found.errors(x) == pytest.approx([math.log(2.0)])
    assert found.slopes(x)[0] == pytest.approx([1 / 1.4, 0.1 / 1.4])


@given(
    st.lists(st.floats(0.01, 1.0), min_size=2, max_size=2),
    st.lists(st.floats(-1.5, 1.5), min_size=2, max_size=2),
)
def test_slopes_are_those_of_the_errors(shares: list[float], x: list[float]) -> None:
    """By central differences."""
    found, at = Scaled(np.zeros(1), np.array([shares]) / 2.1), np.array(x)
    for k, shift in enumerate(np.eye(2) * 1e-5):
        slope = (found.errors(at - shift) - found.errors(at + shift)) / 2e-5
        assert slope == pytest.approx(found.slopes(at)[:, k], rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("factors", [(1.5, 1.3), (0.7, 0.8), (1.2, 0.9)])
def test_it_is_what_learn_says_but_for_what_is_hidden(factors: tuple[float, float]) -> None:
    """Two runs teach; two others are predicted as the constants that `learn` finds predict them,
    within two hundredths.
    """
    prior = load_fit("generic", "h100-sxm").tuning
    plans = (*PLANS, *APART)
    alike = np.exp(-errors_at(timed(plans, [1.0] * len(plans)), prior))
    runs = timed(plans, [float(s) for s in alike * np.resize(factors, len(plans))])
    errors, slopes = linearised(runs, prior, FREE)
    rows = [
        Row(run, "generic", prior, float(error), slope)
        for run, error, slope in zip(runs, errors, slopes, strict=True)
    ]
    learnt = shrunk(runs[:2], prior, STRANGER).tuning
    assert without_prices(rows[:2], rows[2:], STRANGER) == pytest.approx(
        errors_at(runs[2:], learnt), abs=0.02
    )


def test_of_runs_that_are_not_believed_nothing_is_learnt() -> None:
    """One takes nine times as long as predicted, one ninety times."""
    prior, (far, other) = load_fit("generic", "h100-sxm").tuning, timed(PLANS, [1.0, 1.0])
    share = np.full(len(FREE), 0.1)
    rows = [Row(run, "generic", prior, error, share)
            for run, error in ((far, math.log(9)), (far, math.log(90)), (other, 0.2))]  # fmt: skip
    assert without_prices(rows[:2], rows[2:], STRANGER) == pytest.approx([0.2])
