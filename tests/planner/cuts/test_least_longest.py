"""The way whose longest chain is shortest, against looking at every way."""

import itertools
import math

import numpy as np
import pytest

from meshplan.costmodels.layouts import Floats
from meshplan.planner.cuts import least_longest
from meshplan.planner.cuts.least_longest import LeastLongest, Steps

Chains = list[tuple[list[Floats], float]]


def random_ways(rng: np.random.Generator) -> tuple[list[Steps], int, Chains]:
    """Up to four stages with a dozen steps each, up to five chains."""
    stages, last = int(rng.integers(1, 5)), int(rng.integers(4, 8))
    steps = []
    for stage in range(stages):
        pairs = rng.integers(0, last + 1, (12, 2))
        pairs[:, 0] *= stage > 0
        pairs[:, 1] = np.where(stage == stages - 1, last, pairs[:, 1])
        legal = np.array(sorted({(int(a), int(b)) for a, b in pairs if a <= b})).reshape(-1, 2)
        steps.append(Steps(legal[:, 0], legal[:, 1], rng.random(len(legal))))

    def drawn() -> list[Floats]:
        return [rng.random(len(each.first)) for each in steps]

    chains = [(drawn(), float(rng.random())) for _ in range(rng.integers(0, 6))]
    return steps, last, chains


def every_way(steps: list[Steps], last: int, chains: Chains) -> list[tuple[float, tuple[int, ...]]]:
    """The length of the longest chain on each way, the shortest first."""
    found = []
    for way in itertools.product(*(range(len(each.first)) for each in steps)):
        place, legal = 0, True
        for each, step in zip(steps, way, strict=True):
            legal &= bool(each.first[step] == place)
            place = int(each.end[step])
        if legal and place == last:
            of_steps = (float(each.least_s[step]) for each, step in zip(steps, way, strict=True))
            of_chains = (
                fixed + sum(float(cost[step]) for cost, step in zip(costs, way, strict=True))
                for costs, fixed in chains
            )
            found.append((max([*of_steps, *of_chains]), way))
    return sorted(found)


def built(steps: list[Steps], last: int, chains: Chains) -> LeastLongest:
    """With all chains added."""
    ways = LeastLongest(steps, last)
    for costs, fixed in chains:
        ways.add(costs, fixed)
    return ways


@pytest.mark.parametrize("seed", range(4))
def test_the_least_of_all_ways_is_found(seed: int) -> None:
    """And once that is forbidden, the next; below a limit nothing at or above it."""
    rng = np.random.default_rng(seed)
    for _ in range(40):
        steps, last, chains = random_ways(rng)
        ways, every = built(steps, last, chains), every_way(steps, last, chains)
        for expected_s, way in every[:2]:
            found = ways.least(math.inf)
            assert found.bound_s == pytest.approx(expected_s, rel=1e-12)
            assert found.way == way
            assert ways.least(expected_s * 0.999).way is None
            ways.forbidden.add(way)
        if not every:
            assert ways.least(math.inf)[:2] == (math.inf, None)


def test_dropped_beginnings_lower_the_bound_to_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """With two kept of each stage the bound is never above the least, and sometimes below it."""
    monkeypatch.setattr(least_longest, "MOST_LABELS", 2)
    rng, below = np.random.default_rng(9), 0
    for _ in range(200):
        steps, last, chains = random_ways(rng)
        every = every_way(steps, last, chains)
        if every:
            bound_s = built(steps, last, chains).least(math.inf).bound_s
            assert bound_s <= every[0][0] * (1 + 1e-12)
            below += bound_s < every[0][0] * (1 - 1e-9)
    assert below


def test_more_passes_end_what_one_leaves_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one kept of each stage, below a limit that one way meets: in one pass it is sometimes
    missed, in many never; and below its own length none is left.
    """
    monkeypatch.setattr(least_longest, "MOST_LABELS", 1)
    rng, missed = np.random.default_rng(11), 0
    for _ in range(200):
        steps, last, chains = random_ways(rng)
        if not (every := every_way(steps, last, chains)):
            continue
        least_s, lengths = every[0][0], {way: length_s for length_s, way in every}
        once = built(steps, last, chains).least(least_s * (1 + 1e-9))
        assert once.bound_s <= least_s * (1 + 1e-12)
        missed += once.way is None
        longer = built(steps, last, chains).least(least_s * (1 + 1e-9), 1000)
        assert longer.way is not None
        assert lengths[longer.way] <= least_s * (1 + 1e-9)
        none = built(steps, last, chains).least(least_s * (1 - 1e-9), 1000)
        assert none[:2] == (math.inf, None)
    assert missed
