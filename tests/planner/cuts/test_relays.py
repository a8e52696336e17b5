"""Chains of two ranks against the played schedule, and against the chain written out."""

import math
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.schedule.actions import Work
from meshplan.costmodels.schedule.simulation import play
from meshplan.planner.cuts.least_longest import LeastLongest, Steps
from meshplan.planner.cuts.relays import Relay, Relayed

CLOSE = 1 + 1e-9
SCHEDULES: tuple[Schedule, ...] = ("1f1b", "gpipe", "zb_h1")


class Case(NamedTuple):
    """Passes [rank, 3] in seconds, what each rank reduces, and a hop."""

    schedule: Schedule
    m: int
    passes: list[list[float]]
    reduce: list[float]
    hop_s: float

    def bound_s(self) -> float:
        """Of the one cut, by labels: one layer on each rank."""
        pp = len(self.passes)
        stages = [Steps(np.array([s]), np.array([s + 1]), np.zeros(1)) for s in range(pp)]
        passes = [np.array([each]) for each in self.passes]
        reduce = [np.array([each]) for each in self.reduce]
        relay = Relay.of(self.schedule, self.m, passes, reduce, self.hop_s)
        return LeastLongest(stages, pp, relay).least(math.inf).bound_s

    def step_s(self) -> float:
        """Played."""
        forward, input_grad, weight_grad = zip(*self.passes, strict=True)
        work = Work(forward, input_grad, weight_grad, self.hop_s)
        ends = play(self.schedule, len(self.passes), 1, self.m, work).end_s
        return max(end + each for end, each in zip(ends, self.reduce, strict=True))

    def longest_of(self, *, pairs: bool) -> float:
        """The longest chain through r and s, or through one rank, action after action."""
        ranks = range(len(self.passes))
        return max(self.chain_s(r, s) for r in ranks for s in range(r + 1) if pairs or r == s)

    def chain_s(self, r: int, s: int) -> float:
        """Down, all that r does from its first I to its last, up to s, and what s has left."""
        p, m, pp, split = self.passes, self.m, len(self.passes), self.schedule == "zb_h1"
        down = sum(each[0] for each in p) + (pp - 1) * self.hop_s
        begun = 1 if self.schedule == "gpipe" else min(m, pp - r)
        up = sum(p[j][1] + (not split) * p[j][2] for j in range(s, pp)) + (pp - 1 - s) * self.hop_s
        at_r = sum(p[r][0] for _ in range(begun, m))
        at_r += sum(p[r][1] + (not split) * p[r][2] for _ in range(1, m))
        at_r += sum(p[r][2] for i in range(m - 1) if split and i >= r)
        left = sum(p[s][2] for i in range(m) if split and i >= m - 1 - s)
        return down + up + at_r + left + self.reduce[s]


@st.composite
def any_case(draw: st.DrawFn) -> Case:
    """Up to six ranks that may take very different times, some nothing."""
    pp, m = draw(st.integers(1, 6)), draw(st.integers(1, 9))
    seconds = st.floats(0.0, 4.0)
    passes = draw(st.lists(st.lists(seconds, min_size=3, max_size=3), min_size=pp, max_size=pp))
    reduce = draw(st.lists(seconds, min_size=pp, max_size=pp))
    return Case(draw(st.sampled_from(SCHEDULES)), m, passes, reduce, draw(st.floats(0.0, 1.0)))


@given(any_case())
def test_no_chain_of_two_ranks_is_longer_than_the_step(case: Case) -> None:
    """And the bound is the longest of these chains."""
    bound_s = case.bound_s()
    assert bound_s <= case.step_s() * CLOSE
    assert bound_s == pytest.approx(case.longest_of(pairs=True), rel=1e-9)


def test_the_slowest_rank_and_one_before_it_are_one_chain() -> None:
    """Layers of 2, 2, 2 and 3 on four ranks in zb_h1, which replay what a forward takes: the last
    rank sends the last micro-batch up when the first has a W left; no rank alone says how long.

    zb_h1, r = 3, s = 0: F of all 9, I of all 18; 7 (3 + 6) and 4 W of 3 on r; a W of 2 on s.
    """
    passes = [[1.0 * n, 2.0 * n, 1.0 * n] for n in (2, 2, 2, 3)]
    case = Case("zb_h1", 8, passes, [0.0] * 4, 0.0)
    assert case.longest_of(pairs=False) == 102.0
    assert case.bound_s() == case.step_s() == 9 + 18 + 7 * 9 + 4 * 3 + 2


def test_a_beginning_that_is_nowhere_behind_stays_so() -> None:
    """Of two that go on by the same steps the one whose `costs` are nowhere larger."""
    rng, number = np.random.default_rng(3), 20_000
    relay = Relay(*([rng.random(9) for _ in range(2)] for _ in range(4)), fixed_s=0.0)
    one, other = (Relayed(*rng.random((4, number))) for _ in range(2))
    ahead = (np.array(one.costs()) <= np.array(other.costs())).all(axis=0)
    assert ahead.sum() > 1_000
    for stage in range(2):
        step = rng.integers(0, 9, number)
        one, other = one.onward(relay, stage, step), other.onward(relay, stage, step)
    bounds_s = (each.bound_s(np.zeros(1), np.zeros(1))[ahead] for each in (one, other))
    assert (np.subtract(*bounds_s) < 1e-12).all()
