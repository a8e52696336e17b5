"""The prices of the rows of a space: of a large one only bounds are kept, and what is asked for.

A row's prices take some 350 bytes, and of a large space few rows are ever opened: it is priced in
blocks, of which the bound and whether a row may fit stay, and rows are priced again when they are
opened.
"""

from functools import partial

import numpy as np

from meshplan.costmodels.layouts import Bools, Floats, Ints, each_once
from meshplan.planner.bounds.inner import row_bounds, row_fits
from meshplan.planner.problem.coefficients import Coefficients
from meshplan.planner.search.priced_space import ROWS_PER_PRICE, Pricer, Question, price_space
from meshplan.planner.search.second_core import blocks, done_of_each
from meshplan.planner.space.legal_layouts import Space

ALL = 65_536  # rows whose prices are all kept
AHEAD = 4096  # that are priced together when one of them is opened


class RowPrices:
    """`bounds` and `fits` of every row (`planner.bounds.inner`), and the prices of those asked for.

    cap_kib  what a plan may fill of a GPU
    """

    def __init__(self, question: Question, space: Space, price: Pricer) -> None:
        self.question, self.space, self.price = question, space, price
        rows = len(space.layouts)
        self._slot = np.full(rows, -1, np.int32)
        if rows <= ALL:
            self._held = price_space(question, space, price)
            self._slot[:] = np.arange(rows)
            self.bounds, self.fits = row_bounds(space, self._held), row_fits(space, self._held)
        else:
            self._held = self._priced(np.arange(1)).take(np.arange(0))
            firsts = blocks(rows, ROWS_PER_PRICE)
            parts = done_of_each(partial(self._bounded, firsts.step), firsts)
            self.bounds, self.fits = map(np.concatenate, zip(*parts, strict=True))
        self.cap_kib = self._held.cap_kib

    def _bounded(self, rows: int, first: int) -> tuple[Floats, Bools]:
        """The bounds of a block of rows, and whether each may fit."""
        part = self.space.take(np.arange(first, min(first + rows, len(self._slot))))
        prices = price_space(self.question, part, self.price)
        return row_bounds(part, prices), row_fits(part, prices)

    def hold(self, rows: Ints) -> None:
        """Price those of `rows`, all different, that are not priced yet."""
        new = rows[self._slot[rows] < 0]
        if len(new):
            self._slot[new] = len(self._held.fixed_kib) + np.arange(len(new))
            self._held = Coefficients.joined([self._held, self._priced(new)])

    def holds(self, rows: Ints) -> bool:
        """Whether all of `rows` are priced."""
        return bool((self._slot[rows] >= 0).all())

    def take(self, rows: Ints) -> Coefficients:
        """The prices of `rows`; of many that are not held they are not kept."""
        if not self.holds(rows):
            if len(rows) > AHEAD:
                return self._priced(rows)
            self.hold(each_once(rows))
        return self._held.take(self._slot[rows].astype(np.int64))

    def _priced(self, rows: Ints) -> Coefficients:
        return price_space(self.question, self.space.take(rows), self.price)
