"""Best-first branch and bound over all legal layouts of a space, as far as first plans.

Every legal layout is in exactly one place at any time:
    (a) a row that is not opened yet, or an open layout with a lower bound;
    (b) dropped by a necessary condition on memory;
    (c) solved: its first plan is as fast as its bound.

    rows    in order of `planner.bounds.inner.row_bounds`, opened in blocks; each layout of a block
            gets its packing bound at once
    fresh   opened: takes a bound by its splits and a first plan next, while below the best
    open    has both, and may be faster than its first plan

What is found is where the event simulation begins, which bounds everything anew.
"""

import heapq
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layouts import Ints
from meshplan.planner.bounds.packing import CELLS, packing_bounds
from meshplan.planner.bounds.split import split_bounds
from meshplan.planner.problem.coefficients import NS_PER_S
from meshplan.planner.problem.same_pipeline import run_as
from meshplan.planner.problem.stage_problem import StagePlan, StageProblem, stage_problem
from meshplan.planner.search.found import KIND_AXES, Kind, kind_of
from meshplan.planner.search.progress import Progress, Telling
from meshplan.planner.search.rows.row_prices import AHEAD, RowPrices
from meshplan.planner.second_core import done_of_many
from meshplan.planner.space.legal_layouts import Space, Variant
from meshplan.planner.stages.first_plan import first_plan

SPREAD = 1.5
ROWS_PER_BLOCK = 256
MOST_RUNNERS_TRIED = 192  # first plans made for the sake of the runners-up alone
NOTHING = 2**62  # a bound: no plan fits


class Found(NamedTuple):
    """The best plan known of one kind."""

    objective: int
    row: int
    variant: Variant
    plan: StagePlan


class _Layout(NamedTuple):
    """An opened layout; `waiting`: those that were opened with it and have no split bound yet."""

    bound: int
    number: int
    row: int
    variant: Variant
    waiting: "deque[_Layout]"


class BranchAndBound:
    """One search: what is open, and the best plan of each kind.

    settles_all   no cut that was not looked at may fit, where there is no plan
    solves        CP-SAT models, of cuts that no list has
    """

    def __init__(
        self,
        space: Space,
        coefficients: RowPrices,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self.space, self.coefficients = space, coefficients
        self.tell = Telling(progress)
        self.bounds = coefficients.bounds
        self.next_row = 0
        self.candidates = space.layouts_in(np.arange(len(space.layouts)))
        self._misfits = 0  # of rows that may fit
        self.fresh: list[_Layout] = []
        self.open: list[_Layout] = []
        self.best: dict[Kind, Found] = {}
        self.solved = self.solves = 0
        self._numbers = count()
        self._split_bounds: dict[int, int] = {}
        self.settles_all = True

    @property
    def rows(self) -> Ints:
        """The rows that may fit, of those that are priced, in order of their bounds."""
        return self.coefficients.rows

    @property
    def misfits(self) -> int:
        """Layouts of priced rows that do not fit."""
        whole = self.space.layouts_in(self.coefficients.priced)
        return whole - self.space.layouts_in(self.rows) + self._misfits

    @property
    def bound(self) -> int | None:
        """Lower bound over all open layouts; None when nothing is open."""
        return least(self._cheap_bound, self.open[0].bound if self.open else None)

    @property
    def _cheap_bound(self) -> int | None:
        fresh = self.fresh[0].bound if self.fresh else None
        self.coefficients.settle(self.next_row + 1, least(fresh, self.cutoff))
        row = int(self.bounds[self.rows[self.next_row]]) if self.next_row < len(self.rows) else None
        return least(row, fresh, self.coefficients.next_ns)

    @property
    def cutoff(self) -> int | None:
        """The objective of the best plan so far, which a layout must be below."""
        return min((found.objective for found in self.best.values()), default=None)

    def ranked(self) -> list[Found]:
        """The best plan of each kind, the fastest first."""
        return sorted(self.best.values(), key=lambda found: found[:2])

    def plan(self, layouts: Sequence[tuple[int, Variant]]) -> None:
        """Offer a first plan of each layout, a row and its variant, that has one."""

        def planned(layout: tuple[int, Variant]) -> StagePlan | None:
            return first_plan(self._problem(*layout))[1]

        for layout, plan in zip(layouts, done_of_many(planned, layouts), strict=True):
            self.offer(*layout, plan)

    def offer(self, row: int, variant: Variant, plan: StagePlan | None) -> None:
        """Keep a plan of a layout, if there is one, where it is the best of its kind."""
        kind = kind_of(self.space.layouts, row)
        known = self.best.get(kind)
        if plan is not None and (known is None or plan.objective < known.objective):
            self.best[kind] = Found(plan.objective, row, variant, plan)

    def find_plans(
        self,
        deadline: float | None,
        within: float = 0.0,
        most_steps: float = math.inf,
        useless_ns: float = math.inf,
    ) -> bool:
        """Work until the best plan is known to be `within` so much of the least objective or no
        other first plan can be better, or for that many steps after the first one, or until nothing
        is below what is `useless_ns`; False if time or the user ended it.
        """
        steps = 0
        try:
            while (bound := self.bound) is not None and not self._planned_all:
                cutoff = self.cutoff
                steps += cutoff is not None
                if cutoff is not None and (bound >= cutoff * (1 - within) or steps > most_steps):
                    return True
                if bound >= useless_ns:
                    return True
                if deadline is not None and time.perf_counter() >= deadline:
                    return False
                self.tell(partial(self._progress, bound))
                self._advance(cutoff)
        except KeyboardInterrupt:
            return False
        return True

    @property
    def _planned_all(self) -> bool:
        """Whether all that is not opened, or has no first plan, is above the best plan."""
        cheap, cutoff = self._cheap_bound, self.cutoff
        return cheap is None or (cutoff is not None and cheap >= cutoff)

    def find_runners_up(self, k: int, deadline: float | None) -> None:
        """The likely best of other kinds: first plans in order of bound."""
        try:
            for _ in range(MOST_RUNNERS_TRIED):
                ranked, bound = self.ranked(), self._cheap_bound
                limit = int(ranked[0].objective * SPREAD)
                limit = min(limit, ranked[k - 1].objective) if len(ranked) >= k else limit
                late = deadline is not None and time.perf_counter() >= deadline
                if bound is None or bound >= limit or late:
                    break
                self._advance(limit)
        except KeyboardInterrupt:
            return

    def _progress(self, bound: int) -> Progress:
        best_s = self.cutoff / NS_PER_S if self.cutoff is not None else None
        return Progress(best_s, bound / NS_PER_S, self.candidates, self.solves)

    def _advance(self, cutoff: int | None) -> None:
        """Open the next rows, or give the fresh layout with the smallest bound its first plan."""
        if not self.fresh or self.fresh[0].bound > (self._cheap_bound or 0):
            self._open_rows(cutoff)
            return
        entry = self.fresh[0]
        problem, own = (
            self._problem(entry.row, entry.variant),
            self.best.get(kind_of(self.space.layouts, entry.row)),
        )
        below = least(cutoff, own.objective if own else None)
        if problem.splits is not None and (below is None or entry.bound < below):
            bound = self._split_bound(entry, problem, cutoff)
            if bound is None:
                heapq.heappop(self.fresh)
                self._misfits += 1
                return
            entry = entry._replace(bound=max(entry.bound, bound))
        if below is not None and entry.bound >= below:
            # Not worth a plan now; a later, larger cutoff may ask for one.
            heapq.heappop(self.fresh)
            self._keep(entry, self.fresh)
            return
        raised = self._planned(entry, problem)
        # Replaced only now: an interrupted step leaves the layout where it was.
        heapq.heappop(self.fresh)
        self._keep(raised, self.open)

    def _open_rows(self, cutoff: int | None) -> None:
        self.coefficients.settle(self.next_row + ROWS_PER_BLOCK, cutoff)
        rows = self.rows[self.next_row : self.next_row + ROWS_PER_BLOCK]
        if cutoff is not None:
            rows = rows[self.bounds[rows] < cutoff]
        if not self.coefficients.holds(rows):
            self.coefficients.hold(self.rows[self.next_row : self.next_row + AHEAD])
        opened = [
            layout
            for variant, same in self.space.by_variant(rows)
            for layout in self._packed(variant, same, cutoff)
        ]
        for layout in opened:
            heapq.heappush(self.fresh, layout)
        self.next_row += len(rows)

    def _packed(self, variant: Variant, rows: Ints, cutoff: int | None) -> Iterator[_Layout]:
        """The layouts of `rows` run as `variant`, with their packing bounds."""
        limits = self._limits(rows, cutoff)
        bounds = packing_bounds(run_as(self.space, self.coefficients, rows, variant), limits)
        finite = np.isfinite(bounds)
        if limits is None:
            self._misfits += int((~finite).sum())
            rows, bounds = rows[finite], bounds[finite]
        else:
            bounds = np.where(finite, bounds, limits)
        least_ns = np.maximum(bounds.astype(np.int64), self.bounds[rows].astype(np.int64))
        open_still = least_ns < self._own_ns(rows)
        waiting: deque[_Layout] = deque()
        for row, bound in zip(
            rows[open_still].tolist(), least_ns[open_still].tolist(), strict=True
        ):
            waiting.append(_Layout(bound, next(self._numbers), row, variant, waiting))
        yield from waiting

    def _limits(self, rows: Ints, cutoff: int | None) -> Ints | None:
        """What each row's objective must be below: `cutoff`, and the best plan of its kind."""
        return None if cutoff is None else np.minimum(self._own_ns(rows), cutoff)

    def _own_ns(self, rows: Ints) -> Ints:
        """The objective of the best plan of each row's kind, `NOTHING` where there is none."""
        columns = [getattr(self.space.layouts, axis)[rows].tolist() for axis in KIND_AXES]
        owns = [self.best.get(kind) for kind in zip(*columns, strict=True)]
        return np.array([own.objective if own else NOTHING for own in owns], np.int64)

    def _split_bound(self, entry: _Layout, problem: StageProblem, cutoff: int | None) -> int | None:
        """The bound of `entry` by its splits, found with its next neighbours; None: nothing fits.

        What reaches the limit of now stays at it.
        """
        if entry.number not in self._split_bounds:
            cells = len(problem.splits or ()) * problem.chunks
            batch = [entry]
            entry.waiting.remove(entry)
            while entry.waiting and len(batch) * cells < CELLS // 4:
                batch.append(entry.waiting.popleft())
            rows = np.array([layout.row for layout in batch])
            limits = self._limits(rows, cutoff)
            same = run_as(self.space, self.coefficients, rows, entry.variant)
            bounds = split_bounds(same, limits)
            if limits is not None:
                bounds = np.minimum(bounds, limits)
            for layout, bound in zip(batch, bounds, strict=True):
                self._split_bounds[layout.number] = int(bound) if np.isfinite(bound) else NOTHING
        found = self._split_bounds[entry.number]
        return found if found < NOTHING else None

    def _planned(self, entry: _Layout, problem: StageProblem) -> _Layout | None:
        """`entry` after its first plan; None when that solves it or nothing fits."""
        bound, plan = first_plan(problem)
        self.offer(entry.row, entry.variant, plan)
        if bound is None:
            self._misfits += 1
            return None
        bound = max(bound, entry.bound)
        if plan is not None and plan.objective <= bound:
            self.solved += 1
            return None
        return entry._replace(bound=bound)

    def _keep(self, entry: _Layout | None, heap: list[_Layout]) -> None:
        """Put `entry` into `heap` unless a plan of its own kind is as good as it can be."""
        if entry is not None:
            own = self.best.get(kind_of(self.space.layouts, entry.row))
            if own is None or entry.bound < own.objective:
                heapq.heappush(heap, entry)

    def _problem(self, row: int, variant: Variant) -> StageProblem:
        return stage_problem(self.space, self.coefficients, row, variant)


def least(*values: int | None) -> int | None:
    """The smallest of the values that are not None."""
    return min((value for value in values if value is not None), default=None)
