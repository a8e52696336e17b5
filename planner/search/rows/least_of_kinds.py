"""Prices whose memory is not above what ranks need, where layers are of several kinds.

The columns of `Coefficients` have a rank pay for the largest kind of layer, whether it holds one or
not: a bound that may leave out what fits. Here it pays for the least
(`costmodels.prices.kind_memory`), each part less a KiB of rounding.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layouts import Bools, Ints, Layouts
from meshplan.costmodels.prices.kind_memory import least_of_kinds
from meshplan.costmodels.prices.prices import (
    bytes_of_each_kind,
    least_bytes_of_kinds,
    lowest_memory_bytes,
    mean_states_bytes,
)
from meshplan.costmodels.setting import Setting
from meshplan.planner.bounds.inner import row_fits
from meshplan.planner.bounds.simulated import SAFETY
from meshplan.planner.problem.coefficients import KIB, Coefficients, Held, Priced
from meshplan.planner.search.rows.least_held import MOST_REFUSED, ColumnsOfRows
from meshplan.planner.search.rows.row_prices import RowPrices
from meshplan.planner.space.legal_layouts import Space

LEAST = (
    "transient", "head_transient", "embedding_state", "embedding_update", "head_state", "fixed",
)  # fmt: skip
SUMMED = (
    "layer_saved_kib", "layer_state_kib", "layer_update_kib", "embedding_saved_kib",
    "head_saved_kib", "head_update_kib",
)  # fmt: skip
"""Columns that hold for a kind as they are, but for rounding."""


class LeastOfKinds:
    """Of some `rows`, all different, of `layouts`."""

    def __init__(self, prices: Priced, layouts: Layouts, setting: Setting, rows: Ints) -> None:
        self.prices, self._layouts, self._setting = prices, layouts, setting
        self._kib = ColumnsOfRows(layouts, setting, rows, least_bytes_of_kinds).kib

    def take(self, rows: Ints) -> Coefficients:
        """The prices of some of the rows."""
        c = self.prices.take(rows)
        columns = {name: np.maximum(getattr(c, name) - 1, 0) for name in SUMMED}
        columns |= {f"{name}_kib": self._kib(name, rows) for name in LEAST}
        return replace(c, **columns)

    def kib_by_kind(self, rows: Ints) -> Ints:
        """[row, part] what a rank's need is made of: of rows that are compared with each other."""
        found = bytes_of_each_kind(self._layouts.take(rows), self._setting)
        return np.floor(found / KIB).astype(np.int64)

    def below_priced(self, rows: Ints) -> Bools:
        """[row, column of modes] whether some rank may need less than is priced, but for rounding,
        if layers are in that mode.
        """
        c = self.prices.take(rows)
        rounding = int(c.rounded_up)
        lower = {
            name: getattr(c, f"{name}_kib") - self._kib(name, rows) > rounding for name in LEAST
        }
        found: Bools = lower.pop("transient")
        for each in lower.values():
            found = found | each[:, None]
        return found


class RowsOfKinds(NamedTuple):
    """The rows that may fit when a rank pays for the kinds that it holds (`rows_below.Source`)."""

    space: Space
    prices: RowPrices
    setting: Setting

    def below(self, limit_s: float) -> Ints:
        """The rows that are not surely slower."""
        return self.prices.below(limit_s)

    def that_fit(self, rows: Ints) -> Ints:
        """Those of `rows` that may fit."""
        kept = mean_states_bytes(self.space.layouts.take(rows), self.setting) * SAFETY
        rows = rows[kept <= self.setting.cluster.fillable_bytes]
        return rows[rows_of_kinds_may_fit(self.space.take(rows), self.setting)]

    def of_each(self, rows: Ints) -> Coefficients:
        """The prices of `rows`."""
        return self.prices.of_each(rows)


def rows_of_kinds_may_fit(space: Space, setting: Setting) -> Bools:
    """Whether each row may, by the least that its ranks need."""
    if not len(space.layouts):
        return np.zeros(0, bool)
    lowest = lowest_memory_bytes(space.layouts, setting, least_of_kinds)
    least = {name: np.maximum(each - KIB, 0.0) for name, each in lowest.items()}
    return row_fits(space, Held.of(least, setting.cluster.fillable_bytes))


def rows_of_kinds_that_may_fit(space: Space, setting: Setting) -> Ints:
    """Of a small space all that may; none of a large one."""
    rows = np.arange(len(space.layouts))
    return (
        rows[rows_of_kinds_may_fit(space.take(rows), setting)]
        if len(rows) <= MOST_REFUSED
        else rows[:0]
    )
