"""How probable it is that a layout fits."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.accuracy.memory_needs import as_csv, headrooms, outcomes_of, sharpness
from meshplan.hardware_profiles.engines import engine_names
from meshplan.hardware_profiles.errors.memory_needs import (
    FILE,
    FITS,
    Need,
    _rising,
    chances,
    chances_of,
    needs,
)


def need(low: float, high: float, room: float = 0.0, suite: str = "a") -> Need:
    return Need(engine="native", gpu="hopper", suite=suite, low=low, high=high, room=room)


RAN = need(0.0, 1.2, 1.2)


def rooms(runs: float) -> list[float]:
    """Rooms from 0.6 to 3.3 with so many of them near each: a Gaussian of width 0.05 over points so
    far apart adds up to sqrt(2 pi) 0.05 / spacing.
    """
    spacing = math.sqrt(2 * math.pi) * 0.05 / runs
    return [math.exp(-0.5 + spacing * at) for at in range(int(1.7 / spacing))]


def ran(runs: float) -> list[Need]:
    """So many runs near each room that ran."""
    return [need(0.0, room, room) for room in rooms(runs)]


def out(runs: float) -> list[Need]:
    """The same out of memory."""
    return [need(room, math.inf, room) for room in rooms(runs)]


UNKNOWN_1_2 = 0.819
"""P of a source that nobody has seen, at a room of 1.2: Phi(ln 1.2 / 0.2) = Phi(0.912)."""


def lent(runs: list[Need], suite: str = "b") -> list[Need]:
    """The same runs as another engine's, of another source."""
    return [replace(each, engine="nemo", suite=suite) for each in runs]


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        pytest.param([], UNKNOWN_1_2, id="nobody ran: Phi(ln 1.2 / 0.2)"),
        pytest.param([RAN] * 30, (30 + 8.19) / 40, id="30 of 30 ran"),
        pytest.param(ran(20) + out(10), (20 + 8.19) / 40, id="20 of 30 ran"),
        pytest.param([need(1.0, 1.1)] * 30, (30 + 8.19) / 40, id="all need at most 1.1"),
        pytest.param([need(1.0, 1.4)] * 30, (15 + 8.19) / 40, id="need 1.0 to 1.4: a half"),
        pytest.param([need(1.3, 1.4)] * 30, 8.19 / 40, id="all need more than 1.3"),
        pytest.param(lent(ran(30)), (1 + 0.819) / 2, id="lent: 1 of 2 sources, all ran"),
        pytest.param(lent(out(30)), 0.819 / 2, id="lent: 1 of 2 sources, none ran"),
        pytest.param(
            lent(ran(30)) + lent(out(300), "c"), (1 + 0 + 0.819) / 3,
            id="lent: 300 runs count as one source",
        ),
        pytest.param(
            lent(out(5)), 0.819 / 1.5, id="lent: 5 runs near, half a source of 10"
        ),
        pytest.param(
            lent([need(1.3, 1.4)] * 30), UNKNOWN_1_2, id="lent: stated memory alone says nothing"
        ),
        pytest.param(
            ran(30) + lent(out(30)), (30 + 10 * 0.819 / 2) / 40,
            id="30 of 30 ran, others as ten",
        ),
    ],
)  # fmt: skip
def test_probability_by_hand(known: list[Need], expected: float) -> None:
    """Runs at the same room count as they ended; what others lend counts as ten of them."""
    found = chances(known, "native", "hopper")
    assert found.probability(1.2) == pytest.approx(expected, abs=0.006)
    assert found.runs == sum(each.engine == "native" for each in known)


def test_runs_with_less_room_than_they_need_count_too() -> None:
    """30 of 30 that ran at 0.8 of the need, and Phi(ln 0.8 / 0.2) = 0.132 for ten more."""
    found = chances(ran(30), "native", "hopper")
    assert found.probability(0.8) == pytest.approx((30 + 1.32) / 40, abs=0.006)


def test_a_source_of_several_engines_is_each_ones_own() -> None:
    """What runs out of memory there does not say under which release: 30 runs, of which this engine
    made one.
    """
    mixed = [RAN, *(replace(RAN, engine="nemo") for _ in range(29))]
    assert chances(mixed, "native", "hopper").runs == 30
    assert chances(mixed, "torchtitan", "hopper").runs == 0


def test_neighbours_that_fall_are_pooled_by_weight() -> None:
    """4 and three times 1 are four of 7 / 4; with a fifth of 0.75 behind them five of 7.75 / 5."""
    assert _rising(np.array([1.0, 4, 1, 5]), np.array([1.0, 1, 3, 1])).tolist() == [
        1,
        1.75,
        1.75,
        5,
    ]
    fallen = _rising(np.array([4.0, 1, 0.75]), np.array([1.0, 3, 1]))
    assert fallen.tolist() == pytest.approx([1.55] * 3)


def test_the_surest_of_strangers_is_not_sure() -> None:
    """However many runs of three sources fitted, a fourth may be the one that does not: at a room
    of 1.1, where Phi(ln 1.1 / 0.2) = 0.683, (3 + 0.683) / 4.
    """
    known = [each for suite in "bcd" for each in lent(ran(1000), suite)]
    found = chances(known, "native", "hopper")
    assert found.probability(1.1) == pytest.approx((3 + 0.683) / 4, abs=0.006)


@given(st.floats(0.5, 3), st.floats(0.5, 3), st.sampled_from(engine_names()))
def test_more_room_never_fits_less(one: float, other: float, engine: str) -> None:
    """P rises with the room, and the room that a probability needs gives it."""
    found = chances_of(engine, "h100-sxm")
    assert found.probability(min(one, other)) <= found.probability(max(one, other))
    assert found.probability(found.room(FITS)) >= FITS - 1e-9


@pytest.mark.few(1)
@pytest.mark.parametrize("by_others", [False, True], ids=["by half of the runs", "by others"])
def test_what_is_said_to_fit_fits(by_others: bool) -> None:
    """Of runs that the other half of all runs, or other sources, said to fit with 80 % and more, as
    many ran, less one standard deviation of so many draws; of those said to fit with less than
    30 %, no more.
    """
    for low, high, runs, ran in outcomes_of(needs(), by_others=by_others):
        if low >= 0.8 and runs >= 15:
            assert ran / runs > low - math.sqrt(low * (1 - low) / runs)
        elif high <= 0.3:
            assert ran / runs <= high


def test_probabilities_tell_runs_apart() -> None:
    """Where plans are, from 0.9 to 1.4 times the need, both ways lose less than one probability for
    all would, which holds as often as it says and tells nothing.
    """
    *_, last = sharpness(needs())
    by_half, by_others, constant = (float(cell) for cell in last.split("|")[3:6])
    assert by_half < by_others < constant


def test_an_engine_without_runs_has_the_last_line() -> None:
    """Each other line is of an engine and a family that have some."""
    _, _, *lines = (line.split(" | ") for line in headrooms(needs()))
    assert [line[0] for line in lines if line[1] == "0"] == ["| engines without such runs"]
    assert lines[-1][1] == "0"
    assert len({line[0] for line in lines}) == len(lines)


def test_the_file_is_as_written() -> None:
    """Reading and writing the runs changes nothing."""
    assert as_csv(needs()) == FILE.read_text(encoding="utf-8")
