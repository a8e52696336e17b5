"""The ways to recompute a run of layers: some in full, then some selectively, the rest keep all."""

from functools import cache
from typing import TypeVar

import numpy as np

from meshplan.costmodels.layouts import Floats, Ints

Rows = TypeVar("Rows", Ints, Floats)


@cache
def mixes(layers: int, modes: tuple[int, ...], transients: tuple[int, ...]) -> list[Ints]:
    """(full, selective, transient KiB) of every allowed mix, the least recomputation first."""
    pairs = [
        (full, selective)
        for full in range(layers + 1 if 2 in modes else 1)
        for selective in range(layers - full + 1 if 1 in modes else 1)
        if 0 in modes or full + selective == layers
    ]
    rows = [
        (full, selective, max(
            transients[2] if full else 0,
            transients[1] if selective else 0,
            transients[0] if full + selective < layers else 0,
        ))
        for full, selective in pairs
    ]  # fmt: skip
    columns: Ints = np.array(rows, np.int64).reshape(-1, 3)
    return [columns[:, 0], columns[:, 1], columns[:, 2]]


def mixed(table: Ints, first: int | Ints, cut: Ints, second: Ints, end: int | Ints) -> Ints:
    """Sums over layers `first` .. `end` - 1, in mode 2 before `cut`, 1 before `second`, then 0.

    `table` is the `prefix` of one row per layer, one column per mode.
    """
    total: Ints = table[cut, 2] - table[first, 2] + table[second, 1] - table[cut, 1]
    total += table[end, 0] - table[second, 0]
    return total


def prefix(values: Rows) -> Rows:
    """Sums of the first 0, 1, 2, ... rows."""
    nothing = np.zeros((1, *values.shape[1:]), values.dtype)
    return np.concatenate([nothing, values.cumsum(axis=0)])
