"""The cuts of one layout that may be faster than the best simulated step, each with a bound.

One chunk per rank: stage s holds layers a .. b-1 in the mix that takes least time of those that fit
(`planner.stages.path`), and a chain of `planner.bounds.simulated` through it lasts

    1f1b    E = sum c + 2 (S-1) h + (m-1) B_s + (m - min(m, S-s)) F_s
    1f1b    E = sum over layers before a of c + 2 s h + m c_s
    any     E = sum over layers before a of F + s h + m c_s + what the rank reduces then

with all other layers as fast as they can be. The cuts are the paths through the intervals whose
chains are short enough, all of them, or those of the engine's list.

Several chunks: the splits of the list. What a split takes with nothing recomputed is a bound, and
its step if it fits so; else a plan by rule of thumb stands for it (`planner.stages.heuristic`).
"""

import heapq
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layout import Stage
from meshplan.costmodels.layouts import Floats, Ints
from meshplan.planner.bounds.late import BEYOND_ALL, SHOWN
from meshplan.planner.bounds.simulated import SAFETY, Passes, rank_chains, split_bounds_s
from meshplan.planner.problem.coefficients import NS_PER_S
from meshplan.planner.problem.stage_problem import StageProblem, modes_of, peak_kib, starts_of
from meshplan.planner.search.known_chains import KnownChains
from meshplan.planner.stages.path import Intervals, stages_of

MOST_CUTS = 500  # of one layout
AT_ONCE = 8  # ends of a stage that are priced together


class Cut(NamedTuple):
    """One cut, or all further ones of a layout where `least` is None.

    bound_s     a step takes at least so long
    least       the stages in modes than which none is faster
    recomputes  finds the ranks that do not fit so, where some layers must recompute; without any no
                other mix of the cut is considered
    """

    bound_s: float
    least: tuple[Stage, ...] | None
    recomputes: Callable[[], tuple[int, ...]]


def cuts_below(
    problem: StageProblem, passes: Passes, known: KnownChains, limit_s: Callable[[], float]
) -> Iterator[Cut]:
    """The cuts below the limit, which may fall meanwhile; the smallest bound first."""
    if problem.vpp > 1:
        return _splits_below(problem, passes, known, limit_s)
    intervals, chains = Intervals(problem), _Chains(problem, passes)
    if problem.splits is not None:
        return _listed_below(intervals, chains, limit_s)
    return _paths_below(intervals, chains, limit_s)


def _splits_below(
    problem: StageProblem, passes: Passes, known: KnownChains, limit_s: Callable[[], float]
) -> Iterator[Cut]:
    """Each time one was simulated, more is known of the others."""
    split, _, bounds = split_bounds_s(problem.alone, passes, limit_s())
    while len(split):
        bounds = np.maximum(bounds, known.bounds_s(problem.alone, passes)[0, split])
        below = bounds < limit_s()
        split, bounds = split[below], bounds[below]
        if len(split):
            first = int(bounds.argmin())
            yield _cut(problem, (problem.splits or ())[split[first]], float(bounds[first]))
            split, bounds = np.delete(split, first), np.delete(bounds, first)


def _cut(problem: StageProblem, counts: tuple[int, ...], bound_s: float) -> Cut:
    least = min(problem.modes)
    bare = tuple(Stage(n, n if least == 1 else 0, n if least == 2 else 0) for n in counts)
    return Cut(bound_s, bare, cache(partial(_lacking, problem, bare)))


def _lacking(problem: StageProblem, stages: tuple[Stage, ...]) -> tuple[int, ...]:
    """The ranks that do not fit."""
    starts, modes = starts_of(stages), [modes_of(stage) for stage in stages]
    ranks = range(problem.pp)
    return tuple(s for s in ranks if peak_kib(problem, s, starts, modes) > problem.cap_kib)


def _listed_below(
    intervals: Intervals, chains: "_Chains", limit_s: Callable[[], float]
) -> Iterator[Cut]:
    """The cuts of the list: what recomputation they need is found only where nothing recomputed is
    below the limit, and below what was found so far.
    """
    bounds, found = chains.listed_s(intervals), list[tuple[float, tuple[int, ...]]]()
    for row in np.argsort(bounds, kind="stable").tolist():
        while found and found[0][0] <= bounds[row]:
            yield _path(intervals, *heapq.heappop(found))
        if bounds[row] >= limit_s():
            break
        priced = _bound_of(intervals, chains, (intervals.problem.splits or ())[row], limit_s())
        if priced[0] < limit_s():
            heapq.heappush(found, priced)
    while found and found[0][0] < limit_s():
        yield _path(intervals, *heapq.heappop(found))


def _paths_below(
    intervals: Intervals, chains: "_Chains", limit_s: Callable[[], float]
) -> Iterator[Cut]:
    found, reached_s = _paths(intervals, chains, limit_s())
    for bound, ends in sorted(found):
        if bound >= limit_s():
            return
        yield _path(intervals, bound, ends)
    if reached_s < limit_s():
        yield Cut(reached_s, None, tuple)


def _path(intervals: Intervals, bound_s: float, ends: tuple[int, ...]) -> Cut:
    prices = [
        intervals.price(stage, first, end)
        for stage, (first, end) in enumerate(pairwise((0, *ends)))
    ]
    return Cut(bound_s, stages_of([price for price in prices if price], list(ends)), tuple)


class _Chains:
    """The longest chain through a stage that holds some layers."""

    def __init__(self, problem: StageProblem, passes: Passes) -> None:
        self.problem = problem
        self.chains = [
            (np.stack([each[0] for each in chain[:3]], axis=1), float(chain.rest_s[0]))
            for chain in rank_chains(problem.alone, passes)
        ]
        self.extra, self.hop = float(passes.extra[0]), float(passes.hop[0])
        self.once = float(passes.once[0])
        self.waits = np.array([self.extra, self.extra, 0.0])
        self.ends = passes.embedding[0], passes.head[0]
        kinds = np.array(problem.pattern, np.int64)
        self._passes = np.concatenate([np.zeros((1, 3)), passes.layer[0, kinds].cumsum(axis=0)])
        lines, late = [SHOWN, BEYOND_ALL], passes.late
        of_layers = late.layer[0, lines][:, kinds].cumsum(axis=1)
        self._late = np.concatenate([np.zeros((2, 1)), of_layers], axis=1)
        self._late_ends, self._late_fixed = late.ends[0, lines], late.fixed[0, lines]

    def bound_s(self, stage: int, first: int, end: int, work_ns: int) -> float:
        """A step in which `stage` holds layers `first` .. `end` - 1 and takes `work_ns` of each
        micro-batch takes at least so long.
        """
        return float(self.bounds_s(*(np.array([each]) for each in (stage, first, end, work_ns)))[0])

    def bounds_s(self, stage: Ints, first: Ints, end: Ints, work_ns: Ints) -> Floats:
        """The same of several stages, all of the shape of `stage`."""
        p, last = self.problem, self.problem.pp - 1
        least, rounding = self._passes[end] - self._passes[first], end - first + 3
        least = least + self.ends[0] * (stage == 0)[..., None]
        least += self.ends[1] * (stage == last)[..., None]
        added = (work_ns - p.send_ns - rounding) / NS_PER_S - least.sum(axis=-1)
        added = np.maximum(0.0, added)
        each = least.sum(axis=-1) + added + 2 * self.extra
        turned = np.max([
            rest + (often[stage] * (least + self.waits)).sum(axis=-1) + up
            for (often, rest), up in zip(self.chains, self._ways_up_s(stage, end), strict=True)
        ], axis=0)  # fmt: skip
        turned += p.m * added
        hops = stage * (self.extra + self.hop)
        before = self._passes[first] + self.ends[0] * (stage > 0)[..., None]
        straight = before[..., 0] + hops + p.m * each + self.once
        shown, beyond_all = self._reduced_s(stage, first, end)
        own = straight + np.maximum(shown, beyond_all - p.m * added)
        if p.schedule != "zb_h1":
            straight = straight + before[..., 1:].sum(axis=-1) + hops
        bounds: Floats = np.maximum.reduce([turned, straight, own]) * SAFETY
        return bounds

    def _ways_up_s(self, stage: Ints, end: Ints) -> list[Floats]:
        """Of each chain what it leaves out before the first backward of a stage that ends there."""
        nothing, last = np.zeros(stage.shape), self.problem.pp - 1
        if self.problem.schedule != "zb_h1":
            return [nothing]
        up = self._passes[-1, 1] - self._passes[end, 1] + self.ends[1][1] * (stage < last)
        return [up + (last - stage) * (self.extra + self.hop), nothing]

    def _reduced_s(self, stage: Ints, first: Ints, end: Ints) -> Floats:
        """[line, ...] what a stage reduces after its last backward at least."""
        ranks = (stage == 0, stage == self.problem.pp - 1)
        ends = sum(np.multiply.outer(self._late_ends[:, at], held) for at, held in enumerate(ranks))
        fixed = self._late_fixed.reshape(-1, *[1] * stage.ndim)
        found: Floats = self._late[:, end] - self._late[:, first] + ends + fixed
        return found

    def listed_s(self, intervals: Intervals) -> Floats:
        """Of each split of the list, with every layer in its fastest mode."""
        counts = np.array(self.problem.splits)
        ends = counts.cumsum(axis=1)
        stage = np.broadcast_to(np.arange(self.problem.pp), ends.shape)
        least_ns = intervals.all_least_ns(stage, ends - counts, ends)
        bounds: Floats = self.bounds_s(stage, ends - counts, ends, least_ns).max(axis=1)
        return bounds


def _paths(
    intervals: Intervals, chains: _Chains, limit_s: float
) -> tuple[list[tuple[float, tuple[int, ...]]], float]:
    """The ends of the stages of every cut below the limit, with the bound; or, where these are too
    many, below the bound that comes second.
    """
    p = intervals.problem
    edges = _edges(intervals, chains, limit_s)
    levels = sorted({each for stage in edges for onward in stage.values() for _, each in onward})
    few = bisect_right(levels, MOST_CUTS, key=lambda level: _ways(p, edges, level)[0, 0])
    reached_s = levels[few] if few < len(levels) else limit_s
    ways = _ways(p, edges, levels[few - 1]) if few else {}
    paths: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for stage in range(p.pp):
        paths = [
            (max(bound, each), (*ends, end))
            for bound, ends in paths
            for end, each in edges[stage].get(ends[-1] if ends else 0, ())
            if each < reached_s and ways.get((stage + 1, end), 0)
        ]
    return paths, reached_s


def _ways(
    problem: StageProblem, edges: list[dict[int, list[tuple[int, float]]]], most_s: float
) -> Counter[tuple[int, int]]:
    """By stage and first layer, how many cuts of the rest are not above `most_s`."""
    ways = Counter({(problem.pp, len(problem.pattern)): 1})
    for stage in reversed(range(problem.pp)):
        for first, onward in edges[stage].items():
            ways[stage, first] = sum(ways[stage + 1, end] for end, each in onward if each <= most_s)
    return ways


def _bound_of(
    intervals: Intervals, chains: _Chains, counts: tuple[int, ...], limit_s: float
) -> tuple[float, tuple[int, ...]]:
    """The bound of one cut, infinite where it does not fit, and the ends of its stages."""
    ends, bound = tuple(accumulate(counts)), 0.0
    for stage, (first, end) in enumerate(pairwise((0, *ends))):
        price = intervals.price(stage, first, end)
        if price is None or bound >= limit_s:
            return math.inf, ends
        bound = max(bound, chains.bound_s(stage, first, end, price.ns))
    return bound, ends


def _edges(
    intervals: Intervals, chains: _Chains, limit_s: float
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


def _least_ends(intervals: Intervals, chains: _Chains, limit_s: float) -> list[int]:
    """Of each stage the first end from which the later stages can hold what is left."""
    p = intervals.problem
    least = [len(p.pattern)]
    for stage in reversed(range(1, p.pp)):
        first = np.arange(least[0])
        at, end = np.full_like(first, stage), np.full_like(first, least[0])
        bounds = chains.bounds_s(at, first, end, intervals.all_least_ns(at, first, end))
        least.insert(0, int(np.flatnonzero(bounds >= limit_s).max(initial=-1)) + 1)
    return least


def _ends(
    intervals: Intervals,
    chains: _Chains,
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
    intervals: Intervals, chains: _Chains, stage: int, pairs: list[tuple[int, int]], limit_s: float
) -> list[float]:
    """The bound of a stage from each first layer to its end, in its fastest mix; infinite where
    none fits or nothing recomputed reaches the limit.
    """
    if not pairs:
        return []
    first, end = np.array(pairs).T
    at = np.full_like(first, stage)
    least_ns = intervals.all_least_ns(at, first, end)
    below = (chains.bounds_s(at, first, end, least_ns) < limit_s).tolist()
    prices = [
        intervals.price(stage, *pair) if under else None
        for pair, under in zip(pairs, below, strict=True)
    ]
    paid_ns = np.array([price.ns if price else 0 for price in prices])
    bounds = chains.bounds_s(at, first, end, np.maximum(paid_ns, least_ns))
    found: list[float] = np.where([price is None for price in prices], math.inf, bounds).tolist()
    return found
