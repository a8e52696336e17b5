"""V > 1: what the ranks of one split must recompute, in whole layers.

    C_s   the least of  weight x (what the rows of rank s last longer) + share x (its added work)
    A_s   the least of                                                   share x (its added work)

with which rank s fits by a cover (`PipelineShape.covers`): a knapsack over its chunks, each of
which chooses how many layers run in which mode. Every rank does its own work and a row is paid for
once, so that

    objective >= objective with nothing recomputed + max over s of (C_s - A_s) + sum over s of A_s

Savings are rounded up to a `GRAINS`-th of what a rank lacks: the bound is a little low, never high.
Letters as in `planner.closed_form`.
"""

import math

import numpy as np

from costmodels.grid import Floats, Ints
from planner.alike import Alike
from planner.coefficients import ABSENT
from planner.mixes import mixed, mixes, prefix
from planner.packing import SAFETY
from planner.split_bound import Pairs, least_of_splits
from planner.stage_problem import StageProblem

GRAINS = 512
WANTED = np.arange(GRAINS + 1)
Counts = tuple[int, ...]


def splits_below(problem: StageProblem, below: int | None) -> dict[Counts, int]:
    """The splits that may have a plan with an objective below `below`, with the least of each."""
    limit = None if below is None else np.array([below])
    pairs, least = least_of_splits(Alike.only(problem), limit)
    ranks, left = _Ranks(problem, pairs), {}
    for pair in np.argsort(least, kind="stable").tolist():
        bound = max(float(least[pair]), ranks.bound(pair, below))
        if math.isfinite(bound) and (below is None or bound < below):
            left[ranks.splits[pair]] = math.floor(bound)
    return left


class _Ranks:
    """The knapsacks of the ranks of some splits; each by the cover that asks most of it."""

    def __init__(self, problem: StageProblem, pairs: Pairs) -> None:
        self.problem, self.pairs = problem, pairs
        self.splits = [(problem.splits or ())[split] for split in pairs.split]
        self.share = float(problem.form.over) / problem.form.under
        self.bare = pairs.objective_ns(pairs.slowest.sum(axis=1))
        covers, ranks = range(len(problem.shape.covers)), range(problem.pp)
        self.hardest = [
            np.argmax([pairs.beyond_ns(rank, which) for which in covers], axis=0) for rank in ranks
        ]
        self.free_ns = [pairs.free_ns(rank) for rank in ranks]
        self.spare_ns = [pairs.spare_ns(rank) for rank in ranks]
        self._known: dict[tuple[Counts, Counts], Ints] = {}

    def bound(self, pair: int, below: int | None) -> float:
        """The least objective of a split, infinite if nothing fits; enough if above `below`."""
        most, work = 0.0, 0.0
        for rank in range(self.problem.pp):
            longer, added = self._least_ns(pair, rank)
            if math.isinf(longer):
                return math.inf
            most, work = max(most, longer - added), work + added
            if below is not None and self.bare[pair] + most + work > below + 1:
                break
        return (float(self.bare[pair]) + most + work - 1) * SAFETY

    def _least_ns(self, pair: int, rank: int) -> tuple[float, float]:
        """C_s and A_s: the least over what the largest transient of the rank may be."""
        p, which = self.problem, self.hardest[rank][pair]
        lack = float(self.pairs.lacks_kib(rank, which)[pair])
        floor = p.head.transient_kib if p.chunks - 1 in p.chunks_of_rank[rank] else 0
        least = max(floor, min(p.transient_kib[mode] for mode in p.modes))
        found = [(math.inf, math.inf)]
        for transient in sorted({p.transient_kib[mode] for mode in p.modes}):
            allowed = tuple(mode for mode in p.modes if p.transient_kib[mode] <= transient)
            more = max(transient - least, 0)
            found.append(self._knapsack(pair, rank, allowed, lack + more))
        return min(c for c, _ in found), min(a for _, a in found)

    def _knapsack(
        self, pair: int, rank: int, allowed: Counts, lack_kib: float
    ) -> tuple[float, float]:
        """C_s and A_s when the layers run in the `allowed` modes and must save `lack_kib`."""
        p, weight = self.problem, float(self.problem.form.weight)
        held = p.shape.covers[self.hardest[rank][pair], rank]
        together = len(self.pairs.slowest[pair]) < p.vpp
        longer, added = (np.where(WANTED == 0, 0.0, math.inf) for _ in range(2))
        for chunk, micro_batches, free in zip(
            p.chunks_of_rank[rank], held, self.free_ns[rank][pair], strict=True
        ):
            more_ns, saved = self._choices(pair, chunk, allowed)
            if not len(more_ns):
                return math.inf, math.inf
            grains = _grains(micro_batches * saved, lack_kib)
            cost = weight * np.maximum(0, more_ns - free) + self.share * more_ns
            longer, added = _best(longer, cost, grains), _best(added, more_ns, grains)
        work_ns = float(added[-1])
        work = self.share * work_ns
        if together:
            return weight * max(0.0, work_ns - self.spare_ns[rank][pair]) + work, work
        return float(longer[-1]), work

    def _choices(self, pair: int, chunk: int, allowed: Counts) -> Ints:
        """The ways to run a chunk's layers: ns beyond the fastest, and KiB saved beside it."""
        first = sum(self.splits[pair][:chunk])
        kinds = self.problem.pattern[first : first + self.splits[pair][chunk]]
        if (kinds, allowed) not in self._known:
            self._known[kinds, allowed] = _choices(self.problem, kinds, allowed)
        return self._known[kinds, allowed]


def _choices(problem: StageProblem, kinds: Counts, allowed: Counts) -> Ints:
    """Those of `_Ranks._choices` that save more than all that are faster; ns and KiB."""
    ns, saved = (np.array(table)[list(kinds)] for table in (problem.layer_ns, problem.saved_kib))
    least, modes = ns[:, list(problem.modes)].min(axis=1), list(problem.modes)
    kept = np.where(ns[:, modes] == least[:, None], saved[:, modes], ABSENT).min(axis=1)
    full, selective, _ = mixes(len(kinds), allowed, problem.transient_kib)
    more_ns, less_kib = (
        mixed(prefix(table), 0, full, full + selective, len(kinds))
        for table in (ns - least[:, None], kept[:, None] - saved)
    )
    order = np.lexsort((-less_kib, more_ns))
    more_ns, less_kib = more_ns[order], np.maximum(0, less_kib[order])
    better = np.diff(np.maximum.accumulate(less_kib), prepend=-1) > 0
    return np.stack([more_ns[better], less_kib[better]])


def _grains(saved_kib: Floats, lack_kib: float) -> Ints:
    """`GRAINS`-ths of what a rank lacks, rounded up."""
    if lack_kib <= 0:
        return np.full(len(saved_kib), GRAINS)
    grains: Ints = np.ceil(np.minimum(1.0, saved_kib / lack_kib) * GRAINS).astype(np.int64)
    return grains


def _best(known: Floats, cost: Floats, grains: Ints) -> Floats:
    """The least cost of saving each of `WANTED`, with one more chunk's choices."""
    left = np.maximum(0, WANTED - grains[:, None])
    best: Floats = (known[left] + cost[:, None]).min(axis=0)
    return best
