"""Columns of layouts that grow axis by axis and shrink rule by rule."""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from meshplan.costmodels.layouts import Ints
from meshplan.planner.space.pins import Pins

PINNED = "pinned: "
"""Begins the reason of rows that a pin of the user's excludes."""


class Funnel:
    """Columns that grow axis by axis and shrink rule by rule."""

    def __init__(self, pins: Pins) -> None:
        self.pins = pins
        self.columns: dict[str, Ints] = {}
        self.whole: type[np.int32 | np.int64] = np.int64
        self.dropped: dict[str, int] = {}

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, axis: str) -> Ints:
        return self.columns[axis]

    def multiply(self, axis: str, options: Ints) -> None:
        """Every row once with each of `options`."""
        rows = len(self) if self.columns else 1
        self.columns = {name: np.repeat(c, len(options)) for name, c in self.columns.items()}
        self.columns[axis] = np.tile(np.asarray(options, self.whole), rows)

    def narrow(self) -> None:
        """Take half the memory, once no product of columns is beyond 32 bits."""
        self.whole = np.int32
        self.columns = {name: column.astype(np.int32) for name, column in self.columns.items()}

    def parts(self, rows: int) -> Iterator["Funnel"]:
        """Some of its rows after the other, which count what they drop themselves."""
        for first in range(0, max(len(self), 1), rows):
            part = Funnel(self.pins)
            part.whole = self.whole
            part.columns = {name: c[first : first + rows] for name, c in self.columns.items()}
            yield part

    def count(self, dropped: Mapping[str, int]) -> None:
        """What a part has dropped counts as its own."""
        for reason, rows in dropped.items():
            self.dropped[reason] = self.dropped.get(reason, 0) + rows

    def keep(self, legal: NDArray[np.bool_], reason: str) -> None:
        """Only the rows that are `legal`; the others are counted under `reason`."""
        dropped = int(len(legal) - np.count_nonzero(legal))
        if dropped:
            self.count({reason: dropped})
            self.columns = {name: c[legal] for name, c in self.columns.items()}

    def keep_pinned(self, axis: str) -> None:
        """Only the rows that the user's pin on `axis` allows."""
        if pin := self.pins.axes.get(axis):
            self.keep(pin.allows_each(self[axis]), f"{PINNED}{axis} {pin.text}")

    def is_pinned(self, axis: str) -> bool:
        """Whether the user pinned `axis`, which lifts its default range."""
        return axis in self.pins.axes
