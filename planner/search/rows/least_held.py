"""Prices whose memory is not above what ranks hold, where every moment is counted.

What a layer saves is taken from `Coefficients`, less a KiB of rounding. In zero-bubble schedules a
micro-batch that waits for its weight gradient holds other bytes, and nothing of the embedding and
the head. In V shapes it counts apart (`planner.problem.pipeline_shape.apart`); in zb_h1 each counts
with the smaller of what it holds before and after its backward. States count without weights
gathered beside them, and a pass takes what the lightest layer's takes, with its gradient whole
(`costmodels.prices.prices.least_memory_bytes`).
"""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Self

import numpy as np

from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.layouts import Bools, Floats, Ints, Layouts
from meshplan.costmodels.prices.memory import least_columns
from meshplan.costmodels.prices.prices import (
    bytes_beside_one_layer,
    least_memory_bytes,
    lowest_memory_bytes,
    mean_states_bytes,
)
from meshplan.costmodels.schedule.in_flight import ZERO_BUBBLE
from meshplan.costmodels.schedule.orders import V_SHAPED
from meshplan.costmodels.setting import Setting
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.planner.bounds.inner import row_fits
from meshplan.planner.bounds.simulated import SAFETY
from meshplan.planner.problem.coefficients import KIB, Coefficients, Held, Priced
from meshplan.planner.search.rows.row_prices import RowPrices
from meshplan.planner.space.legal_layouts import Space

NOT_PAID = (
    "layer_waiting_kib", "layer_update_kib", "embedding_update_kib", "head_update_kib",
)  # fmt: skip
"""Columns of what is held at other moments, or in another place."""
MOST_ROWS = 65_536  # rows that may be faster, all of which are looked at by every moment
MOST_REFUSED = 4_096  # rows that are looked at where nothing fits by the bound
SAVED = ("layer_saved_kib", "embedding_saved_kib", "head_saved_kib")
STATES = ("layer_state", "embedding_state", "head_state", "fixed")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastCoefficients(Coefficients):
    """`put_off_kib` is what a pass takes where weight products are put off."""

    @property
    def waits_apart(self) -> bool:
        """What is late holds no more than `layer_deferred_kib`."""
        return True

    def held_as(self, schedule: Schedule) -> Self:
        """As the schedule holds them; no more than that."""
        if schedule in ("1f1b", "gpipe"):
            return self
        if schedule not in ZERO_BUBBLE:  # the fullest moment need not be the head's
            return replace(self, head_transient_kib=np.zeros_like(self.head_transient_kib))
        if schedule in V_SHAPED:
            return replace(
                self,
                transient_kib=np.minimum(self.transient_kib, self.put_off_kib[:, None]),
                head_transient_kib=np.zeros_like(self.head_transient_kib),
            )
        return replace(
            self,
            layer_saved_kib=np.minimum(self.layer_saved_kib, self.layer_deferred_kib[:, :, None]),
            embedding_saved_kib=np.zeros_like(self.embedding_saved_kib),
            head_saved_kib=np.zeros_like(self.head_saved_kib),
            transient_kib=np.minimum(self.transient_kib, self.put_off_kib[:, None]),
        )


class ColumnsOfRows:
    """Columns of bytes that are priced of some `rows` of `layouts` alone, all different."""

    def __init__(
        self,
        layouts: Layouts,
        setting: Setting,
        rows: Ints,
        priced: Callable[[Layouts, Setting], dict[str, Floats]],
    ) -> None:
        self._place = np.zeros(len(layouts), np.int64)
        self._place[rows] = np.arange(len(rows))
        self._columns = priced(layouts.take(rows), setting) if len(rows) else {}

    def kib(self, name: str, rows: Ints) -> Ints:
        """One of them, rounded down."""
        column: Floats = self._columns[name + "_bytes"][self._place[rows]]
        return np.maximum(np.floor(column / KIB), 0).astype(np.int64)


class LeastHeld:
    """Of some `rows`, all different, of `layouts`."""

    def __init__(self, prices: Priced, layouts: Layouts, setting: Setting, rows: Ints) -> None:
        self.prices = prices
        self._kib = ColumnsOfRows(layouts, setting, rows, least_memory_bytes).kib

    def take(self, rows: Ints) -> LeastCoefficients:
        """The prices of some of the rows."""
        c = self.prices.take(rows)
        columns = {each.name: getattr(c, each.name) for each in fields(c)}
        columns |= {name: np.zeros_like(columns[name]) for name in NOT_PAID}
        columns |= {
            f"{name}_kib": self._kib(name, rows) for name in (*STATES, "put_off", "head_transient")
        }
        modes, passing = c.transient_kib.shape[1], self._kib("transient", rows)
        columns["transient_kib"] = np.repeat(passing[:, None], modes, axis=1)
        for name in (*SAVED, "layer_deferred_kib"):
            columns[name] = np.maximum(columns[name] - 1, 0)
        return LeastCoefficients(**columns)


def rows_that_may_fit(space: Space, setting: Setting) -> Ints:
    """The rows of a small space that may fit when every moment is counted; none of a large one."""
    rows = np.arange(len(space.layouts))
    if not 0 < len(rows) <= MOST_REFUSED:
        return rows[:0]
    return rows[rows_may_fit(space.take(rows), setting)]  # taken: in 64 bits


def rows_may_fit(space: Space, setting: Setting) -> Bools:
    """Whether each row may, by bytes alone: by the states of its mean rank, by each layer on a rank
    of its own, then by what all ranks hold.
    """
    fits = mean_states_bytes(space.layouts, setting) * SAFETY <= setting.cluster.fillable_bytes
    for may in (_each_layer_may_fit, _all_may_fit):
        rows = np.flatnonzero(fits)
        fits[rows] = may(space.take(rows), setting) if len(rows) else False
    return fits


def _each_layer_may_fit(space: Space, setting: Setting) -> Bools:
    """Whether a layer of every kind may, on some rank. Of what is kept on the host it is not known:
    passes are not counted there.
    """
    needs = bytes_beside_one_layer(space.layouts, setting).max(axis=1)
    fits: Bools = needs * SAFETY <= setting.cluster.fillable_bytes
    return fits | (space.layouts.activation_offload > 0)


def _all_may_fit(space: Space, setting: Setting) -> Bools:
    """Whether all layers may; zb_h1 holds least (`LeastCoefficients.held_as`)."""
    lowest = lowest_memory_bytes(space.layouts, setting, least_columns)
    less = {name: np.maximum(each - KIB, 0.0) for name, each in lowest.items()}
    saved, nothing = less["layer_saved_bytes"], np.zeros(len(space.layouts))
    passing = np.minimum(less["transient_bytes"], less["put_off_bytes"])
    less |= {
        "layer_saved_bytes": np.minimum(saved, less["layer_deferred_bytes"][:, :, None]),
        "transient_bytes": np.repeat(passing[:, None], saved.shape[2], axis=1),
        "embedding_saved_bytes": nothing,
        "head_saved_bytes": nothing,
    }
    return row_fits(space, Held.of(less, setting.cluster.fillable_bytes))


class CountedRows:
    """The rows that may fit by their prices or by every moment (`rows_below.Source`). Of many rows
    those of one pipeline rank alone by every moment: then not `all_degrees` are among them.
    """

    def __init__(self, space: Space, prices: RowPrices, setting: Setting) -> None:
        self.space, self.prices, self.setting = space, prices, setting
        self.all_degrees = True

    def below(self, limit_s: float) -> Ints:
        """The rows that are not surely slower."""
        rows = self.prices.below(limit_s)
        self.all_degrees = len(rows) <= MOST_ROWS
        return rows

    def that_fit(self, rows: Ints) -> Ints:
        """Those of `rows` that may fit."""
        if self.all_degrees:
            return self._that_may_fit(rows)
        alone = self.space.layouts.pipeline_parallel[rows] == 1
        found, more = self.prices.that_fit(rows[~alone]), self._that_may_fit(rows[alone])
        return np.sort(np.concatenate([found, more]))

    def of_each(self, rows: Ints) -> Coefficients:
        """The prices of `rows`."""
        return self.prices.of_each(rows)

    def _that_may_fit(self, rows: Ints) -> Ints:
        """Those of `rows` that may by every moment."""
        return rows[rows_may_fit(self.space.take(rows), self.setting)] if len(rows) else rows
