"""Laws of intervals, and first predictions: kept for ever, of runs that nothing was fitted to."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.accuracy.intervals import with_new
from meshplan.hardware_profiles.errors.asked import Asked, asked_like
from meshplan.hardware_profiles.errors.intervals import (
    NOISE,
    SPREADS,
    Interval,
    evidence_of,
    interval,
    step_time_interval,
)
from meshplan.hardware_profiles.errors.left_out_runs import First, Ratio, firsts, ratios

STRANGER = Asked(engine="automodel", gpu="hopper", gpus=64, precision="bf16", model="dense")
RUN = Ratio(
    run="r", engine="deepspeed", gpu="hopper", suite="s", left_out="framework", gpus=64,
    precision="bf16", model="dense", step_time=1.0, reserved=None,
)  # fmt: skip
ERRORS = st.lists(st.floats(0.5, 2.0), min_size=1, max_size=30)


def around(*found: Ratio, asked: Asked = STRANGER) -> Interval:
    """The interval of a step time when these are all left-out runs."""
    return interval(evidence_of(found, "step_time"), asked)


def strangers(*step_times: float) -> list[Ratio]:
    """One source each, of an engine without constants."""
    return [
        replace(RUN, run=f"r{n}", suite=f"s{n}", step_time=each)
        for n, each in enumerate(step_times)
    ]  # fmt: skip


def is_within(one: Interval, other: Interval) -> bool:
    """Whether one is no wider at either end."""
    return other.low <= one.low * (1 + 1e-12) and one.high <= other.high * (1 + 1e-12)


@given(ERRORS)
def test_fewer_sources_are_never_narrower(ratios: list[float]) -> None:
    """Than twice as many with the same errors."""
    few, many = (around(*strangers(*ratios * times)) for times in (1, 2))
    assert is_within(many, few)


@given(ERRORS)
def test_runs_of_one_source_are_never_narrower(ratios: list[float]) -> None:
    """Than as many of an engine's runs that are each of a source of its own."""
    asked = replace(STRANGER, engine=RUN.engine)
    apart = [replace(run, left_out="layout") for run in strangers(*ratios)]
    together = [replace(run, suite="one") for run in apart]
    assert is_within(around(*apart, asked=asked), around(*together, asked=asked))


@given(ERRORS, st.floats(1.0, 3.0))
def test_larger_errors_are_never_narrower(ratios: list[float], farther: float) -> None:
    """Whether they are today's or the first ones."""
    found = strangers(*ratios)
    worse = [replace(run, step_time=run.step_time**farther) for run in found]
    first = {run.run: run.step_time**farther for run in found}
    usual = interval(evidence_of(found, "step_time"), STRANGER)
    assert is_within(usual, interval(evidence_of(worse, "step_time"), STRANGER))
    assert is_within(usual, interval(evidence_of(found, "step_time", first), STRANGER))


@given(ERRORS, st.sampled_from(["experts", "dense"]), st.sampled_from(["fp8", "bf16"]))
def test_the_slow_end_is_the_farther_one(ratios: list[float], model: str, precision: str) -> None:
    """By the square of the skew, unless it is the noise of repeats."""
    asked = replace(STRANGER, model=model, precision=precision)
    found = around(*strangers(*ratios), asked=asked)
    low, high = -math.log(found.low), math.log(found.high)
    assert high >= low >= NOISE
    assert low == pytest.approx(NOISE) or high == pytest.approx(low * SPREADS[model].skew ** 2)


@given(ERRORS)
def test_dense_runs_say_less_of_models_with_experts(ratios: list[float]) -> None:
    """These have the wider range at both ends where all that is known is dense."""
    dense, experts = (
        around(*strangers(*ratios), asked=replace(STRANGER, model=model))
        for model in ("dense", "experts")
    )
    assert is_within(dense, experts)


def test_a_first_prediction_is_kept() -> None:
    """What was first stays, a run that is new gets one with the range that ships, a run that was
    fitted or that was there before first predictions were kept gets none.
    """
    kept = First("old", 1.4, "2026-11-26")
    found = [
        replace(RUN, run=run, left_out=kind, step_time=1.1)
        for run, kind in [
            ("old", "source"), ("new", "framework"), ("earlier", "source"), ("fitted", "layout"),
            ("fitted", "source"),
        ]
    ]  # fmt: skip
    new, *others = with_new([kept], found, {"old", "earlier"}, "2026-11-28T13:28")
    assert others == [kept]
    assert new.low is not None
    assert new.high is not None
    ships = step_time_interval(asked_like(found[1]))
    assert (new.low, new.high) == pytest.approx((ships.low, ships.high), abs=1e-4)
    assert new == First("new", 1.1, "2026-11-28T13:28", new.low, new.high)


def test_first_predictions_that_ship_are_of_runs_that_nothing_was_fitted_to() -> None:
    """And each has one."""
    of_layouts = {ratio.run for ratio in ratios() if ratio.left_out == "layout"}
    runs = [first.run for first in firsts()]
    assert len(set(runs)) == len(runs)
    assert not of_layouts & set(runs)
