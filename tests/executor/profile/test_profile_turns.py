"""Collectives in turns with computing: what counts of each turn, by a clock of our own."""

from itertools import cycle

import numpy as np
import pytest
import torch

from meshplan.executor.profile.bench import Bench
from meshplan.executor.profile.measured import turns
from meshplan.executor.profile.measured.turns import MOST_TURNS, Part, in_turns, waits_s

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
    """This rank, and one of its group whose every call takes `OTHER_RANK_S`, all of it work, and
    whose computing the first of these seconds, the second, the first ...
    """

    computes_s = (1.0, 1.0)

    def everywhere(self, values):
        """What the other, which has a part, says to as many numbers."""
        own = list(values)
        turns = (len(own) - 1) // 3
        computed = [self.computes_s[turn % 2] for turn in range(turns)]
        return [own, [0.0, *[OTHER_RANK_S] * (2 * turns), *computed] if turns else own]


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
    found = in_turns(bench, lambda: clock.work(next(lengths), busy=0.5), Part())
    timing = found.timing
    assert timing.summary.repeats == MOST_TURNS
    assert timing.seconds == pytest.approx(0.003)
    assert timing.rank_seconds == pytest.approx((0.003, 0.003))
    assert timing.slowdown == pytest.approx(1.0)
    assert found.processor_s == pytest.approx(0.00225)
    assert found.apart == pytest.approx(0.0)


def test_what_one_computed_longer_is_not_the_collectives(clock: Clock) -> None:
    """1 s of computing here, 1.002 and 1 s there by turns; calls of 5 and 3 ms here, of 3 ms there:
    (5 + 3) / 2 less the (2 + 0) / 2 that the mean rank waits, and 3 ms. The waits are
    (1 + 0) / 2 = 0.5 ms for 1.0005 s of computing.
    """
    bench = TwoRanks(torch.device("cpu"), budget_s=1e9, world_size=2)
    bench.computes_s = (1.002, 1.0)
    lengths = cycle((0.005, 0.003))
    found = in_turns(bench, lambda: clock.work(next(lengths)), Part())
    assert found.timing.seconds == pytest.approx(0.003)
    assert found.apart == pytest.approx(0.0005 / 1.0005)
    sent = in_turns(bench, lambda: clock.work(0.003), Part(one_waits=True))
    assert sent.timing.seconds == pytest.approx(0.003)


def test_ranks_that_were_apart_before_may_come_at_once(clock: Clock) -> None:
    """One computes 10 ms longer and began as much earlier: nobody waits, and a call of 3 ms on both
    takes 3 ms, not 3 - 5.
    """
    bench = TwoRanks(torch.device("cpu"), budget_s=1e9, world_size=2)
    bench.computes_s = (1.010, 1.010)
    found = in_turns(bench, lambda: clock.work(0.003), Part())
    assert found.timing.seconds == pytest.approx(0.003)


def test_a_send_ends_with_its_receiver(clock: Clock) -> None:
    """1 ms here, 3 ms there: 3 ms, and not their mean."""
    bench = TwoRanks(torch.device("cpu"), budget_s=0.0, world_size=2)
    timing = in_turns(bench, lambda: clock.work(0.001), Part(one_waits=True)).timing
    assert timing.seconds == pytest.approx(OTHER_RANK_S)


def test_no_turn_is_begun_that_should_not_end_in_time(clock: Clock) -> None:
    """Turns of 1.25 s in 4 s: three, since a fourth would end at 5 s."""
    bench = Bench(torch.device("cpu"), budget_s=4.0)
    timing = in_turns(bench, lambda: clock.work(0.25), Part()).timing
    assert timing.summary.repeats == 3


def test_the_slowest_rank_says_how_many_turns(clock: Clock) -> None:
    """Turns of 1.25 s here and of 2.5 s there in 5 s: two."""

    class Slower(TwoRanks):
        def everywhere(self, values):
            return [[*values], [2.5]] if len(values) == 1 else super().everywhere(values)

    bench = Slower(torch.device("cpu"), budget_s=5.0, world_size=2)
    assert in_turns(bench, lambda: clock.work(0.25), Part()).timing.summary.repeats == 2


def test_a_rank_without_a_group_does_not_count(clock: Clock) -> None:
    """Of three ranks the last has no partner: its call of no time says nothing of the others'."""
    bench = TwoRanks(torch.device("cpu"), budget_s=0.0, world_size=2)
    found = in_turns(bench, lambda: None, Part(group=None))
    assert found.timing.seconds == pytest.approx(OTHER_RANK_S)
    assert found.timing.rank_seconds == pytest.approx((0.0, OTHER_RANK_S))
    assert found.processor_s == pytest.approx(OTHER_RANK_S)
    assert found.apart == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("computed_s", "by_hand"),
    [
        pytest.param([(0, (2.0, 3.0)), (0, (2.0, 3.0))], [0.0, 0.0], id="in step: nobody waits"),
        pytest.param([(0, (1.0, 1.0)), (0, (1.0, 3.0))], [0.0, 1.0], id="3 - (1 + 3) / 2"),
        pytest.param([(0, (1.0, 3.0)), (0, (3.0, 1.0))], [1.0, 1.0],
                     id="as long on the whole, never at once: 3 - 2 twice"),
        pytest.param([(0, (1.0,)), (0, (1.0,)), (2, (1.0,)), (2, (3.0,))], [0.5],
                     id="two groups do not wait for each other: (0 + 1) / 2"),
    ],
)  # fmt: skip
def test_what_ranks_wait_for_the_slowest(computed_s, by_hand: list[float]) -> None:
    """Of each rank its group, and the seconds of every turn."""
    assert waits_s(computed_s) == pytest.approx(by_hand)


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_expected_maximum_of_normal_durations(ranks: int) -> None:
    """Of n normal numbers it lies 0.5642 (two) and 1.0294 (four) standard deviations above their
    mean (Harter 1961, table 1): at 10 % of scatter so much of 10 %.
    """
    drawn = np.random.default_rng(7).normal(1.0, 0.1, (ranks, 40_000))
    by_table = {2: 0.05642, 4: 0.10294}[ranks]
    assert np.mean(waits_s([(0, row.tolist()) for row in drawn])) == pytest.approx(
        by_table, rel=0.02
    )


def test_rare_stalls_delay_everybody() -> None:
    """Stalls of 1 s in 1 % of sections of 1 s, at different moments on four ranks: the mean rank
    loses 10 ms a section, and where anyone stalls all lose 1 s, 40 ms a section with their own 10:
    of three others each stall is waited for, whatever the length of a section.
    """
    rows = [[2.0 if turn % 100 == rank else 1.0 for turn in range(1000)] for rank in range(4)]
    assert np.mean(waits_s([(0, row) for row in rows])) == pytest.approx(0.03)
