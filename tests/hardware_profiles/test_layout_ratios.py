"""How often the layout that is predicted faster is faster."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.accuracy.layout_ratios import as_csv, held, of_one_kind
from meshplan.hardware_profiles.layout_ratios import (
    FILE,
    Pair,
    expected_slower,
    faster_probability,
    kept,
    pairs,
    probability,
)
from meshplan.hardware_profiles.left_out_runs import Ratio


def pair(suite: str, error: float, axes: int = 1) -> Pair:
    return Pair(suite, "native", axes, 0.1, 0.1 + error)


@pytest.mark.parametrize(
    ("known", "predicted", "expected"),
    [
        pytest.param([], 0.1, 0.5, id="no pair: 1/2"),
        pytest.param([pair("a", 0.05)], 0.1, 1.0, id="(1 + 1/1)/2"),
        pytest.param([pair("a", 0.05), pair("a", 0.2)], 0.1, 0.75, id="(1 + 1/2)/2"),
        pytest.param(
            [*[pair("a", 0.05)] * 4, pair("b", 0.2)], 0.1, 5 / 6, id="(1 + 4/root 4 / (2 + 1))/2"
        ),
        pytest.param([pair("a", 0.05, axes=2)], 0.1, 0.5, id="pairs of two axes say nothing: 1/2"),
    ],
)
def test_probability_by_hand(known: list[Pair], predicted: float, expected: float) -> None:
    """A source counts as the root of its pairs."""
    assert probability(known, predicted, 1) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        pytest.param([], 1.0, id="no pair: all of it"),
        pytest.param(
            [Pair("a", "native", 1, 0.1, 0.05), Pair("a", "native", 2, 0.2, 0.2)], 0.9,
            id="(0.1 x 0.05 + 0.2 x 0.2) / (0.01 + 0.04)",
        ),
        pytest.param(
            [*[Pair("a", "native", 1, 0.1, 0.0)] * 4, Pair("b", "native", 1, 0.1, 0.1)], 1 / 3,
            id="four pairs of one source weigh 4 / root 4: 1 of 3 is left",
        ),
    ],
)  # fmt: skip
def test_what_is_left_of_a_difference_by_hand(known: list[Pair], expected: float) -> None:
    """Least squares through the origin, a source counting as the root of its pairs."""
    assert kept(known) == pytest.approx(expected)


@given(st.floats(0.5, 2.0))
def test_an_expected_difference_is_a_part_of_the_predicted_one(ratio: float) -> None:
    """It has the same sign and is smaller; equal layouts are expected to be equal."""
    expected = expected_slower(ratio)
    assert min(0, ratio - 1) - 1e-9 <= expected <= max(0, ratio - 1) + 1e-9
    assert expected_slower(1.0) == 0


@given(st.floats(1.0, 2.0), st.floats(1.0, 2.0), st.integers(0, 9))
def test_farther_apart_is_surer(one: float, other: float, axes: int) -> None:
    """A larger predicted ratio never has the smaller probability; both orders add to one."""
    near, far = sorted((one, other))
    assert 0.5 <= faster_probability(near, axes) <= faster_probability(far, axes) <= 1
    if near > 1:
        both = faster_probability(near, axes) + faster_probability(1 / near, axes)
        assert both == pytest.approx(1, abs=2e-2)


@pytest.mark.parametrize("low", [0.5, 0.6, 0.7, 0.8, 0.9])
def test_of_unseen_sources_the_stated_share_is_ordered_as_predicted(low: float) -> None:
    """Pairs that other sources give 50 to 60 % and so on are in that order within ten points."""
    band = [(pair, p) for pair, p in held(pairs()) if low <= p < low + 0.1]
    stated = sum(p for _, p in band) / len(band)
    assert sum(pair.measured > 0 for pair, _ in band) / len(band) == pytest.approx(stated, abs=0.1)


def test_both_of_a_pair_are_predicted_by_constants_of_one_kind() -> None:
    """A run that is left out with its layout and with its framework counts as the first alone."""

    def ratio(run: str, left_out: str, step_time: float) -> Ratio:
        return Ratio(
            run=run, engine="nanotron", gpu="hopper", suite="a", left_out=left_out, gpus=8,
            precision="bf16", model="dense", step_time=step_time, reserved=None,
        )  # fmt: skip

    one = [ratio("one", "framework", 26.0), ratio("one", "source", 1.2), ratio("one", "layout", 1)]
    other = ratio("other", "framework", 1.1)
    assert of_one_kind([*one, other]) == [one[2], other]
    assert of_one_kind([*one[:2], other]) == [one[1], other]


def test_the_file_is_read_as_it_was_written() -> None:
    """Writing what was read gives the file."""
    assert as_csv(pairs()) == FILE.read_text(encoding="utf-8")
