"""Claims over a layout that was published because it was the fastest of several measured ones."""

import math
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.accuracy.best_measured import claims, worth
from benchmarks.accuracy.layout_ratios import Timed


def question(*steps: tuple[float, float]) -> list[Timed]:
    """Layouts of one question, by their predicted and measured steps."""

    def run(measured_s: float) -> Any:
        return SimpleNamespace(suite="a", measured=SimpleNamespace(step_time_s=measured_s))

    return [Timed(run(measured_s), predicted_s) for predicted_s, measured_s in steps]


STEPS = ((1.0, 1.3), (1.2, 1.0), (1.5, 1.4), (1.05, 2.0))


@pytest.mark.parametrize("tried", [1, 2, 3, 4])
def test_what_is_published_is_the_fastest_of_every_draw(tried: int) -> None:
    """Each claim is as likely as among all draws of so many layouts, written out."""
    drawn = [min(some, key=lambda step: step[1]) for some in combinations(STEPS, tried)]
    found = list(claims([question(*STEPS)], tried))
    assert sum(each.weight for each in found) == pytest.approx(1)
    for each, (predicted_s, measured_s) in zip(
        found, sorted(STEPS, key=lambda step: step[1]), strict=True
    ):
        assert each.weight == pytest.approx(drawn.count((predicted_s, measured_s)) / len(drawn))
        assert each.claim == pytest.approx(math.log(predicted_s / 1.0))
        assert each.truth == pytest.approx(math.log(measured_s / 1.3))


def test_worth_by_hand() -> None:
    """Four layouts, one tried: 20, 50 and 5 % claimed; the last is no large claim, one is none.
    Of the two the first is a loss of ln 1.3 and the other a gain of ln(1.4 / 1.3).
    """
    of = worth(list(claims([question(*STEPS)], 1)))
    assert (of.share, of.right) == (pytest.approx(0.5), pytest.approx(0.5))
    one, other = math.log(1.2), math.log(1.5)
    left = (one * math.log(1 / 1.3) + other * math.log(1.4 / 1.3)) / (one**2 + other**2)
    assert of.left == pytest.approx(left)


def test_who_measured_all_layouts_is_beaten_by_no_plan() -> None:
    """Then there is a claim, and it does not hold."""
    of = worth(list(claims([question(*STEPS)], 4)))
    assert (of.share, of.right) == (1, 0)
