"""Which runs are learnt from, and what learning never does: worked cases and laws."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from random_plans import plan_of
from two_layouts import APART, LAYOUTS, PLANS, TRAINING, timed

from meshplan.hardware_profiles.tunings import Tuning, load_fit
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.learn.odd_runs import allowed, believed
from meshplan.planner.learn.shrink import (
    SLACK,
    Kind,
    Posterior,
    errors_at,
    most_likely,
    read_shrinkage,
    shrunk,
    telling,
)
from meshplan.planner.runs.runs import Run


def slower(plans: Sequence[Plan], factors: Sequence[float], prior: Tuning) -> list[Run]:
    """The two plans, which took so many times what is predicted at the prior."""
    predicted = np.exp(-errors_at(timed(plans, [1.0, 1.0]), prior))
    return timed(plans, [float(f * s) for f, s in zip(factors, predicted, strict=True)])


LN2, LN4 = math.log(2), math.log(4)


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        pytest.param([LN4], [False], id="alone"),
        pytest.param([-LN4], [False], id="alone and fast"),
        pytest.param([LN2], [True], id="near enough"),
        pytest.param([LN4, LN2 + LN4], [True, True], id="two agree"),
        pytest.param([LN4, -LN4], [False, False], id="far off apart"),
        pytest.param([LN4, 0.0, 0.1], [False, True, True], id="one of three"),
        pytest.param([], [], id="none"),
    ],
)
def test_a_run_far_off_alone_is_not_believed(errors: list[float], expected: list[bool]) -> None:
    """By a factor of three: four times alone is not, four and eight times together are."""
    assert believed(np.array(errors)).tolist() == expected


def test_how_far_off_a_run_may_be_left() -> None:
    """Of two each as far as it was. Of 0.1, -0.2, 0.4: the medians of the others are 0.3, 0.25 and
    0.15.
    """
    assert allowed(np.array([0.1, -0.5])) == pytest.approx([0.1, 0.5])
    assert allowed(np.array([0.1, -0.2, 0.4])) == pytest.approx([0.3, 0.25, 0.4])


def test_a_run_at_its_limit_is_held_there() -> None:
    """One constant, J = 1 and 2, e = -0.3 and 0.5, little noise: the square's least is at
    (-0.3 + 1.0) / 5 = 0.14, which leaves the first at -0.44. Held at its limit nothing moves.
    """
    by = read_shrinkage("stranger").model_copy(update={"noise": 0.05, "freedom": 1e9})
    errors, slopes, wide = np.array([-0.3, 0.5]), np.array([[1.0], [2.0]]), np.array([[100.0]])
    assert most_likely(errors, slopes, wide, by)[0] == pytest.approx([0.14], abs=1e-3)
    limits = allowed(errors)
    assert most_likely(errors, slopes, wide, by, limits)[0] == pytest.approx([0.0], abs=1e-3)


def test_no_draw_of_errors_is_left_farther_off_than_allowed() -> None:
    """Laws, to first order, with a constant for each run and two more: every run within its limit,
    and what one run alone says leaves it no farther off.
    """
    rng, by = np.random.default_rng(3), read_shrinkage("stranger")
    for number in (1, 2, 2, 2, 4, 6):
        for _ in range(40):
            errors = rng.normal(0, 0.4, number)
            slopes = rng.dirichlet(np.ones(number + 2), number)
            told = believed(errors)
            some, jacobian = errors[told], slopes[told]
            wide, limits = np.eye(number + 2) * 0.36, allowed(some)
            move, _ = most_likely(some, jacobian, wide, by, limits)
            assert np.all(np.abs(some - jacobian @ move) <= limits + 2 * SLACK)


class Given:
    """Two runs, whose errors are given at x = 0.5 and 1."""

    def errors(self, x: np.ndarray) -> np.ndarray:
        there = {1.0: np.array([0.0, 0.2]), 0.5: np.array([0.25, 0.105])}
        return there[float(x[0])]

    def slopes(self, x: np.ndarray) -> np.ndarray:
        return np.ones((2, len(x)))


def test_a_move_that_leaves_a_run_farther_off_is_shortened() -> None:
    """All the way the first run is met, and the second one 0.2 off, where 0.1 is allowed; half the
    way that is 0.105, within the slack.
    """
    by, first, x = read_shrinkage("stranger"), np.array([0.5, 0.1]), np.zeros(1)
    found = Posterior(Given(), x, np.array([[100.0]]), by, first).nearer(x, first, x + 1.0)
    assert found
    assert found[0] == pytest.approx([0.5])


SHORT = tuple(
    plan_of("llama-3.1-8b", LAYOUTS[1], replace(TRAINING, seq_len=length, global_batch_size=batch))
    for length, batch in ((256, 8), (512, 64))
)
"""Steps in which kernels wait for their host: three quarters and more."""


@pytest.mark.few(6)
@pytest.mark.parametrize("factors", [(0.6, 1.4), (0.5, 0.9), (2.5, 2.0), (1.02, 2.7)])
@pytest.mark.parametrize("kind", ["stranger", "known"])
@pytest.mark.parametrize("plans", [APART, SHORT], ids=["computing", "waiting"])
def test_two_runs_are_never_predicted_worse_than_before(
    plans: Sequence[Plan], kind: Kind, factors: tuple[float, float]
) -> None:
    """Each within its error before, and a hundredth for constants kept to three digits; nearer
    where both are off in one direction.
    """
    prior, by = load_fit("generic", "h100-sxm").tuning, read_shrinkage(kind)
    runs = slower(plans, factors, prior)
    learnt = shrunk(runs, prior, by)
    before, after = np.abs(learnt.errors), np.abs(errors_at(runs, learnt.tuning))
    assert np.all(after <= before + SLACK + 1e-3)
    if np.prod(learnt.errors) > 0:
        assert after.sum() < before.sum() - SLACK


@pytest.mark.few(1)
@pytest.mark.parametrize("factors", [(1.2, 0.7), (1.5, 0.7), (1.5, 0.85)])
def test_two_runs_off_in_opposite_directions_still_teach(factors: tuple[float, float]) -> None:
    """What makes neither worse is learnt: both errors fall by half and more."""
    prior = load_fit("generic", "h100-sxm").tuning
    runs = slower(SHORT, factors, prior)
    learnt = shrunk(runs, prior, read_shrinkage("stranger"))
    assert np.all(np.abs(errors_at(runs, learnt.tuning)) < np.abs(learnt.errors) / 2)


def test_nothing_moves_by_a_run_that_stands_still() -> None:
    """Beside a run as predicted one of six times: the constants stay, and the range is wider."""
    prior, by = load_fit("generic", "h100-sxm").tuning, read_shrinkage("stranger")
    learnt = shrunk(slower(PLANS, (1.0, 6.0), prior), prior, by)
    assert (learnt.tuning, learnt.believed.tolist()) == (prior, [True, False])
    assert by.factor(learnt.errors) > by.factor(np.zeros(2))
    still = slower(PLANS, (1.0, 6.0), prior)[1:]
    alone = shrunk(still, prior, by)
    assert alone.tuning == prior
    assert alone.kept == {each.name: 1.0 for each in telling(still, prior)}
