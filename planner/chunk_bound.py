"""V > 1: the least X with which the chunks can hold all layers, one whole layer at a time.

For a chunk that lasts at most X, u(n) is the least memory that n layers save over all mixes of
recomputation that are fast enough. Along the lower convex hull of u, filling the cheapest chunks
first (in flight q_v, so q_v u(n) + states) holds at least as many layers as any plan of that rank
could; the chunks with the embedding and the head may last as much longer as the cutoff then leaves.
The least X of all chunk times at which the ranks together hold L layers bounds the objective
by weight X + 3 e. `planner.packing` lets a rank recompute part of a layer in every
chunk; this one does not, which is what counts when chunks are short and memory is tight.
"""

from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from planner.packing import Alike, end_costs, stacks
from planner.stage_counts import limits_below
from planner.stage_path import mixes
from planner.stage_problem import StageProblem

MOST_TRIED = 64  # chunk times beyond the first candidate


class _Stack(NamedTuple):
    """Equal layers, nowhere dearer than the problem's: how many, and what each costs by mode."""

    size: int
    state_kib: int
    times: tuple[int, ...]
    saved: tuple[int, ...]

    @classmethod
    def of(cls, problem: StageProblem, kinds: list[int]) -> "_Stack":
        """The layers of `kinds`, all as cheap as the cheapest of them."""
        return cls(
            sum(problem.kind_counts[k] for k in kinds),
            min(problem.state_kib[k] for k in kinds),
            tuple(min(problem.layer_ns[k][r] for k in kinds) for r in range(3)),
            tuple(min(problem.saved_kib[k][r] for k in kinds) for r in range(3)),
        )


class _Chunk(NamedTuple):
    """What n layers cost at least, for n = 0, 1, ...: the times of the mixes that save less KiB
    than every faster one, ascending, and what they save."""

    times: list[list[int]]
    saved: list[list[int]]

    def least_saved(self, limit_ns: int) -> list[int]:
        """u(n) for each n that can be fast enough."""
        found = []
        for times, saved in zip(self.times, self.saved, strict=True):
            position = bisect_right(times, limit_ns)
            if position == 0:
                break
            found.append(saved[position - 1])
        return found


def chunk_bound(problem: StageProblem, below: int) -> int:
    """A lower bound of the objective, or `below` where it is at least that."""
    limits, bound = limits_below(problem, below), 0
    longest = limits.slowest_ns - problem.send_ns
    for kinds in stacks(problem.kind_counts):
        stack = _Stack.of(problem, kinds)
        chunk = _mixes_of(problem, stack, max(longest, limits.end_ns - problem.send_ns))
        candidates = sorted({ns for times in chunk.times for ns in times if ns <= longest})
        held = _Held(problem, stack, chunk, below)
        least = bisect_left(candidates, True, key=held.by_long_ends)
        most = least + MOST_TRIED
        while least < min(most, len(candidates)) and not held.by_affordable_ends(candidates[least]):
            least += 1
        if least == len(candidates):
            return below
        slowest = candidates[least] + problem.send_ns
        bound = max(bound, problem.weight * slowest + 3 * problem.least_end_ns)
    return min(bound, below)


def _mixes_of(problem: StageProblem, stack: _Stack, longest: int) -> _Chunk:
    chunk, fastest = _Chunk([[0]], [[0]]), min(stack.times[r] for r in problem.modes)
    for n in range(1, min(stack.size, longest // max(1, fastest)) + 1):
        full, selective, _ = mixes(n, problem.modes, problem.transient_kib)
        kept = n - full - selective
        time = kept * stack.times[0] + selective * stack.times[1] + full * stack.times[2]
        held = kept * stack.saved[0] + selective * stack.saved[1] + full * stack.saved[2]
        order = np.lexsort((held, time))
        least = np.minimum.accumulate(held[order])
        useful = order[np.concatenate([[True], least[1:] < least[:-1]])]
        chunk.times.append(time[useful].tolist())
        chunk.saved.append(held[useful].tolist())
    return chunk


class _Held:
    """Whether all ranks together can hold a stack when no body chunk lasts longer than a limit."""

    def __init__(self, problem: StageProblem, stack: _Stack, chunk: _Chunk, below: int) -> None:
        self._problem, self._stack, self._chunk = problem, stack, chunk
        self._known: dict[int, list[tuple[float, int]]] = {}
        self._budget = below - 1 - 3 * problem.least_end_ns
        self._longest_end = limits_below(problem, below).end_ns - problem.send_ns
        static = end_costs(Alike.only(problem))[1][0]
        self._room = (problem.cap_kib - static).tolist()
        self._vectors = problem.shape.fullest.tolist()

    def by_long_ends(self, limit_ns: int) -> bool:
        """With end chunks as long as the cutoff allows at best: true from some limit on."""
        return self._holds(limit_ns, self._longest_end)

    def by_affordable_ends(self, limit_ns: int) -> bool:
        """With end chunks as long as the cutoff allows once the body lasts that long."""
        slowest = limit_ns + self._problem.send_ns
        left = self._budget - self._problem.weight * slowest
        if left < 0:
            return False
        longest = limit_ns + left // (3 * self._problem.m)
        return self._holds(limit_ns, min(longest, self._longest_end))

    def _holds(self, limit_ns: int, end_ns: int) -> bool:
        problem, last = self._problem, self._problem.chunks - 1
        body = self._segments(limit_ns)
        first = self._segments(end_ns - problem.embedding.ns)
        final = self._segments(end_ns - problem.head.ns)
        total = 0
        for room, vector, chunks in zip(
            self._room, self._vectors, problem.chunks_of_rank, strict=True
        ):
            steps = sorted(
                (held * slope + self._stack.state_kib, layers)
                for held, j in zip(vector, chunks, strict=True)
                for slope, layers in (first if j == 0 else final if j == last else body)
            )
            total += _filled(steps, room)
            if total >= self._stack.size:
                return True
        return False

    def _segments(self, limit_ns: int) -> list[tuple[float, int]]:
        """The hull of u(n) for a chunk that lasts at most `limit_ns`."""
        known = self._known.get(limit_ns)
        if known is None:
            known = self._known[limit_ns] = _hull(self._chunk.least_saved(limit_ns))
        return known


def _filled(steps: list[tuple[float, int]], room: float) -> int:
    filled = 0.0
    for each_kib, layers in steps:
        fitting = room / each_kib if each_kib > 0 else layers
        if fitting < layers:
            return int(filled + max(0.0, fitting) + 1e-6)
        filled, room = filled + layers, room - each_kib * layers
    return int(filled + 1e-6)


def _hull(points: list[int]) -> list[tuple[float, int]]:
    """(slope, layers) of the segments of the lower convex hull of n -> points[n]."""
    corners = [0]
    for n in range(1, len(points)):
        while len(corners) > 1:
            a, b = corners[-2], corners[-1]
            if (points[b] - points[a]) * (n - b) < (points[n] - points[b]) * (b - a):
                break
            corners.pop()
        corners.append(n)
    return [((points[b] - points[a]) / (b - a), b - a) for a, b in pairwise(corners)]
