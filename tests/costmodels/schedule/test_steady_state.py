"""What repeats in an order, and how far a leap over it goes."""

import numpy as np
import pytest

from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.schedule import steady_state
from meshplan.costmodels.schedule.actions import Work
from meshplan.costmodels.schedule.program import FIRST, NOTHING, written_anew
from meshplan.costmodels.schedule.steady_state import TOLERANCE, Leap, Periods, repeating

SIZE, PERIODS = 2, 4
CHANGED = 5
"""The step that is changed, the second of the third period: it and the one a period later differ
from what is before them.
"""


def two_a_period() -> tuple[np.ndarray, np.ndarray]:
    """Steps (after which on the rank, after what, what of it), two each micro-batch."""
    places = np.arange(SIZE * PERIODS)
    steps = np.stack([FIRST + places - SIZE, FIRST + places - 1, places % SIZE], axis=1)
    return steps, places // SIZE


def repeated(steps: np.ndarray, batches: np.ndarray) -> list[bool]:
    """Of each step after the first period."""
    found: list[bool] = steady_state._repeats(steps, batches, SIZE, 1)[SIZE:].tolist()
    return found


def test_equal_periods_repeat() -> None:
    """Each waits for what is as far before it, and does the same, one micro-batch later."""
    assert repeated(*two_a_period()) == [True] * SIZE * (PERIODS - 1)


def test_what_waits_for_nothing_repeats() -> None:
    """Steps that need no other rank do so in each period."""
    steps, batches = two_a_period()
    steps[::SIZE, 1] = NOTHING
    assert repeated(steps, batches) == [True] * SIZE * (PERIODS - 1)


@pytest.mark.parametrize("what", ["the one before it", "what it needs", "its work", "nothing"])
def test_one_step_that_differs_ends_what_repeats(what: str) -> None:
    """A step of other work, or after others, is no repetition, nor is the one after it of it."""
    steps, batches = two_a_period()
    column = {"the one before it": 0, "what it needs": 1, "its work": 2, "nothing": 1}[what]
    steps[CHANGED, column] = NOTHING if what == "nothing" else steps[CHANGED, column] + 1
    differ = {CHANGED, CHANGED + SIZE}
    assert repeated(steps, batches) == [at not in differ for at in range(SIZE, SIZE * PERIODS)]


def test_another_micro_batch_is_no_repetition() -> None:
    """The same work a period later, but of the same micro-batch, as where orders turn around."""
    steps, batches = two_a_period()
    batches[CHANGED] -= 1
    differ = {CHANGED, CHANGED + SIZE}
    assert repeated(steps, batches) == [at not in differ for at in range(SIZE, SIZE * PERIODS)]


@pytest.mark.parametrize("slower", [0.01, 0.003, 0.001])
@pytest.mark.parametrize("pp", [2, 3, 5])
def test_a_leap_goes_as_far_as_the_drift(
    pp: int, slower: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last cycle adds the drift, and one more would not. Of 2,000 cycles three are asked: the
    farthest and the one before it, whose secant names the third; of the last leap the farthest.
    """
    asked, above = list[int](), Periods._above

    def counted(self: Periods, *given) -> list[float]:
        asked.append(given[-1])
        return above(self, *given)

    monkeypatch.setattr(Periods, "_above", counted)
    held = repeating("zb_h1", pp, 1, 2000)
    assert held is not None
    backward = tuple(1 + slower * rank for rank in range(pp))
    periods = held.played(Work((1.0,) * pp, backward, (1.0,) * pp, 0.05)).periods
    leaps = [each for each in periods.passed if isinstance(each, Leap)]
    assert len(asked) <= 3 * (len(leaps) - 1) + 1
    left = held.repeats
    for each in periods.passed:
        left -= each.cycles * each.length if isinstance(each, Leap) else 1
        if isinstance(each, Leap):
            allowed = TOLERANCE * max(each.drift)
            given = (each.state, each.drift, each.length)
            assert max(map(abs, above(periods, *given, each.cycles - 1))) <= allowed
            assert left < each.length or max(above(periods, *given, each.cycles)) > allowed


@pytest.mark.parametrize(
    ("schedule", "pp", "vpp", "m"),
    [
        ("gpipe", 2, 1, 8), ("1f1b", 4, 1, 5), ("zb_h1", 4, 1, 4), ("zb_v", 4, 2, 5),
        ("dualpipe_v", 3, 2, 6),
    ],
)  # fmt: skip
def test_an_order_that_is_not_warm_has_no_body(
    schedule: Schedule, pp: int, vpp: int, m: int
) -> None:
    """Or never is, though a step here and there is as one a period before."""
    assert steady_state._cut(written_anew(schedule, pp, vpp, m), 1) is None
