"""The cuts of a list that may be faster than the best simulated step, each with a bound.

One chunk per rank: each stage in the mix that takes least time of those that fit
(`planner.stages.path`), bounded by the chains through it (`planner.cuts.intervals`). Where of
every virtual stage equally many of the first layers recompute, a cut comes in one mix, whatever its
chunks: that of the fewest which fit (`planner.problem.first_layers`).

Several chunks: the splits of the list. What a split takes with nothing recomputed is a bound, and
its step if it fits so; else a plan by rule of thumb stands for it (`planner.stages.heuristic`).
"""

import math
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import accumulate, islice
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layout import Stage
from meshplan.costmodels.layouts import Ints
from meshplan.costmodels.step.cut_times import CutTimes
from meshplan.planner.bounds.first_mixes import NEVER, first_mixes, mix_times
from meshplan.planner.bounds.ordered_mixes import OrderedMixes
from meshplan.planner.bounds.simulated import SAFETY, Passes
from meshplan.planner.bounds.split_chains import split_bounds_s
from meshplan.planner.bounds.split_memory import some_mix_fits
from meshplan.planner.bounds.split_times import SplitTimes
from meshplan.planner.cuts import budget as costs
from meshplan.planner.cuts.intervals import ProblemChains
from meshplan.planner.cuts.known_chains import KnownChains
from meshplan.planner.cuts.moved_layers import can_move
from meshplan.planner.problem.coefficients import NS_PER_S
from meshplan.planner.problem.first_layers import fewest_first
from meshplan.planner.problem.split_peaks import SplitPeaks
from meshplan.planner.problem.stage_problem import (
    StagePlan,
    StageProblem,
    evaluate,
    least_recomputed,
    starts_of,
)
from meshplan.planner.stages.heuristic import first_counts
from meshplan.planner.stages.path import Intervals, Price, stages_of


class Cut(NamedTuple):
    """One cut.

    bound_s     a step takes at least so long
    least       the stages in modes than which none is faster
    recomputes  finds the ranks that do not fit so, where some layers must recompute, or to which it
                may pay; without any no other mix of the cut is considered
    """

    bound_s: float
    least: tuple[Stage, ...]
    recomputes: Callable[[], tuple[int, ...]]


def cuts_below(
    problem: StageProblem,
    passes: Passes,
    known: KnownChains,
    limit_s: Callable[[], float],
    tally: costs.Tally,
) -> Iterator[Cut]:
    """The cuts below the limit, which may fall meanwhile; the smallest bound first."""
    if problem.vpp > 1:
        return _splits_below(problem, passes, known, limit_s, tally)
    return _listed_below(problem, passes, known, limit_s)


class Likely(NamedTuple):
    """A plan, if any fits, with the step of its cut; `work` of the budget was spent on it."""

    step_s: float
    plan: StagePlan | None
    work: int


def likely_cut(
    problem: StageProblem,
    passes: Passes,
    known: KnownChains,
    limit_s: float,
    times_of: Callable[[tuple[Stage, ...]], CutTimes],
    most: int,
) -> Likely:
    """Where layers can move between chunks of a rank: a plan of the first of the `most` cuts with
    the smallest bounds that fits with nothing recomputed; where the very first does not, one by
    rule of thumb if that is faster.
    """
    if problem.vpp == 1 or not can_move(problem):
        return Likely(math.inf, None, 0)
    tally, plans = costs.Tally(left=0), list[StagePlan | None]()
    for cut in islice(cuts_below(problem, passes, known, lambda: limit_s, tally), most):
        plans.append(evaluate(problem, cut.least))
        if plans[-1]:
            break
    if plans and not plans[0]:
        plans.append(first_counts(problem))
    timed = [(times_of(plan.stages).step_s(plan.stages), plan) for plan in plans if plan]
    step_s, plan = min(timed, key=lambda each: each[0], default=(math.inf, None))
    return Likely(step_s, plan, -tally.left)


def _splits_below(
    problem: StageProblem,
    passes: Passes,
    known: KnownChains,
    limit_s: Callable[[], float],
    tally: costs.Tally,
) -> Iterator[Cut]:
    """Each time one was simulated, more is known of the others."""
    split, _, bounds, by_rank = split_bounds_s(problem.alone, passes, limit_s(), known.bounds_s)
    if not len(split):
        return
    fits = some_mix_fits(problem)[split]
    split, bounds, by_rank = split[fits], bounds[fits], by_rank[fits]
    closer = None if problem.uniform or problem.first else OrderedMixes(problem)
    close = np.full(len(split), closer is None)
    times = SplitTimes.of(problem.alone, passes).of_pairs(np.zeros_like(split), split)
    while len(split):
        bounds = np.maximum(bounds, known.bounds_s(problem.alone, times)[:, 0])
        below = np.flatnonzero(bounds < limit_s())
        split, close, times = split[below], close[below], times.take(below)
        bounds, by_rank = bounds[below], by_rank[below]
        if len(split):
            first = int(bounds.argmin())
            counts, bound_s = (problem.splits or ())[split[first]], float(bounds[first])
            if closer and not close[first]:
                before = closer.asked
                work_s = closer.work_ns(counts) / NS_PER_S
                tally.left -= costs.ORDERED * (closer.asked - before)
                beyond = by_rank[first] + problem.m * SAFETY * work_s
                bounds[first], close[first] = max(bound_s, beyond.max()), True
                continue
            if not problem.first:
                yield _cut(problem, counts, bound_s)
            elif stages := fewest_first(problem, counts):
                yield Cut(bound_s, stages, tuple)
            bounds[first] = math.inf  # it is done


def _cut(problem: StageProblem, counts: tuple[int, ...], bound_s: float) -> Cut:
    bare = least_recomputed(problem, counts)
    return Cut(bound_s, bare, cache(partial(_lacking, problem, bare)))


def _lacking(problem: StageProblem, stages: tuple[Stage, ...]) -> tuple[int, ...]:
    """The ranks that do not fit."""
    full, selective = (
        np.array([getattr(stage, name) for stage in stages])
        for name in ("full_layers", "selective_layers")
    )
    peaks = SplitPeaks(problem, starts_of(stages)).peaks_kib(full, selective)
    return tuple(np.flatnonzero(peaks > problem.cap_kib).tolist())


def _listed_below(
    problem: StageProblem, passes: Passes, known: KnownChains, limit_s: Callable[[], float]
) -> Iterator[Cut]:
    """The cuts of the list: what recomputation they need is found only where no chain of it, with
    nothing recomputed but what is surely, reaches the limit; each time one was simulated, more is
    known of the others.
    """
    intervals, chains = Intervals(problem), ProblemChains(problem, passes)
    bounds = chains.listed_s(intervals)
    split = np.flatnonzero(bounds < limit_s())
    if not len(split):
        return
    times = SplitTimes.of(problem.alone, passes).of_pairs(np.zeros_like(split), split)
    bounds = np.maximum(bounds[split], known.bounds_s(problem.alone, times)[:, 0])
    below = np.flatnonzero(bounds < limit_s())
    split, bounds, times = split[below], bounds[below], times.take(below)
    if problem.first and problem.pp > 1 and len(split):
        times, fewest = _only_mixes(problem, passes, split)
        mixes_s = chains.with_first_s(intervals, split, np.maximum(fewest, 0))
        bounds = np.where(fewest == NEVER, math.inf, np.maximum(bounds, mixes_s))
    priced = dict[int, list[Price]]()
    while len(split):
        bounds = np.maximum(bounds, known.bounds_s(problem.alone, times)[:, 0])
        while bounds[first := int(bounds.argmin())] < limit_s():
            counts = (problem.splits or ())[split[first]]
            if problem.first and problem.pp > 1:
                priced[first] = intervals.priced(tuple(accumulate(counts))) or []
            if first in priced:
                stages = stages_of(priced[first], list(accumulate(counts)))
                yield Cut(float(bounds[first]), stages, tuple)
                bounds[first] = math.inf  # it is done
                break
            bound_s, prices = _bound_of(intervals, chains, counts)
            bounds[first], priced[first] = max(float(bounds[first]), bound_s), prices
        else:
            return


def _only_mixes(problem: StageProblem, passes: Passes, split: Ints) -> tuple[SplitTimes, Ints]:
    """[.., split, 1] what passes take in the only mix where one number of first layers recomputes
    in full; and [split] that number, `NEVER` where none fits.
    """
    pairs = np.zeros_like(split), split
    fewest = first_mixes(problem.alone, *pairs)
    return mix_times(problem.alone, passes, pairs, np.maximum(fewest, 0)), fewest


def _bound_of(
    intervals: Intervals, chains: ProblemChains, counts: tuple[int, ...]
) -> tuple[float, list[Price]]:
    """The bound of one cut, infinite where it does not fit, and the mixes of its stages."""
    ends = tuple(accumulate(counts))
    prices = intervals.priced(ends)
    if prices is None:
        return math.inf, []
    end, stage = np.array(ends), np.arange(len(ends))
    ns = np.array([price.ns for price in prices])
    bounds = chains.bounds_s(stage, end - np.array(counts), end, ns)
    return float(bounds.max()), prices
