"""One split with several chunks per rank, of which some must recompute: a bound, and plans.

A chain of actions that wait for each other (`Program.chain`) holds the backward of chunk v of rank
s a number of times, k[s, v]. A mean of chains is a bound as well as each of them, and under it

    step >= the mean's length with nothing recomputed
            + sum over s of the least sum over v of k[s, v] x[s, v]

where x[s, v] is what the mix of chunk v takes more of each micro-batch, and rank s fits by the mean
of its in-flight vectors that asks most of it (`planner.bounds.recompute`). Ranks do not share
memory, so each is a knapsack of its own, in whole layers; savings are rounded up to a `GRAINS`-th
of what the rank lacks. The mixes that answer one mean are simulated, and the longest chain of that
joins it: each mean is against what the one before would have done. Where they fit they are plans.
"""

import math
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layout import Stage
from meshplan.costmodels.layouts import Floats, Ints
from meshplan.costmodels.schedule.actions import Work
from meshplan.costmodels.schedule.program import program
from meshplan.costmodels.step.cut_times import After, CutTimes
from meshplan.planner.bounds.recompute import GRAINS, WANTED, Ranks, grains_of
from meshplan.planner.problem.coefficients import NS_PER_S
from meshplan.planner.problem.stage_problem import StagePlan, StageProblem, evaluate

ROUNDS, FEW = 10, 2
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

    def answer(self, enough_s: float) -> Answer:
        """The best bound of a few rounds, or the first above `enough_s`."""
        mean, length, best = np.zeros(self.problem.chunks), 0.0, 0.0
        _, mixes = self._cheapest(np.ones(self.problem.chunks))
        step_s, plan = math.inf, None
        for number in range(ROUNDS):
            if not math.isfinite(mixes.added_s.sum()):
                return Answer(math.inf, math.inf, None)
            found_s, found = self._tried(mixes)
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

    def _tried(self, mixes: _Mixes) -> tuple[float, StagePlan | None]:
        """The simulated step of `mixes` if they fit."""
        stages = tuple(
            Stage(stage.layers, int(selective), int(full))
            for stage, full, selective in zip(self.bare, mixes.full, mixes.selective, strict=True)
        )
        plan = evaluate(self.problem, stages)
        return (self.times.step_s(stages), plan) if plan else (math.inf, None)

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

    def _of_rank(self, rank: int, weights: Floats, mixes: _Mixes) -> float:
        """The knapsack of one rank, whose answer is written into `mixes`."""
        p, ranks = self.problem, self.ranks
        which, chunks = ranks.hardest[rank][0], p.chunks_of_rank[rank]
        lack = float(ranks.pairs.lacks_kib(rank, which)[0])
        floor = p.head.transient_kib if p.chunks - 1 in chunks else 0
        least = max(floor, min(p.transient_kib[mode] for mode in p.modes))
        best: tuple[float, list[Ints]] = (math.inf, [])
        for transient in sorted({max(floor, p.transient_kib[mode]) for mode in p.modes}):
            allowed = tuple(mode for mode in p.modes if p.transient_kib[mode] <= transient)
            found = self._knapsack(rank, weights, allowed, lack + transient - least)
            if found[0] < best[0]:
                best = found
        if not math.isfinite(best[0]):
            mixes.added_s[list(chunks)] = math.inf
            return math.inf
        for chunk, way in zip(chunks, best[1], strict=True):
            mixes.added_s[chunk] = way[0] / NS_PER_S
            mixes.full[chunk], mixes.selective[chunk] = way[2], way[3]
        return best[0] / NS_PER_S

    def _knapsack(
        self, rank: int, weights: Floats, allowed: tuple[int, ...], lack_kib: float
    ) -> tuple[float, list[Ints]]:
        """The least weighed ns that save `lack_kib`, and the way of each chunk."""
        p, ranks = self.problem, self.ranks
        held = p.shape.covers[ranks.hardest[rank][0], rank]
        known, taken = np.where(WANTED == 0, 0.0, math.inf), []
        for chunk, micro_batches in zip(p.chunks_of_rank[rank], held, strict=True):
            ways = ranks.choices(0, chunk, allowed)
            if not ways.shape[1]:
                return math.inf, []
            grains = grains_of(micro_batches * ways[1], lack_kib)
            left = np.maximum(0, WANTED - grains[:, None])
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
