"""The minimax path: the way through the stages on which the longest of several chains is shortest.

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
from functools import reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshplan.costmodels.elementwise import most_along
from meshplan.costmodels.layouts import Floats, Ints, each_once

MOST_LABELS = 1_000  # labels kept at one stage
MOST_COMPARED = 100  # labels compared with each other at a time
MOST_CHAINS = 100  # then the oldest are dropped; a chain may end at each of 32 ranks


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
    the index of its step. None where every label that was kept ended above the limit. It was looked
    for in so many passes through the stages, which made so many labels.
    """

    bound_s: float
    way: tuple[int, ...] | None
    passes: int
    labels: int


class LeastLongest:
    """Ways through `stages` from place 0 to `last`."""

    def __init__(self, stages: list[Steps], last: int) -> None:
        self.stages, self.last = stages, last
        self.forbidden: set[tuple[int, ...]] = set()
        self._from = [np.searchsorted(each.first, np.arange(last + 2)) for each in stages]
        self._here = [np.flatnonzero(np.diff(begins)) for begins in self._from]
        self._begin = [begins[here] for begins, here in zip(self._from, self._here, strict=True)]
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
        for at in reversed(range(len(self.stages))):
            least, here = np.full(self.last + 1, math.inf), self._here[at]
            if len(here):
                rest = joined(costs[at], found[-1][self.stages[at].end])
                least[here] = np.minimum.reduceat(rest, self._begin[at])
            found.append(least)
        return found[::-1]

    def least(self, limit_s: float, most_passes: int = 1, most_labels: float = math.inf) -> Least:
        """Of the ways below the limit. Where no beginning that is kept can be ended below it, those
        that were dropped are gone on with, the best first, in up to so many passes, none of which
        begins after the most labels.
        """
        start = np.zeros(1, np.int64)
        spent = np.array([[chain.fixed_s for chain in self._chains]])
        dropped = [_Labels(0, start, spent, np.zeros(1), np.zeros(1), np.zeros((1, 0), np.int64))]
        passes, made, way = 0, 0, Least(math.inf, None, 0, 0)
        tables = _Tables.of(self._chains)
        while dropped and not way.way and passes < most_passes and made <= most_labels:
            first = min(range(len(dropped)), key=lambda at: dropped[at].bound[0])
            labels, rest = dropped.pop(first).parted()
            dropped += [rest] * bool(len(rest.place))
            passes += 1
            while len(labels.place) and labels.stage < len(self.stages):
                labels = self._onward(labels, tables)
                made += len(labels.place)
                labels, rest = self._kept(labels, limit_s)
                dropped += [rest] * bool(len(rest.place))
            way = self._answer(labels)
        least_s = min([way.bound_s, *(float(each.bound[0]) for each in dropped)])
        return Least(least_s, way.way, passes, made)

    def _onward(self, labels: "_Labels", tables: "_Tables") -> "_Labels":
        """All labels one step further."""
        stage = labels.stage
        steps, begins = self.stages[stage], self._from[stage]
        many = begins[labels.place + 1] - begins[labels.place]
        label = np.repeat(np.arange(len(labels.place)), many)
        step = np.arange(len(label)) - np.repeat(many.cumsum() - many, many)
        step += begins[labels.place][label]
        place, spent = steps.end[step], labels.spent[label]
        longest = np.maximum(labels.longest[label], steps.least_s[step])
        bound = np.maximum(longest, self._least[stage + 1][place])
        if self._chains:
            spent = spent + tables.costs[stage][step]
            bound = np.maximum(bound, most_along(spent + tables.rest[stage + 1][place], 1))
        way = np.column_stack([labels.way[label], step])
        return _Labels(stage + 1, place, spent, longest, bound, way)

    def _kept(self, labels: "_Labels", limit_s: float) -> tuple["_Labels", "_Labels"]:
        """The labels to go on with, the best first; and those that are dropped."""
        kept = np.flatnonzero(labels.bound < limit_s)
        kept = kept[np.argsort(labels.bound[kept], kind="stable")]
        if not self.forbidden and len(kept) > MOST_LABELS // 2:
            kept, rest = kept[:MOST_COMPARED], kept[MOST_COMPARED:]
            costs = np.column_stack([labels.spent[kept], labels.longest[kept]])
            kept = np.concatenate([kept[~_beaten(labels.place[kept], costs)], rest])
        return labels.take(kept).parted()

    def _answer(self, labels: "_Labels") -> Least:
        for way, bound_s in zip(labels.way.tolist(), labels.bound.tolist(), strict=True):
            if tuple(way) not in self.forbidden:
                return Least(bound_s, tuple(way), 0, 0)
        return Least(math.inf, None, 0, 0)


class _Labels(NamedTuple):
    """Beginnings of ways through the first stages: where they end, what they cost under each chain,
    the longest of their steps on its own, a bound of all ways that begin so, and their steps.
    """

    stage: int
    place: Ints
    spent: Floats
    longest: Floats
    bound: Floats
    way: Ints

    def take(self, some: Ints | slice) -> "_Labels":
        """Some of them."""
        place, spent, longest = self.place[some], self.spent[some], self.longest[some]
        return _Labels(self.stage, place, spent, longest, self.bound[some], self.way[some])

    def parted(self) -> tuple["_Labels", "_Labels"]:
        """As many as are looked at together, and the others."""
        return self.take(slice(MOST_LABELS)), self.take(slice(MOST_LABELS, None))


class _Tables(NamedTuple):
    """Of each stage [step, chain] what a step costs, and of each and the end [place, chain] the
    least of the rest of the way.
    """

    costs: list[Floats]
    rest: list[Floats]

    @classmethod
    def of(cls, chains: list[_Chain]) -> "_Tables":
        """Of `chains`."""
        costs, rest = (
            [np.stack(each, axis=1) for each in zip(*lists, strict=True)]
            for lists in ([c.costs for c in chains], [c.rest for c in chains])
        )
        return cls(costs, rest)


def _beaten(place: Ints, costs: Floats) -> NDArray[np.bool_]:
    """Which labels another one of the same place is not behind anywhere; of equals the first is
    kept.
    """
    beaten = np.zeros(len(place), bool)
    for here in each_once(place):
        some = np.flatnonzero(place == here)
        if len(some) < 2:
            continue
        one = costs[some]
        no_worse = reduce(np.logical_and, (each[:, None] <= each for each in one.T))
        equal_later = no_worse & no_worse.T & (np.arange(len(some))[:, None] > np.arange(len(some)))
        beaten[some] = (no_worse & ~np.eye(len(some), dtype=bool) & ~equal_later).any(axis=0)
    return beaten
