"""Prices whose memory is not above what ranks hold, where every moment is counted.

Of `Coefficients` what a layer saves is what it holds, to a KiB; in zero-bubble schedules a
micro-batch that waits for its weight gradient holds other bytes, those of the ends no more, and
counts with the smaller of both. States are without weights gathered beside them, and a pass takes what that of the lightest
layer does (`costmodels.step.prices.least_memory_bytes`).
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.layouts import Floats, Ints, Layouts
from meshplan.costmodels.schedule.in_flight import ZERO_BUBBLE
from meshplan.costmodels.step.prices import least_memory_bytes
from meshplan.costmodels.step.setting import Setting
from meshplan.planner.problem.coefficients import KIB, Coefficients, Priced

NOT_PAID = (
    "layer_deferred_kib", "layer_waiting_kib", "put_off_kib", "head_transient_kib",
    "layer_update_kib", "embedding_update_kib", "head_update_kib",
)  # fmt: skip
"""Columns of what is held at other moments, or in another place."""
STATES = ("layer_state", "embedding_state", "head_state", "fixed")


class LeastHeld:
    """The prices of some `rows`, all different, of `layouts`; under a schedule if it is said."""

    def __init__(self, prices: Priced, layouts: Layouts, setting: Setting, rows: Ints) -> None:
        self.prices, self._place = prices, np.zeros(len(layouts), np.int64)
        self._place[rows] = np.arange(len(rows))
        self._columns = least_memory_bytes(layouts.take(rows), setting) if len(rows) else {}

    def under(self, schedule: Schedule) -> "_Under":
        """As the schedule holds them."""
        return _Under(self, schedule)

    def kib(self, name: str, rows: Ints) -> Ints:
        """A column of bytes, rounded down."""
        column: Floats = self._columns[name + "_bytes"][self._place[rows]]
        return np.floor(column / KIB).astype(np.int64)


class _Under(NamedTuple):
    """`LeastHeld` under one schedule."""

    least: LeastHeld
    schedule: Schedule

    def take(self, rows: Ints) -> Coefficients:
        """The prices of some of the rows."""
        c, waits = self.least.prices.take(rows), self.schedule in ZERO_BUBBLE
        saved, passing = c.layer_saved_kib, self.least.kib("transient", rows)
        if waits:
            saved = np.minimum(saved, c.layer_deferred_kib[:, :, None])
            passing = np.minimum(passing, self.least.kib("put_off", rows))
        none = {name: np.zeros_like(getattr(c, name)) for name in NOT_PAID}
        states = {f"{name}_kib": self.least.kib(name, rows) for name in STATES}
        return replace(
            c,
            layer_saved_kib=np.maximum(saved - 1, 0),
            embedding_saved_kib=np.maximum(c.embedding_saved_kib - 1, 0) * (not waits),
            head_saved_kib=np.maximum(c.head_saved_kib - 1, 0) * (not waits),
            transient_kib=np.repeat(np.maximum(passing, 0)[:, None], c.transient_kib.shape[1], 1),
            **states,
            **none,
        )
