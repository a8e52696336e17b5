"""V > 1: the least objective that a plan of each split can have, without a solver.

A split says how many layers each chunk holds, so with nothing recomputed a row lasts what its
slowest chunk does. A rank that does not fit must recompute: up to its row's slowest chunk that is
free, beyond it the row lasts longer. How much it must is a knapsack, relaxed to any proportion:

    all rows >= all rows with nothing recomputed + max over ranks of the least time beyond that
                saves what the rank lacks

A layer saves KiB for ns along the concave hull of its modes, q_v times in chunk v; where layers are
of several kinds, each as much as the kind that saves most. q is an in-flight vector or a mean of
some (`PipelineShape.covers`): the largest bound counts. `planner.recompute_bound` takes whole
layers, where the hull does not say enough.
"""

import math
from copy import copy
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodels.grid import Floats, Ints
from costmodels.in_flight import V_SHAPED
from planner.packing import SAFETY, Alike, end_costs
from planner.stage_problem import StageProblem


def split_bound(problem: StageProblem, below: int | None) -> float:
    """A lower bound of the objective with several chunks; infinite: no plan (below `below`)."""
    _, least = least_of_splits(problem, below)
    return float(least.min()) if len(least) else math.inf


def least_of_splits(problem: StageProblem, below: int | None) -> tuple["Splits", Floats]:
    """The splits that may have a plan (below `below`), and the least objective of each."""
    splits, most = Splits(problem), math.inf if below is None else below
    bare = splits.slowest.sum(axis=1).astype(float)
    kept = splits.objective_ns(bare) < most
    splits, slowest, bare = splits.take(kept), bare[kept], bare[kept]
    for which in range(len(problem.shape.covers)):
        for rank in range(problem.pp):
            if not len(slowest):
                return splits, slowest
            beyond = splits.beyond_ns(rank, which)
            if beyond.any():
                slowest = np.maximum(slowest, bare + beyond)
                kept = splits.objective_ns(slowest) < most
                if not kept.all():
                    splits, slowest, bare = splits.take(kept), slowest[kept], bare[kept]
    return splits, splits.objective_ns(slowest)


class _Segment(NamedTuple):
    """A layer saves `kib_per_ns` for each ns of up to `ns`."""

    ns: float
    kib_per_ns: float


class Splits:
    """All splits of one problem: arrays are [split, chunk], but `slowest` [split, row] and
    `end_ns`, the largest once-per-step sum of a rank, [split]."""

    def __init__(self, problem: StageProblem) -> None:
        self.problem = problem
        self.counts = np.array(problem.splits)
        self.base = [
            min((times[r], saved[r]) for r in problem.modes)
            for times, saved in zip(problem.layer_ns, problem.saved_kib, strict=True)
        ]
        self.times = self._by_chunk([ns for ns, _ in self.base]) + problem.send_ns
        self.times[:, 0] += problem.embedding.ns
        self.times[:, -1] += problem.head.ns
        if problem.schedule in V_SHAPED:
            whole = [self.times[:, chunks].sum(axis=1) for chunks in problem.chunks_of_rank]
            self.slowest = np.max(whole, axis=0)[:, None]
        else:
            self.slowest = self.times.reshape(-1, problem.vpp, problem.pp).max(axis=2)
        ends = self._by_chunk(list(problem.step_ns))
        ends[:, 0] += problem.embedding.step_ns
        ends[:, -1] += problem.head.step_ns
        self.end_ns: Ints = ends[:, problem.chunks_of_rank].sum(axis=2).max(axis=1)

    def objective_ns(self, slowest: Floats) -> Floats:
        """The least objective of each split if all its rows together last `slowest`."""
        p = self.problem
        work = int(p.form.share_ns(p.least_work_ns)) + p.constant_ns
        least: Floats = (p.form.weight * slowest + work + self.end_ns) * SAFETY
        return least

    @cached_property
    def loads(self) -> tuple[Ints, Ints]:
        """What each chunk saves of one micro-batch, and its states."""
        return self._by_chunk([kib for _, kib in self.base]), self._by_chunk(
            list(self.problem.state_kib)
        )

    @cached_property
    def hull(self) -> list["_Segment"]:
        """What a layer saves for its time."""
        p = self.problem
        return _hull([
            (times[r] - ns, kib - saved[r])
            for times, saved, (ns, kib) in zip(p.layer_ns, p.saved_kib, self.base, strict=True)
            for r in p.modes
        ])  # fmt: skip

    @cached_property
    def room(self) -> Floats:
        """[which cover, rank] KiB for layers; what the ends hold in flight is taken off too."""
        p, shape = self.problem, self.problem.shape
        fullest = p.cap_kib - end_costs(Alike.only(p))[1].astype(float)
        room = np.repeat(fullest, len(shape.covers), axis=0)
        for end, (rank, place) in zip((p.embedding, p.head), shape.ends, strict=True):
            less = shape.fullest[rank, place] - shape.covers[:, rank, place]
            room[:, rank] += less * end.saved_kib
        return room

    def _by_chunk(self, each: list[int]) -> Ints:
        """[split, chunk] sums of what a layer of each kind costs."""
        before = np.concatenate([[0], np.array(each)[list(self.problem.pattern)].cumsum()])
        sums: Ints = np.diff(before[self.counts.cumsum(axis=1)], axis=1, prepend=0)
        return sums

    def take(self, kept: "NDArray[np.bool_]") -> "Splits":
        """Some of them."""
        some = copy(self)
        some.counts, some.times = self.counts[kept], self.times[kept]
        some.slowest, some.end_ns = self.slowest[kept], self.end_ns[kept]
        if "loads" in self.__dict__:
            some.loads = (self.loads[0][kept], self.loads[1][kept])
        return some

    def beyond_ns(self, rank: int, which: int) -> Floats:
        """What recomputation adds to all rows at least so that `rank` fits by a cover, by split."""
        chunks, held = self.problem.chunks_of_rank[rank], self.problem.shape.covers[which, rank]
        saved, states = self.loads
        found = saved[:, chunks] @ held + states[:, chunks].sum(axis=1) - self.room[which, rank]
        lacks: Floats = np.maximum(found, 0.0)
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
