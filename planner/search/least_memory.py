"""The rows of a question that hold least, and whether a layout of them fits under some capacity.

Memory is summed in whole KiB, each part rounded down, so that nothing that fits is left out. What
is found is held against its exact bytes, those of `check`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from meshplan.costmodels.layout import Layout
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.planner.bounds.inner import row_bounds, row_fits
from meshplan.planner.bounds.split_memory import least_kib
from meshplan.planner.case.host_memory import host_takes
from meshplan.planner.problem.coefficients import KIB, Coefficients, reserved_bytes
from meshplan.planner.problem.stage_problem import StageProblem, stage_problem
from meshplan.planner.search.both_roundings import rounding_bytes
from meshplan.planner.search.checked_fit import held_bytes
from meshplan.planner.search.row_layout import layout_of_row
from meshplan.planner.search.rows.priced_space import (
    Pricer,
    Question,
    closed_form,
    price_space,
    rows_that_may_hold,
    space_of,
    space_of_sizes,
)
from meshplan.planner.space.legal_layouts import Space, Variant
from meshplan.planner.space.legal_schedules import legal_schedules
from meshplan.planner.stages.first_plan import first_plan

MOST_TIMES_CAPACITY = 4096
MISS_PRECISION = 1.005


@dataclass(frozen=True, slots=True)
class Fit:
    """A layout that fits on `gpus`, and its reserved bytes by pipeline rank.

    gpus        the size
    layout      its own
    peak_bytes  reserved, by pipeline rank
    unsettled   fewer GPUs of which it is not known whether they hold a step
    """

    gpus: int
    layout: Layout
    peak_bytes: tuple[float, ...]
    unsettled: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class NearestMiss:
    """The layout that comes closest.

    layout          its own
    lacking_bytes   that it needs more of a GPU, to 0.5 % of its need
    capacity_bytes  that a plan may fill of a GPU
    """

    layout: Layout
    lacking_bytes: float
    capacity_bytes: float


Planned = Callable[[StageProblem, int, Variant], Fit | None]
"""A plan of a problem, of this row and variant."""


class LeastMemory:
    """The rows of a question that hold least, and whether they fit under a capacity.

    looked_at  how many rows there were. Where some sizes are asked by the closed form, it is before
               kinds of exchanges are opened, and rows that surely do not fit in the question's own
               capacity are left out before seconds are priced
    open       GPUs on which a row fits but for its fullest rank's host, where another cut may send
               less, or fits by its rounded bytes alone
    """

    def __init__(
        self, question: Question, price: Pricer, gpus: Sequence[int] | None = None
    ) -> None:
        if price is closed_form:
            question = replace(question, rounds_up=False)
        if gpus is not None and price is closed_form:
            space, self.looked_at = space_of_sizes(question, gpus)
            space = space.take(rows_that_may_hold(question, space))
        else:
            space = space_of(question, gpus)
            self.looked_at = len(space.layouts)
        self.setting, self.open = question.setting, set[int]()
        self.question, self._exact = question, price is closed_form
        self.space: Space = _plain_where_it_can_be(space)
        self.coefficients: Coefficients | None = None
        self.capacity_kib = 0
        self._too_small = dict[int, int]()  # by row, a capacity at which nothing of it was found
        if len(self.space.layouts):
            self.coefficients = price_space(question, self.space, price)
            self.capacity_kib = self.coefficients.cap_kib

    def fit(self) -> Fit | None:
        """A layout of the fewest GPUs that fits, by its exact bytes."""
        return self._first(self.capacity_kib, self._that_fits if self._exact else self._planned)

    def within(self, capacity_kib: int) -> Fit | None:
        """A layout that fits, as its bytes are priced, when every GPU has `capacity_kib`; of the
        fewest GPUs.
        """
        return self._first(capacity_kib, self._planned)

    def _first(self, capacity_kib: int, planned: Planned) -> Fit | None:
        if self.coefficients is None:
            return None
        coefficients = replace(self.coefficients, cap_kib=capacity_kib)
        rows = np.flatnonzero(row_fits(self.space, coefficients, plainly=True))
        bounds = row_bounds(self.space, coefficients)[rows] if len(rows) else rows
        for row in rows[np.lexsort((bounds, self.space.layouts.world_size[rows]))].tolist():
            if capacity_kib <= self._too_small.get(row, -1):
                continue
            if found := self._fit_row(coefficients, row, planned):
                return found
        return None

    def _fit_row(self, coefficients: Coefficients, row: int, planned: Planned) -> Fit | None:
        """A layout of the row; where none is, up to which capacity it is not asked again."""
        variants, too_small = self.space.variants(row), list[int]()
        plain = [variant for variant in variants if variant.virtual_stages == 1]
        for variant in plain or variants:
            problem = stage_problem(self.space, coefficients, row, variant)
            needed_kib = _least_needed(problem)
            too_small.append(max(coefficients.cap_kib, needed_kib - 1))
            found = planned(problem, row, variant) if needed_kib <= coefficients.cap_kib else None
            if found is not None:
                if host_takes(self.setting, found.layout):
                    return found
                self.open.add(found.gpus)
        self._too_small[row] = min(too_small, default=coefficients.cap_kib)
        return None

    def _planned(self, problem: StageProblem, row: int, variant: Variant) -> Fit | None:
        """A plan of a problem, as its bytes are priced."""
        plan = first_plan(problem)[1]
        if plan is None:
            return None
        layout = layout_of_row(self.space.layouts, row, variant, plan)
        return Fit(layout.world_size, layout, tuple(map(reserved_bytes, plan.peak_kib)))

    def _that_fits(self, problem: StageProblem, row: int, variant: Variant) -> Fit | None:
        """A plan that fits by its exact bytes: that for the whole memory, else one for less, by
        bisection down to where whatever is found fits.
        """

        def of(capacity_kib: int) -> Fit | None:
            less = replace(problem, prices=replace(problem.prices, cap_kib=capacity_kib))
            return self._planned(less, row, variant)

        found, high = of(problem.cap_kib), problem.cap_kib
        if found is None or self._fits(found.layout):
            return found
        gpus, low = found.gpus, high - math.ceil(rounding_bytes(self.question, found.layout) / KIB)
        middle = low
        while low < high:
            found = of(middle)
            if found is not None and self._fits(found.layout):
                return found
            low, high = (middle + 1, high) if found is None else (low, middle)
            middle = (low + high) // 2
        self.open.add(gpus)
        return None

    def _at_the_edge(self) -> NearestMiss | None:
        """What fits by its rounded bytes alone."""
        found = self.within(self.capacity_kib) if self._exact else None
        lacking = self._lacking_bytes(found.layout) if found else 0.0
        if found is None or lacking <= 0:
            return None
        return NearestMiss(found.layout, lacking, reserved_bytes(self.capacity_kib))

    def _fits(self, layout: Layout) -> bool:
        return self._lacking_bytes(layout) <= 0

    def _lacking_bytes(self, layout: Layout) -> float:
        """What the fullest rank lacks by its exact bytes, negative where it fits."""
        return held_bytes(self.question, layout)[0] - self.question.cluster.fillable_bytes

    def nearest_miss(self) -> NearestMiss | None:
        """What fits in the least capacity at which something does, by bisection; None if nothing is
        legal.
        """
        if self.coefficients is None:
            return None
        low, high, found = self.capacity_kib, 2 * self.capacity_kib, None
        if edge := self._at_the_edge():
            return edge
        while found is None and high <= MOST_TIMES_CAPACITY * self.capacity_kib:
            found = self.within(high)
            low, high = (low, high) if found else (high, 2 * high)
        if found is None:
            return None
        while high > low * MISS_PRECISION:
            middle = (low + high) // 2
            if better := self.within(middle):
                high, found = middle, better
            else:
                low = middle
        assert self.coefficients is not None
        lacking = reserved_bytes(high - self.capacity_kib)
        return NearestMiss(found.layout, lacking, reserved_bytes(self.capacity_kib))


def _least_needed(problem: StageProblem) -> int:
    """KiB that the cut of a list that needs least needs at least, or the only cut of one rank;
    nothing is said of other cuts.
    """
    if problem.chunks == 1:
        problem = replace(problem, splits=((len(problem.pattern),),))
    return int(least_kib(problem).min()) if problem.splits else 0


def _plain_where_it_can_be(space: Space) -> Space:
    """`space` without rows of several chunks per rank where one chunk is allowed too."""
    layouts, kept = space.layouts, np.ones(len(space.layouts), dtype=bool)
    for rows in space.shapes(np.flatnonzero(layouts.virtual_stages == 2)):
        pp, m = layouts.pipeline_parallel[rows[0]], layouts.num_micro_batches[rows[0]]
        legal = legal_schedules(space.model, space.legality, space.pins, int(pp), int(m))
        kept[rows] = all(chunks > 1 for _, chunks in legal)
    return replace(space, layouts=layouts.take(np.flatnonzero(kept)))
