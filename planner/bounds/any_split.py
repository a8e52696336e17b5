"""A lower bound of the simulated step whatever the split, without looking at each split.

A rank's chain (`planner.bounds.simulated`) is a line in the layers of its chunks and of those
before them. So is what it lacks in memory. Of the list of splits only extremes are kept, found once
per shape: of each kind the fewest layers on a rank and in the first r chunks, and the fewest and
the most layers that a rank holds in flight. With them, for each rank

    chain    its work, the way down to it and up again, and what the first rank reduces then; or
             the way down, its work and what it reduces itself
    beyond   m times the least recomputation with which it fits: a knapsack as in
             `planner.bounds.split`, all chunks as one that holds the most micro-batches

and both the mean over the ranks, where the work is that of all layers whatever the split, and the
largest with the fewest layers bound the step.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.elementwise import most_along
from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.layouts import Floats, Ints
from meshplan.costmodels.schedule.orders import V_SHAPED
from meshplan.planner.bounds.late import BEYOND_ANY, SHOWN
from meshplan.planner.bounds.simulated import SAFETY, Passes
from meshplan.planner.bounds.split import BoundedLayouts, layers_of_kind
from meshplan.planner.problem.coefficients import NS_PER_S
from meshplan.planner.problem.pipeline_shape import Apart, apart, pipeline_shape
from meshplan.planner.problem.same_pipeline import SamePipeline

SHAPES_KEPT = 512
CELLS = 131_072  # of rows, covers and ranks, whose recomputation is found at once: some 10 MiB


class _Extremes(NamedTuple):
    """Extremes over all splits of a list, in layers [kind, rank].

    fewest, most  that a rank holds
    before        the fewest that all chunks before the rank's first one hold together
    """

    fewest: Floats
    most: Floats
    before: Floats


class _Held(NamedTuple):
    """[cover, kind, rank] layer-micro-batches in flight, at least and at most over all splits; and
    at least those that await their weight gradient, where these count apart.
    """

    least: Floats
    most: Floats
    late: Floats


def bounds_of_any_split(same: SamePipeline, passes: Passes, limit_s: float = math.inf) -> Floats:
    """[row] seconds of layouts of several chunks per rank; infinite where no split is legal or none
    fits. What must be recomputed counts only where the rest is below the limit.
    """
    if not same.splits:
        return np.full(len(same), np.inf)
    counts, extremes = np.array(same.kind_counts, float), _extremes(same)
    down_s, both_s = _ways_s(same, passes, extremes)
    mean_s, fewest_s = (_work_s(same, passes, each) for each in (counts, extremes.fewest))
    late, shown = passes.late, passes.late.layer[:, SHOWN]
    ends_s, fixed_s = late.ends[:, SHOWN].sum(axis=1), late.fixed[:, SHOWN]
    bare_s = np.maximum(
        (mean_s + down_s).mean(axis=1) + late.mean_s(counts, same.pp),
        (mean_s + both_s).mean(axis=1),
    )
    below = np.flatnonzero((bare_s + passes.once) * SAFETY < limit_s)
    beyond_s, rounding = np.zeros(mean_s.shape), len(same.pattern) / NS_PER_S
    if len(below):
        some = same if len(below) == len(same) else same.take(below)
        beyond_s[below] = some.m[:, None] * (SAFETY * _beyond_in_parts(some, extremes) - rounding)
    found = [
        bare_s,
        (mean_s + down_s + beyond_s).mean(axis=1) + (shown @ counts + ends_s) / same.pp + fixed_s,
        (fewest_s + down_s + beyond_s + shown @ extremes.fewest).max(axis=1) + fixed_s,
        (mean_s + both_s + beyond_s).mean(axis=1),
        (fewest_s + both_s + beyond_s).max(axis=1),
    ]
    bounds: Floats = (np.max(found, axis=0) + passes.once) * SAFETY
    return bounds


def _work_s(same: SamePipeline, passes: Passes, layers: Floats) -> Floats:
    """[row, rank] all micro-batches of a rank with `layers` of each kind on it, [kind, rank]; with
    those of the model, [kind], all work of all ranks shared alike.
    """
    each = passes.layer.sum(axis=2) @ layers
    ends = [end.sum(axis=1) for end in (passes.embedding, passes.head)]
    if layers.ndim == 1:
        rank = np.repeat(((each + sum(ends)) / same.pp)[:, None], same.pp, axis=1)
    else:
        rank = each.copy()
        for end, (at, _) in zip(ends, same.ends, strict=True):
            rank[:, at] += end
    found: Floats = same.m[:, None] * (rank + 2 * same.vpp * passes.extra[:, None])
    return found


def _ways_s(same: SamePipeline, passes: Passes, extremes: _Extremes) -> tuple[Floats, Floats]:
    """[row, rank] down to each rank's first chunk; and down and, unless the ranks turn back, up
    again with what the first rank reduces then.
    """
    rank, later = np.arange(same.pp), np.arange(same.pp) > 0

    def way(first: int, last: int) -> Floats:
        before = passes.layer[:, :, first:last].sum(axis=2) @ extremes.before
        ends = passes.embedding[:, first:last].sum(axis=1)[:, None] * later
        found: Floats = before + ends + (passes.extra + passes.hop)[:, None] * rank
        return found

    down = way(0, 1)
    if same.schedule in V_SHAPED:
        return down, down
    return down, down + way(1, 3) + _first_s(passes, extremes)[:, None] * later


def _first_s(passes: Passes, extremes: _Extremes) -> Floats:
    """[row] what the first rank reduces at least after a chain that ends with it."""
    late, lines = passes.late, [SHOWN, BEYOND_ANY]
    layer = late.layer[:, lines]
    least = np.minimum(layer * extremes.fewest[:, 0], layer * extremes.most[:, 0]).sum(axis=2)
    found: Floats = most_along(least + late.ends[:, lines, 0] + late.fixed[:, lines], 1)
    return found


def _beyond_in_parts(same: SamePipeline, extremes: _Extremes) -> Floats:
    """`_beyond_s`, of as many rows at a time as memory allows."""
    step = max(1, CELLS // same.most_covered[0][0].size)
    if len(same) <= step:
        return _beyond_s(same, extremes)
    firsts = range(0, len(same), step)
    parts = [same.take(slice(first, first + step)) for first in firsts]
    return np.concatenate([_beyond_s(part, extremes) for part in parts])


def _beyond_s(same: SamePipeline, extremes: _Extremes) -> Floats:
    """[row, rank] the least recomputation of one micro-batch with which a rank fits."""
    in_flight, which = same.most_covered
    held = [_held(same, m) for m in same.sizes[0]]
    kib, state = (each.astype(float) for each in (same.fastest[1], same.prices.layer_state_kib))
    bounded, deferred = BoundedLayouts(same), same.prices.layer_deferred_kib.astype(float)
    lacks = (state @ extremes.fewest)[:, None] - bounded.room
    for size, each in enumerate(held):
        rows = np.flatnonzero(which == size)
        lacks[rows] += np.tensordot(kib[rows], each.least, axes=(1, 1))
        if same.waits_apart:
            lacks[rows] += np.tensordot(deferred[rows], each.late, axes=(1, 1))
    if not (lacks > 0).any():
        return np.zeros((len(same), same.pp))
    most = np.stack([each.most for each in held])
    found = _paid_ns(bounded.hulls, np.maximum(lacks, 0.0), most, which)
    beyond: Floats = (found / np.where(in_flight > 0, in_flight, 1)[which]).max(axis=1) / NS_PER_S
    return beyond


def _paid_ns(
    hulls: dict[int, list[tuple[Floats, Floats]]], lacks: Floats, most: Floats, which: Ints
) -> Floats:
    """[row, cover, rank] the least ns that save what ranks lack, times the micro-batches in flight:
    `BoundedLayouts.paid_ns` of one chunk, of which the cheapest segment is the same for all covers
    and ranks of a row.

    lacks   [row, cover, rank]      most   [which, cover, kind, rank] layer-micro-batches
    """
    kinds = np.array([kind for kind, hull in hulls.items() for _ in hull])
    segments = [segment for hull in hulls.values() for segment in hull]
    kib_per_ns = np.array([rate for _, rate in segments])
    kib, ns_per_kib = np.array([ns * rate for ns, rate in segments]), 1 / kib_per_ns
    rows, left, paid = np.arange(len(which)), lacks, np.zeros(lacks.shape)
    for at in np.argsort(-kib_per_ns, axis=0, kind="stable"):
        each = most[which, :, kinds[at]] * kib[at, rows, None, None]
        used = np.minimum(left, each, out=each)
        left = left - used
        paid += np.multiply(used, ns_per_kib[at, rows, None, None], out=used)
    paid[left > 1.0] = math.inf
    return paid


def _extremes(same: SamePipeline) -> _Extremes:
    return _extremes_of(_list_of(same), same.chunks_of_rank)


def _held(same: SamePipeline, m: int) -> _Held:
    return _held_of(_list_of(same), same.waits_apart, (same.schedule, same.pp, same.vpp, m))


class _List(NamedTuple):
    """A list of splits of a model's layers."""

    pattern: tuple[int, ...]
    kinds: int
    splits: tuple[tuple[int, ...], ...]


def _list_of(same: SamePipeline) -> _List:
    return _List(same.pattern, len(same.kind_counts), same.splits or ())


@lru_cache(maxsize=SHAPES_KEPT)
def _extremes_of(each: _List, chunks_of_rank: tuple[tuple[int, ...], ...]) -> _Extremes:
    layers = layers_of_kind(*each)
    held = layers[:, :, chunks_of_rank].sum(axis=3)
    before = (layers.cumsum(axis=2) - layers)[:, :, : len(chunks_of_rank)]
    return _Extremes(held.min(axis=1), held.max(axis=1), before.min(axis=1))


@lru_cache(maxsize=SHAPES_KEPT)
def _held_of(each: _List, waits_apart: bool, of: tuple[Schedule, int, int, int]) -> _Held:
    shape = pipeline_shape(*of)
    layers = layers_of_kind(*each)[:, :, shape.chunks_of_rank]
    covers = apart(*of) if waits_apart else Apart(shape.covers, shape.covers[:0])
    held, late = (np.einsum("crv,ksrv->cksr", each_of, layers, optimize=True) for each_of in covers)
    return _Held(held.min(axis=2), held.max(axis=2), late.min(axis=2))
