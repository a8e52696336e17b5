"""Collectives in turns with computing: what counts of each turn, by a clock of our own."""

from itertools import cycle

import pytest
import torch

from meshplan.executor.profile import turns
from meshplan.executor.profile.bench import Bench
from meshplan.executor.profile.turns import MOST_TURNS, Part, in_turns

OTHER_RANK_S = 0.003


class Clock:
    """Time that passes where somebody works."""

    def __init__(self) -> None:
        self.now_s, self.used_s = 100.0, 0.0

    def perf_counter(self) -> float:
        """Now."""
        return self.now_s

    def process_time(self) -> float:
        """Of all threads."""
        return self.used_s

    def work(self, seconds: float, busy: float = 1.0) -> None:
        """Some time passes, of which a share is work."""
        self.now_s += seconds
        self.used_s += busy * seconds


class TwoRanks(Bench):
    """This rank, and one whose every call takes `OTHER_RANK_S`, all of it work."""

    def everywhere(self, values):
        """What the other, which has a part, says to as many numbers."""
        own = list(values)
        return [own, [0.0, *[OTHER_RANK_S] * (len(own) - 1)] if len(own) > 1 else own]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Of the module, and of its computing, which takes 1 s."""
    clock = Clock()
    monkeypatch.setattr(turns, "time", clock)
    monkeypatch.setattr(turns, "_computing", lambda _: lambda: clock.work(1.0))
    return clock


def test_the_mean_of_ranks_and_turns_without_their_computing(clock: Clock) -> None:
    """Calls of 1, 5, 1, 5 ... ms here (two warm up), half of them work; always 3 ms there:
    a turn is (1 + 3) / 2 or (5 + 3) / 2 ms, 3 ms in the mean; of work the median turns count,
    (1 + 5) / 2 / 2 ms here.
    """
    bench = TwoRanks(torch.device("cpu"), budget_s=1e9, world_size=2)
    lengths = cycle((0.001, 0.005))
    timing, processor_s = in_turns(bench, lambda: clock.work(next(lengths), busy=0.5), Part())
    assert timing.summary.repeats == MOST_TURNS
    assert timing.seconds == pytest.approx(0.003)
    assert timing.rank_seconds == pytest.approx((0.003, 0.003))
    assert timing.slowdown == pytest.approx(1.0)
    assert processor_s == pytest.approx(0.00225)


def test_a_send_ends_with_its_receiver(clock: Clock) -> None:
    """1 ms here, 3 ms there: 3 ms, and not their mean."""
    bench = TwoRanks(torch.device("cpu"), budget_s=0.0, world_size=2)
    timing, _ = in_turns(bench, lambda: clock.work(0.001), Part(one_waits=True))
    assert timing.seconds == pytest.approx(OTHER_RANK_S)


def test_no_turn_is_begun_that_should_not_end_in_time(clock: Clock) -> None:
    """Turns of 1.25 s in 4 s: three, since a fourth would end at 5 s."""
    bench = Bench(torch.device("cpu"), budget_s=4.0)
    timing, _ = in_turns(bench, lambda: clock.work(0.25), Part())
    assert timing.summary.repeats == 3


def test_a_rank_without_a_group_does_not_count(clock: Clock) -> None:
    """Of three ranks the last has no partner: its call of no time says nothing of the others'."""
    bench = TwoRanks(torch.device("cpu"), budget_s=0.0, world_size=2)
    timing, processor_s = in_turns(bench, lambda: None, Part(none=True))
    assert timing.seconds == pytest.approx(OTHER_RANK_S)
    assert timing.rank_seconds == pytest.approx((0.0, OTHER_RANK_S))
    assert processor_s == pytest.approx(OTHER_RANK_S)
