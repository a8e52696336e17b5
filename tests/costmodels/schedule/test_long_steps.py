"""Steps of many micro-batches: what repeats is leapt over, and ends are those of playing all."""

import numpy as np
import pytest

from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.schedule import steady_state
from meshplan.costmodels.schedule.actions import Work
from meshplan.costmodels.schedule.in_flight import rank_of_chunk
from meshplan.costmodels.schedule.program import program
from meshplan.costmodels.schedule.simulation import end_s
from meshplan.costmodels.schedule.steady_state import Leap, repeating


@pytest.mark.parametrize("pp", [2, 3])
@pytest.mark.parametrize("slower", [0.01, 0.003, 0.001])
def test_a_leap_ends_where_the_drift_does(pp: int, slower: float):
    """In zb_h1 each rank may run ahead of a slower one behind it, until it has put off as many W as
    it may: the ends that a leap keeps are those of playing every period, not only the step's.
    """
    held = repeating("zb_h1", pp, 1, 2000)
    assert held is not None
    backward = tuple(1 + slower * rank for rank in range(pp))
    played = held.played(Work((1.0,) * pp, backward, (1.0,) * pp, 0.05))
    periods, start = played.periods, played.head[-1]
    leaps = [each for each in periods.passed if isinstance(each, Leap)]
    assert len(leaps) > 1
    begun = ends = [end - start for end in played.head[-held.reach :]]
    for _ in range(held.repeats):
        ends = periods.ends_after(ends)[-held.reach :]
    assert periods.advanced(begun, held.repeats, pp) == pytest.approx(ends, rel=1e-9)


@pytest.mark.parametrize(("pp", "busy_s"), [(1, 1.5e6), (2, 1.5e6 + 1.5)])
def test_a_step_of_a_million_micro_batches_is_not_played_one_by_one(pp, busy_s):
    """One rank of 0.5 s forward and 1 s backward, and two of them: 1.5 s x (m + pp - 1)."""
    m, held = 10**6, repeating("1f1b", pp, 1, 10**6)
    assert held is not None
    assert len(held.head) + len(held.body) + len(held.tail) < 100
    work = Work((0.5,) * pp, (1.0,) * pp, (0.0,) * pp, 0.0)
    assert max(end_s("1f1b", pp, 1, m, work)) == pytest.approx(busy_s, rel=1e-9)


@pytest.mark.parametrize(("schedule", "pp", "vpp", "m"), [
    ("1f1b", 8, 1, 100), ("interleaved_1f1b", 4, 3, 64), ("zb_h1", 8, 1, 100),
    ("zb_v", 4, 2, 101), ("dualpipe_v", 8, 2, 163),
])  # fmt: skip
def test_what_repeats_is_found(schedule: Schedule, pp: int, vpp: int, m: int):
    """The middle of a long step is its body many times: no schedule is played from end to end."""
    found = repeating(schedule, pp, vpp, m)
    assert found is not None
    assert found.repeats > 3
    actions = len(found.head) + found.repeats * len(found.body) + len(found.tail)
    assert actions == len(program(schedule, pp, vpp, m).steps)


@pytest.mark.parametrize("m", [100, 101, 1000])
def test_extrapolation_of_a_long_step_by_hand(m: int):
    """Equal stages: (m + p - 1) (F + B), whatever m."""
    assert max(end_s("1f1b", 4, 1, m, Work(*((1.0,) * 4,) * 3, 0.0))) == pytest.approx(3 * (m + 3))


@pytest.fixture
def played(monkeypatch) -> list[int]:
    """How many actions of each run are played."""
    found, run = list[int](), steady_state.run

    def counted(*given) -> None:
        found.append(len(given[1]))
        run(*given)

    monkeypatch.setattr(steady_state, "run", counted)
    return found


@pytest.mark.parametrize("more_s", [
    pytest.param(13.8, id="4 ranks x (1 + 2) and 6 messages of 0.3 for every 4 micro-batches"),
])  # fmt: skip
def test_a_cycle_of_several_micro_batches_is_leapt_over(more_s: float, played: list[int]):
    """With messages the way down and back is the slowest: a rank has 4 micro-batches on it."""
    work = Work((1.0,) * 4, (1.0,) * 4, (1.0,) * 4, 0.3)
    long, longer = (max(end_s("1f1b", 4, 1, m, work)) for m in (10_000, 10_004))
    assert longer - long == pytest.approx(more_s, rel=1e-9)
    assert sum(played) < 160_000 / 40


@pytest.mark.parametrize(
    ("schedule", "vpp"), [("1f1b", 1), ("zb_h1", 1), ("zb_v", 2), ("dualpipe_v", 2)]
)
def test_a_leap_over_many_unequal_stages_is_found_at_once(
    schedule: Schedule, vpp: int, played: list[int]
):
    """The more micro-batches, the more rounding would hide in the ends that a leap is tried at:
    24,000 of 16 ranks are some million actions, of which few thousand are played.
    """
    draw = np.random.default_rng(2)
    forward, backward, weight = (
        tuple(draw.uniform(0.1, 0.15, 16 * vpp).tolist()) for _ in range(3)
    )
    long, longer = (
        max(end_s(schedule, 16, vpp, m, Work(forward, backward, weight, 0.005)))
        for m in (24_000, 48_000)
    )
    busy = np.zeros(16)
    for chunk, each in enumerate(zip(forward, backward, weight, strict=True)):
        busy[rank_of_chunk(schedule, 16, chunk)] += sum(each)
    assert longer - long == pytest.approx(24_000 * busy.max(), rel=1e-6)
    assert sum(played) < 60_000
