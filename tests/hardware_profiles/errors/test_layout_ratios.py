"""How often the layout that is predicted faster is faster."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.accuracy import layout_ratios
from benchmarks.accuracy.layout_ratios import as_csv, held, of_one_kind
from meshplan.hardware_profiles.errors.layout_ratios import (
    FILE,
    Pair,
    expected_slower,
    faster_probability,
    in_of_100,
    kept,
    pairs,
    probability,
)
from meshplan.hardware_profiles.errors.left_out_runs import Ratio


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
    """A source counts as the root of its pairs; layouts of equal axes as of one."""
    assert probability(known, predicted, 1) == pytest.approx(expected)
    assert probability(known, predicted, 0) == probability(known, predicted, 1)


@pytest.mark.parametrize(
    ("probability", "words"),
    [
        (0.52, "in 52 of 100, a tie"),
        (0.694, "in 69 of 100, a tie"),
        (0.696, "in 70 of 100"),
        (0.994, "in 99 of 100"),
        (0.996, "in more than 99 of 100"),
    ],
)
def test_no_layout_is_said_to_be_faster_for_sure(probability: float, words: str) -> None:
    """In whole per cent."""
    assert in_of_100(probability) == words


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


@pytest.fixture(name="unseen", scope="module")
def unseen_fixture() -> list[tuple[Pair, float]]:
    """Each pair, and how probable other sources make its order."""
    return list(held(pairs()))


@pytest.mark.few(2)
@pytest.mark.parametrize("low", [0.5, 0.6, 0.7, 0.8, 0.9])
def test_of_unseen_sources_the_stated_share_is_ordered_as_predicted(
    low: float, unseen: list[tuple[Pair, float]]
) -> None:
    """Pairs that other sources give 50 to 60 % and so on are in that order within ten points."""
    band = [(pair, p) for pair, p in unseen if low <= p < low + 0.1]
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


def a_run(name: str, **said: Any) -> Any:
    """One of the layouts of a question, measured in 2 s."""
    usual = {"label": name, "grade": "A", "group": ("one question",), "step_time_s": 2.0}
    at = usual | said
    return SimpleNamespace(
        id=name, grade=at["grade"], group=at["group"], layout=SimpleNamespace(label=at["label"]),
        measured=SimpleNamespace(step_time_s=at["step_time_s"]),
    )  # fmt: skip


def a_ratio(name: str, left_out: str = "layout", engine: str = "native") -> Ratio:
    """Of that run, measured in four times what was predicted."""
    return Ratio(
        run=name, engine=engine, gpu="hopper", suite="s", left_out=left_out, gpus=8,
        precision="bf16", model="dense", step_time=4.0, reserved=None,
    )  # fmt: skip


def test_what_is_compared_is_of_one_question_and_one_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of one question are together where constants of one kind and one engine predict them:
    what is known of one run's source and not of another's would be a difference of its own. Of runs
    of one layout the first; none of grade C, none that is predicted not to fit.
    """
    runs = {
        "a": a_run("a"), "b": a_run("b"), "again": a_run("again", label="b", step_time_s=9.0),
        "by source": a_run("by source"), "by source too": a_run("by source too"),
        "other engine": a_run("other engine"), "other question": a_run("other question", group=()),
        "c": a_run("c", grade="C"), "too large": a_run("too large"),
    }  # fmt: skip
    kinds = {"by source": "source", "by source too": "source"}
    every = [
        a_ratio(name, kinds.get(name, "layout"), "other" if name == "other engine" else "native")
        for name in runs
    ]
    monkeypatch.setattr(layout_ratios, "ELSEWHERE", ())
    monkeypatch.setattr(layout_ratios, "runs_of", lambda _: list(runs.values()))
    monkeypatch.setattr(layout_ratios, "ratios", lambda: (*every, a_ratio("no run of the files")))
    monkeypatch.setattr(layout_ratios, "_fits", lambda run: run.id != "too large")
    found = layout_ratios.questions()
    assert sorted(sorted(timed.run.id for timed in group) for group in found) == [
        ["a", "b"], ["by source", "by source too"], ["other engine"], ["other question"],
    ]  # fmt: skip
    assert {timed.predicted_s for group in found for timed in group} == {0.5}
