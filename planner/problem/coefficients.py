"""Prices in whole numbers: the columns of `costmodels.prices.prices.Prices` in ns and KiB.

Seconds become nanoseconds, bytes KiB. The accelerator's capacity is rounded down, all other bytes
are rounded up, so that what fits here fits there, or down, so that what fits there fits here
(`planner.search.both_roundings`). Coarser units move the optimum (ms and MiB by 0.3 to 1.5 %),
finer ones overflow.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.layouts import Floats, Ints, packed_column
from meshplan.costmodels.prices.prices import Prices
from meshplan.costmodels.schedule.in_flight import ZERO_BUBBLE
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.planner.problem.closed_form import ClosedForm, Passes, closed_form

KIB = 1024
EVERY = slice(None)
NS_PER_S = 1e9
ABSENT = 2**50  # a price that is no finite 64-bit number: the mode or layout cannot be run


class Priced(Protocol):
    """Rows whose prices can be looked up."""

    def take(self, rows: Ints) -> "Coefficients":
        """The prices of some of the rows."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """The columns of `Prices` as integers, named as there with `_ns` and `_kib`."""

    layer_ns: Ints
    layer_saved_kib: Ints
    layer_state_kib: Ints
    layer_update_kib: Ints
    layer_deferred_kib: Ints
    layer_waiting_kib: Ints
    put_off_kib: Ints
    layer_step_ns: Ints
    transient_kib: Ints
    embedding_ns: Ints
    embedding_saved_kib: Ints
    embedding_state_kib: Ints
    embedding_update_kib: Ints
    embedding_step_ns: Ints
    head_ns: Ints
    head_saved_kib: Ints
    head_state_kib: Ints
    head_update_kib: Ints
    head_step_ns: Ints
    head_transient_kib: Ints
    send_ns: Ints
    forward_ns: Ints
    input_grad_ns: Ints
    weight_grad_ns: Ints
    fixed_kib: Ints
    fixed_step_ns: Ints
    cap_kib: int
    rounded_up: bool = True

    @classmethod
    def of(cls, prices: Prices, *, up: bool = True) -> Self:
        """Round `prices`, bytes `up` or down."""
        columns = {}
        whole = np.ceil if up else np.floor
        for field in fields(prices):
            name, value = field.name, getattr(prices, field.name)
            if name.endswith("_s"):
                columns[name.removesuffix("_s") + "_ns"] = _rounded(np.rint(value * NS_PER_S))
            elif name.endswith("_bytes") and name != "capacity_bytes":
                columns[name.removesuffix("_bytes") + "_kib"] = _rounded(whole(value / KIB))
        return cls(**columns, cap_kib=int(prices.capacity_bytes // KIB), rounded_up=up)

    @classmethod
    def joined(cls, parts: Iterable[Self]) -> Self:
        """The rows of all `parts`, one after the other. Each column of the parts is let go when it
        is joined, so that no two copies of all are in memory.
        """
        columns: dict[str, list[Ints]] = {name: [] for name in COLUMNS}
        for part in parts:
            cap_kib, up = part.cap_kib, part.rounded_up
            for name in COLUMNS:
                columns[name].append(getattr(part, name))
            del part
        whole = {name: np.concatenate(columns.pop(name)) for name in COLUMNS}
        return cls(**whole, cap_kib=cap_kib, rounded_up=up)

    def take(self, rows: Ints | slice) -> Self:
        """Some of the rows, in 64 bits."""
        columns: dict[str, Any] = {
            name: getattr(self, name)[rows].astype(np.int64, copy=False) for name in COLUMNS
        }
        return replace(self, **columns)

    def packed(self) -> Self:
        """The same in as few bytes as hold them, to `take` rows from: sums need 64 bits."""
        columns: dict[str, Any] = {name: packed_column(getattr(self, name)) for name in COLUMNS}
        return replace(self, **columns)

    def recomputing(self, columns: tuple[int, int, int]) -> Self:
        """With three recompute modes: those of these `columns`."""
        if self.layer_ns.shape[2] == len(columns):
            return self
        three = list(columns)
        return replace(
            self,
            layer_ns=self.layer_ns[:, :, three],
            layer_saved_kib=self.layer_saved_kib[:, :, three],
            transient_kib=self.transient_kib[:, three],
        )

    def held_as(self, schedule: Schedule) -> Self:
        """The memory of layers under `schedule`: a zero-bubble one holds a micro-batch until W, and
        from I to W its inputs and output gradients instead of what was saved.

        An upper bound: each micro-batch in flight counts with the larger of the two.
        """
        if schedule not in ZERO_BUBBLE:
            return self
        return replace(
            self,
            layer_saved_kib=np.maximum(self.layer_saved_kib, self.layer_deferred_kib[:, :, None]),
            layer_state_kib=self.layer_state_kib + self.layer_waiting_kib,
            transient_kib=self.transient_kib + self.put_off_kib[:, None],
        )

    @property
    def waits_apart(self) -> bool:
        """Whether micro-batches that await their weight gradient hold `layer_deferred_kib`, and
        others what was saved; else all hold the larger of both.
        """
        return False

    def form(
        self, schedule: Schedule, pp: int, vpp: int, m: Ints, rows: Ints | slice = EVERY
    ) -> ClosedForm[Ints]:
        """The closed form of each of `rows` run as one schedule."""
        half = pp * vpp * self.send_ns[rows] // 2
        forward, backward = self.forward_ns[rows] + half, self.input_grad_ns[rows] + half
        return closed_form(
            schedule, pp, vpp, m, Passes(forward, backward, self.weight_grad_ns[rows])
        )


COLUMNS = tuple(
    field.name for field in fields(Coefficients) if field.name not in ("cap_kib", "rounded_up")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The columns of `Coefficients` that a rank's memory is summed from."""

    layer_saved_kib: Ints
    layer_state_kib: Ints
    transient_kib: Ints
    embedding_saved_kib: Ints
    embedding_state_kib: Ints
    head_saved_kib: Ints
    head_state_kib: Ints
    head_transient_kib: Ints
    fixed_kib: Ints
    cap_kib: int

    @classmethod
    def of(cls, columns: Mapping[str, Floats], capacity_bytes: float, *, up: bool = True) -> Self:
        """Round the bytes that are named as in `Prices`."""
        whole = np.ceil if up else np.floor
        names = [field.name for field in fields(cls) if field.name != "cap_kib"]
        kib = {
            name: _rounded(whole(columns[name.removesuffix("_kib") + "_bytes"] / KIB))
            for name in names
        }
        return cls(**kib, cap_kib=int(capacity_bytes // KIB))


def reserved_bytes(peak_kib: int) -> float:
    """`peak_kib` in bytes: prices hold the allocator's slack and what lives outside it."""
    return float(peak_kib * KIB)


def _rounded(values: NDArray[np.float64]) -> Ints:
    return np.where(values < 2**62, values, ABSENT).astype(np.int64)  # nan is not less
