"""One chunk per rank: the stages are a path through the layers, and each step of it has a price.

`Intervals.price(j, a, b)` is the least time of stage j when it holds layers a..b-1 under the cap:
memory is only traded for time inside a stage, so no plan needs a slower mix. What is left is a path
0 = b_0 <= b_1 <= .. <= b_S = L that minimises (m - 1) X + sum c_j + D.

    greedy_path   the least possible X, by filling each stage as far as X allows: a plan, and a
                  bound
    best_split    the best of a short list of splits
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from meshplan.costmodels.layout import Stage
from meshplan.costmodels.layouts import Ints
from meshplan.planner.bounds.first_mixes import NEVER, first_mixes
from meshplan.planner.bounds.split_memory import some_mix_fits
from meshplan.planner.problem.first_layers import fewest_first
from meshplan.planner.problem.recompute_mixes import mixed, mixes, prefix
from meshplan.planner.problem.stage_problem import StagePlan, StageProblem, evaluate, objective_of

UNFIT_NS = np.iinfo(np.int64).max  # of a mix that does not fit: no other takes as long


class Price(NamedTuple):
    """The fastest way in which one stage holds its layers."""

    ns: int
    selective: int
    full: int


class Interval(NamedTuple):
    """Stage `stage` holds layers `first` .. `end` - 1, or several do."""

    stage: int
    first: Any
    end: Any


class Intervals:
    """Prices of the stages of one problem, each found once."""

    def __init__(self, problem: StageProblem) -> None:
        assert problem.vpp == 1, "the path model has one chunk per rank"
        self.problem = problem
        self._known: dict[object, Price | None] = {}
        kinds = np.array(problem.pattern, np.int64)
        self._times = prefix(np.array(problem.layer_ns)[kinds])
        self._saved = prefix(np.array(problem.saved_kib)[kinds])
        self._states = prefix(np.array(problem.state_kib)[kinds])
        self._updates = prefix(np.array(problem.update_kib)[kinds])
        self._steps = prefix(np.array(problem.step_ns)[kinds])
        self._floor = prefix(np.array(problem.layer_ns)[:, list(problem.modes)].min(1)[kinds])
        fastest = np.array(problem.layer_ns)[:, list(problem.modes)].argmin(axis=1)
        self._keeps_all = problem.modes[0] == 0 and not fastest.any()
        self._all_saved: list[int] = self._saved[:, 0].tolist()
        self._ends = np.array([self._ends_ns(stage) for stage in range(problem.pp)])
        self._held = [int(problem.in_flight[stage][0][0]) for stage in range(problem.pp)]

    def least_ns(self, stage: int, first: int, end: int) -> int:
        """A lower bound of `price`: every layer in its fastest mode."""
        return int(self._floor[end] - self._floor[first]) + self._ends_ns(stage)

    def all_least_ns(self, stage: Ints, first: Ints, end: Ints) -> Ints:
        """The same of many."""
        least: Ints = self._floor[end] - self._floor[first] + self._ends[stage]
        return least

    def price(self, stage: int, first: int, end: int) -> Price | None:
        """The fastest legal mix of recompute modes, None if none fits."""
        key = self._like(stage), self.problem.pattern[first:end]
        if key not in self._known:
            self._known[key] = self._cheapest(Interval(stage, first, end))
        return self._known[key]

    def priced(self, ends: Sequence[int]) -> list[Price] | None:
        """The stages whose layers end at `ends`, each in its fastest mix, or all in that of one
        rule where the problem has one; None if they do not fit.
        """
        spans = list(pairwise((0, *ends)))
        if self.problem.first and self.problem.pp > 1:
            stages = fewest_first(self.problem, tuple(end - first for first, end in spans))
            full = [stage.full_layers for stage in stages or ()]
            found = [self._with_first(Interval(j, *spans[j]), k) for j, k in enumerate(full)]
            return found or None
        prices = [self.price(j, *span) for j, span in enumerate(spans)]
        fitting = [price for price in prices if price is not None]
        return fitting if len(fitting) == len(prices) else None

    def _with_first(self, key: Interval, full: int) -> Price:
        """With the first `full` layers recomputed in full, the rest not."""
        return Price(self.ns(key, full, 0), 0, full)

    def ns(self, key: Interval, full: int, selective: int) -> int:
        """What a stage takes with so many layers recomputed."""
        cut, second = key.first + full, key.first + full + selective
        layers = mixed(self._times, key.first, np.array(cut), np.array(second), key.end)
        return int(layers) + self._ends_ns(key.stage)

    def all_with_first_ns(self, first: Ints, end: Ints, full: Ints) -> Ints:
        """[cut, stage] the same of every stage of several cuts, of which the first `full` layers
        recompute in full.
        """
        cut: Ints = first + full
        times: Ints = mixed(self._times, first, cut, cut, end) + self._ends
        return times

    def step_ns(self, stage: int, first: int, end: int) -> int:
        """Once per step, in stage `stage`."""
        problem, total = self.problem, int(self._steps[end] - self._steps[first])
        total += problem.embedding.step_ns if stage == 0 else 0
        return total + (problem.head.step_ns if stage == problem.pp - 1 else 0)

    def _like(self, stage: int) -> tuple[int, bool, bool]:
        """Equal for stages that hold as many micro-batches and have equal ends."""
        return self._held[stage], stage == 0, stage == self.problem.pp - 1

    def _ends_ns(self, stage: int) -> int:
        problem = self.problem
        total = problem.send_ns + (problem.embedding.ns if stage == 0 else 0)
        return total + (problem.head.ns if stage == problem.pp - 1 else 0)

    def _cheapest(self, key: Interval) -> Price | None:
        """Price every split of the interval into full | selective | none, and take the fastest."""
        problem, (stage, first, end) = self.problem, key
        if self._keeps_all:
            kept = self._all_saved[end] - self._all_saved[first]
            if self._fits(key, kept, problem.transient_kib[0] if end > first else 0):
                return Price(self.least_ns(stage, first, end), 0, 0)
        full, selective, transient = mixes(end - first, problem.modes, problem.transient_kib)
        cut, second = first + full, first + full + selective
        fits = self._fits(key, mixed(self._saved, first, cut, second, end), transient)
        if not fits.any():
            return None
        time = mixed(self._times, first, cut, second, end)
        best = int(np.where(fits, time, UNFIT_NS).argmin())
        return Price(int(time[best]) + self._ends_ns(stage), int(selective[best]), int(full[best]))

    def _fits(self, key: Interval, saved: Any, transient: Any) -> Any:
        """Whether a stage fits that keeps `saved` KiB of a micro-batch in its layers; of several
        ways, which.
        """
        problem, (stage, first, end) = self.problem, key
        held = self._held[stage]
        static = problem.fixed_kib + self._states[end] - self._states[first]
        floor, update = 0, self._updates[end] - self._updates[first]
        kept = 0
        for end_part, holder in ((problem.embedding, 0), (problem.head, problem.pp - 1)):
            if stage == holder:
                static += end_part.state_kib
                kept += held * end_part.saved_kib
                update += end_part.update_kib
                floor = max(floor, end_part.transient_kib)
        larger = max if isinstance(saved, int) else np.maximum
        running = kept + held * saved + larger(transient, floor)
        return static + larger(running, update) <= problem.cap_kib


def stages_of(prices: list[Price], ends: list[int]) -> tuple[Stage, ...]:
    """The stages whose layers end at `ends`."""
    starts = [0, *ends[:-1]]
    return tuple(
        Stage(end - first, price.selective, price.full)
        for price, first, end in zip(prices, starts, ends, strict=True)
    )


def plan_of(intervals: Intervals, ends: list[int]) -> StagePlan | None:
    """The plan whose stages end at `ends`, each in its fastest mix; None if one does not fit."""
    prices = intervals.priced(ends)
    if prices is None:
        return None
    plan = evaluate(intervals.problem, stages_of(prices, ends))
    assert plan is not None, "a stage that was priced as fitting does not fit"
    return plan


def greedy_path(intervals: Intervals) -> tuple[int, StagePlan | None]:
    """The least X that any plan can have, and a plan that has it; None if nothing fits.

    A stage that may last X takes as many layers as it can: starting later never reaches less far,
    as long as it leaves the next ones room for the layer that they must hold. So if this does not
    reach the end nothing does. X then rises to the least price in the way.
    """
    problem = intervals.problem
    low = -(-problem.least_work_ns // problem.pp)
    ends, blocked = _fill(intervals, None)
    if ends is None:
        return low, None
    high = _slowest(intervals, ends)
    ends_high = ends
    while low < high:
        guess = (low + high) // 2
        ends, blocked = _fill(intervals, guess)
        if ends is None:
            low = max(guess + 1, blocked)
        else:
            high, ends_high = _slowest(intervals, ends), ends
    return high, plan_of(intervals, ends_high)


def fullest_stages(intervals: Intervals) -> tuple[Stage, ...] | None:
    """A cut whose stages hold as many layers as fit, the first ones first; None if nothing fits."""
    ends, _ = _fill(intervals, None)
    prices = intervals.priced(ends) if ends else None
    return stages_of(prices, ends) if prices and ends else None


def _slowest(intervals: Intervals, ends: list[int]) -> int:
    prices = [
        intervals.price(stage, first, end)
        for stage, (first, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True))
    ]
    return max(price.ns for price in prices if price is not None)


def _fill(
    intervals: Intervals, limit: int | None, *, every: bool = False
) -> tuple[list[int] | None, int]:
    """Stage ends when each takes all that `limit` allows; or None and the least price above it.

    A stage must hold a layer, and where that takes all of another kind it may have to begin sooner:
    then `every` end that the stage before may have is looked at.
    """
    problem, starts, blocked = intervals.problem, [0], 2**62
    needed = [problem.fewest_layers(j) for j in range(problem.pp)]
    begun: list[dict[int, int]] = []
    for stage, fewest in enumerate(needed):
        most = len(problem.pattern) - sum(needed[stage + 1 :])
        found, over = _reached(intervals, (stage, fewest, most), starts, limit)
        blocked = min(blocked, over)
        if not found:
            several = len(set(problem.pattern)) > 1
            return _fill(intervals, limit, every=True) if several and not every else (None, blocked)
        starts = sorted(found) if every else [max(found)]
        begun.append(found)
    if starts[-1] < len(problem.pattern):
        return None, blocked
    ends = [starts[-1]]
    for found in reversed(begun[1:]):
        ends.insert(0, found[ends[0]])
    return ends, blocked


def _reached(
    intervals: Intervals, stage: tuple[int, int, int], starts: list[int], limit: int | None
) -> tuple[dict[int, int], int]:
    """By each end that a stage (its number, the fewest layers, the last end) may have after one of
    `starts`, ascending, the last of them: a later one takes no longer. And the least price above
    the limit.
    """
    (number, fewest, most), found, blocked = stage, dict[int, int](), 2**62
    for end in range(starts[0] + fewest, most + 1):
        first = starts[bisect_right(starts, end - fewest) - 1]
        price = intervals.price(number, first, end)
        if price is not None and (limit is None or price.ns <= limit):
            found[end] = first
            continue
        blocked = min(blocked, price.ns if price else blocked)
        if first == starts[-1]:  # more layers take no less
            break
    return found, blocked


def best_split(intervals: Intervals) -> StagePlan | None:
    """The best of the engine's own splits, None if none fits: first what would be the fastest with
    nothing recomputed. Those that do not fit are told at once, not each by its stages' prices.
    """
    problem, best = intervals.problem, None
    ends = _splits_that_may_fit(problem).cumsum(axis=1)
    stage, first = np.arange(problem.pp), np.roll(ends, 1, axis=1) * (np.arange(problem.pp) > 0)
    least_ns = intervals.all_least_ns(stage, first, ends).tolist()
    bounds = [objective_of(problem, each, 0) for each in least_ns]
    for row in np.argsort(bounds, kind="stable").tolist():
        if best is not None and bounds[row] >= best[0]:
            break
        objective = _objective(intervals, ends[row].tolist())
        if objective is not None and (best is None or objective < best[0]):
            best = (objective, ends[row].tolist())
    return plan_of(intervals, best[1]) if best else None


def _splits_that_may_fit(problem: StageProblem) -> Ints:
    """[split, stage] layers of the engine's splits, without those that surely fit in no mix; where
    one rule says what recomputes, those alone that fit.
    """
    splits = np.array(problem.splits or (), np.int64).reshape(-1, problem.pp)
    which = np.flatnonzero(some_mix_fits(problem)) if len(splits) else np.arange(0)
    if problem.first and len(which):
        which = which[first_mixes(problem.alone, np.zeros_like(which), which) != NEVER]
    return splits[which]


def _objective(intervals: Intervals, ends: list[int]) -> int | None:
    prices = intervals.priced(ends)
    if prices is None:
        return None
    spans = enumerate(pairwise((0, *ends)))
    end_ns = max(intervals.step_ns(stage, *span) for stage, span in spans)
    return objective_of(intervals.problem, [price.ns for price in prices], end_ns)
