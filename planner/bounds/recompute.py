"""The least recomputation of each rank of one split, in whole layers (several chunks per rank).

For each rank s two knapsacks over its chunks, each of which chooses how many of its layers run in
which recompute mode, so that the rank fits by one of its `PipelineShape.covers`:

    C_s   the least of  weight x (what the rows of rank s get slower) + share x (its added work)
    A_s   the least of                                                  share x (its added work)

A row is as slow as its slowest chunk, so what rows get slower is paid for once, by the rank that
slows them most; work adds up over the ranks:

    objective >= objective with nothing recomputed + max over s of (C_s - A_s) + sum over s of A_s

The knapsacks are dynamic programmes over `GRAINS` equal parts of the memory that the rank lacks;
savings are rounded up to such a part, so that the bound is a little low and never high. Letters as
in `planner.problem.closed_form`.
"""

import math
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layouts import Floats, Ints
from meshplan.planner.bounds.packing import at_least
from meshplan.planner.bounds.split import least_of_splits
from meshplan.planner.problem.coefficients import ABSENT
from meshplan.planner.problem.recompute_mixes import mixed, mixes, prefix
from meshplan.planner.problem.stage_problem import StageProblem

GRAINS = 512
WANTED = np.arange(GRAINS + 1)
Counts = tuple[int, ...]


class _Cost(NamedTuple):
    """C_s, A_s and the least that the rank's largest transient can be."""

    whole_ns: float
    work_ns: float
    transient_kib: int


class Ranks:
    """The knapsacks of the ranks of some splits; each by the cover that asks most of it."""

    def __init__(self, problem: StageProblem, below: int | None) -> None:
        limit = None if below is None else np.array([below])
        self.problem, self.below = problem, below
        self.pairs, self._least = least_of_splits(problem.alone, limit)
        self.splits = [(problem.splits or ())[split] for split in self.pairs.split]
        self.share = int(problem.form.over) / problem.form.under
        rounded = int(problem.form.share_ns(problem.least_work_ns))
        bare = self.pairs.objective_ns(self.pairs.slowest.sum(axis=1))
        self.bare = bare - (rounded - self.share * problem.least_work_ns)
        covers, ranks = range(len(problem.shape.covers)), range(problem.pp)
        self.hardest = [
            np.argmax([self.pairs.beyond_ns(rank, which) for which in covers], axis=0)
            for rank in ranks
        ]
        self.free_ns = [self.pairs.free_ns(rank) for rank in ranks]
        self.spare_ns = [self.pairs.spare_ns(rank) for rank in ranks]
        self._known: dict[tuple[Counts, Counts], Ints] = {}
        self._costs: dict[tuple[int, int], _Cost] = {}

    def left(self) -> dict[int, float]:
        """The splits that may have a plan below `below`, with the least objective of each."""
        left = {}
        for pair in np.argsort(self._least, kind="stable").tolist():
            bound = max(float(self._least[pair]), self._bound(pair))
            if math.isfinite(bound) and (self.below is None or bound < self.below):
                left[pair] = bound
        return left

    def work_ns(self, pair: int, rank: int) -> float:
        """A_s, the least ns that recomputation adds to rank `rank`."""
        return self._cost(pair, rank).work_ns

    def transient_kib(self, pair: int, rank: int) -> int:
        """The least that the largest transient of the rank can be."""
        return self._cost(pair, rank).transient_kib

    def _bound(self, pair: int) -> float:
        """The least objective of a split, infinite if nothing fits; enough if above `below`."""
        most, least = 0.0, float(self.bare[pair])
        for rank in range(self.problem.pp):
            cost = self._cost(pair, rank)
            if math.isinf(cost.whole_ns):
                return math.inf
            most, least = max(most, cost.whole_ns - cost.work_ns), least + cost.work_ns
            if self.below is not None and least + most > self.below + 1:
                break
        return float(at_least(np.array(least + most)))

    def _cost(self, pair: int, rank: int) -> _Cost:
        if (pair, rank) not in self._costs:
            self._costs[pair, rank] = self._cheapest(pair, rank)
        return self._costs[pair, rank]

    def _cheapest(self, pair: int, rank: int) -> _Cost:
        """The least over what the largest transient of the rank may be."""
        p, which = self.problem, self.hardest[rank][pair]
        lack = float(self.pairs.lacks_kib(rank, which)[pair])
        floor = p.head.transient_kib if p.chunks - 1 in p.chunks_of_rank[rank] else 0
        least = max(floor, min(p.transient_kib[mode] for mode in p.modes))
        found = []
        for transient in sorted({max(floor, p.transient_kib[mode]) for mode in p.modes}):
            allowed = tuple(mode for mode in p.modes if p.transient_kib[mode] <= transient)
            whole, work = self._knapsack(pair, rank, allowed, lack + transient - least)
            if math.isfinite(whole):
                found.append(_Cost(whole, work, transient))
        if not found:
            return _Cost(math.inf, math.inf, least)
        return _Cost(
            min(cost.whole_ns for cost in found), min(cost.work_ns for cost in found),
            found[0].transient_kib,
        )  # fmt: skip

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
            more_ns, saved, _, _ = self.choices(pair, chunk, allowed)
            if not len(more_ns):
                return math.inf, math.inf
            grains = grains_of(micro_batches * saved, lack_kib)
            cost = weight * np.maximum(0, more_ns - free) + self.share * more_ns
            longer, added = _best(longer, cost, grains), _best(added, more_ns, grains)
        work_ns = float(added[-1])
        work = self.share * work_ns
        if together:
            return weight * max(0.0, work_ns - self.spare_ns[rank][pair]) + work, work
        return float(longer[-1]), work

    def choices(self, pair: int, chunk: int, allowed: Counts) -> Ints:
        """`choices_of` a chunk of a split."""
        first = sum(self.splits[pair][:chunk])
        kinds = self.problem.pattern[first : first + self.splits[pair][chunk]]
        if (kinds, allowed) not in self._known:
            self._known[kinds, allowed] = choices_of(self.problem, kinds, allowed)
        return self._known[kinds, allowed]


def choices_of(problem: StageProblem, kinds: Counts, allowed: Counts) -> Ints:
    """The ways to run a chunk's layers of `kinds` that save more than all that are faster.

    Rows are ns beyond the fastest, KiB saved beside it, layers recomputed in full, selectively.
    """
    ns, saved = (np.array(table)[list(kinds)] for table in (problem.layer_ns, problem.saved_kib))
    modes = list(problem.modes)
    least = ns[:, modes].min(axis=1, keepdims=True)
    kept = np.where(ns[:, modes] == least, saved[:, modes], ABSENT).min(axis=1, keepdims=True)
    full, selective, _ = mixes(len(kinds), allowed, problem.transient_kib)
    more_ns, less_kib = (
        mixed(prefix(table), 0, full, full + selective, len(kinds))
        for table in (ns - least, kept - saved)
    )
    ways = np.stack([more_ns, np.maximum(0, less_kib), full, selective])
    ways = ways[:, np.lexsort((-ways[1], ways[0]))]
    better = np.diff(np.maximum.accumulate(ways[1]), prepend=-1) > 0
    found: Ints = ways[:, better]
    return found


def grains_of(saved_kib: Floats, lack_kib: float) -> Ints:
    """`GRAINS`-ths of what a rank lacks, rounded up."""
    if lack_kib <= 0:
        return np.full(saved_kib.shape, GRAINS)
    grains: Ints = np.ceil(np.minimum(1.0, saved_kib / lack_kib) * GRAINS).astype(np.int64)
    return grains


def _best(known: Floats, cost: Floats, grains: Ints) -> Floats:
    """The least cost of saving each of `WANTED`, with one more chunk's choices."""
    left = np.maximum(0, WANTED - grains[:, None])
    best: Floats = (known[left] + cost[:, None]).min(axis=0)
    return best
