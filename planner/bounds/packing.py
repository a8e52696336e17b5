"""The packing bound: a lower bound of the slowest rank, for many layouts of one shape at once.

    W(s, n)   the least time of rank s with n layers, of which any fraction may be recomputed
    Y         the L-th smallest entry of W over all ranks and n >= 1. In a plan whose ranks are all
              faster than Y the ranks hold fewer than L layers together, so some rank takes Y
    bound     weight Y + share T + constant + e: the slowest rank takes Y, and all rows together no
              less. T is the sum of all c_j without recomputation, e the mean over the ranks of the
              costs that come once per step

A model with several kinds of layers is bounded by two relaxations, and the larger bound counts: all
its layers as cheap as the cheapest kind; and only the layers of its most frequent kind, the others
taking time but no memory. Letters as in `planner.problem.closed_form`; arrays are [layout, rank,
layers] unless said.
"""

from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from meshplan.costmodels.layouts import Floats, Ints
from meshplan.planner.problem.same_pipeline import SamePipeline, end_costs

Number = TypeVar("Number", np.int64, np.float64)
SAFETY = 1 - 1e-12  # factor on a bound of whole ns that was computed in floating point
CELLS = 2**18  # [layout, rank, layers] at a time: what a core's cache holds


def at_least(ns: Floats) -> Floats:
    """The whole ns that a lower bound of a whole number proves, if computed in floating point."""
    proved: Floats = np.ceil(ns * SAFETY - 1e-3)
    return proved


class _Stack(NamedTuple):
    """Equal layers, by layout: their number, the least of each price, what recomputation trades.

    Saving x KiB of a layer costs at least max(slope x, later_slope x - offset) ns, and more than
    `most_kib` cannot be saved. `rest_ns` is the time of the layers left out.
    """

    size: int
    ns: Ints
    state_kib: Ints
    saved_kib: Ints
    slope: Floats
    later_slope: Floats
    offset: Floats
    most_kib: Floats
    rest_ns: Ints


def stacks(kind_counts: tuple[int, ...]) -> list[list[int]]:
    """The kinds of each stack of equal layers that bounds a model with so many of each kind."""
    present = [kind for kind, count in enumerate(kind_counts) if count]
    if len(present) == 1:
        return [present]
    return [list(range(len(kind_counts))), [max(present, key=lambda kind: kind_counts[kind])]]


def packing_bounds(same: SamePipeline, below: Ints | None) -> Floats:
    """A lower bound of each objective; infinite where no plan (below `below`) fits.

    With `below` ranks that would last too long for it are left out, which costs less and bounds
    more tightly: the answer then bounds only plans below it.
    """
    layers = sum(same.kind_counts) + 1
    step = max(1, CELLS // (same.pp * layers))
    parts = [
        _bounds(same.take(slice(i, i + step)), None if below is None else below[i : i + step])
        for i in range(0, len(same), step)
    ]
    return np.concatenate(parts) if parts else np.zeros(0)


def _bounds(same: SamePipeline, below: Ints | None) -> Floats:
    found = [_packed(same, _stack(same, kinds), below) for kinds in stacks(same.kind_counts)]
    bounds: Floats = np.max(found, axis=0)
    return bounds


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
    left_out = [kind for kind in range(len(same.kind_counts)) if kind not in kinds]
    rest = c.layer_ns[:, left_out][:, :, modes].min(2) @ np.array(same.kind_counts)[left_out]
    count = sum(same.kind_counts[kind] for kind in kinds)
    return _Stack(count, ns, c.layer_state_kib[:, kinds].min(1), kept, *hull(points), rest)


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


def _packed(same: SamePipeline, stack: _Stack, below: Ints | None) -> Floats:
    table = _rank_times(same, stack, below)
    pp, count = same.pp, stack.size
    bound = np.full(len(same), np.inf)
    entries = table[:, :, 1:].reshape(len(same), -1)
    fits = np.isfinite(table[:, :, 0]).all(1) & (np.isfinite(entries).sum(1) >= count)
    if not fits.any():
        return bound
    table, entries = table[fits], entries[fits]
    last = np.partition(entries, count - 1, axis=1)[:, count - 1]
    steps = np.diff(np.where(np.isfinite(table), table, 1e30), axis=2).reshape(len(table), -1)
    least = np.partition(steps, count - 1, axis=1)[:, :count].sum(1)
    work = table[:, :, 0].sum(1) + least + stack.rest_ns[fits]
    work = np.maximum(work, same.least_work_ns[fits])
    slowest = np.maximum(np.maximum(last, table[:, :, 0].max(1)), work / pp)
    form = same.form
    over = np.broadcast_to(form.over, len(same))[fits]
    time = np.broadcast_to(form.weight, len(same))[fits] * slowest + over / form.under * work
    bound[fits] = at_least(time + same.least_end_ns[fits])
    return bound


def _rank_times(same: SamePipeline, stack: _Stack, below: Ints | None) -> Floats:
    """W(s, n), infinite where it does not fit; it never falls with n."""
    most, of_chunk = _most_layers(same, stack, below)
    n = np.arange(int(min(stack.size, most.max())) + 1)
    base, _ = end_costs(same)
    overhead = _least_overhead(same, stack, most, of_chunk, n)
    send = same.vpp * same.prices.send_ns
    table = (base + send[:, None])[:, :, None] + _per_layout(stack.ns) * n + overhead
    return np.minimum.accumulate(table[:, :, ::-1], axis=2)[:, :, ::-1]


def layer_overheads(same: SamePipeline, kinds: list[int], most: Ints, n: Ints) -> Floats:
    """The least ns of recomputation with which each rank holds `n` layers of `kinds`, of one chunk;
    infinite where they do not fit or are more than `most`.
    """
    return _least_overhead(same, _stack(same, kinds), most, most, n)


def _least_overhead(
    same: SamePipeline, stack: _Stack, most: Ints, of_chunk: Ints, n: Ints
) -> Floats:
    """[layout, rank, n], with at most `most` layers on a rank and `of_chunk` in a chunk."""
    _, static = end_costs(same)
    per_chunk = np.repeat(of_chunk[:, None], same.pp, axis=1)
    held = _least_in_flight(n, np.sort(same.vectors, axis=2), per_chunk)
    held = np.where(n > most[:, None, None], -1, held)
    room = same.prices.cap_kib - static[:, :, None] - _per_layout(stack.state_kib) * n
    return _overhead(n, stack, room, held, same.vectors.max(axis=2))


def _per_layout(values: "NDArray[Number]") -> "NDArray[Number]":
    """A number per layout, shaped to broadcast against [layout, rank, layers]."""
    return values[:, None, None]


def _most_layers(same: SamePipeline, stack: _Stack, below: Ints | None) -> tuple[Ints, Ints]:
    """Layers that a rank and a chunk may hold in a plan below `below`."""
    if below is None:
        most = np.full(len(same), stack.size)
        return most, most
    layer, send, form = np.maximum(1, stack.ns), same.prices.send_ns, same.form
    budget = below - 1 - same.least_end_ns - form.share_ns(same.least_work_ns)
    weight = np.broadcast_to(form.weight, len(same))
    # One micro-batch: the objective does not weigh the slowest stage.
    longest = np.where(weight > 0, budget // np.maximum(1, weight), stack.size * layer)
    of_rank = np.clip((longest - same.vpp * send) // layer, 0, stack.size)
    return of_rank, of_rank


def _least_in_flight(n: Ints, vectors: Ints, most: Ints) -> Ints:
    """Layer-micro-batches held with n layers, the least held chunks filled first; -1: too many."""
    chunks = vectors.shape[2]
    full, rest = np.divmod(n, np.maximum(1, most)[:, :, None])
    full = np.minimum(full, chunks)
    nothing = np.zeros((*most.shape, 1), np.int64)
    before = np.concatenate([nothing, vectors.cumsum(axis=2)], axis=2)
    following = np.concatenate([vectors, nothing], axis=2)
    total = np.take_along_axis(before, full, 2) * most[:, :, None]
    total += np.take_along_axis(following, full, 2) * rest
    return np.where(n > chunks * most[:, :, None], -1, total)


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
