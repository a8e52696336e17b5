"""What ranks must recompute at least under each split of a list: many layouts at once, no solver.

A split says how many layers each chunk holds. A rank that exceeds its memory with nothing
recomputed must recompute. The least time that saves what it lacks is a knapsack, relaxed to
fractions of layers: a layer saves KiB for ns along the lower convex hull of its recompute modes, in
chunk v as many times as the chunk holds micro-batches, q_v. q is an in-flight vector of the rank or
a mean of several (`PipelineShape.covers`), and the largest bound counts.
"""

import math
from dataclasses import fields, replace
from functools import cache, cached_property

import numpy as np

from meshplan.costmodels.layouts import Bools, Floats, Ints
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.planner.bounds.packing import hull
from meshplan.planner.problem.same_pipeline import SamePipeline, end_kib

Counts = tuple[int, ...]
RANKS = 16_384  # ranks of pairs that are looked at together
FREE = 1e-12  # ns for each KiB that costs nothing: rates must be finite


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
        alone = (c.cap_kib - end_kib(same))[:, None].astype(float)
        room = np.repeat(alone, same.most_covered[0].shape[1], axis=1)
        saved = (c.embedding_saved_kib, c.head_saved_kib)
        for kib, (rank, place) in zip(saved, same.ends, strict=True):
            less = same.vector_at(rank, place)[:, None] - same.covers_at(rank, place)
            room[:, :, rank] += less * kib[:, None]
        if same.waits_apart:  # then a pass needs nothing beside what is late
            room += same.late.any(axis=3) * c.transient_kib.min(axis=1)[:, None, None]
        return room

    def paid_ns(self, layout: Ints, layers: Ints | Floats, held: Floats, lacks: Floats) -> Floats:
        """The least ns that save the KiB which a rank of each layout lacks.

        layers   [rank, kind, chunk]     held   [rank, chunk]     lacks   [rank]
        """
        rates, most, total = self._best_first(layout, layers, held)
        used = np.clip(lacks[:, None] - (total - most), 0.0, most)
        paid: Floats = (used / np.maximum(rates, FREE)).sum(axis=1)
        return np.where(lacks > total[:, -1] + 1.0, math.inf, paid)

    def price_ns(self, layout: Ints, layers: Floats, held: Floats, lacks: Floats) -> Floats:
        """[rank] ns of the last KiB that `paid_ns` saves, its marginal price; of the dearest KiB
        where all together are not enough.
        """
        rates, _, total = self._best_first(layout, layers, held)
        last = np.minimum((total < lacks[:, None]).sum(axis=1), rates.shape[1] - 1)
        rate = np.take_along_axis(rates, last[:, None], 1)[:, 0]
        price: Floats = np.where(rate > FREE, 1 / np.maximum(rate, FREE), 0.0) * (lacks > 0)
        return price

    def _best_first(
        self, layout: Ints, layers: Ints | Floats, held: Floats
    ) -> tuple[Floats, Floats, Floats]:
        """[rank, segment] KiB per ns of the hulls, the largest first, the KiB of each, and of all
        so far.
        """
        segments = []
        for kind, hull_of_kind in self.hulls.items():
            for ns, kib_per_ns in hull_of_kind:
                rate = held * kib_per_ns[layout, None]
                segments.append((rate, layers[:, kind] * ns[layout, None] * rate))
        rates, most = (np.concatenate(parts, axis=1) for parts in zip(*segments, strict=True))
        order = np.argsort(-rates, axis=1)
        order += np.arange(0, rates.size, rates.shape[1])[:, None]
        rates, most = rates.take(order), most.take(order)
        return rates, most, most.cumsum(axis=1)


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Layouts, each cut as one of its splits: arrays are [pair, ...].

    saved, states   [pair, chunk] KiB with nothing recomputed
    layers          [pair, kind, chunk]
    """

    bounded: BoundedLayouts
    layout: Ints
    split: Ints
    layers: Ints
    saved: Floats
    states: Floats

    @classmethod
    def of(cls, same: SamePipeline, layout: Ints, split: Ints) -> "Pairs":
        """Those of each `layout` and its `split`."""
        c, (_, kib) = same.prices, same.fastest
        layers = layers_of_kind(same.pattern, kib.shape[1], same.splits or ())[:, split]

        def by_chunk(of_kind: Ints) -> Floats:
            found: Floats = np.einsum("nk,knc->nc", of_kind[layout].astype(float), layers)
            return found

        return cls(
            bounded=BoundedLayouts(same), layout=layout, split=split,
            layers=layers.transpose(1, 0, 2).astype(np.int64), saved=by_chunk(kib),
            states=by_chunk(c.layer_state_kib),
        )  # fmt: skip

    def take(self, kept: Bools | Ints) -> "Pairs":
        """Some of them."""
        arrays = (field.name for field in fields(self) if field.name != "bounded")
        return replace(self, **{name: getattr(self, name)[kept] for name in arrays})

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
