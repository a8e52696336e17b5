"""Lower bounds of the simulated step of layouts of several chunks per rank, however they are cut.

A cut, and what it recomputes, is x[chunk, kind, mode]: so many layers of a kind on a chunk in a
mode. As real numbers of which each kind has as many as the model, in any order, they hold more than
every cut of whole layers in the model's order does. In x are linear

    chains   the length of any chain of actions that wait for each other, with what the rank at its
             end reduces (`planner.bounds.late`)
    memory   what a rank holds under each in-flight vector or mean of several
    fewest   the layers of a chunk
    order    a chunk recomputes its first layers. So the layers of the chunks before, those in full,
             those selectively and the others are the model's order: of the first N layers a kind
             has its share but for so many as it is ahead or behind at any place (`Drift`)

so the least t above all chains is a linear program (`planner.cuts.free_cut_program`). Multipliers
of its rows, whoever found them, prove a bound of every layout (Lagrange): w of the chains, which
sum to 1, p of memory and v of the fewest layers, none below 0 (what follows from the order of kinds
is left out here),

    t >= sum w constant - sum p room + sum v fewest + sum over kinds of
         count x min over chunks and modes of (w seconds + p KiB - v)

So a program is solved for one layout, and its multipliers are asked of all that are like it.
"""

from collections.abc import Sequence
from copy import copy
from typing import NamedTuple, Self

import numpy as np

from meshplan.costmodels.layouts import Floats, Ints
from meshplan.costmodels.prices.passes import PassSeconds
from meshplan.planner.bounds.first_chains import Line
from meshplan.planner.bounds.late import BEYOND_ANY, beyond_backwards, update_lines
from meshplan.planner.bounds.simulated import SAFETY, Passes, passes_beside
from meshplan.planner.bounds.split import BoundedLayouts
from meshplan.planner.problem.coefficients import ABSENT
from meshplan.planner.problem.same_pipeline import SamePipeline

ENDLESS_S = 1e30  # of a layer that can run in no mode


class Multipliers(NamedTuple):
    """None below 0 but those of the order.

    lines    [line], which sum to 1
    memory   [cover, rank] limits of time for all that a rank can hold
    fewest   [chunk] limits of time for a layer
    most     [rank] the same
    order    [chunk, mode, kind] the same of what a kind is ahead up to the end of a mode of a
             chunk: above 0 of the least, below 0 of the most
    """

    lines: Floats
    memory: Floats
    fewest: Floats
    most: Floats
    order: Floats


class Drift(NamedTuple):
    """How many layers of a kind more than its share lie before a place of the model: [kind] the
    share, and the least and the most at any place.
    """

    share: Floats
    least: Floats
    most: Floats

    @classmethod
    def of(cls, pattern: Sequence[int], kinds: Sequence[int]) -> "Drift":
        """That of layers in order."""
        is_kind = np.array([[each == kind for each in pattern] for kind in kinds], float)
        share = is_kind.mean(axis=1)
        ahead = np.cumsum(is_kind - share[:, None], axis=1)
        return cls(share, np.minimum(ahead.min(axis=1), 0), np.maximum(ahead.max(axis=1), 0))

    def prices(self, order: Floats) -> tuple[Floats, float]:
        """[chunk, kind, mode] what multipliers of the order take off a layer, and what they add."""
        each = order[:, ::-1].reshape(-1, len(self.share))
        each = (each - (each @ self.share)[:, None])[::-1].cumsum(axis=0)[::-1]
        rest = np.where(order > 0, order * self.least, order * self.most).sum()
        return each.reshape(order.shape)[:, ::-1].swapaxes(1, 2), float(rest)


class MeanOfRows(NamedTuple):
    """A mean of chains: [row, chunk, kind] seconds of a layer, and [row] the rest; where layers
    are in their fastest modes, [row, chunk] how many backwards it has. Rows may be several means of
    one layout too.
    """

    layer: Floats
    fixed: Floats
    often: Floats = np.zeros((0, 0))

    @classmethod
    def together(cls, every: "Sequence[MeanOfRows]") -> "MeanOfRows":
        """The rows of all."""
        return cls(*(np.concatenate(each) for each in zip(*every, strict=True)))


class FreeCuts:
    """Layouts of several chunks that share schedule, ranks, chunks and micro-batches."""

    def __init__(self, same: SamePipeline, found: PassSeconds, rows: Ints) -> None:
        self.same, self.passes = same, Passes.of(found, rows, same)
        self.kinds = [kind for kind, count in enumerate(same.kind_counts) if count]
        self.counts = np.array([same.kind_counts[kind] for kind in self.kinds], float)
        self.fewest = np.array([same.fewest_layers(at) for at in range(same.chunks)], float)
        self.drift = Drift.of(same.pattern, self.kinds)
        modes, c = list(same.modes), same.prices
        # [row, kind, mode, pass], [row, kind, mode], [row, kind]
        columns = [same.columns[mode] for mode in modes]
        self.seconds = found.layer_s[rows][:, self.kinds][:, :, columns]
        self.saved_kib = c.layer_saved_kib[:, self.kinds][:, :, modes].astype(float)
        self.state_kib = c.layer_state_kib[:, self.kinds].astype(float)
        self.deferred_kib = c.layer_deferred_kib[:, self.kinds].astype(float)
        self.runs = np.isfinite(self.seconds).all(axis=3) & (self.saved_kib < ABSENT)
        self.room_kib = BoundedLayouts(same).room
        self.mean_update_s = self.passes.update
        beside = passes_beside(found, same)
        self.update = update_lines(found, rows, beside)
        # [row, line, kind, mode]: of a layer in a mode it is known what it hides
        self.late_s = np.repeat(self.passes.late.layer[:, :, self.kinds, None], len(modes), axis=3)
        beyond = beyond_backwards(found, rows, columns, beside)[:, self.kinds]
        self.late_s[:, BEYOND_ANY] = np.where(self.runs, beyond, 0.0)
        which = np.array(same.chunks_of_rank)
        self.rank_of = np.zeros(same.chunks, np.int64)
        self.place_of = np.zeros(same.chunks, np.int64)
        for place in range(same.vpp):
            self.rank_of[which[:, place]] = np.arange(same.pp)
            self.place_of[which[:, place]] = place

    def hiding_most(self) -> Self:
        """The same where a layer in any mode hides as much of what is late as in that which hides
        most: for bounds that add what layers recompute to their fastest modes.
        """
        found = copy(self)
        late = self.passes.late.layer[:, :, self.kinds, None]
        found.late_s = np.broadcast_to(late, self.late_s.shape)
        return found

    def held(self) -> tuple[Floats, Floats]:
        """[cover, chunk] micro-batches of a chunk that a cover counts, and those of them that await
        their weight gradient.
        """
        at = slice(None), self.rank_of, self.place_of
        late = self.same.late[0][at] if self.same.waits_apart else 0 * self.same.covers[0][at]
        return self.same.covers[0][at], late

    def seconds_of(self, lines: Sequence[Line], weights: Floats) -> tuple[Floats, Floats]:
        """[row, chunk, kind, mode] seconds of a layer in a mean of chains, and [row] the rest."""
        often = np.tensordot(weights, np.array([line.often for line in lines]), axes=1)
        reduces = np.zeros((4, self.same.pp))
        np.add.at(reduces, ([x.late for x in lines], [x.rank for x in lines]), weights)
        hops = float(weights @ np.array([line.hops for line in lines]))
        each, rest = self.weighed(often[None], hops, reduces)
        return each, rest + self.passes.once * (weights.sum() - 1)

    def weighed(self, often: Floats, hops: float, reduces: Floats) -> tuple[Floats, Floats]:
        """The same of a mean of chains that has each pass so `often`, [row or 1, chunk, pass],
        and the lines of `late` of each rank, [line, rank].
        """
        p, same = self.passes, self.same
        late_s = self.late_s.reshape(*self.late_s.shape[:2], -1)
        passes = self.seconds.reshape(len(self.seconds), -1, 3).swapaxes(1, 2)
        late = np.broadcast_to(reduces[:, self.rank_of].T, (len(often), same.chunks, len(reduces)))
        each = np.concatenate([often, late], axis=2) @ np.concatenate([passes, late_s], axis=1)
        extra_s = p.extra * often[..., :2].sum(axis=(1, 2))
        rest = extra_s + self.rest_of(often[:, 0], often[:, -1], hops, reduces)
        return each.reshape(len(each), same.chunks, *self.runs.shape[1:]), rest

    def rest_of(self, first: Floats, last: Floats, hops: Floats | float, reduces: Floats) -> Floats:
        """[row] seconds of a mean of chains beside layers and what is added to each pass: `first`
        and `last` are [row or 1, pass] how often it has those of the first and the last chunk.
        """
        p = self.passes
        rest: Floats = (p.embedding * first + p.head * last).sum(axis=1)
        rest += p.hop * hops + p.once + p.late.fixed @ reduces.sum(axis=1)
        for end, (rank, _) in enumerate(self.same.ends):
            rest += p.late.ends[:, :, end] @ reduces[:, rank]
        return rest

    def seconds_of_each(
        self, lines: Sequence[Line], chunks: Sequence[int] | slice = slice(None)
    ) -> tuple[Floats, Floats]:
        """[line, row, chunk, kind, mode] seconds of a layer in each chain, on some chunks; and
        [line, row] the rest.
        """
        p, late = self.passes, [line.late for line in lines]
        often, ranks = np.array([x.often for x in lines]), np.array([x.rank for x in lines])
        passes = self.seconds.reshape(-1, 3) @ often[:, chunks].reshape(-1, 3).T
        seconds = np.moveaxis(
            passes.reshape(*self.seconds.shape[:3], len(lines), -1), (3, 4), (0, 2)
        )
        ends_here = (self.rank_of[chunks] == ranks[:, None]).astype(float)
        seconds = seconds + np.einsum("rlkm,lj->lrjkm", self.late_s[:, late], ends_here)
        rest = often[:, 0] @ p.embedding.T + often[:, -1] @ p.head.T
        rest += np.outer(often[:, :, :2].sum(axis=(1, 2)), p.extra)
        rest += np.outer([line.hops for line in lines], p.hop) + p.late.fixed[:, late].T
        for end, (rank, _) in enumerate(self.same.ends):
            rest += (ranks == rank)[:, None] * p.late.ends[:, late, end].T
        return seconds, rest + p.once

    def kib_of(self, held: Floats, late: Floats, layers: Floats) -> Floats:
        """[row, chunk, kind, mode] KiB of a layer that counts so often, [chunk]."""
        found: Floats = held[:, None, None] * self.saved_kib[:, None]
        found += late[:, None, None] * self.deferred_kib[:, None, :, None]
        found += layers[:, None, None] * self.state_kib[:, None, :, None]
        return found

    def mean(
        self, lines: Sequence[Line], by: Multipliers, limit_s: float, most: Floats | None = None
    ) -> MeanOfRows:
        """The mean of chains with the multipliers' prices of memory, which are in units of the
        limit; and those of the `most` layers of ranks, [row, rank], where said.
        """
        price = by.memory * limit_s / self.same.prices.cap_kib
        each, fixed = self.seconds_of(lines, by.lines / by.lines.sum())
        held, late = (np.einsum("cj,cj->j", price[:, self.rank_of], n) for n in self.held())
        kib = self.kib_of(held, late, price.sum(axis=0)[self.rank_of])
        layer = np.where(self.runs[:, None], each + kib, np.inf).min(axis=3)
        fixed = fixed - np.einsum("rcs,cs->r", self.room_kib, price)
        if most is not None:
            over = by.most * limit_s
            layer, fixed = layer + over[self.rank_of][:, None], fixed - most @ over
        return MeanOfRows(layer, fixed)

    def bounds_s(
        self, lines: Sequence[Line], by: Multipliers, limit_s: float, most: Floats
    ) -> Floats:
        """[row] a lower bound of the simulated step of every cut of which no rank holds more than
        the `most` layers, [row, rank]. The multipliers are in units of the limit.
        """
        weights = by.lines / by.lines.sum()
        each, fixed = self.seconds_of(lines, weights)
        price = by.memory * limit_s / self.same.prices.cap_kib  # [cover, rank] seconds of a KiB
        held, late = (np.einsum("cj,cj->j", price[:, self.rank_of], n) for n in self.held())
        kib = self.kib_of(held, late, price.sum(axis=0)[self.rank_of])
        least, over = by.fewest * limit_s, by.most * limit_s
        order, ahead = self.drift.prices(by.order * limit_s)
        beyond = (over[self.rank_of] - least)[:, None, None] - order
        each = np.where(self.runs[:, None], each + kib + beyond, np.inf)
        fixed = fixed - np.einsum("rcs,cs->r", self.room_kib, price) + least @ self.fewest
        fixed = fixed - most @ over + ahead
        found: Floats = (fixed + each.min(axis=(1, 3)) @ self.counts) * SAFETY
        return found
