"""V > 1: the least X with which the chunks can hold all layers, one whole layer at a time.

For a chunk that lasts at most X, u(n) is the least memory that n layers save over all mixes of
recomputation that are fast enough. Along the lower convex hull of u, filling the cheapest chunks
first (in flight q_v, so q_v u(n) + states) holds at least as many layers as any plan of that rank
could. The least X of all chunk times at which the ranks together hold L layers bounds the objective
by weight X + 3 e. `planner.packing` lets a rank recompute part of a layer in every
chunk; this one does not, which is what counts when chunks are short and memory is tight.
"""

from bisect import bisect_left
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.packing import Alike, end_costs, stacks
from planner.stage_counts import limits_below
from planner.stage_path import mixes
from planner.stage_problem import StageProblem

Ints = NDArray[np.int64]


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
    """What n layers cost at least, for n = 0, 1, ...: the times of their mixes, ascending, and the
    least KiB saved by any mix up to that time."""

    times: list[Ints]
    saved: list[Ints]

    def least_saved(self, limit_ns: int) -> list[int]:
        """u(n) for each n that can be fast enough."""
        found = []
        for times, saved in zip(self.times, self.saved, strict=True):
            position = int(np.searchsorted(times, limit_ns, side="right"))
            if position == 0:
                break
            found.append(int(saved[position - 1]))
        return found


def chunk_bound(problem: StageProblem, below: int) -> int:
    """A lower bound of the objective, or `below` where it is at least that."""
    limits, bound = limits_below(problem, below), 0
    longest, longest_end = limits.slowest_ns - problem.send_ns, limits.end_ns - problem.send_ns
    static = end_costs(Alike.only(problem))[1][0]
    for kinds in stacks(problem.kind_counts):
        stack = _Stack.of(problem, kinds)
        chunk = _mixes_of(problem, stack, max(longest, longest_end))
        times = np.unique(np.concatenate(chunk.times))
        candidates = times[times <= longest].tolist()
        at_ends = chunk.least_saved(longest_end)

        def holds(limit_ns: int, stack: _Stack = stack, chunk: _Chunk = chunk,
                  at_ends: list[int] = at_ends) -> bool:  # fmt: skip
            return _held(problem, stack, static, chunk.least_saved(limit_ns), at_ends) >= stack.size

        least = bisect_left(candidates, True, key=holds)
        if least == len(candidates):
            return below
        slowest = candidates[least] + problem.send_ns
        bound = max(bound, problem.weight * slowest + 3 * problem.least_end_ns)
    return min(bound, below)


def _mixes_of(problem: StageProblem, stack: _Stack, longest: int) -> _Chunk:
    times, saved = [np.zeros(1, np.int64)], [np.zeros(1, np.int64)]
    for n in range(
        1, min(stack.size, longest // max(1, min(stack.times[r] for r in problem.modes))) + 1
    ):
        full, selective, _ = mixes(n, problem.modes, problem.transient_kib)
        kept = n - full - selective
        time = kept * stack.times[0] + selective * stack.times[1] + full * stack.times[2]
        held = kept * stack.saved[0] + selective * stack.saved[1] + full * stack.saved[2]
        order = np.argsort(time, kind="stable")
        times.append(time[order])
        saved.append(np.minimum.accumulate(held[order]))
    return _Chunk(times, saved)


def _held(
    problem: StageProblem, stack: _Stack, static: Ints, body: list[int], at_ends: list[int]
) -> int:
    """The most layers that all ranks can hold."""
    vectors = problem.shape.fullest
    segments = _hull(body), _hull(at_ends)
    total, last = 0, problem.chunks - 1
    for s, chunks in enumerate(problem.chunks_of_rank):
        steps = sorted(
            (held * slope + stack.state_kib, layers)
            for held, j in zip(vectors[s].tolist(), chunks, strict=True)
            for slope, layers in segments[j in (0, last)]
        )
        total += _filled(steps, problem.cap_kib - int(static[s]))
    return total


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
