"""One chunk per rank and any cut: the fastest plan, exactly.

A plan is a path through the layers, 0 = b_0 <= b_1 <= .. <= b_S = L, and takes

    weight X + sum c_j + D        X the longest stage, D the largest once-per-step sum of a stage

Where no stage may be above a cap of X and one of D, the least sum is a shortest path, found stage
by stage. It never falls when a cap does, so paths with X between two caps take at least the lower
one, and the sum under the upper one. Caps are halved, the smallest such bound first: those of D,
and for each of them those of X.
"""

import heapq
import math
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshplan.costmodels.layouts import Floats, each_once
from meshplan.planner.stages.cpsat import Outcome
from meshplan.planner.stages.path import Intervals, plan_of

MOST_SWEEPS = 1_000  # through the stages of one problem; dozens are usual, a large one takes 10 ms

Under = Callable[[float, float], "_Path | None"]


class _Ended(Exception):
    """The deadline or the most sweeps came first."""


class _Path(NamedTuple):
    """The path with the least `value` under a cap, as its stages' ends.

    capped  the largest that one of its stages has of the capped quantity
    """

    value: float
    capped: float
    path: tuple[int, ...]


def solve_path(intervals: Intervals, below: int | None, deadline: float | None = None) -> Outcome:
    """The best path with an objective below `below`; what was found by then, if the deadline (of
    `time.perf_counter`) or `MOST_SWEEPS` comes first.
    """
    problem, ended = intervals.problem, False
    search = _Search(intervals, below, deadline)
    try:
        search.run()
    except _Ended:
        ended = True
    if search.best is None and ended:
        return Outcome("UNKNOWN", None, search.least)
    if search.best is None:
        return Outcome("INFEASIBLE", None, below)
    plan = plan_of(intervals, list(search.best))
    assert plan is not None
    assert plan.objective == search.below + problem.constant_ns, "a path was mispriced"
    if ended:
        return Outcome("FEASIBLE", plan, min(search.least, plan.objective))
    return Outcome("OPTIMAL", plan, plan.objective)


class _Search:
    """The ends of the best path so far, which takes `below` without the constant; no path has an
    objective below `least`.
    """

    def __init__(self, intervals: Intervals, below: int | None, deadline: float | None) -> None:
        p = intervals.problem
        self.deadline, self.sweeps = deadline, 0
        self.best: tuple[int, ...] | None = None
        self.below = math.inf if below is None else float(below - p.constant_ns)
        self.weight, least_x = p.form.weight, -(-p.least_work_ns // p.pp)
        least_d = p.least_end_ns - p.constant_ns
        self.least = self.weight * least_x + p.least_work_ns + p.least_end_ns
        room = self.below - 1 - p.least_work_ns - least_d
        most_x = room / self.weight if self.weight else math.inf
        self.times, self.ends = intervals.times_ns(most_x), intervals.steps_ns()
        self._x, self._d = _caps(self.times, least_x), _caps(self.ends, least_d)

    def run(self) -> None:
        """Find the best."""
        self._halve(self._d, 1, self._under_end, 0.0)

    def _under_end(self, most_d: float, rest: float) -> _Path | None:
        """The path with the least weight X + sum of those with D up to `most_d`."""
        legal = {id(table): table <= most_d for table in self.ends}
        under = partial(self._shortest, [legal[id(table)] for table in self.ends])
        found = self._halve(self._x, self.weight, under, rest)
        return found and found._replace(capped=max(_along(self.ends, found.path)))

    def _halve(self, caps: Floats, weight: int, under: Under, rest: float) -> _Path | None:
        """The path with the least `weight` x capped + value, None if no path is below the best so
        far, where each takes `rest` too; `under(cap, rest)` is the one with the least value.
        """
        found = under(caps[-1], rest + weight * caps[0]) if len(caps) else None
        if found is None:
            return None
        # Of paths above caps[low] and below caps[high], which take `value` at least, the bound.
        high, least = int(np.searchsorted(caps, found.capped)), _whole(found, weight)
        waiting = [(weight * caps[0] + found.value, -1, high, found.value)]
        while waiting and waiting[0][0] < min(least.value, self.below - rest):
            _, low, high, value = heapq.heappop(waiting)
            middle = (low + high) // 2
            parts = [(middle, high, value)]
            path = under(caps[middle], rest + weight * caps[low + 1])
            if path is not None:
                parts.append((low, int(np.searchsorted(caps, path.capped)), path.value))
                least = min(least, _whole(path, weight))
            for part in parts:
                if part[1] - part[0] > 1:
                    heapq.heappush(waiting, (weight * caps[part[0] + 1] + part[2], *part))
        return least

    def _shortest(self, legal: list[NDArray[np.bool_]], most_x: float, rest: float) -> _Path | None:
        """The path with the least sum of those whose stages are legal and up to `most_x`."""
        self.sweeps += 1
        late = self.deadline is not None and time.perf_counter() >= self.deadline
        if late or self.sweeps > MOST_SWEEPS:
            raise _Ended
        tables = {
            (id(times), id(under)): np.where(under & (times <= most_x), times, math.inf)
            for times, under in zip(self.times, legal, strict=True)
        }
        costs = [tables[id(a), id(b)] for a, b in zip(self.times, legal, strict=True)]
        spent = [np.full(len(costs[0]), math.inf)]
        spent[0][0] = 0.0
        for cost in costs:
            spent.append((spent[-1][:, None] + cost).min(axis=0))
        total = float(spent[-1][-1])
        if total + rest >= self.below:
            return None
        path = _path_back(costs, spent)
        self._offer(path, total)
        return _Path(total, max(_along(self.times, path)), path)

    def _offer(self, path: tuple[int, ...], total: float) -> None:
        whole = self.weight * max(_along(self.times, path)) + total + max(_along(self.ends, path))
        if whole < self.below:
            self.best, self.below = path, whole


def _whole(path: _Path, weight: int) -> _Path:
    return path._replace(value=weight * path.capped + path.value)


def _caps(tables: list[Floats], least: float) -> Floats:
    """What a stage may take, by value, but for what no longest one can be below."""
    apart = {id(table): table for table in tables}.values()
    found: Floats = each_once(np.concatenate([each_once(table) for table in apart]))
    possible: Floats = found[np.isfinite(found) & (found >= least)]
    return possible


def _path_back(costs: list[Floats], spent: list[Floats]) -> tuple[int, ...]:
    """The ends of the stages of the shortest path to the last place."""
    ends = [len(spent[0]) - 1]
    for cost, before in zip(reversed(costs[1:]), reversed(spent[1:-1]), strict=True):
        ends.append(int((before + cost[:, ends[-1]]).argmin()))
    return tuple(reversed(ends))


def _along(tables: list[Floats], path: tuple[int, ...]) -> list[float]:
    return [
        float(table[first, end])
        for table, (first, end) in zip(tables, pairwise((0, *path)), strict=True)
    ]
