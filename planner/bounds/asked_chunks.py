"""Bounds of every cut by the chains of one layout, of layouts with any number of chunks at once.

In the interleaved schedule a first line has each pass equally often in all chunks of a rank but the
first two and the last (`planner.bounds.first_chains`). Those between differ in the micro-batches
that they hold alone, so what a layer takes there with its price of memory, the least over its
modes, is concave in these: it is nowhere below the line from the chunk that holds fewest to the one
that holds most. So these two stand for all between, with multipliers of the fewest layers on that
line, and a layout of many chunks is asked in the time of `MOST`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layouts import Floats
from meshplan.planner.bounds.asked_prices import ScaledPrices
from meshplan.planner.bounds.first_chains import Lines, first_lines, linear_from
from meshplan.planner.bounds.free_cuts import FreeCuts
from meshplan.planner.problem.pipeline_shape import pipeline_shape

MOST = 5  # chunks of a rank that are looked at: the first two, the last, and two for all others
BETWEEN = slice(2, -1)


class Group(NamedTuple):
    """Layouts one after the other that have as many chunks per rank and micro-batches."""

    vpp: int
    m: int
    layouts: int


class Stand(NamedTuple):
    """The chunks that stand for all of one group; `end`: the first chunk of all, and the last.

    often    [column, rank, pass] of the mean of chains; of_ends: [end, pass]
    passes   forwards and backwards of all chunks; hops: to the next rank
    held     [column, rank] seconds of a KiB that a layer saves; of_ends_held: [end]
    fewest   [column, rank] layers of the chunks for which each stands
    """

    often: Floats
    of_ends: Floats
    passes: Floats
    hops: Floats
    held: Floats
    of_ends_held: Floats
    fewest: Floats


class Standing:
    """Chunks that stand for others, in a mean of the first lines with these `weights` [line] and
    seconds of a KiB, `price` [cover, rank]; of `columns` chunks of each rank.
    """

    def __init__(self, cuts: FreeCuts, weights: Floats, price: Floats, columns: int) -> None:
        self.shape, self.price, self.columns = (cuts.same.schedule, cuts.same.pp), price, columns
        self.counted = np.flatnonzero(weights).tolist()
        self.weights = weights[self.counted] / weights.sum()
        self._fewest_of_ends = cuts.fewest[[0, -1]]
        self._means = dict[tuple[int, int], tuple[Floats, Floats]]()

    def of(self, group: Group) -> Stand:
        """Those of one group."""
        (often, hops), held = self._often(group.vpp, group.m), self.held(group.vpp, group.m)
        ends, fewest = ([0, -1], [0, -1]), np.ones(held.shape)
        fewest[ends] = self._fewest_of_ends
        passes = often[..., :2].sum()
        every = Stand(often, often[ends], passes, hops, held, held[ends], fewest)
        return self._of_few(every) if group.vpp < MOST else _of_many(every)

    def _of_few(self, every: Stand) -> Stand:
        """Each chunk stands for itself; other columns for none."""
        own = np.arange(self.columns) < len(every.often)
        rows = np.minimum(np.arange(self.columns), len(every.often) - 1)
        return every._replace(
            often=every.often[rows],
            held=every.held[rows],
            fewest=every.fewest[rows] * own[:, None],
        )

    def held(self, vpp: int, m: int) -> Floats:
        """[row of chunks, rank] seconds of a KiB that a layer saves."""
        covers = pipeline_shape(*self.shape, vpp, m).covers
        found: Floats = np.einsum("csj,cs->js", covers, self.price)
        return found

    def lines(self, vpp: int, m: int) -> Lines:
        """Those that count."""
        every = first_lines(*self.shape, vpp, m)
        return Lines.of([every[at] for at in self.counted])

    def _often(self, vpp: int, m: int) -> tuple[Floats, Floats]:
        """[row of chunks, rank, pass] of the mean of chains, and its hops."""
        enough = linear_from(*self.shape)
        often, hops = self._mean(vpp, min(m, enough))
        if m > enough:
            often = often + (m - enough) * (self._mean(vpp, enough + 1)[0] - often)
        return often.reshape(vpp, -1, 3), hops

    def _mean(self, vpp: int, m: int) -> tuple[Floats, Floats]:
        if (vpp, m) not in self._means:
            like = self.lines(vpp, m)
            mean = np.tensordot(self.weights, like.often, axes=1), self.weights @ like.hops
            self._means[vpp, m] = mean
        return self._means[vpp, m]


def _of_many(every: Stand) -> Stand:
    """Those between are shared out to two, so that the mean of what they hold stays."""
    often, held, fewest = every.often, every.held, every.fewest
    least, most = held[BETWEEN].min(axis=0), held[BETWEEN].max(axis=0)
    apart = np.where(most > least, most - least, 1.0)
    share = (most - held[BETWEEN].mean(axis=0)) / apart
    between, like = fewest[BETWEEN].sum(axis=0), often[BETWEEN].min(axis=0)
    return every._replace(
        often=np.stack([*often[:2], like, like, often[-1]]),
        held=np.stack([*held[:2], least, most, held[-1]]),
        fewest=np.stack([*fewest[:2], between * share, between * (1 - share), fewest[-1]]),
    )


class AskedChunks(ScaledPrices):
    """`AskedPrices` of `groups` of layouts of the interleaved schedule with equally many ranks,
    which `cuts` has one after the other.
    """

    def __init__(
        self, cuts: FreeCuts, groups: Sequence[Group], weights: Floats, price: Floats
    ) -> None:
        self.cuts, self.groups, self.counts = cuts, groups, cuts.counts
        columns = min(MOST, max(group.vpp for group in groups))
        self._standing = Standing(cuts, weights, price, columns)
        each = [self._standing.of(group) for group in groups]
        self._stand = Stand(*map(self._repeated, zip(*each, strict=True)))
        self.seconds, self.fixed_s = self._seconds(), self._fixed_s()
        self.kib_s, self.room_s = self._kib_s(), self._room_s()
        self.fewest = self._stand.fewest.reshape(-1, len(cuts.same))

    def _repeated(self, found: Sequence[Floats]) -> Floats:
        """[..., layout] what each group has."""
        layouts = [group.layouts for group in self.groups]
        return np.repeat(np.stack(found, axis=-1), layouts, axis=-1)

    def _reduces(self) -> Floats:
        """[line of `late`, rank]."""
        like = self._standing.lines(self.groups[0].vpp, self.groups[0].m)
        found = np.zeros((4, self.cuts.same.pp))
        np.add.at(found, (like.late, like.ranks), self._standing.weights)
        return found

    def _seconds(self) -> Floats:
        cuts, often = self.cuts, self._stand.often
        seconds = np.where(cuts.runs[..., None], cuts.seconds, 0.0)
        found = np.einsum("rlkm,ls->mksr", cuts.late_s, self._reduces())[:, :, None]
        for at in range(3):  # a product of matrices of each layout would take longer
            found = found + _transposed(seconds[..., at])[:, :, None, None] * often[:, :, at]
        found = np.where(cuts.runs.T[:, :, None, None], found, np.inf)
        return found.reshape(*found.shape[:2], -1, found.shape[-1])

    def _fixed_s(self) -> Floats:
        first, last = (each.T for each in self._stand.of_ends)
        rest = self.cuts.rest_of(first, last, self._stand.hops, self._reduces())
        return rest + self.cuts.passes.extra * self._stand.passes

    def _kib_s(self) -> Floats:
        cuts = self.cuts
        state = self._standing.price.sum(axis=0)[:, None] * _transposed(cuts.state_kib)[:, None]
        saved = _transposed(cuts.saved_kib)[:, :, None, None]
        found: Floats = saved * self._stand.held + state[:, None]
        return found.reshape(*found.shape[:2], -1, found.shape[-1])

    def _room_s(self) -> Floats:
        """[layout] of all room: that of the chunks that `cuts` has, less what the ends hold."""
        c, same = self.cuts.same.prices, self.cuts.same
        found: Floats = np.einsum("rcs,cs->r", self.cuts.room_kib, self._standing.price)
        own = [self._standing.held(same.vpp, group.m) for group in self.groups]
        own_ends = self._repeated([held[[0, -1], [0, -1]] for held in own])
        saved = np.stack([c.embedding_saved_kib, c.head_saved_kib])
        found += ((own_ends - self._stand.of_ends_held) * saved).sum(axis=0)
        return found


def _transposed(each: Floats) -> Floats:
    """[row, kind, mode] as [mode, kind, row]; [row, kind] as [kind, row]."""
    return np.ascontiguousarray(each.T)
