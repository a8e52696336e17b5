"""Intervals of reserved memory: what few statements of it borrow from step times."""

from dataclasses import replace

import pytest
from left_out import ASKED, alike_sources, layouts, source

from meshplan.hardware_profiles.errors.intervals import (
    Interval,
    evidence_of,
    interval,
    reserved_range,
)
from meshplan.hardware_profiles.errors.left_out_runs import Ratio


def test_memory_has_one_spread_for_all_models() -> None:
    """Nine dense sources that reserve 10 % more than predicted."""
    known = alike_sources(9, reserved=1.1)
    asked = replace(ASKED, engine="automodel", model="experts")
    assert interval(evidence_of(known, "reserved"), asked).high == pytest.approx(1.1)


def reserving(*found: Ratio) -> Interval:
    """The interval of the reserved memory of an engine of which nobody measured anything."""
    asked = replace(ASKED, engine="automodel")
    return interval(evidence_of(found, "reserved"), asked)


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        pytest.param(1, 1.4, id="one source: as step times, 40 %"),
        pytest.param(8, 1.4, id="eight: 0.8 x 9 = 7.2, within the farthest of them"),
        pytest.param(9, 1.1, id="nine: 0.8 x 10 = 8, they say it themselves"),
    ],
)
def test_few_sources_make_no_interval(sources: int, expected: float) -> None:
    """Some sources state that 10 % more was reserved, twelve that steps took 40 % longer."""
    steps = [
        replace(row, left_out="framework")
        for n in range(12) for row in source(f"s{n}", 1.4, engine="deepspeed")
    ]  # fmt: skip
    stated = [replace(row, reserved=1.1) for row in steps[:sources]]
    assert reserving(*stated, *steps[sources:]).high == pytest.approx(expected)


def test_the_farthest_of_few_sources_is_not_all_of_them() -> None:
    """Four state what was reserved, one of them twice as much as expected in one run of four: 0.8
    x 4 = 3.2 is within the 10 % of the others.
    """
    steps = [row for n in range(4) for row in source(f"s{n}", 1.05, engine="deepspeed")]
    far = replace(source("s0", 1.05, engine="deepspeed")[0], run="far", reserved=2.0)
    near = [replace(far, run=f"near {n}", reserved=1.1) for n in range(3)]
    stated = [far, *near, *(replace(row, reserved=1.1) for row in steps[1:])]
    assert reserving(*(replace(row, left_out="framework") for row in stated)).high == pytest.approx(
        1.1
    )


def test_few_sources_are_believed_where_they_are_farther_off() -> None:
    """Two sources 90 % off beside step times of 40 %."""
    steps = [
        replace(row, left_out="framework")
        for n in range(12) for row in source(f"s{n}", 1.4, engine="deepspeed")
    ]  # fmt: skip
    stated = [replace(row, reserved=1.9) for row in steps[:2]]
    assert reserving(*stated, *steps[2:]).high == pytest.approx(1.9)


def test_an_engines_own_runs_need_no_other_quantity() -> None:
    """Of 20 runs 4 % off, four borrowed and the one that is asked 80 % are within 4 %, whatever
    step times were.
    """
    own = [replace(row, reserved=1.04) for row in layouts(*[1.5] * 20)]
    other = [replace(row, reserved=1.05) for row in source("other", 1.5)]
    found = interval(evidence_of([*own, *other], "reserved"), ASKED)
    assert found.high == pytest.approx(1.04)


@pytest.mark.parametrize(
    ("reserved", "expected"),
    [
        pytest.param(30.0, (15.0, 60.0), id="30 / 2 to 30 x 2"),
        pytest.param(65.0, (32.5, 80.0), id="65 x 2 is more than the 80 that a GPU has"),
        pytest.param(100.0, (50.0, 100.0), id="100 predicted: it does not fit"),
    ],
)
def test_no_run_reserves_more_than_there_is(reserved: float, expected: tuple[float, float]) -> None:
    """The upper end is the device's memory at most."""
    assert reserved_range(reserved, Interval(0.5, 2.0, 10), 80.0) == expected
