"""A lower bound of one split with several chunks per rank, of which some must recompute.

A chain of actions that wait for each other (`Program.chain`) holds the backward of chunk v of rank
s a number of times, k[s, v]. A mean of chains is a bound as well as each of them, and under it

    step >= the mean's length with nothing recomputed
            + sum over s of the least sum over v of k[s, v] x[s, v]

where x[s, v] seconds of recomputation of one micro-batch save what rank s lacks, by a mean of its
in-flight vectors (`PipelineShape.covers`), in any proportion of layers. Ranks do not share memory,
so each is a knapsack of its own. The x that answer one mean are simulated, and the longest chain of
that joins it: each mean is against what the one before would have done.
"""

import numpy as np

from meshplan.costmodels.grid import Floats
from meshplan.costmodels.layout import Stage
from meshplan.costmodels.schedule.actions import Work
from meshplan.costmodels.schedule.program import program
from meshplan.costmodels.step.cut_times import CutTimes
from meshplan.planner.bounds.split import FREE, Pairs
from meshplan.planner.problem.coefficients import NS_PER_S
from meshplan.planner.problem.stage_problem import StageProblem

ROUNDS = 8
SAFETY = 1 - 1e-9


class RecomputeChains:
    """One split of a problem, bounded by chains."""

    def __init__(self, problem: StageProblem, times: CutTimes, bare: tuple[Stage, ...]) -> None:
        self.problem, self.times, self.bare = problem, times, bare
        alone = problem.alone
        pairs = Pairs.below(alone, np.full(1, np.inf))
        counts = tuple(stage.layers for stage in bare)
        self.pairs = pairs.take(np.array([(problem.splits or ()).index(counts)]))
        full = tuple(Stage(n, 0, n) for n in counts)
        self.reduce_s = times.after_s(full).reduce_s
        self.rest_s = times.after_s(bare).rest_s
        self.work = times.work(bare)
        self.rounding_s = problem.m * len(problem.pattern) / NS_PER_S
        self.order = program(problem.schedule, problem.pp, problem.vpp, problem.m)

    def bound_s(self, enough_s: float) -> float:
        """The best bound of a few rounds, or the first above `enough_s`."""
        mean, length, best = np.zeros(self.problem.chunks), 0.0, 0.0
        added = self._answer(np.ones(self.problem.chunks))[1]
        for number in range(ROUNDS):
            weights, bare_s = self._longest(added)
            share = 1.0 / (number + 1) if number < 2 else 2.0 / (number + 2)
            for step in (1.0, share):
                now, now_s = (1 - step) * mean + step * weights, (1 - step) * length + step * bare_s
                paid, answer = self._answer(now)
                best = max(best, (now_s + paid + self.rest_s) * SAFETY - self.rounding_s)
                if best >= enough_s:
                    return best
            mean, length, added = now, now_s, answer
        return best

    def _longest(self, added: Floats) -> tuple[Floats, float]:
        """How often the longest chain has each chunk's backward, and its length without `added`."""
        work, chunks = self.work, self.problem.chunks
        slower = Work(
            work.forward_s,
            tuple(a + b for a, b in zip(work.input_grad_s, added.tolist(), strict=True)),
            work.weight_grad_s, work.send_s,
        )  # fmt: skip
        chain = self.order.chain(slower, self.reduce_s)
        counts = np.array(chain.counts, float).reshape(4, chunks)
        return counts[1] + counts[2], chain.length_s(work) + self.reduce_s[chain.rank]

    def _answer(self, weights: Floats) -> tuple[float, Floats]:
        """The least weighed recomputation with which every rank fits, in seconds; and which."""
        added, total = np.zeros(self.problem.chunks), 0.0
        for rank, chunks in enumerate(self.problem.chunks_of_rank):
            found = [
                self._of_rank(rank, which, weights[list(chunks)])
                for which in range(self.problem.alone.covers.shape[1])
            ]
            paid, each = max(found, key=lambda one: one[0])
            added[list(chunks)] = each
            total += paid
        return total, added

    def _of_rank(self, rank: int, which: int, weights: Floats) -> tuple[float, Floats]:
        """The knapsack of one rank by one cover, in any proportion."""
        chunks, spent = list(self.problem.chunks_of_rank[rank]), np.zeros(len(weights))
        lacks = float(self.pairs.lacks_kib(rank, which)[0])
        if lacks <= 0:
            return 0.0, spent
        held, layers = self.pairs.held(rank, which)[0], self.pairs.layers[0, chunks]
        pieces = [
            (float(held[v] * kib_per_ns[0]), float(layers[v] * ns[0]), v)
            for ns, kib_per_ns in self.pairs.layouts.hull
            for v in range(len(chunks))
        ]
        pieces.sort(key=lambda piece: -piece[0] / max(weights[piece[2]], FREE))
        for rate, most_ns, v in pieces:
            if rate <= 0 or lacks <= 0:
                continue
            used = min(most_ns, lacks / rate)
            spent[v] += used / NS_PER_S
            lacks -= used * rate
        return float(weights @ spent), spent
