"""How probable it is that a layout fits."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.memory_needs import as_csv, outcomes_of
from meshplan.hardware_profiles.engines import engine_names
from meshplan.hardware_profiles.memory_needs import (
    FILE,
    FITS,
    Need,
    chances,
    chances_of,
    needs,
)


def need(low: float, high: float, room: float = 0.0, suite: str = "a") -> Need:
    return Need(engine="native", gpu="hopper", suite=suite, low=low, high=high, room=room)


RAN, RAN_OUT = need(0.0, 1.2, 1.2), need(1.2, math.inf, 1.2)
LENT = Need(engine="nemo", gpu="hopper", suite="b", low=1.3, high=1.4, room=0.0)


@pytest.mark.parametrize(
    ("known", "room", "expected"),
    [
        pytest.param([], 1.2, 1 / 2, id="nobody ran: a half"),
        pytest.param([RAN] * 30, 1.2, 1.0, id="30 of 30 ran"),
        pytest.param([RAN] * 20 + [RAN_OUT] * 10, 1.2, 20 / 30, id="20 of 30 ran"),
        pytest.param([need(1.0, 1.1)] * 10, 1.2, 1.0, id="all need at most 1.1"),
        pytest.param([need(1.0, 1.4)] * 10, 1.2, 1 / 2, id="need 1.0 to 1.4: a half"),
        pytest.param([need(1.3, 1.4)] * 10, 1.2, 0.0, id="all need more than 1.3"),
        pytest.param([need(1.0, 1.1)] * 10 + [LENT] * 30, 1.2, 10 / 20, id="30 lent count as 10"),
    ],
)
def test_probability_by_hand(known: list[Need], room: float, expected: float) -> None:
    """Runs at the same room count as they ended, what others lend as ten of theirs."""
    found = chances(known, "native", "hopper")
    assert found.probability(room) == pytest.approx(expected, abs=0.01)


def test_other_sources_lend_ten_runs() -> None:
    """An engine without runs has the share of the others' that ran; each counts as ten at most."""
    many, few = [need(1.0, 1.1)] * 1000, [LENT] * 5
    found = chances([*many, *few], "megatron", "hopper")
    assert found.runs == 0
    assert found.probability(1.2) == pytest.approx(10 / 15, abs=0.01)


@given(st.floats(0.5, 3), st.floats(0.5, 3), st.sampled_from(engine_names()))
def test_more_room_never_fits_less(one: float, other: float, engine: str) -> None:
    """P rises with the room, and the room that a probability needs gives it."""
    found = chances_of(engine, "h100-sxm")
    assert found.probability(min(one, other)) <= found.probability(max(one, other))
    assert found.probability(found.room(FITS)) >= FITS - 1e-9


def test_what_is_said_to_fit_fits() -> None:
    """Of runs that the other half of all runs said to fit with 80 % and more, as many ran; of those
    said to fit with less than 30 %, no more.
    """
    for low, high, runs, ran in outcomes_of(needs()):
        if low >= 0.8:
            assert runs >= 15
            assert ran / runs > low - 0.05
        elif high <= 0.3:
            assert ran / runs <= high


def test_the_file_is_as_written() -> None:
    """Reading and writing the runs changes nothing."""
    assert as_csv(needs()) == FILE.read_text(encoding="utf-8")
