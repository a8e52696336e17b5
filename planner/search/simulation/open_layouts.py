"""The layouts that the proof under the simulation has not settled, each with a lower bound.

    rows       bounded by the mean rank alone, whatever the schedule; opened many at a time
    crowds     layouts of one variant and equally many ranks: all at once, when their rows are
               opened, a cheap bound that holds for any split (`planner.bounds.any_split`)
    layouts    bounded split by split, with the chains known by then, or stage by stage; and cuts
               that must recompute

Only what has the smallest bound of all is bounded more closely, with those of its crowd that are
below the limit too. A bound that reaches the limit is stored as the limit; if the limit is raised
later, the bound is found anew.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from itertools import chain, count
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layouts import Bools, Floats, Ints, each_once
from meshplan.costmodels.prices.passes import PassSeconds
from meshplan.planner.bounds.any_split import bounds_of_any_split
from meshplan.planner.bounds.simulated import Passes, mean_rank_bounds, simulated_bounds
from meshplan.planner.bounds.split_chains import bounds_of_splits, split_bounds_s
from meshplan.planner.bounds.stage_chains import cut_bounds
from meshplan.planner.cuts.known_chains import KnownChains, Shape
from meshplan.planner.cuts.simulated_cuts import Cut
from meshplan.planner.problem.coefficients import Priced
from meshplan.planner.problem.same_pipeline import SamePipeline, priced_as, run_as
from meshplan.planner.processes.second_core import done_of_each, done_of_many
from meshplan.planner.search.rows.dominated import dominated
from meshplan.planner.search.rows.rows_below import bounds_of_each
from meshplan.planner.space.legal_layouts import Space, Variant

MOST_ROWS = 4096  # opened at a time
MOST_LAYOUTS = 256  # layouts of a crowd that are bounded split by split at a time
MOST_CROWDS = 32  # crowds of which some layouts are bounded at a time, each crowd on its own
FEWEST_FILLED, MOST_FILLED = 4, 48  # layouts bounded together by what each rank must recompute
FEW_LAYOUTS = 192  # with fewer a second process may not be worth its start
FEW_ROUGH = 12_288  # nor with fewer rows that are bounded roughly, which takes 3 us each, and
OWN_ROWS = 128  # as long as so many for a variant
# Work charged for a bound of one layout: whatever the split; split by split; and closely, with one
# more for so many `CELLS` (chunks of its splits, or stages and layers).
ROUGHLY, QUICKLY, CLOSELY = 60, 120, 250
CELLS = 4


class Open(NamedTuple):
    """A layout, or a cut of it that must recompute.

    order  of equal bounds      known  so many chains of its shape were known when it was bounded
    filled  it is bounded by what each rank of each split must recompute, too
    mean    the number of the mean of chains by which it is bounded
    """

    bound_s: float
    order: tuple[int, int, int]
    row: int
    variant: Variant
    cut: Cut | None
    known: int
    filled: bool = False
    mean: int = 0


class _Crowd(NamedTuple):
    """Rows run as `variant`, the smallest bound first, which is `bound_s`."""

    bound_s: float
    number: int
    variant: Variant
    rows: Ints
    bounds: Floats


class _Bounded(NamedTuple):
    """Rows, their bounds, how many chains of its shape were known for each, and the work of all."""

    rows: Ints
    bounds: Floats
    known: Ints
    work: int


def of_the_same_rows(groups: Sequence[tuple[Variant, Ints]]) -> list[list[int]]:
    """Places of the groups of equal rows; what takes longest together first."""
    found = dict[bytes, list[int]]()
    for at, (_, rows) in enumerate(groups):
        found.setdefault(rows.tobytes(), []).append(at)
    return sorted(found.values(), key=lambda x: -len(x) * (OWN_ROWS + len(groups[x[0]][1])))


class OpenLayouts:
    """What is open, of a space of rows that may fit, under the prices of the simulation. Rows that
    others beat in everything (`planner.search.rows.dominated`) are not, of those below the limit;
    `some` rows alone are open if they are said, in order of their bounds.
    """

    def __init__(
        self,
        space: Space,
        prices: Priced,
        passes: PassSeconds,
        limit_s: float = math.inf,
        some: Ints | None = None,
    ) -> None:
        self.space, self.prices, self.passes = space, prices, passes
        self.chains = KnownChains()
        self.work = 0  # of all bounds, in the unit of `planner.cuts.budget.BUDGET`
        self.row_bounds = bounds_of_each(space, passes, np.arange(len(space.layouts)))
        self._every = np.argsort(self.row_bounds, kind="stable")
        self._place = np.argsort(self._every)
        self.rows = self._undominated(limit_s) if some is None else some
        self._next_row, self._numbers = 0, count(1)
        self._crowds: list[_Crowd] = []
        self._layouts: list[Open] = []
        self._own_s: Callable[[Ints], Floats] | None = None

    def _undominated(self, limit_s: float) -> Ints:
        below, stays = self.row_bounds[self._every] < limit_s, np.ones(len(self._every), bool)
        rows = self._every[below]
        stays[below] = ~dominated(self.space, self.passes, self.prices, rows)
        return self._every[stays]

    def leave_out(self, left_out: Bools) -> Ints:
        """Open nothing of these rows; those of them that were to be opened."""
        opened = self.rows
        self._every, self.rows = (each[~left_out[each]] for each in (self._every, opened))
        return opened[left_out[opened]]

    @property
    def least_s(self) -> float:
        """The smallest bound; infinite where nothing is open."""
        return min(self._row_s, self._crowd_s, self.first_s)

    def asked(self) -> tuple[Ints, Floats]:
        """The rows that are open, or of which a layout is, and that may be below the limit of their
        own kind, with their bounds.
        """
        every = [
            (self.rows[self._next_row :], self.row_bounds[self.rows[self._next_row :]]),
            *((crowd.rows, crowd.bounds) for crowd in self._crowds),
            (
                np.array([each.row for each in self._layouts], np.int64),
                np.array([each.bound_s for each in self._layouts]),
            ),
        ]
        rows, bounds = (np.concatenate(each) for each in zip(*every, strict=True))
        asked = self._asked_for(rows, bounds)
        return rows[asked], bounds[asked]

    @property
    def _row_s(self) -> float:
        left = self._next_row < len(self.rows)
        return float(self.row_bounds[self.rows[self._next_row]]) if left else math.inf

    @property
    def _crowd_s(self) -> float:
        return self._crowds[0].bound_s if self._crowds else math.inf

    @property
    def first_s(self) -> float:
        """The bound of the first of the layouts that are bounded closely."""
        return self._layouts[0].bound_s if self._layouts else math.inf

    @property
    def first(self) -> Open:
        """The layout or cut with the smallest bound, once `closer` says that it is."""
        return self._layouts[0]

    def pop(self) -> None:
        """Take out the first: what was opened since sorts behind it."""
        heapq.heappop(self._layouts)

    def cut_of(self, bound_s: float, layout: Open, cut: Cut) -> Open:
        """A cut of a layout, to be pushed."""
        order = (*layout.order[:2], next(self._numbers))
        return layout._replace(bound_s=bound_s, order=order, cut=cut)

    def push(self, cut: Open) -> None:
        """Open a cut of a layout."""
        heapq.heappush(self._layouts, cut)

    def cuts(self) -> list[Open]:
        """The cuts of layouts."""
        return [each for each in self._layouts if each.cut is not None]

    def next_cuts(self, most: int) -> list[Open]:
        """The cuts with the smallest bounds, the first of all left out."""
        first = self.first.order
        return heapq.nsmallest(most, (each for each in self.cuts() if each.order != first))

    def reopen(self, settled: list[Open], own_s: Callable[[Ints], Floats]) -> None:
        """Open what was settled again, instead of the cuts that are open, and the rows that others
        beat: of their own kind next to none, which `planner.search.rows.rows_below` has left out.
        From now on rows are let go whose bound is not below their own limit, which never rises.
        """
        self._own_s = own_s
        self._layouts = [each for each in self._layouts if each.cut is None] + settled
        heapq.heapify(self._layouts)
        opened = np.zeros(len(self._place), bool)
        opened[self.rows[: self._next_row]] = True
        self.rows, self._next_row = self._every[~opened[self._every]], 0

    def closer(self, limit_s: float) -> bool:
        """Bound what has the smallest bound more closely; False where it is as close as it can be.

        That bound is below the limit.
        """
        if self._row_s <= min(self._crowd_s, self.first_s):
            if math.isinf(self._row_s):
                return False
            self._open_rows(limit_s)
        elif self._crowd_s <= self.first_s:
            self._split_crowds(limit_s)
        else:
            return self.bounded_anew(limit_s) or self._filled(limit_s)
        return True

    def _open_rows(self, limit_s: float) -> None:
        rows = self.rows[self._next_row : self._next_row + MOST_ROWS]
        rows = rows[: np.searchsorted(self.row_bounds[rows], limit_s)]
        last = self._next_row + len(rows)
        groups = self.space.by_variant(rows[self._asked_for(rows, self.row_bounds[rows])])
        alike = of_the_same_rows(groups)
        few = sum(OWN_ROWS + len(same) for _, same in groups) < FEW_ROUGH
        share = done_of_many if few else done_of_each
        done = share(lambda some: self._roughly([groups[at] for at in some], limit_s), alike)
        bounds = dict(zip(chain(*alike), chain(*done), strict=True))
        self.work += ROUGHLY * sum(len(same) for _, same in groups)
        self._next_row = last
        for at, (variant, same) in enumerate(groups):
            self._push_crowd(variant, same, bounds[at])

    def _roughly(self, groups: Sequence[tuple[Variant, Ints]], limit_s: float) -> list[Floats]:
        """Of the same rows under each variant: prices and passes of these are looked up once."""
        rows, found, known = groups[0][1], list[Floats](), dict[tuple[int, ...], Passes]()
        priced, seconds = self.prices.take(rows), self.passes.take(rows)
        for variant, _ in groups:
            same = priced_as(self.space, priced, rows, variant)
            modes = tuple(same.columns[mode] for mode in same.modes)
            if modes not in known:
                known[modes] = Passes.of(seconds, slice(None), same)
            passes = known[modes].in_chunks(seconds, same)
            bounds = (
                bounds_of_any_split(same, passes, limit_s)
                if variant.virtual_stages > 1
                else mean_rank_bounds(same, passes)
            )
            found.append(np.maximum(bounds, self.row_bounds[rows]))
        return found

    def _push_crowd(self, variant: Variant, rows: Ints, bounds: Floats) -> None:
        order = np.argsort(bounds, kind="stable")
        order = order[np.isfinite(bounds[order])]
        if len(order):
            rows, bounds = rows[order], bounds[order]
            crowd = _Crowd(float(bounds[0]), next(self._numbers), variant, rows, bounds)
            heapq.heappush(self._crowds, crowd)

    def _split_crowds(self, limit_s: float) -> None:
        """Bound the first layouts of the first crowd, and of those behind it that nothing else
        comes before.
        """
        most_s = min(limit_s, self.first_s, self._row_s)
        first, *others = heapq.nsmallest(MOST_CROWDS, self._crowds)
        crowds = [first, *(crowd for crowd in others if crowd.bound_s < most_s)]
        parts = [self._part(crowd, limit_s) for crowd in crowds]
        few = sum(len(rows) for _, rows, _ in parts) < FEW_LAYOUTS
        share = done_of_many if few else done_of_each
        found = share(lambda part: self._bounded(*part, limit_s), parts)
        # Taken out only then, so that nothing that is interrupted is lost.
        for crowd, each in zip(crowds, found, strict=True):
            number = self._number(crowd, limit_s)
            self._put(crowd.variant, each, limit_s)
            self._push_crowd(crowd.variant, crowd.rows[number:], crowd.bounds[number:])
        taken = {crowd.number for crowd in crowds}
        self._crowds = [crowd for crowd in self._crowds if crowd.number not in taken]
        heapq.heapify(self._crowds)

    def _part(self, crowd: _Crowd, limit_s: float) -> tuple[Variant, Ints, Floats]:
        """Of a crowd what is bounded now, as it was bounded before."""
        number = self._number(crowd, limit_s)
        rows, bounds = crowd.rows[:number], crowd.bounds[:number]
        asked = self._asked_for(rows, bounds)
        return crowd.variant, rows[asked], bounds[asked]

    def _number(self, crowd: _Crowd, limit_s: float) -> int:
        return min(MOST_LAYOUTS, max(1, int(np.searchsorted(crowd.bounds, limit_s))))

    def _asked_for(self, rows: Ints, bounds: Floats) -> Bools:
        """Which of `rows` may be below their own limit."""
        return bounds < (self._own_s(rows) if self._own_s else np.inf)

    def _put(
        self, variant: Variant, found: _Bounded, limit_s: float, *, filled: bool = False
    ) -> None:
        """Open the layouts below the limit; the others wait at it."""
        self.work += found.work
        waiting = found.bounds >= limit_s
        for at in np.flatnonzero(~waiting).tolist():
            row, bound_s, known = int(found.rows[at]), float(found.bounds[at]), int(found.known[at])
            order = (int(self._place[row]), self.space.variants(row).index(variant), 0)
            layout = Open(bound_s, order, row, variant, None, known, filled)
            heapq.heappush(self._layouts, layout)
        self._push_crowd(variant, found.rows[waiting], np.full(int(waiting.sum()), limit_s))

    def _bounded(self, variant: Variant, rows: Ints, least: Floats, limit_s: float) -> _Bounded:
        """`rows`, whose bounds are `least`, run as `variant` with equally many ranks; a bound that
        reaches the limit is the limit or more.
        """
        parts = [np.arange(len(rows))] if len(rows) else []
        known_of = (self.chains.count(self.shape(row, variant)) for row in rows.tolist())
        if self._listed(variant) and any(known_of):
            m = self.space.layouts.num_micro_batches[rows]
            parts = [np.flatnonzero(m == each) for each in each_once(m)]
        bounds, known, work = least.copy(), np.zeros(len(rows), np.int64), 0
        for part in parts:
            count = self.chains.count(self.shape(int(rows[part[0]]), variant))
            same = run_as(self.space, self.prices, rows[part], variant)
            closer, looked_at = self._bounds(same, rows[part], limit_s, count)
            bounds[part], known[part] = np.maximum(bounds[part], closer), count
            many = len(same.splits or ()) if same.vpp > 1 else len(same.pattern)
            work += len(part) * QUICKLY + looked_at * (CLOSELY + same.chunks * many // CELLS)
        return _Bounded(rows, bounds, known, work)

    def _listed(self, variant: Variant) -> bool:
        """Whether its cuts are those of a list."""
        return variant.virtual_stages > 1 or self.space.legality.uneven_stages != "free"

    def _bounds(
        self, same: SamePipeline, rows: Ints, limit_s: float, known: int
    ) -> tuple[Floats, int]:
        """The bounds, and how many layouts were looked at closely."""
        passes, longest = Passes.of(self.passes, rows, same), self.chains.bounds_s
        if same.vpp == 1:
            rough = simulated_bounds(same, passes, limit_s)
            bounds = cut_bounds(same, passes, rough, limit_s, longest if known else None)
            return bounds, int((rough < limit_s).sum())
        return bounds_of_splits(same, passes, limit_s, longest if known else None)

    def bounded_anew(self, limit_s: float) -> bool:
        """Bound the first again, and what is like it, if chains of its shape were learnt since."""
        first = self._layouts[0]
        shape = self.shape(first.row, first.variant)
        if first.cut is not None or first.known == self.chains.count(shape):
            return False
        if not self._listed(first.variant):
            return False
        alike = [
            each for each in self._layouts
            if each.cut is None and each.known == first.known and each.bound_s < limit_s
            and each.variant == first.variant and self.shape(each.row, each.variant) == shape
        ]  # fmt: skip
        rows, least = np.array([each.row for each in alike]), [each.bound_s for each in alike]
        found = self._bounded(first.variant, rows, np.array(least), limit_s)
        self._put_again(alike, found, limit_s)
        return True

    def _filled(self, limit_s: float) -> bool:
        """Bound the first and the next like it by what each rank of each split must recompute,
        which takes little longer than for the first alone: most are above the limit then.
        """
        first = self._layouts[0]
        variant, pp = first.variant, self.space.layouts.pipeline_parallel
        if first.filled or first.cut or variant.virtual_stages == 1 or variant.first:
            return False
        alike = heapq.nsmallest(MOST_FILLED, (
            each for each in self._layouts
            if each.cut is None and not each.filled and each.bound_s < limit_s
            and each.variant == variant and pp[each.row] == pp[first.row]
        ))  # fmt: skip
        if len(alike) < FEWEST_FILLED:
            return False
        rows = np.array([each.row for each in alike])
        same = run_as(self.space, self.prices, rows, variant)
        passes, bounds = Passes.of(self.passes, rows, same), np.full(len(rows), limit_s)
        np.minimum.at(bounds, *split_bounds_s(same, passes, limit_s)[1:3])
        bounds = np.maximum(bounds, [each.bound_s for each in alike])
        work = len(rows) * (CLOSELY + same.chunks * len(same.splits or ()))
        known = np.array([each.known for each in alike])
        self._put_again(alike, _Bounded(rows, bounds, known, work), limit_s, filled=True)
        return True

    def _put_again(
        self, alike: list[Open], found: _Bounded, limit_s: float, *, filled: bool = False
    ) -> None:
        """Open layouts again, with other bounds."""
        again = {each.order for each in alike}
        self._layouts = [each for each in self._layouts if each.order not in again]
        heapq.heapify(self._layouts)
        self._put(alike[0].variant, found, limit_s, filled=filled)

    def shape(self, row: int, variant: Variant) -> Shape:
        """What decides the order of a layout's actions."""
        layouts = self.space.layouts
        pp, m = int(layouts.pipeline_parallel[row]), int(layouts.num_micro_batches[row])
        return variant.schedule, pp, variant.virtual_stages, m
