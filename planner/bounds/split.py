"""A lower bound of the closed form for each split of a list: many layouts at once, no solver.

A split says how many layers each chunk holds, so that with nothing recomputed a row of chunks takes
what its slowest chunk takes. A rank that exceeds its memory must recompute. A chunk that is faster
than its row's slowest may recompute for free until it is as slow; beyond that the row gets slower:

    all rows >= all rows with nothing recomputed + max over ranks of the least time beyond what is
                free that saves the memory which the rank lacks

The least time is a knapsack, relaxed to fractions of layers: a layer saves KiB for ns along the
lower convex hull of its recompute modes, in chunk v as many times as the chunk holds micro-batches,
q_v. What is free is free to each kind of layers. q is an in-flight vector of the rank or a mean of
several (`PipelineShape.covers`), and the largest bound counts.
"""

import math
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache, cached_property

import numpy as np

from meshplan.costmodels.layouts import Bools, Floats, Ints
from meshplan.costmodels.schedule.orders import V_SHAPED
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.planner.bounds.packing import CELLS, at_least, hull
from meshplan.planner.problem.same_pipeline import SamePipeline, end_costs

Counts = tuple[int, ...]
RANKS = 16_384  # ranks of pairs that are looked at together
FREE = 1e-12  # ns for each KiB that costs nothing: rates must be finite


def split_bounds(same: SamePipeline, below: Ints | None) -> Floats:
    """A lower bound of each layout's objective; infinite where no plan (below `below`) exists."""
    cells = len(same.splits or ()) * same.pp * same.vpp
    step, bounds = max(1, CELLS // max(1, cells)), np.full(len(same), math.inf)
    limits = np.full(len(same), math.inf) if below is None else below.astype(float)
    for first in range(0, len(same), step):
        rows = slice(first, first + step)
        bounds[rows] = _least_of_each(same.take(rows), limits[rows])
    return bounds


def _least_of_each(same: SamePipeline, limits: Floats) -> Floats:
    """[layout] the least over its splits, infinite where none is below the limit. What the split
    takes that is fastest with nothing recomputed is the limit of the others.
    """
    pairs, bounds = Pairs.below(same, limits), np.full(len(same), math.inf)
    bare = pairs.bare_ns
    order = np.lexsort((bare, pairs.layout))
    likeliest = order[np.diff(pairs.layout[order], prepend=-1) > 0]
    for some in (likeliest, np.arange(len(bare))):
        some = some[bare[some] < np.minimum(limits, bounds)[pairs.layout[some]]]
        kept, least = _raised(pairs.take(some), np.minimum(limits, bounds))
        np.minimum.at(bounds, kept.layout, least)
    return bounds


def least_of_splits(same: SamePipeline, below: Ints | None) -> tuple["Pairs", Floats]:
    """The splits of each layout that may have a plan (below `below`), with the least objective."""
    limits = np.full(len(same), math.inf) if below is None else below.astype(float)
    return _raised(Pairs.below(same, limits), limits)


def _raised(pairs: "Pairs", limits: Floats) -> tuple["Pairs", Floats]:
    """The `pairs` that may be below their layout's limit, and the least objective of each, with
    what each rank must recompute added.
    """
    same, slowest = pairs.bounded.same, pairs.slowest.sum(axis=1)
    bare = slowest
    for which in range(same.covers.shape[1]):
        for rank in range(same.pp):
            beyond = pairs.beyond_ns(rank, which)
            if beyond.any():
                slowest = np.maximum(slowest, bare + beyond)
                kept = pairs.objective_ns(slowest) < limits[pairs.layout]
                if not kept.all():
                    pairs, slowest, bare = pairs.take(kept), slowest[kept], bare[kept]
    return pairs, pairs.objective_ns(slowest)


class BoundedLayouts:
    """What all splits of a layout share."""

    def __init__(self, same: SamePipeline) -> None:
        self.same = same

    @cached_property
    def hulls(self) -> dict[int, list[tuple[Floats, Floats]]]:
        """By kind of layer, the segments (ns, KiB per ns) of the hull of its modes: so many ns can
        be spent at that rate. The second is left out where no layout has one.
        """
        found = {kind: self._hull(kind) for kind in sorted(set(self.same.pattern))}
        return {kind: [first, *rest] if rest[0][0].any() else [first]
                for kind, (first, *rest) in found.items()}  # fmt: skip

    def _hull(self, kind: int) -> list[tuple[Floats, Floats]]:
        ns, kib = self.same.fastest
        c = self.same.prices
        slope, later, offset, most = hull([
            (np.maximum(0, kib[:, kind] - c.layer_saved_kib[:, kind, mode]),
             c.layer_ns[:, kind, mode] - ns[:, kind])
            for mode in self.same.modes
        ])  # fmt: skip
        slope, later = np.maximum(slope, FREE), np.maximum(later, FREE)
        bend = later - slope
        corner = np.where(bend > 0, np.minimum(offset / np.where(bend > 0, bend, 1.0), most), most)
        return [(corner * slope, 1 / slope), ((most - corner) * later, 1 / later)]

    @cached_property
    def room(self) -> Floats:
        """[layout, which, rank] KiB for layers; what the ends hold in flight is taken off too."""
        same, c = self.same, self.same.prices
        alone = (c.cap_kib - end_costs(same)[1])[:, None].astype(float)
        room = np.repeat(alone, same.most_covered[0].shape[1], axis=1)
        saved = (c.embedding_saved_kib, c.head_saved_kib)
        for kib, (rank, place) in zip(saved, same.ends, strict=True):
            less = same.vector_at(rank, place)[:, None] - same.covers_at(rank, place)
            room[:, :, rank] += less * kib[:, None]
        if same.waits_apart:  # then a pass needs nothing beside what is late
            room += same.late.any(axis=3) * c.transient_kib.min(axis=1)[:, None, None]
        return room

    def paid_ns(
        self,
        layout: Ints,
        layers: Ints | Floats,
        held: Floats,
        lacks: Floats,
        free: Floats | None = None,
    ) -> Floats:
        """The least ns, beyond what is `free`, that save the KiB which a rank of each layout lacks.

        layers   [rank, kind, chunk]     held, free   [rank, chunk]     lacks   [rank]
        """
        left = np.zeros(held.shape) if free is None else free
        segments = []
        for kind, ns, kib_per_ns in self._segments(layout):
            most = layers[:, kind] * ns
            unpaid, rate = np.minimum(left, most), held * kib_per_ns
            left, lacks = left - unpaid, lacks - (unpaid * rate).sum(axis=1)
            segments.append((rate, (most - unpaid) * rate))
        rates, most, total = _best_first(segments)
        used = np.clip(lacks[:, None] - (total - most), 0.0, most)
        paid: Floats = (used / np.maximum(rates, FREE)).sum(axis=1)
        return np.where(lacks > total[:, -1] + 1.0, math.inf, paid)

    def price_ns(self, layout: Ints, layers: Floats, held: Floats, lacks: Floats) -> Floats:
        """[rank] ns of the last KiB that `paid_ns` saves, its marginal price; of the dearest KiB
        where all together are not enough.
        """
        segments = []
        for kind, ns, kib_per_ns in self._segments(layout):
            rate = held * kib_per_ns
            segments.append((rate, layers[:, kind] * ns * rate))
        rates, _, total = _best_first(segments)
        last = np.minimum((total < lacks[:, None]).sum(axis=1), rates.shape[1] - 1)
        rate = np.take_along_axis(rates, last[:, None], 1)[:, 0]
        price: Floats = np.where(rate > FREE, 1 / np.maximum(rate, FREE), 0.0) * (lacks > 0)
        return price

    def _segments(self, layout: Ints) -> Iterator[tuple[int, Floats, Floats]]:
        """Kind, ns and KiB per ns [rank, 1] of the hulls of ranks of each `layout`."""
        for kind, hull_of_kind in self.hulls.items():
            for ns, kib_per_ns in hull_of_kind:
                yield kind, ns[layout, None], kib_per_ns[layout, None]


def _best_first(segments: list[tuple[Floats, Floats]]) -> tuple[Floats, Floats, Floats]:
    """[rank, segment] KiB per ns, the largest first, the KiB of each, and of all so far."""
    rates, most = (np.concatenate(parts, axis=1) for parts in zip(*segments, strict=True))
    order = np.argsort(-rates, axis=1)
    order += np.arange(0, rates.size, rates.shape[1])[:, None]
    rates, most = rates.take(order), most.take(order)
    return rates, most, most.cumsum(axis=1)


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Layouts, each cut as one of its splits: arrays are [pair, ...].

    times, saved, states   [pair, chunk] ns and KiB with nothing recomputed
    layers                 [pair, kind, chunk]
    slowest                [pair, row]
    end_ns                 the largest once-per-step sum of a rank
    """

    bounded: BoundedLayouts
    layout: Ints
    split: Ints
    layers: Ints
    times: Floats
    saved: Floats
    states: Floats
    slowest: Floats
    end_ns: Floats

    @classmethod
    def below(cls, same: SamePipeline, limits: Floats) -> "Pairs":
        """Those that with nothing recomputed are below the limit of their layout."""
        c, (ns, _) = same.prices, same.fastest
        kinds = layers_of_kind(same.pattern, ns.shape[1], same.splits or ())
        times = _by_chunk(ns, kinds, c.embedding_ns, c.head_ns) + c.send_ns[:, None, None]
        slowest = _slowest(same, times)
        ends = _by_chunk(c.layer_step_ns, kinds, c.embedding_step_ns, c.head_step_ns)
        end_ns = ends[:, :, same.chunks_of_rank].sum(axis=3).max(axis=2)
        rows = slowest.sum(axis=2)
        least = _objective_ns(same, np.arange(len(same))[:, None], rows, end_ns)
        layout, split = np.nonzero(least < limits[:, None])
        return cls.of(same, layout, split)

    @classmethod
    def of(cls, same: SamePipeline, layout: Ints, split: Ints) -> "Pairs":
        """Those of each `layout` and its `split`."""
        c, (ns, kib) = same.prices, same.fastest
        layers = layers_of_kind(same.pattern, ns.shape[1], same.splits or ())[:, split]

        def by_chunk(of_kind: Ints, ends: tuple[Ints, ...] = ()) -> Floats:
            found: Floats = np.einsum("nk,knc->nc", of_kind[layout].astype(float), layers)
            for place, end in zip((0, -1), ends, strict=False):
                found[:, place] += end[layout]
            return found

        times = by_chunk(ns, (c.embedding_ns, c.head_ns)) + c.send_ns[layout, None]
        ends = by_chunk(c.layer_step_ns, (c.embedding_step_ns, c.head_step_ns))
        return cls(
            bounded=BoundedLayouts(same), layout=layout, split=split,
            layers=layers.transpose(1, 0, 2).astype(np.int64), times=times, saved=by_chunk(kib),
            states=by_chunk(c.layer_state_kib), slowest=_slowest(same, times[None])[0],
            end_ns=ends[:, same.chunks_of_rank].sum(axis=2).max(axis=1),
        )  # fmt: skip

    def take(self, kept: Bools | Ints) -> "Pairs":
        """Some of them."""
        arrays = (field.name for field in fields(self) if field.name != "bounded")
        return replace(self, **{name: getattr(self, name)[kept] for name in arrays})

    @property
    def bare_ns(self) -> Floats:
        """The objective with nothing recomputed."""
        return self.objective_ns(self.slowest.sum(axis=1))

    def objective_ns(self, rows_ns: Floats) -> Floats:
        """The least objective if all rows together last `rows_ns`."""
        return _objective_ns(self.bounded.same, self.layout, rows_ns, self.end_ns)

    def lacks_kib(self, rank: int, which: int) -> Floats:
        """What `rank` lacks by a cover with nothing recomputed, and the least transient."""
        chunks, held = list(self.bounded.same.chunks_of_rank[rank]), self.held(rank, which)
        needed = (self.saved[:, chunks] * held).sum(axis=1) + self.states[:, chunks].sum(axis=1)
        if self.bounded.same.waits_apart:
            late = self.bounded.same.late[self.layout, which, rank]
            needed += (self._deferred_kib[:, chunks] * late).sum(axis=1)
        lacks: Floats = needed - self.bounded.room[self.layout, which, rank]
        return lacks

    def _all_lacks_kib(self, which: int) -> Floats:
        """[pair, rank] `lacks_kib` of every rank."""
        same = self.bounded.same
        held = same.covers[:, which][self.layout]
        needed = np.einsum("prc,prc->pr", self.saved[:, same.chunks_of_rank], held)
        needed += self._rank_states_kib
        if same.waits_apart:
            late, deferred = same.late[:, which][self.layout], self._deferred_kib
            needed += np.einsum("prc,prc->pr", deferred[:, same.chunks_of_rank], late)
        lacks: Floats = needed - self.bounded.room[:, which][self.layout]
        return lacks

    @cached_property
    def _rank_states_kib(self) -> Floats:
        states: Floats = self.states[:, self.bounded.same.chunks_of_rank].sum(axis=2)
        return states

    @cached_property
    def _deferred_kib(self) -> Floats:
        """[pair, chunk] of a micro-batch that awaits its weight gradient."""
        of_kind = self.bounded.same.prices.layer_deferred_kib[self.layout]
        found: Floats = np.einsum("pkc,pk->pc", self.layers, of_kind).astype(float)
        return found

    def held(self, rank: int, which: int) -> Floats:
        """[pair, chunk of the rank] micro-batches in flight by a cover."""
        held: Floats = self.bounded.same.covers[self.layout, which, rank]
        return held

    def free_ns(self, rank: int) -> Floats:
        """[pair, chunk of the rank] how much longer than it each chunk's own row lasts; 0 where
        the chunks of a rank wait together."""
        times = self.times[:, list(self.bounded.same.chunks_of_rank[rank])]
        return self.slowest - times if self.slowest.shape[1] == times.shape[1] else 0.0 * times

    def spare_ns(self, rank: int) -> Floats:
        """How much longer than the rank the slowest lasts, where its chunks wait together."""
        times = self.times[:, list(self.bounded.same.chunks_of_rank[rank])]
        together = self.slowest.shape[1] < times.shape[1]
        spare: Floats = (self.slowest[:, 0] - times.sum(axis=1)) * together
        return spare

    def beyond_ns(self, rank: int, which: int) -> Floats:
        """What recomputation adds to all rows at least so that `rank` fits by a cover."""
        lacks = self.lacks_kib(rank, which)
        beyond, short = np.zeros(len(lacks)), np.flatnonzero(lacks > 0)
        if len(short):
            beyond[short] = self.take(short)._beyond_ns(rank, which, lacks[short])
        return beyond

    def _beyond_ns(self, rank: int, which: int, lacks: Floats) -> Floats:
        layers = self.layers[:, :, list(self.bounded.same.chunks_of_rank[rank])]
        held, free = self.held(rank, which), self.free_ns(rank)
        paid = self.bounded.paid_ns(self.layout, layers, held, lacks, free)
        return np.maximum(0.0, paid - self.spare_ns(rank))

    def least_work_ns(self, which: int, worst: bool = False) -> Floats:
        """[pair, rank] the least recomputation of one micro-batch with which each rank fits by a
        cover, whatever the others take; infinite where none is enough. With `worst` of each pair's
        rank that lacks most alone.
        """
        same, lacks = self.bounded.same, self._all_lacks_kib(which)
        work = np.zeros(lacks.shape)
        pair, rank = np.nonzero(lacks > 0)
        if worst:
            pair = np.flatnonzero((lacks > 0).any(axis=1))
            rank = lacks[pair].argmax(axis=1)
        chunks = np.array(same.chunks_of_rank)
        for first in range(0, len(pair), RANKS):
            of_pair, of_rank = pair[first : first + RANKS], rank[first : first + RANKS]
            layout = self.layout[of_pair]
            work[of_pair, of_rank] = self.bounded.paid_ns(
                layout,
                self.layers[of_pair[:, None], :, chunks[of_rank]].transpose(0, 2, 1),
                same.covers[layout, which, of_rank],
                lacks[of_pair, of_rank],
            )
        return work


@cache
def layers_of_kind(pattern: Counts, kinds: int, splits: tuple[Counts, ...]) -> Floats:
    """[kind, split, chunk] layers; of no size where there are no splits."""
    if not splits:
        return np.zeros((kinds, 0, 0))
    of_kind = np.array(pattern) == np.arange(kinds)[:, None]
    before = np.concatenate([np.zeros((len(of_kind), 1)), of_kind.cumsum(axis=1)], axis=1)
    return np.diff(before[:, np.array(splits).cumsum(axis=1)], axis=2, prepend=0.0)


def _by_chunk(of_kind: Ints, kinds: Floats, embedding: Ints, head: Ints) -> Floats:
    """[layout, split, chunk] sums of what a layer of each kind costs, and the ends."""
    found = of_kind.astype(float) @ kinds.reshape(len(kinds), -1)
    found = found.reshape(len(of_kind), *kinds.shape[1:])
    found[:, :, 0] += embedding[:, None]
    found[:, :, -1] += head[:, None]
    return found


def _slowest(same: SamePipeline, times: Floats) -> Floats:
    """[layout, split, row] the slowest chunk of each row; where the chunks of a rank wait together
    one row, the slowest rank."""
    slowest: Floats = (
        times[:, :, same.chunks_of_rank].sum(axis=3).max(axis=2, keepdims=True)
        if same.schedule in V_SHAPED
        else times.reshape(*times.shape[:2], same.vpp, same.pp).max(axis=3)
    )
    return slowest


def _objective_ns(same: SamePipeline, layout: Ints, rows_ns: Floats, end_ns: Floats) -> Floats:
    form, shape = same.form, same.m.shape
    weighed_ns = weighed(np.broadcast_to(form.weight, shape)[layout], rows_ns)
    fixed = form.share_ns(same.least_work_ns) + form.constant_ns + same.prices.fixed_step_ns
    return at_least(weighed_ns + np.broadcast_to(fixed, shape)[layout] + end_ns)


def weighed(weight: Floats | Ints, rows_ns: Floats) -> Floats:
    """The product, infinite where the rows cannot be had at all, even with a weight of 0."""
    had = np.isfinite(rows_ns)
    product: Floats = np.where(had, weight * np.where(had, rows_ns, 0.0), math.inf)
    return product
