"""One split with several chunks per rank, of which some must recompute: a bound, and plans.

A chain of actions that wait for each other (`Program.chain`) holds the backward of chunk v of rank
s a number of times, k[s, v]. A mean of chains is a bound as well as each of them, and under it

    step >= the mean's length with nothing recomputed
            + sum over s of the least sum over v of k[s, v] x[s, v]

where x[s, v] is what the mix of chunk v takes more of each micro-batch, and rank s fits by that of
its `PipelineShape.covers` which asks most of it. Ranks do not share memory, so each is a knapsack
of its own, in whole layers; savings are rounded up to a `GRAINS`-th of what the rank lacks. The
mixes that answer one mean are simulated, and the longest chain of that joins it: each mean is
against what the one before would have done. What fits by a cover need not fit: then the rank is
asked to save as much more as it lacks, a few times, and what fits in the end is a plan.
"""

import math
from functools import cached_property
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layout import Stage
from meshplan.costmodels.layouts import Floats, Ints
from meshplan.costmodels.schedule.actions import Work
from meshplan.costmodels.schedule.program import program
from meshplan.costmodels.step.cut_times import After, CutTimes
from meshplan.planner.bounds.recompute import GRAINS, WANTED, Counts, Ranks, grains_of
from meshplan.planner.problem.coefficients import NS_PER_S
from meshplan.planner.problem.stage_problem import (
    StagePlan,
    StageProblem,
    evaluate,
    modes_of,
    peak_kib,
    starts_of,
)

ROUNDS, FEW = 24, 4
REPAIRS = 3  # of a mix that does not fit
ALL_COVERS = 4  # rounds: between them a rank is looked at by the cover that asked most of it
MOST_KNOWN = 64  # lists of ways that are kept
MOST_CHUNKS = 40  # of a split whose ranks are looked at by each of their covers
GAIN, HOPELESS = 2e-4, 0.99  # a round that gains less ends where so much of the limit is missing
SAFETY = 1 - 1e-9


class Answer(NamedTuple):
    """A lower bound of the split's step, and the fastest of the plans met on the way, with its
    step; infinite where none fits.
    """

    bound_s: float
    step_s: float
    plan: StagePlan | None


class _Mixes(NamedTuple):
    """What each chunk takes more, in seconds, and its layers recomputed in full and selectively."""

    added_s: Floats
    full: Ints
    selective: Ints

    def copied(self) -> "_Mixes":
        """To be changed."""
        return _Mixes(self.added_s.copy(), self.full.copy(), self.selective.copy())


class _Ways(NamedTuple):
    """Of a chunk, its `Ranks.choices`, and what each leaves to save of each number of grains."""

    ways: Ints
    left: Ints


class RecomputeChains:
    """One split of a problem whose list of splits holds it alone."""

    def __init__(
        self, problem: StageProblem, times: CutTimes, bare: tuple[Stage, ...], after: After
    ) -> None:
        self.problem, self.times, self.bare = problem, times, bare
        self.ranks = Ranks(problem, None)
        self.reduce_s, self.rest_s = after
        self.work = times.work(bare)
        self.rounding_s = problem.m * len(problem.pattern) / NS_PER_S
        self.order = program(problem.schedule, problem.pp, problem.vpp, problem.m)
        self._known: dict[tuple[int, int, Counts, float], list[_Ways]] = {}
        self._round, self._last = 0, [covers[0] for covers in self._covers]

    def answer(self, enough_s: float) -> Answer:
        """The best bound of a few rounds, or the first above `enough_s`."""
        mean, length, best = np.zeros(self.problem.chunks), 0.0, 0.0
        _, mixes = self._cheapest(np.ones(self.problem.chunks))
        step_s, plan = math.inf, None
        for number in range(ROUNDS):
            self._round = number
            if not math.isfinite(mixes.added_s.sum()):
                return Answer(math.inf, math.inf, None)
            found_s, found = self._tried(mixes, mean if number else np.ones(len(mean)))
            if found_s < step_s:
                step_s, plan = found_s, found
            weights, bare_s = self._longest(mixes.added_s)
            share = 1.0 if number == 0 else 2.0 / (number + 2)
            mean = (1 - share) * mean + share * weights
            length = (1 - share) * length + share * bare_s
            paid, mixes = self._cheapest(mean)
            now = (length + paid + self.rest_s) * SAFETY - self.rounding_s
            stuck = number > FEW and now < best * (1 + GAIN)
            best = max(best, now)
            if best >= min(enough_s, step_s) or (stuck and best < enough_s * HOPELESS):
                break
        return Answer(best, step_s, plan)

    def _tried(self, mixes: _Mixes, weights: Floats) -> tuple[float, StagePlan | None]:
        """The simulated step of `mixes`, or of such that save more on the ranks that do not fit."""
        mixes, more_kib = mixes.copied(), dict[int, float]()
        for _ in range(REPAIRS):
            stages = tuple(
                Stage(stage.layers, int(selective), int(full))
                for stage, full, selective in zip(
                    self.bare, mixes.full, mixes.selective, strict=True
                )
            )
            lacking = self._lacking_kib(stages)
            if not lacking:
                return self.times.step_s(stages), evaluate(self.problem, stages)
            for rank, kib in lacking.items():
                more_kib[rank] = more_kib.get(rank, 0.0) + kib
                self._of_rank(rank, weights, mixes, more_kib[rank])
            if not math.isfinite(mixes.added_s.sum()):
                break
        return math.inf, None

    def _lacking_kib(self, stages: tuple[Stage, ...]) -> dict[int, float]:
        """By rank that does not fit, what it lacks."""
        p, starts, modes = self.problem, starts_of(stages), [modes_of(stage) for stage in stages]
        lacks = {rank: peak_kib(p, rank, starts, modes) - p.cap_kib for rank in range(p.pp)}
        return {rank: float(kib) for rank, kib in lacks.items() if kib > 0}

    def _longest(self, added_s: Floats) -> tuple[Floats, float]:
        """How often the longest chain has each chunk's backward, and its length without what is
        added.
        """
        work, chunks = self.work, self.problem.chunks
        slower = Work(
            work.forward_s,
            tuple(a + b for a, b in zip(work.input_grad_s, added_s.tolist(), strict=True)),
            work.weight_grad_s, work.send_s,
        )  # fmt: skip
        chain = self.order.chain(slower, self.reduce_s)
        counts = np.array(chain.counts, float).reshape(4, chunks)
        return counts[1] + counts[2], chain.length_s(work) + self.reduce_s[chain.rank]

    def _cheapest(self, weights: Floats) -> tuple[float, _Mixes]:
        """The least weighed recomputation with which every rank fits, in seconds; and which."""
        chunks, total = self.problem.chunks, 0.0
        least = min(self.problem.modes)
        layers = np.array([stage.layers for stage in self.bare])
        mixes = _Mixes(np.zeros(chunks), layers * (least == 2), layers * (least == 1))
        for rank in range(self.problem.pp):
            total += self._of_rank(rank, weights, mixes)
        return total, mixes

    def _of_rank(self, rank: int, weights: Floats, mixes: _Mixes, more_kib: float = 0.0) -> float:
        """The knapsack of one rank by the cover that asks most, whose answer is written into
        `mixes`; with `more_kib` to save than it must by any.
        """
        chunks = self.problem.chunks_of_rank[rank]
        hardest: tuple[float, list[Ints]] = (-1.0, [])
        every, last = self._covers[rank], self._last[rank : rank + 1]
        for which in last if more_kib or self._round % ALL_COVERS else every:
            found = self._by_cover(rank, which, weights, more_kib)
            if found[0] > hardest[0]:
                hardest, self._last[rank] = found, which
        if not math.isfinite(hardest[0]):
            mixes.added_s[list(chunks)] = math.inf
            return math.inf
        for chunk, way in zip(chunks, hardest[1], strict=True):
            mixes.added_s[chunk] = way[0] / NS_PER_S
            mixes.full[chunk], mixes.selective[chunk] = way[2], way[3]
        return hardest[0] / NS_PER_S

    def _by_cover(
        self, rank: int, which: int, weights: Floats, more_kib: float
    ) -> tuple[float, list[Ints]]:
        """The least weighed ns with which the rank fits by a cover, and the way of each chunk."""
        p = self.problem
        lack = float(self.ranks.pairs.lacks_kib(rank, which)[0]) + more_kib
        floor = p.head.transient_kib if p.chunks - 1 in p.chunks_of_rank[rank] else 0
        least = max(floor, min(p.transient_kib[mode] for mode in p.modes))
        best: tuple[float, list[Ints]] = (math.inf, [])
        for transient in sorted({max(floor, p.transient_kib[mode]) for mode in p.modes}):
            allowed = tuple(mode for mode in p.modes if p.transient_kib[mode] <= transient)
            prepared = self._ways(rank, which, allowed, lack + transient - least)
            found = self._knapsack(rank, weights, prepared)
            if found[0] < best[0]:
                best = found
        return best

    @cached_property
    def _covers(self) -> list[list[int]]:
        """Of each rank the covers by which it lacks anything, all or the hardest alone."""
        p, pairs = self.problem, self.ranks.pairs
        if p.chunks > MOST_CHUNKS:
            return [[int(self.ranks.hardest[rank][0])] for rank in range(p.pp)]
        covers = range(len(p.shape.covers))
        lacks = [
            [float(pairs.lacks_kib(rank, which)[0]) for which in covers] for rank in range(p.pp)
        ]
        return [
            [which for which in covers if of_rank[which] > 0] or [int(np.argmax(of_rank))]
            for of_rank in lacks
        ]

    def _ways(self, rank: int, which: int, allowed: Counts, lack_kib: float) -> list[_Ways]:
        """Of each chunk of a rank; those of the last few lacks are kept."""
        key = rank, which, allowed, lack_kib
        if key not in self._known:
            while len(self._known) >= MOST_KNOWN:
                self._known.pop(next(iter(self._known)))
            held, found = self.problem.shape.covers[which, rank], list[_Ways]()
            chunks = self.problem.chunks_of_rank[rank]
            for chunk, micro_batches in zip(chunks, held, strict=True):
                ways = self.ranks.choices(0, chunk, allowed)
                grains = grains_of(micro_batches * ways[1], lack_kib)
                found.append(_Ways(ways, np.maximum(0, WANTED - grains[:, None])))
            self._known[key] = found
        return self._known[key]

    def _knapsack(
        self, rank: int, weights: Floats, prepared: list[_Ways]
    ) -> tuple[float, list[Ints]]:
        """The least weighed ns that save what is lacking, and the way of each chunk."""
        known, taken = np.where(WANTED == 0, 0.0, math.inf), []
        for chunk, (ways, left) in zip(self.problem.chunks_of_rank[rank], prepared, strict=True):
            if not ways.shape[1]:
                return math.inf, []
            cost = known[left] + (weights[chunk] * ways[0])[:, None]
            way = cost.argmin(axis=0)
            known = cost[way, WANTED]
            taken.append((ways, way, left))
        wanted, chosen = GRAINS, []
        for ways, way, left in reversed(taken):
            one = int(way[wanted])
            chosen.append(ways[:, one])
            wanted = int(left[one, wanted])
        return float(known[-1]), chosen[::-1]
