"""The way on which the longest of several chains is shortest.

A way takes one step at each of a few stages, from place 0 to the last place; a step has a cost
under each chain. A step of training lasts at least as long as each chain of its actions, so that

    least over ways of (largest over chains of (fixed cost of the chain + sum of its steps' costs))

is a lower bound of the fastest cut into stages, and the way that has it is a cut worth simulating:
its own longest chain is the next one to add, until a way's simulated step is the bound (cutting
planes, Kelley 1960). The least is found by labels: all beginnings of ways that may stay below the
limit; where they become many, without those that another one with the same end beats under every
chain; where they become too many, the best are kept, and the bound of the best that is dropped
stands for the rest.

Means of chains, which are bounds too, were no help: whole layers are coarse, and the labels do what
the means leave (gpt-oss-120b on 16 ranks: 8 % below the best against 2 %).
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshplan.costmodels.layouts import Floats, Ints

MOST_LABELS = 1_000  # of one stage
MOST_COMPARED = 100  # with each other
MOST_CHAINS = 32  # the oldest are dropped


class Steps(NamedTuple):
    """The steps of one stage, by `first`: from place `first` to `end`; what a step of training with
    it takes at least, whatever the others are.
    """

    first: Ints
    end: Ints
    least_s: Floats


class _Chain(NamedTuple):
    """[stage] what each step costs, and by place the least of the rest of the way."""

    costs: list[Floats]
    fixed_s: float
    rest: list[Floats]


class Least(NamedTuple):
    """The bound, infinite where no way is below the limit, and the steps of the way: of each stage
    the index of its step. None where every label that was kept ended above the limit.
    """

    bound_s: float
    way: tuple[int, ...] | None


class LeastLongest:
    """Ways through `stages` from place 0 to `last`."""

    def __init__(self, stages: list[Steps], last: int) -> None:
        self.stages, self.last = stages, last
        self.forbidden: set[tuple[int, ...]] = set()
        self._from = [np.searchsorted(each.first, np.arange(last + 2)) for each in stages]
        self._least = self._to_go([each.least_s for each in stages], np.maximum)
        self._chains: list[_Chain] = []

    def add(self, costs: list[Floats], fixed_s: float) -> None:
        """A chain: the cost of each step of each stage."""
        chain = _Chain(costs, fixed_s, self._to_go(costs, np.add))
        self._chains = [*self._chains[1 - MOST_CHAINS :], chain]

    def _to_go(self, costs: list[Floats], joined: np.ufunc) -> list[Floats]:
        """Of each stage, by place, the least of the rest of the way."""
        end = np.full(self.last + 1, math.inf)
        end[-1] = 0.0
        found = [end]
        for steps, cost, begins in zip(
            reversed(self.stages), reversed(costs), reversed(self._from), strict=True
        ):
            least = np.full(self.last + 1, math.inf)
            here = np.flatnonzero(np.diff(begins))
            if len(here):
                least[here] = np.minimum.reduceat(joined(cost, found[-1][steps.end]), begins[here])
            found.append(least)
        return found[::-1]

    def least(self, limit_s: float) -> Least:
        """Of the ways below the limit."""
        chains = self._chains
        rest = [
            np.stack(each, axis=1) for each in zip(*(chain.rest for chain in chains), strict=True)
        ]
        costs = [
            np.stack(each, axis=1) for each in zip(*(chain.costs for chain in chains), strict=True)
        ]
        place, spent = np.zeros(1, np.int64), np.array([[chain.fixed_s for chain in chains]])
        longest, bound, dropped_s = np.zeros(1), np.zeros(1), math.inf
        back: list[tuple[Ints, Ints]] = []
        for stage, steps in enumerate(self.stages):
            begins = self._from[stage]
            many = begins[place + 1] - begins[place]
            label = np.repeat(np.arange(len(place)), many)
            step = np.arange(len(label)) - np.repeat(many.cumsum() - many, many)
            step += begins[place][label]
            place = steps.end[step]
            longest = np.maximum(longest[label], steps.least_s[step])
            bound, spent = np.maximum(longest, self._least[stage + 1][place]), spent[label]
            if chains:
                spent = spent + costs[stage][step]
                bound = np.maximum(bound, (spent + rest[stage + 1][place]).max(axis=1))
            kept, missed_s = self._kept(place, spent, longest, bound, limit_s)
            dropped_s = min(dropped_s, missed_s)
            place, spent, longest, bound = place[kept], spent[kept], longest[kept], bound[kept]
            back.append((label[kept], step[kept]))
        return self._answer(back, bound, dropped_s)

    def _kept(
        self, place: Ints, spent: Floats, longest: Floats, bound: Floats, limit_s: float
    ) -> tuple[Ints, float]:
        """The labels to go on with, the best first; and the bound of the best that was dropped."""
        kept = np.flatnonzero(bound < limit_s)
        kept = kept[np.argsort(bound[kept], kind="stable")]
        if not self.forbidden and len(kept) > MOST_LABELS // 2:
            kept, rest = kept[:MOST_COMPARED], kept[MOST_COMPARED:]
            costs = np.column_stack([spent[kept], longest[kept]])
            kept = np.concatenate([kept[~_beaten(place[kept], costs)], rest])
        missed_s = float(bound[kept[MOST_LABELS]]) if len(kept) > MOST_LABELS else math.inf
        return kept[:MOST_LABELS], missed_s

    def _answer(self, back: list[tuple[Ints, Ints]], bound: Floats, dropped_s: float) -> Least:
        for at in range(len(bound)):
            way, label = list[int](), at
            for labels, steps in reversed(back):
                way.append(int(steps[label]))
                label = int(labels[label])
            found = tuple(reversed(way))
            if found not in self.forbidden:
                return Least(min(float(bound[at]), dropped_s), found)
        return Least(dropped_s, None)


def _beaten(place: Ints, costs: Floats) -> NDArray[np.bool_]:
    """Which labels another one of the same place is not behind anywhere; of equals the first is
    kept.
    """
    beaten = np.zeros(len(place), bool)
    for here in np.unique(place):
        some = np.flatnonzero(place == here)
        if len(some) < 2:
            continue
        one = costs[some]
        no_worse = (one[:, None] <= one[None]).all(axis=2)
        equal_later = no_worse & no_worse.T & (np.arange(len(some))[:, None] > np.arange(len(some)))
        beaten[some] = (no_worse & ~np.eye(len(some), dtype=bool) & ~equal_later).any(axis=0)
    return beaten
