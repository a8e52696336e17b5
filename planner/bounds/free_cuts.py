"""Lower bounds of the simulated step of layouts of several chunks per rank, however they are cut.

A cut, and what it recomputes, is x[chunk, kind, mode]: so many layers of a kind on a chunk in a
mode. As real numbers of which each kind has as many as the model, in any order, they hold more than
every cut of whole layers in the model's order does. In x are linear

    chains   the length of any chain of actions that wait for each other, with what the rank at its
             end reduces (`planner.bounds.late`)
    memory   what a rank holds under each in-flight vector or mean of several
    fewest   the layers of a chunk

so the least t above all chains is a linear program (`planner.cuts.free_cut_program`). Multipliers
of its rows, whoever found them, prove a bound of every layout (Lagrange): w of the chains, which
sum to 1, p of memory and v of the fewest layers, none below 0,

    t >= sum w constant - sum p room + sum v fewest + sum over kinds of
         count x min over chunks and modes of (w seconds + p KiB - v)

So a program is solved for one layout, and its multipliers are asked of all that are like it.
"""

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.layouts import Bools, Floats, Ints
from meshplan.costmodels.prices.passes import PassSeconds
from meshplan.costmodels.schedule.orders import V_SHAPED
from meshplan.costmodels.schedule.program import Chain
from meshplan.planner.bounds.late import BEYOND_ALL, BEYOND_ANY, SHOWN
from meshplan.planner.bounds.rank_layers import RankLayers
from meshplan.planner.bounds.simulated import SAFETY, Passes
from meshplan.planner.bounds.split import BoundedLayouts
from meshplan.planner.problem.coefficients import ABSENT
from meshplan.planner.problem.pipeline_shape import places
from meshplan.planner.problem.same_pipeline import SamePipeline

SHAPES_KEPT = 64
HALVINGS = 14  # of the interval between a known bound and the limit


class Line(NamedTuple):
    """A chain, and one of the two bounds of what follows it.

    often   [chunk, pass] how often it has each pass      hops   to the next rank
    rank    where it ends, which reduces by `late` of `planner.bounds.late.Lines`
    """

    often: Floats
    hops: float
    rank: int
    late: int


def lines_of(chain: Chain, chunks: int) -> list[Line]:
    """The lines of a chain of actions."""
    forward, both, input_grad, weight_grad = np.array(chain.counts, float).reshape(4, chunks)
    often = np.stack([forward, both + input_grad, both + weight_grad], axis=1)
    return [Line(often, chain.hops, chain.rank, late) for late in (SHOWN, BEYOND_ANY)]


@lru_cache(maxsize=SHAPES_KEPT)
def first_lines(schedule: Schedule, pp: int, vpp: int, m: int) -> tuple[Line, ...]:
    """The chains that any step has: down to each rank, all its work, and up again where the ranks
    do not turn back; and down to the last chunk, what its rank has left then, and up.
    """
    found, chunks = list[Line](), places(schedule, pp, vpp).chunks_of_rank
    for rank, held in enumerate(chunks):
        own = np.zeros((pp * vpp, 3))
        own[:rank, 0] = 1
        own[list(held)] += m
        found += [Line(own, rank, rank, late) for late in (SHOWN, BEYOND_ALL)]
        if schedule not in V_SHAPED and rank:
            up = own.copy()
            up[:rank, 1:] += 1
            found += [Line(up, 2 * rank, 0, late) for late in (SHOWN, BEYOND_ANY)]
    if schedule not in V_SHAPED:
        turn = np.zeros((pp * vpp, 3))
        turn[:, 0] = turn[: pp - 1, 1:] = 1
        begun = np.where(np.arange(vpp) < vpp - 1, pp, 1)
        turn[list(chunks[-1]), 0] += m - np.minimum(m, begun)
        turn[list(chunks[-1]), 1:] += m
        found += [Line(turn, pp * vpp - 1 + pp - 1, 0, late) for late in (SHOWN, BEYOND_ANY)]
    return tuple(found)


class Multipliers(NamedTuple):
    """None below 0.

    lines    [line], which sum to 1
    memory   [cover, rank] limits of time for all that a rank can hold
    fewest   [chunk] limits of time for a layer
    most     [rank] the same
    """

    lines: Floats
    memory: Floats
    fewest: Floats
    most: Floats


class FreeCuts:
    """Layouts of several chunks that share schedule, ranks, chunks and micro-batches."""

    def __init__(self, same: SamePipeline, found: PassSeconds, rows: Ints) -> None:
        self.same, self.passes = same, Passes.of(found, rows, same)
        self.kinds = [kind for kind, count in enumerate(same.kind_counts) if count]
        self.counts = np.array([same.kind_counts[kind] for kind in self.kinds], float)
        self.fewest = np.array([same.fewest_layers(at) for at in range(same.chunks)], float)
        modes, c = list(same.modes), same.prices
        # [row, kind, mode, pass], [row, kind, mode], [row, kind]
        columns = [same.columns[mode] for mode in modes]
        self.seconds = found.layer_s[rows][:, self.kinds][:, :, columns]
        self.saved_kib = c.layer_saved_kib[:, self.kinds][:, :, modes].astype(float)
        self.state_kib = c.layer_state_kib[:, self.kinds].astype(float)
        self.deferred_kib = c.layer_deferred_kib[:, self.kinds].astype(float)
        self.runs = np.isfinite(self.seconds).all(axis=3) & (self.saved_kib < ABSENT)
        self.room_kib = BoundedLayouts(same).room
        which = np.array(same.chunks_of_rank)
        self.rank_of = np.zeros(same.chunks, np.int64)
        self.place_of = np.zeros(same.chunks, np.int64)
        for place in range(same.vpp):
            self.rank_of[which[:, place]] = np.arange(same.pp)
            self.place_of[which[:, place]] = place

    def held(self) -> tuple[Floats, Floats]:
        """[cover, chunk] micro-batches of a chunk that a cover counts, and those of them that await
        their weight gradient.
        """
        at = slice(None), self.rank_of, self.place_of
        late = self.same.late[0][at] if self.same.waits_apart else 0 * self.same.covers[0][at]
        return self.same.covers[0][at], late

    def seconds_of(self, lines: Sequence[Line], weights: Floats) -> tuple[Floats, Floats]:
        """[row, chunk, kind, mode] seconds of a layer in a mean of chains, and [row] the rest."""
        p, same = self.passes, self.same
        often = np.tensordot(weights, np.array([line.often for line in lines]), axes=1)
        reduces = np.zeros((4, same.pp))
        np.add.at(reduces, ([x.late for x in lines], [x.rank for x in lines]), weights)
        seconds = np.einsum("rkmp,jp->rjkm", self.seconds, often)
        of_late = np.einsum("rlk,lj->rjk", p.late.layer[:, :, self.kinds], reduces[:, self.rank_of])
        rest = p.embedding @ often[0] + p.head @ often[-1] + p.extra * often[:, :2].sum()
        rest += p.hop * (weights @ np.array([line.hops for line in lines]))
        rest += p.late.fixed @ reduces.sum(axis=1)
        for end, (rank, _) in enumerate(same.ends):
            rest += p.late.ends[:, :, end] @ reduces[:, rank]
        return seconds + of_late[..., None], rest + p.once * weights.sum()

    def seconds_of_each(self, lines: Sequence[Line]) -> tuple[Floats, Floats]:
        """[line, row, chunk, kind, mode] seconds of a layer in each chain, and [line, row] the
        rest.
        """
        p, late = self.passes, [line.late for line in lines]
        often, ranks = np.array([x.often for x in lines]), np.array([x.rank for x in lines])
        seconds = np.einsum("rkmp,ljp->lrjkm", self.seconds, often)
        ends_here = (self.rank_of == ranks[:, None]).astype(float)
        of_late = p.late.layer[:, late][:, :, self.kinds]
        seconds += np.einsum("rlk,lj->lrjk", of_late, ends_here)[..., None]
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
        beyond = (over[self.rank_of] - least)[:, None, None]
        each = np.where(self.runs[:, None], each + kib + beyond, np.inf)
        fixed = fixed - np.einsum("rcs,cs->r", self.room_kib, price) + least @ self.fewest
        fixed = fixed - most @ over
        found: Floats = (fixed + each.min(axis=(1, 3)) @ self.counts) * SAFETY
        return found

    @cached_property
    def _rank_layers(self) -> RankLayers:
        shape = self.same.schedule, self.same.pp, self.same.vpp, int(self.same.m[0])
        return RankLayers(self, first_lines(*shape))

    def most_layers(self, limits_s: Floats) -> Floats:
        """[row, rank] the most layers that a rank holds in steps below the limits; below 0 where
        there are none.
        """
        return self._rank_layers.most(limits_s)

    def packed(self, limits_s: Floats) -> Bools:
        """[row] whether ranks can hold all layers in steps below the limits."""
        most, own = self.most_layers(limits_s), np.zeros(self.same.pp)
        np.add.at(own, self.rank_of, self.fewest)
        found: Bools = (most >= own).all(axis=1) & (most.sum(axis=1) >= self.counts.sum())
        return found

    def packing_bounds_s(self, known_s: Floats, limit_s: float) -> Floats:
        """[row] a lower bound of every cut's step by whole layers of ranks, not below the known;
        the limit where no cut is below it.
        """
        low = np.minimum(known_s, limit_s)
        high = np.full(len(low), limit_s)
        below = self.packed(high)
        low = np.where(below, low, high)
        for _ in range(HALVINGS if below.any() else 0):
            middle = (low + high) / 2
            packed = self.packed(middle)
            low, high = np.where(packed, low, middle), np.where(packed, middle, high)
        return low
