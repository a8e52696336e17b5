"""The least recomputation of each rank of a cut whose chunks hold layers of several kinds.

In a chunk the first layers recompute in full, the next selectively, the rest keep everything, so a
chunk that must free much cannot choose the kinds that free it cheaply, as `Pairs.least_work_ns`
may (of all splits at once). Of each chunk the mixes are points (KiB kept, ns); a rank that lacks
memory goes along the lower hulls of its chunks, the cheapest KiB first, and may stop between two
points: a fractional knapsack, which takes no longer than any mix of whole layers. It is asked under
the in-flight vector by which the rank lacks most with nothing recomputed, of the largest transients
that its modes may have under the one that takes least.
"""

import math
from itertools import accumulate, chain, pairwise

import numpy as np

from meshplan.costmodels.layouts import Floats
from meshplan.planner.problem.recompute_mixes import mixed, mixes, prefix
from meshplan.planner.problem.stage_problem import StageProblem

Hull = list[tuple[float, float]]
"""(KiB kept of a micro-batch, ns beyond its fastest), from where it keeps most to where least."""


class OrderedMixes:
    """Of one layout, hulls of chunks, equal ones once; `asked` layers of ranks were looked at."""

    def __init__(self, problem: StageProblem) -> None:
        p = self.problem = problem
        kinds = list(p.pattern)
        self._ns, self._saved = (
            prefix(np.array(each)[kinds]) for each in (p.layer_ns, p.saved_kib)
        )
        self._states = prefix(np.array(p.state_kib)[kinds])
        self._fastest = prefix(np.array(p.layer_ns)[:, list(p.modes)].min(axis=1)[kinds])
        self._levels = sorted({p.transient_kib[mode] for mode in p.modes})
        self._hulls: dict[tuple[tuple[int, ...], int], Hull] = {}
        self.asked = 0
        self._known: dict[tuple[int, ...], float] = {}

    def work_ns(self, counts: tuple[int, ...]) -> Floats:
        """[rank] the least that recomputing adds to a micro-batch; infinite where nothing fits."""
        ends = tuple(pairwise((0, *accumulate(counts))))
        found = []
        for rank, chunks in enumerate(self.problem.chunks_of_rank):
            bounds = tuple(ends[chunk] for chunk in chunks)
            key = rank, *chain.from_iterable(bounds)
            if key not in self._known:
                self._known[key] = self._of_rank(rank, bounds)
                self.asked += sum(end - first for first, end in bounds)
            found.append(self._known[key])
        return np.array(found)

    def _of_rank(self, rank: int, bounds: tuple[tuple[int, int], ...]) -> float:
        p, chunks = self.problem, self.problem.chunks_of_rank[rank]
        ends = [(end, at) for end, at in ((p.embedding, 0), (p.head, p.chunks - 1)) if at in chunks]
        room = p.cap_kib - p.fixed_kib - sum(end.state_kib for end, _ in ends)
        first, last = np.array(bounds).T
        room -= int((self._states[last] - self._states[first]).sum())
        floor = max((end.transient_kib for end, _ in ends), default=0)
        at_ends = np.zeros(len(chunks), np.int64)
        for end, at in ends:
            at_ends[chunks.index(at)] += end.saved_kib
        bare = self._saved[last, p.modes[0]] - self._saved[first, p.modes[0]] + at_ends
        vectors = p.shape.matrices[rank]
        held = vectors[int((vectors @ bare).argmax())]
        room -= int(held @ at_ends)
        parts = [(count, *each) for count, each in zip(held.tolist(), bounds, strict=True)]
        some = int((last > first).any())
        return min(
            self._paid_ns(parts, level, room - max(floor, level * some)) for level in self._levels
        )

    def _paid_ns(self, chunks: list[tuple[int, int, int]], level: int, room: float) -> float:
        """Of chunks that each hold so many micro-batches of layers `first` .. `end` - 1."""
        ways, paid = list[tuple[float, float]](), 0.0
        for held, first, end in chunks:
            hull = self._hull(first, end, level)
            if not hull:
                return math.inf
            room -= held * hull[0][0]
            paid += hull[0][1]
            ways += [(held * (a[0] - b[0]), b[1] - a[1]) for a, b in pairwise(hull)]
        for freed, ns in sorted(ways, key=lambda way: way[1] / max(way[0], 1e-9)):
            if room >= 0:
                return paid
            paid += ns * min(1.0, -room / freed) if freed else 0.0
            room += freed
        return paid if room >= 0 else math.inf

    def _hull(self, first: int, end: int, level: int) -> Hull:
        """The lower hull of the mixes with no larger transient."""
        key = self.problem.pattern[first:end], level  # chunks of equal layers share one
        if key not in self._hulls:
            p = self.problem
            modes = tuple(mode for mode in p.modes if p.transient_kib[mode] <= level)
            full, selective, _ = mixes(end - first, modes, p.transient_kib)
            cuts = first, first + full, first + full + selective, end
            kept, ns = mixed(self._saved, *cuts), mixed(self._ns, *cuts)
            ns = ns - (self._fastest[end] - self._fastest[first])
            self._hulls[key] = _lower_hull(kept.astype(float), ns.astype(float))
        return self._hulls[key]


def _lower_hull(kept: Floats, ns: Floats) -> Hull:
    """From the fastest point to the one that keeps least."""
    order = np.lexsort((kept, ns))
    kept, ns = kept[order], ns[order]
    before = np.minimum.accumulate(np.concatenate([[math.inf], kept[:-1]]))
    found: Hull = []
    for point in zip(kept[kept < before].tolist(), ns[kept < before].tolist(), strict=True):
        while len(found) > 1 and _above(found[-2], found[-1], point):
            found.pop()
        found.append(point)
    return found


def _above(one: tuple[float, float], two: tuple[float, float], three: tuple[float, float]) -> bool:
    """Whether the second is not below the line between the others."""
    to_two = (two[1] - one[1]) * (one[0] - three[0])
    return to_two >= (three[1] - one[1]) * (one[0] - two[0])
