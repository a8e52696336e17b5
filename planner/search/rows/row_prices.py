"""The prices of the rows of a space, found in the order in which they may be asked for.

A row's prices take some 350 bytes and most of the time that is spent on it, and of a large space
few rows are ever opened. Where each row has a least time that costs little, rows are priced in its
order, as far as is asked. Of the first their prices stay; of the others their bound, and whether
they may fit, and they are priced again when they are opened.
"""

from functools import cached_property
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layouts import Floats, Ints, each_once
from meshplan.planner.bounds.inner import row_bounds, row_fits
from meshplan.planner.problem.coefficients import NS_PER_S, Coefficients
from meshplan.planner.processes.second_core import blocks, done_of_each
from meshplan.planner.search.rows.priced_space import (
    Pricer,
    Question,
    may_hold,
    price_space,
)
from meshplan.planner.space.legal_layouts import Space

ALL = 16_384  # rows whose prices are all kept
TOGETHER = 16_384  # rows that are priced at a time, in order
AHEAD = 4096  # rows that are priced again together when one of them is opened
GLANCE = 65_536  # rows of which it is found at once whether they may fit: a glance has its own cost
UNKNOWN, FITS, MISFIT = 0, 1, 2


class _Fitting(NamedTuple):
    """Of rows that were priced together those that may fit, their bounds and prices."""

    rows: Ints
    bounds: Floats
    prices: Coefficients | None


class RowPrices:
    """Which rows may fit, in order of their bounds (`planner.bounds.inner`), and prices of any row.

    busy_ns  of each row, below which no step of its plans is; None: they are priced at once. Bounds
             of the closed form that are below it (some of V shapes) are raised to it
    rows     those that may fit, of those that are priced, in order of `bounds`. The first of them
             are settled: no row that is not priced comes before

    What is kept of each row is zeros at first, which take no memory until they are written.
    """

    def __init__(
        self, question: Question, space: Space, price: Pricer, busy_ns: Floats | None = None
    ) -> None:
        self.question, self.space, self.price = question, space, price
        number = len(space.layouts)
        self.is_busy = busy_ns is not None
        self.busy_ns = np.zeros(number) if busy_ns is None else busy_ns
        self._order = np.argsort(self.busy_ns, kind="stable").astype(np.int32)
        self._priced = 0  # of the order
        self.rows, self.bounds = np.zeros(0, np.int64), np.zeros(number)
        self._place, self._fits = np.zeros(number, np.int32), np.zeros(number, np.int8)
        self._seen = 0  # of the order: whether these may fit is known
        self._held: Coefficients | None = None
        if busy_ns is None:
            self._price_next(number)

    @property
    def _next(self) -> float:
        """The least time of the rows that are not priced, infinite where all are."""
        left = self._in_order(self._priced, self._priced + 1)
        return float(self.busy_ns[left[0]]) if len(left) else np.inf

    @property
    def priced(self) -> Ints:
        """The rows that are priced."""
        return self._in_order(0, self._priced)

    def _in_order(self, first: int, end: int | None = None) -> Ints:
        """A part of the order, which is kept in 32 bits."""
        return self._order[first:end].astype(np.int64)

    def settle(self, number: int, below_ns: int | None = None) -> None:
        """Price on until the first `number` of `rows` are settled, or all below a limit."""
        limit = np.inf if below_ns is None else below_ns
        while self._next < limit and not self._settled(number):
            self._price_next(TOGETHER)

    def _settled(self, number: int) -> bool:
        last = self.rows[number - 1 : number]
        return len(last) == 1 and float(self.bounds[last[0]]) < self._next

    def _price_next(self, number: int) -> None:
        """Price some more of the order."""
        settled = self.rows[self.bounds[self.rows] < self._next]
        some = self._in_order(self._priced, self._priced + number)
        self._look_ahead(self._priced + number)
        may = some[self._fits[some] != MISFIT]
        firsts, kept = blocks(len(may), TOGETHER), self._priced < ALL
        found = done_of_each(
            lambda first: self._fitting(may[first : first + firsts.step], kept), firsts
        )
        self._fits[some] = MISFIT
        for block in found:
            self._fits[block.rows] = FITS
            self.bounds[block.rows] = block.bounds
            if block.prices is not None:
                self._keep(block.rows, block.prices)
        left = np.sort(np.concatenate([self.rows[len(settled) :], *(each.rows for each in found)]))
        left = left[np.argsort(self.bounds[left], kind="stable")]
        self.rows, self._priced = np.concatenate([settled, left]), self._priced + len(some)

    def _look_ahead(self, number: int) -> None:
        """Find which of the first `number` of the order may fit, and of as many more as are known:
        where hardly any does, many will be asked for.
        """
        if not self.is_busy or number <= self._seen:
            return
        end = max(number, min(2 * self._seen, self._seen + 2 * GLANCE))
        some = self._in_order(self._seen, end)
        firsts = blocks(len(some), GLANCE)
        parts = [some[first : first + firsts.step] for first in firsts]
        self._fits[some] = MISFIT
        for fit in done_of_each(lambda part: may_hold(self.question, self.space, part), parts):
            self._fits[fit] = FITS
        self._seen += len(some)

    def _fitting(self, rows: Ints, kept: bool) -> _Fitting:
        """Those of `rows` that may fit, with their bounds; and their prices if these are kept."""
        rows, prices = self.fitting(rows)
        bounds = np.maximum(row_bounds(self.space.take(rows), prices), self.busy_ns[rows])
        return _Fitting(rows, bounds, prices if kept else None)

    def unpriced(self, below_ns: int | None) -> Ints:
        """The rows that are not priced and may be below a limit, in their order."""
        left = self._in_order(self._priced)
        return left if below_ns is None else left[: np.searchsorted(self.busy_ns[left], below_ns)]

    def below(self, limit_s: float) -> Ints:
        """The rows that are not surely slower."""
        return np.flatnonzero(self.busy_ns < limit_s * NS_PER_S)

    def that_fit(self, rows: Ints) -> Ints:
        """Those of `rows` that may fit."""
        fits = self._fits[rows]
        new = rows[fits == UNKNOWN]
        held = self._place[new] > 0
        found = [self._that_fit(each) for each in (new[held], new[~held]) if len(each)]
        return np.sort(np.concatenate([rows[fits == FITS], *found]))

    def fitting(self, rows: Ints) -> tuple[Ints, Coefficients]:
        """Those of `rows` that may fit, with their prices."""
        if self.is_busy or self.holds(rows):
            rows = self.that_fit(rows)
            return rows, self.of_each(rows)
        prices = self._prices_of(rows)
        fit = np.flatnonzero(row_fits(self.space.take(rows), prices))
        return rows[fit], prices.take(fit)

    def of_each(self, rows: Ints) -> Coefficients:
        """The prices of `rows`, in their order: those that are not held are not kept."""
        held = self._place[rows] > 0
        if held.all() or not held.any():
            return self.take(rows) if held.any() else self._prices_of(rows)
        parts = [self.take(rows[held]), self._prices_of(rows[~held])]
        places = np.concatenate([np.flatnonzero(held), np.flatnonzero(~held)])
        return Coefficients.joined(parts).take(np.argsort(places))

    def _that_fit(self, rows: Ints) -> Ints:
        """Those of `rows` that may fit: all are held, or none is."""
        if self.is_busy and not self.holds(rows):  # else prices are made up
            return may_hold(self.question, self.space, rows)
        return rows[row_fits(self.space.take(rows), self.of_each(rows))]

    def hold(self, rows: Ints) -> None:
        """Price those of `rows`, all different, that are not priced yet."""
        new = rows[self._place[rows] == 0]
        if len(new):
            self._keep(new, self._prices_of(new))

    def _keep(self, rows: Ints, prices: Coefficients) -> None:
        kept = 0 if self._held is None else len(self._held.fixed_kib)
        self._place[rows] = kept + 1 + np.arange(len(rows))
        self._held = prices if self._held is None else Coefficients.joined([self._held, prices])

    def holds(self, rows: Ints) -> bool:
        """Whether all of `rows` are priced."""
        return bool(self._place[rows].all())

    def take(self, rows: Ints) -> Coefficients:
        """The prices of `rows`; of many that are not held they are not kept."""
        if not self.holds(rows):
            if len(rows) > AHEAD:
                return self._prices_of(rows)
            self.hold(each_once(rows))
        held = self._held if self._held is not None else self._prices_of(rows)
        return held.take(self._place[rows].astype(np.int64) - 1)

    def _prices_of(self, rows: Ints) -> Coefficients:
        if not len(rows):
            return self._of_none
        return price_space(self.question, self.space.take(rows), self.price)

    @cached_property
    def _of_none(self) -> Coefficients:
        """The prices of no rows: tables have an entry at least."""
        first = self._in_order(0, 1)
        return self._prices_of(first).take(first[:0])
