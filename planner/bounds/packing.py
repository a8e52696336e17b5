"""The least recomputation with which a rank holds so many equal layers, of many layouts at once.

Any fraction of the layers may be recomputed. A model with several kinds of layers is bounded by two
relaxations, and the larger bound counts: all its layers as cheap as the cheapest kind; and only the
layers of its most frequent kind. Arrays are [layout, rank, layers] unless said.
"""

from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from meshplan.costmodels.layouts import Floats, Ints
from meshplan.planner.problem.same_pipeline import SamePipeline, end_kib

Number = TypeVar("Number", np.int64, np.float64)
SAFETY = 1 - 1e-12  # factor on a bound of whole ns that was computed in floating point
CELLS = 2**18  # [layout, rank, layers] at a time: what a core's cache holds


def at_least(ns: Floats) -> Floats:
    """The whole ns that a lower bound of a whole number proves, if computed in floating point."""
    proved: Floats = np.ceil(ns * SAFETY - 1e-3)
    return proved


class _Stack(NamedTuple):
    """Equal layers, by layout: the least of each price, what recomputation trades.

    Saving x KiB of a layer costs at least max(slope x, later_slope x - offset) ns, and more than
    `most_kib` cannot be saved.
    """

    state_kib: Ints
    saved_kib: Ints
    slope: Floats
    later_slope: Floats
    offset: Floats
    most_kib: Floats


def stacks(kind_counts: tuple[int, ...]) -> list[list[int]]:
    """The kinds of each stack of equal layers that bounds a model with so many of each kind."""
    present = [kind for kind, count in enumerate(kind_counts) if count]
    if len(present) == 1:
        return [present]
    return [list(range(len(kind_counts))), [max(present, key=lambda kind: kind_counts[kind])]]


def _stack(same: SamePipeline, kinds: list[int]) -> _Stack:
    c, modes = same.prices, list(same.modes)
    times, saved = c.layer_ns[:, kinds].min(1), c.layer_saved_kib[:, kinds].min(1)
    ns, kept = times[:, modes[0]], saved[:, modes[0]]
    for mode in modes[1:]:
        better = (times[:, mode] < ns) | ((times[:, mode] == ns) & (saved[:, mode] < kept))
        ns, kept = np.where(better, times[:, mode], ns), np.where(better, saved[:, mode], kept)
    if len(kinds) > 1:
        # Overheads are not comparable across kinds: only the capacity to save is kept.
        points = [(np.maximum(0, kept - saved[:, modes].min(1)), np.zeros(len(same), np.int64))]
    else:
        points = [(kept - saved[:, mode], times[:, mode] - ns) for mode in modes]
    return _Stack(c.layer_state_kib[:, kinds].min(1), kept, *hull(points))


def hull(points: list[tuple[Ints, Ints]]) -> tuple[Floats, Floats, Floats, Floats]:
    """The lower convex hull of (KiB saved, ns) from the origin: two slopes, where the second one
    starts, and the most that can be saved."""
    x = np.stack([point[0] for point in points]).astype(float)
    y = np.stack([point[1] for point in points]).astype(float)
    slopes = np.where(x > 0, y / np.maximum(x, 1), np.inf)
    slope = slopes.min(0)
    # Of the points on the first segment the farthest: the second segment starts there.
    first = np.where(slopes == slope, x, 0).max(0)
    slope = np.where(np.isfinite(slope), slope, 0.0)
    height = slope * first
    beyond = x > first
    later = np.where(beyond, (y - height) / np.where(beyond, x - first, 1), np.inf).min(0)
    later = np.where(np.isfinite(later), later, slope)
    return slope, later, later * first - height, np.maximum(x.max(0), 0)


def layer_overheads(same: SamePipeline, kinds: list[int], most: Ints, n: Ints) -> Floats:
    """[layout, rank, n] the least ns of recomputation with which a rank of one chunk holds `n`
    layers of `kinds`; infinite where they do not fit or are more than `most`.
    """
    stack, static, vectors = _stack(same, kinds), end_kib(same), same.vectors.max(axis=2)
    held = np.where(n > most[:, None, None], -1, vectors[:, :, None] * n)
    room = same.prices.cap_kib - static[:, :, None] - _per_layout(stack.state_kib) * n
    return _overhead(n, stack, room, held, vectors)


def _per_layout(values: "NDArray[Number]") -> "NDArray[Number]":
    """A number per layout, shaped to broadcast against [layout, rank, layers]."""
    return values[:, None, None]


def _overhead(n: Ints, stack: _Stack, room: Ints, held: Ints, most_held: Ints) -> Floats:
    """The least ns of recomputation with which n layers fit into `room`, infinite if none does."""
    need = np.maximum(_per_layout(stack.saved_kib) * held - room, 0)
    fits = (held >= 0) & (room >= 0) & (need <= _per_layout(stack.most_kib) * held)
    if not need[fits].any():
        return np.where(fits, 0.0, np.inf)
    # n layers that save need / (n most_held) KiB each
    saving = need / np.maximum(1, most_held)[:, :, None]
    later = _per_layout(stack.later_slope) * saving - _per_layout(stack.offset) * n
    return np.where(fits, np.maximum(_per_layout(stack.slope) * saving, later), np.inf)
