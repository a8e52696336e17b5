"""V > 1: the least time of all rows together, split by split.

A split says how many layers each chunk holds, so with nothing recomputed a row lasts what its
slowest chunk does. A rank that does not fit must recompute: up to its row's slowest chunk that is
free, beyond it the row lasts longer. How much it must is a knapsack, relaxed to any proportion:

    all rows >= all rows with nothing recomputed + max over ranks of the least time beyond that
                saves what the rank lacks

A layer saves KiB for ns along the concave hull of its modes, q_v times in chunk v; where layers are
of several kinds, each as much as the kind that saves most.
"""

import math
from copy import copy
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodels.grid import Ints
from planner.packing import SAFETY, Alike, end_costs
from planner.stage_problem import StageProblem

Floats = NDArray[np.float64]


def split_bound(problem: StageProblem, below: int | None) -> float:
    """A lower bound of the objective with several chunks; infinite: no plan (below `below`)."""
    form = problem.form
    rest = int(form.share_ns(problem.least_work_ns)) + problem.least_end_ns
    limit_ns = math.inf if below is None else (below - rest) / form.weight
    return (form.weight * rows_of_splits(problem, limit_ns) + rest) * SAFETY


def rows_of_splits(problem: StageProblem, limit_ns: float = math.inf) -> float:
    """The least sum of all X[g] over the splits; infinite where none fits within `limit_ns`."""
    splits = _Splits(problem)
    least = splits.slowest.sum(axis=1).astype(float)
    splits, least = splits.take(least <= limit_ns), least[least <= limit_ns]
    bare = least
    for rank in range(problem.pp):
        if not len(least):
            return math.inf
        least = np.maximum(least, bare + splits.beyond_ns(rank))
        kept = np.isfinite(least) & (least <= limit_ns)
        if not kept.all():
            splits, least, bare = splits.take(kept), least[kept], bare[kept]
    return float(least.min()) if len(least) else math.inf


class _Segment(NamedTuple):
    """A layer saves `kib_per_ns` for each ns of up to `ns`."""

    ns: float
    kib_per_ns: float


class _Splits:
    """All splits of one problem: arrays are [split, chunk], `slowest` [split, row]."""

    def __init__(self, problem: StageProblem) -> None:
        self.problem = problem
        self.counts = np.array(problem.splits)
        base = [
            min((times[r], saved[r]) for r in problem.modes)
            for times, saved in zip(problem.layer_ns, problem.saved_kib, strict=True)
        ]
        ends = self.counts.cumsum(axis=1)
        self.times = _by_chunk([ns for ns, _ in base], problem, ends) + problem.send_ns
        self.saved = _by_chunk([kib for _, kib in base], problem, ends)
        self.states = _by_chunk(list(problem.state_kib), problem, ends)
        self.times[:, 0] += problem.embedding.ns
        self.times[:, -1] += problem.head.ns
        self.hull = _hull([
            (times[r] - ns, kib - saved[r])
            for times, saved, (ns, kib) in zip(
                problem.layer_ns, problem.saved_kib, base, strict=True
            )
            for r in problem.modes
        ])  # fmt: skip
        self.slowest = np.stack([
            np.max([self.times[:, chunks].sum(axis=1) for chunks in group], axis=0)
            for group in problem.shape.waits
        ], axis=1)  # fmt: skip
        # Of the ends what is held in flight is in here too.
        self.room = problem.cap_kib - end_costs(Alike.only(problem))[1][0]

    def take(self, kept: "NDArray[np.bool_]") -> "_Splits":
        """Some of them."""
        some = copy(self)
        some.counts, some.times = self.counts[kept], self.times[kept]
        some.saved, some.states = self.saved[kept], self.states[kept]
        some.slowest = self.slowest[kept]
        return some

    def beyond_ns(self, rank: int) -> Floats:
        """What recomputation adds to all rows at least so that `rank` fits, by split."""
        chunks, held = self.problem.chunks_of_rank[rank], self.problem.shape.fullest[rank]
        found = self.saved[:, chunks] @ held + self.states[:, chunks].sum(axis=1) - self.room[rank]
        lacks: Floats = np.maximum(found, 0).astype(float)
        if not lacks.any():
            return lacks
        free = self._free_ns(chunks)
        left: list[tuple[float, Floats]] = []
        for chunk, times, spare in zip(chunks, held.tolist(), free.T, strict=True):
            for segment in self.hull:
                most = self.counts[:, chunk] * segment.ns
                unpaid = np.minimum(spare, most)
                spare, rate = spare - unpaid, times * segment.kib_per_ns
                lacks = np.maximum(lacks - unpaid * rate, 0.0)
                if rate > 0:
                    left.append((rate, most - unpaid))
        paid = np.zeros(len(lacks))
        for rate, most in sorted(left, key=lambda item: -item[0]):
            now = np.minimum(lacks / rate, most)
            paid, lacks = paid + now, np.maximum(lacks - now * rate, 0.0)
        if self.slowest.shape[1] == 1:  # its chunks wait together
            paid = np.maximum(0.0, paid - (self.slowest[:, 0] - self.times[:, chunks].sum(axis=1)))
        return np.where(lacks > 1.0, np.inf, paid)

    def _free_ns(self, chunks: tuple[int, ...]) -> Floats:
        """[split, chunk of a rank] how much longer than it each chunk's own row lasts."""
        if self.slowest.shape[1] == 1:
            return np.zeros((len(self.counts), len(chunks)))
        free: Floats = (self.slowest - self.times[:, chunks]).astype(float)
        return free


def _by_chunk(each: list[int], problem: StageProblem, ends: Ints) -> Ints:
    """[split, chunk] sums of what a layer of each kind costs."""
    before = np.concatenate([[0], np.array(each)[list(problem.pattern)].cumsum()])
    sums: Ints = np.diff(before[ends], axis=1, prepend=0)
    return sums


def _hull(points: list[tuple[int, int]]) -> list[_Segment]:
    """The upper concave hull of (ns, KiB saved) from the origin on."""
    corners = [(0, 0)]
    for x, y in sorted(points):
        if y <= corners[-1][1]:
            continue
        while len(corners) > 1:
            (a, b), (c, d) = corners[-2:]
            if (d - b) * (x - a) > (y - b) * (c - a):
                break
            corners.pop()
        corners.append((x, y))
    return [_Segment(c - a, (d - b) / (c - a)) for (a, b), (c, d) in pairwise(corners)]
