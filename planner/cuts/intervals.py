"""One chunk per rank: the intervals of layers that a stage may hold below a limit
(`planner.bounds.stage_chains`), each in the mix that takes least time of those that fit.
"""

import math
from collections.abc import Iterator

import numpy as np

from meshplan.costmodels.layouts import Floats, Ints
from meshplan.planner.bounds.simulated import Passes
from meshplan.planner.bounds.stage_chains import StageChains
from meshplan.planner.problem.stage_problem import StageProblem
from meshplan.planner.stages.path import Intervals

AT_ONCE = 8  # ends of a stage that are priced together


class ProblemChains:
    """`StageChains` of one problem, of stages that take so many nanoseconds of a micro-batch."""

    def __init__(self, problem: StageProblem, passes: Passes) -> None:
        self.problem, self.chains = problem, StageChains(problem.alone, passes)

    def bounds_s(self, stage: Ints, first: Ints, end: Ints, work_ns: Ints) -> Floats:
        """Of several stages."""
        return self.chains.bounds_of_work_s(np.zeros_like(stage), stage, first, end, work_ns)

    def listed_s(self, intervals: Intervals) -> Floats:
        """Of each split of the list, with every layer in its fastest mode."""
        counts = np.array(self.problem.splits)
        ends = counts.cumsum(axis=1)
        stage = np.broadcast_to(np.arange(self.problem.pp), ends.shape)
        least_ns = intervals.all_least_ns(stage, ends - counts, ends)
        bounds: Floats = self.bounds_s(stage, ends - counts, ends, least_ns).max(axis=1)
        return bounds

    def with_first_s(self, intervals: Intervals, split: Ints, fewest: Ints) -> Floats:
        """Of each `split` of the list, with so many first layers of each stage in full."""
        counts = np.array(self.problem.splits)[split]
        ends = counts.cumsum(axis=1)
        stage, full = np.arange(self.problem.pp), np.minimum(fewest[:, None], counts)
        work_ns = intervals.all_with_first_ns(ends - counts, ends, full)
        stages = np.broadcast_to(stage, ends.shape)
        bounds: Floats = self.bounds_s(stages, ends - counts, ends, work_ns).max(axis=1)
        return bounds


def intervals_below(
    intervals: Intervals, chains: ProblemChains, limit_s: float
) -> list[dict[int, list[tuple[int, float]]]]:
    """By stage and first layer, the ends of the intervals below the limit, with the bound."""
    starts, found = [0], []
    for stage, least in enumerate(_least_ends(intervals, chains, limit_s)):
        layer: dict[int, list[tuple[int, float]]] = {first: [] for first in starts}
        for first, end, bound in _ends(intervals, chains, (stage, starts, least), limit_s):
            layer[first].append((end, bound))
        starts = sorted({end for onward in layer.values() for end, _ in onward})
        found.append(layer)
    return found


def _least_ends(intervals: Intervals, chains: ProblemChains, limit_s: float) -> list[int]:
    """Of each stage the first end from which the later stages can hold what is left."""
    p = intervals.problem
    least = [len(p.pattern)]
    for stage in reversed(range(1, p.pp)):
        first = np.arange(least[0])
        at, end = np.array([stage]), np.full_like(first, least[0])
        bounds = chains.bounds_s(at, first, end, intervals.all_least_ns(at, first, end))
        least.insert(0, int(np.flatnonzero(bounds >= limit_s).max(initial=-1)) + 1)
    return least


def _ends(
    intervals: Intervals,
    chains: ProblemChains,
    stage: tuple[int, list[int], int],
    limit_s: float,
) -> Iterator[tuple[int, int, float]]:
    """First layer, end and bound of a stage that begins at one of some layers and ends no sooner
    than at the least end; each further layer makes it longer.
    """
    p, (at, starts, least) = intervals.problem, stage
    most = len(p.pattern) - sum(p.fewest_layers(j) for j in range(at + 1, p.pp))
    growing = [(first, max(least, first + p.fewest_layers(at))) for first in starts]
    while growing:
        pairs = [
            (first, end) for first, begin in growing
            for end in range(begin, min(begin + AT_ONCE, most + 1))
        ]  # fmt: skip
        over = set()
        for pair, bound in zip(
            pairs, _of_pairs(intervals, chains, at, pairs, limit_s), strict=True
        ):
            if bound >= limit_s or pair[0] in over:
                over.add(pair[0])
            else:
                yield *pair, bound
        growing = [
            (first, begin + AT_ONCE) for first, begin in growing
            if first not in over and begin + AT_ONCE <= most
        ]  # fmt: skip


def _of_pairs(
    intervals: Intervals,
    chains: ProblemChains,
    stage: int,
    pairs: list[tuple[int, int]],
    limit_s: float,
) -> list[float]:
    """The bound of a stage from each first layer to its end, in its fastest mix; infinite where
    none fits or nothing recomputed reaches the limit.
    """
    if not pairs:
        return []
    first, end = np.array(pairs).T
    at = np.array([stage])
    least_ns = intervals.all_least_ns(at, first, end)
    bounds = chains.bounds_s(at, first, end, least_ns)
    below = (bounds < limit_s).tolist()
    prices = [
        intervals.price(stage, *pair) if under else None
        for pair, under in zip(pairs, below, strict=True)
    ]
    paid_ns = np.array([price.ns if price else 0 for price in prices])
    if (paid_ns > least_ns).any():
        bounds = chains.bounds_s(at, first, end, np.maximum(paid_ns, least_ns))
    found: list[float] = np.where([price is None for price in prices], math.inf, bounds).tolist()
    return found
