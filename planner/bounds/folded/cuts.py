"""Lower bounds of every cut of V shapes into whole layers, in the order of the model.

A V shape folds the pipeline: rank s of S has chunk s, and chunk 2 S - 1 - s. So ranks fill it from
both ends. With A layers on the chunks before its first one and B on those behind its second one, a
chain that every step has (`planner.bounds.first_chains`) depends on A, B and what the rank holds
alone: it has as many passes of all chunks before, of all between and of all behind. By rank, of
every (A, B) that can be reached below a limit,

    longest(A', B') = min over what the rank holds of max(longest(A, B), chains of the rank)

which is the least of all cuts of whole layers, of kinds in their order. What a rank recomputes for
its memory is as in `planner.bounds.free_cuts`: prices of memory, here of the rank alone. A mean of
chains is a sum over the chunks. The least sum of all cuts that are below the limit by the chains of
each rank is a bound as well (`MeanOfRows`).
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, product, repeat
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layouts import Bools, Floats, Ints
from meshplan.planner.bounds.first_chains import Line, first_lines
from meshplan.planner.bounds.folded.lines import folded_lines
from meshplan.planner.bounds.free_cuts import FreeCuts, MeanOfRows
from meshplan.planner.bounds.simulated import SAFETY

COVERS = 2  # of a rank that are priced: its fullest moment, and a mean of all
Times = tuple[float, float, float, float, float]
UNEVEN: tuple[Times, ...] = tuple(
    (a, b, c, d, a if even else 1.5 - a)
    for a, b, c, d in product((0.5, 1.0), repeat=4)
    for even in (True, False)
)  # times the even layers before, on and between the chunks of a rank, and behind
KIB = 1.0  # that a rank may lack by rounding alone
AT_ONCE = 65_536  # ways that are looked at together
MOST_WAYS, MOST_CELLS = 1_000_000, 4_000_000  # to go on, of one rank; times lines and layouts


class _Reached(NamedTuple):
    """Layers on the chunks so far, [way] of the first and of the last ones; [row, way] the longest
    chain, and [mean, row, way] the least sums; infinite where the limit is reached.
    """

    front: Ints
    back: Ints
    longest: Floats
    sums: Floats


class _Ways(NamedTuple):
    """Of each way to go on the place in what was reached, where the rank's first chunk ends, where
    its second one begins.
    """

    of: Ints
    ends: Ints
    begins: Ints


class Edges(NamedTuple):
    """Ways of a rank: [edge] of which place reached before, in order, and to which of the `many`
    places; [4, edge] the layers before its first chunk, up to its end, before its second chunk, and
    up to its end.
    """

    of: Ints
    to: Ints
    places: Ints
    many: int


class Terms(NamedTuple):
    """Chains of a rank, with each price of memory: [line, row] the rest, and [line, end, row,
    place] what a place adds as that where its first chunk begins, where that ends, where its second
    one begins, and where that ends. And what it lacks under each cover, in KiB alike.
    """

    fixed: Floats
    at: Floats
    room: Floats
    held: Floats


class FoldedCuts:
    """The cuts of layouts of one V shape, by chains that are the longest of some `likely` cut."""

    asked_again = False  # whether `bounds_s` is, below other limits

    def __init__(self, cuts: FreeCuts, likely: Sequence[Times] = UNEVEN) -> None:
        same, self.cuts, self._likely = cuts.same, cuts, likely
        self.ranks, self.layers = same.pp, len(same.pattern)
        place = {kind: at for at, kind in enumerate(cuts.kinds)}
        self._kind_at = np.array([place[kind] for kind in same.pattern])
        self.fewest = cuts.fewest.astype(int)
        kinds_run: Bools = np.any(cuts.runs, axis=2)
        self.runs: Bools = np.all(kinds_run, axis=1)  # [row]
        self._known = dict[int, Terms]()
        self.work, self._steps = 0, list[_Ways]()

    def bounds_s(self, limit_s: float, most: Floats, means: Sequence[MeanOfRows] = ()) -> Floats:
        """[row] a lower bound of every cut of which no rank holds more than the `most` layers,
        [row, rank]; the limit where none is below it, and 0 where there are too many ways.
        """
        below = np.clip(most.max(axis=0), -1, self.layers).astype(int)  # [rank]
        rows, ends = len(most), np.zeros(1, np.int64)
        found = _Reached(ends, ends, np.zeros((rows, 1)), np.zeros((len(means), rows, 1)))
        self._steps = []
        for rank in range(self.ranks):
            ways = self._ways(found, rank, below)
            if ways is None:
                return np.zeros(rows)
            found = self._reached(found, ways, rank, limit_s, means)
            if not len(found.front):
                break
        longest = found.longest.min(axis=1, initial=np.inf)
        for mean, sums in zip(means, found.sums, strict=True):
            longest = np.maximum(longest, sums.min(axis=1, initial=np.inf) + mean.fixed)
        bounds: Floats = np.minimum(longest * SAFETY, limit_s)
        return np.where(self.runs, bounds, 0.0)

    def edges(self) -> "list[Edges]":
        """The ways of each rank that `bounds_s` found, from what was reached to what is then."""
        found, reached = list[Edges](), np.zeros(1, np.int64)
        for ways in self._steps:
            front, back = np.divmod(reached[ways.of], self.layers + 1)
            key = ways.ends * (self.layers + 1) + self.layers - ways.begins
            reached, to = np.unique(key, return_inverse=True)
            places = np.array([front, ways.ends, ways.begins, self.layers - back])
            found.append(Edges(ways.of, to, places, len(reached)))
        return found

    def seconds_of(self, edges: "Sequence[Edges]", mean: MeanOfRows) -> list[Floats]:
        """Of each rank [row, edge] what its layers take in means of chains."""
        found, until_s = list[Floats](), self._until(mean.layer)  # [row, chunk, place]
        for rank, each in enumerate(edges):
            (first, second), at = self.chunks(rank), each.places
            seconds = until_s[:, first, at[1]] - until_s[:, first, at[0]]
            found.append(seconds + until_s[:, second, at[3]] - until_s[:, second, at[2]])
        return found

    def _ways(self, reached: _Reached, rank: int, most: Ints) -> _Ways | None:
        """What the rank may hold, so that the ranks behind it can hold the rest."""
        first, second = self.fewest[[rank, 2 * self.ranks - 1 - rank]]
        ahead = np.arange(first, most[rank] + 1)
        held = [(n, k) for n in ahead.tolist() for k in range(second, most[rank] - n + 1)]
        self.work += len(held) * len(reached.front)
        if len(held) * len(reached.front) > MOST_WAYS:
            return None
        within = self.fewest[rank + 1 : 2 * self.ranks - 1 - rank].sum()
        left = range(within, most[rank + 1 :].sum() + 1)
        parts, number, many = list[_Ways](), 0, max(1, AT_ONCE // max(1, len(held)))
        each, cells = np.array(held, np.int64).reshape(-1, 2), self.terms(rank).fixed[:, 0].size
        for first in range(0, max(1, len(reached.front)), many):
            parts.append(self._that_leave(left, reached, slice(first, first + many), each))
            number += len(parts[-1].of)
            if cells * number * len(self.runs) > MOST_CELLS:
                return None
        return _Ways(*map(np.concatenate, zip(*parts, strict=True)))

    def _that_leave(self, left: range, reached: _Reached, some: slice, each: Ints) -> _Ways:
        """Those of a few places with `each` [way, chunk of the rank] layers that leave as many to
        the ranks behind as these can hold.
        """
        ends = reached.front[some, None] + each[:, 0]
        begins = self.layers - reached.back[some, None] - each[:, 1]
        leaves = begins - ends
        of, which = np.nonzero((leaves >= left.start) & (leaves < left.stop))
        return _Ways(of + some.start, ends[of, which], begins[of, which])

    def _reached(
        self, before: _Reached, ways: _Ways, rank: int, limit_s: float, means: Sequence[MeanOfRows]
    ) -> _Reached:
        """The ways below the limit; of those with the same layers on both sides the least."""
        begun, ended = before.front[ways.of], self.layers - before.back[ways.of]
        longest = before.longest.take(ways.of, axis=1)
        terms, sums_of = self.terms(rank), self._sums_of(before, ways)
        beyond = self._beyond(rank, np.array([begun, ways.ends, ways.begins, ended]))
        for fixed, at, more in zip(terms.fixed, terms.at, beyond, strict=True):
            value = sums_of(fixed, at)
            value += more
            np.maximum(longest, value, out=longest)
        for fixed, at in zip(terms.room, terms.held, strict=True):
            longest[sums_of(fixed, at) > KIB] = np.inf
        self.work += longest.size * (len(terms.fixed) + len(terms.room))
        below = longest * SAFETY < limit_s
        longest[~below] = np.inf
        some = np.flatnonzero(below.any(axis=0))
        longest, sums = longest.take(some, axis=1), before.sums.take(ways.of[some], axis=2)
        for at, mean in enumerate(means):
            first, second = (self._until(mean.layer[:, chunk]) for chunk in self.chunks(rank))
            sums[at] += first[:, ways.ends[some]] - first[:, begun[some]]
            sums[at] += second[:, ended[some]] - second[:, ways.begins[some]]
        sums[:, ~below[:, some]] = np.inf
        kept = _Ways(ways.of[some], ways.ends[some], ways.begins[some])
        return self._least_of_each(kept, longest, sums)

    def _sums_of(self, before: _Reached, ways: _Ways) -> Callable[[Floats, Floats], Floats]:
        """What gives [row, way] a term of a rank: [row] the rest, and [end, row, place] what places
        add. Ways share what was reached before and what is reached then, so that each of these is
        added up once.
        """
        key = ways.ends * (self.layers + 1) + ways.begins
        reached, to = np.unique(key, return_inverse=True)
        ends, begins = np.divmod(reached, self.layers + 1)
        ended = self.layers - before.back

        def sums(fixed: Floats, at: Floats) -> Floats:
            behind = at[0].take(before.front, axis=1) + at[3].take(ended, axis=1) + fixed[:, None]
            ahead = at[1].take(ends, axis=1) + at[2].take(begins, axis=1)
            found: Floats = behind.take(ways.of, axis=1)
            found += ahead.take(to, axis=1)
            return found

        return sums

    def _beyond(self, rank: int, places: Ints) -> Iterator[Floats]:
        """Of each line [row, way] seconds beyond what the terms of a rank say; `places` as in
        `Edges`.
        """
        return repeat(np.zeros((1, 1)), len(self.terms(rank).fixed))

    def _least_of_each(self, ways: _Ways, longest: Floats, sums: Floats) -> _Reached:
        """Of ways with as many layers on both sides the least of each row."""
        self._steps.append(ways)
        if not len(ways.of):
            return _Reached(ways.ends, ways.begins, longest, sums)
        key = ways.ends * (self.layers + 1) + self.layers - ways.begins
        order = np.argsort(key, kind="stable")
        _, first = np.unique(key[order], return_index=True)
        at = order[first]
        return _Reached(
            ways.ends[at], self.layers - ways.begins[at],
            np.minimum.reduceat(longest[:, order], first, axis=1),
            np.minimum.reduceat(sums[:, :, order], first, axis=2),
        )  # fmt: skip

    def chunks(self, rank: int) -> list[int]:
        """Those of a rank."""
        return [rank, 2 * self.ranks - 1 - rank]

    def _until(self, layer: Floats) -> Floats:
        """[..., place] seconds of all layers before a place, of each kind [..., kind]."""
        found = np.zeros((*layer.shape[:-1], self.layers + 1))
        np.cumsum(layer[..., self._kind_at], axis=-1, out=found[..., 1:])
        return found

    def terms(self, rank: int) -> Terms:
        """`_terms_of` a rank, found when it is asked for; the last one alone is kept, unless bounds
        are asked for again and again.
        """
        if rank not in self._known:
            if not self.asked_again:
                self._known.clear()
            self._known[rank] = self._terms_of(rank)
        return self._known[rank]

    def _terms_of(self, rank: int) -> Terms:
        paid = self._paid(rank, *self._seconds_of(rank, self._lines_of(rank)))
        fixed, parts = self._updated(rank, *paid)
        kept, cuts = self._longest_of(parts, fixed, rank), self.cuts
        kib = np.array([self._kib(rank, cover) for cover in range(cuts.room_kib.shape[1])])
        nothing = np.zeros((len(kib), 3, *cuts.runs.shape[:2]))
        held = parts_of(nothing, np.where(cuts.runs[:, None], kib, np.inf).min(axis=4))
        return Terms(
            *self._at(fixed[kept], parts[kept]),
            *self._at(-cuts.room_kib[:, :, rank].T.astype(float), held),
        )

    def _lines_of(self, rank: int) -> list[Line]:
        """The chains of a rank."""
        same = self.cuts.same
        shape = same.schedule, same.pp, same.vpp, int(same.m[0])
        lines = [line for line in first_lines(*shape) if line.rank == rank]
        return [*lines, *folded_lines(same.schedule, same.pp, shape[3])[rank]]

    def _seconds_of(self, rank: int, lines: Sequence[Line]) -> tuple[Floats, Floats, Floats]:
        """Chains of a rank: [line, row] the rest, [line, part, row, kind] seconds of a layer
        before, between and behind its chunks, and [line, row, chunk of the rank, kind, mode] on
        them.
        """
        first, second = self.chunks(rank)
        is_there = np.array([rank > 0, rank < self.ranks - 1, rank > 0], float)
        like = [max(first - 1, 0), first + 1, min(second + 1, 2 * self.ranks - 1), first, second]
        seconds, fixed = self.cuts.seconds_of_each(lines, like)
        seconds = np.where(self.cuts.runs[:, None], seconds, np.inf)
        least = seconds[:, :, :3].min(axis=4)
        around = np.moveaxis(np.where(np.isfinite(least), least, 0.0), 2, 1)
        return fixed, around * is_there[:, None, None], seconds[:, :, 3:]

    def _paid(self, rank: int, rest: Floats, around: Floats, own: Floats) -> tuple[Floats, Floats]:
        """The chains of a rank in the modes that take least, and the longest of these with prices
        of memory.
        """
        every, fixed = [parts_of(around, own.min(axis=4))], [rest]
        for at in self._longest_of(every[0], rest, rank) if len(self.cuts.same.modes) > 1 else ():
            for paid, room in self._paying(rank, own[at]):
                every.append(parts_of(np.repeat(around[at : at + 1], len(paid), axis=0), paid))
                fixed.append(rest[at] - room)
        return np.concatenate(fixed), np.concatenate(every)

    def _updated(self, rank: int, fixed: Floats, parts: Floats) -> tuple[Floats, Floats]:
        """The lines with the mean rank's update, which they have, and with that of the rank."""
        cuts, lines = self.cuts, len(fixed)
        layer, once = cuts.update.layer[:, :, cuts.kinds], cuts.update.fixed.copy()
        for end, (its, _) in enumerate(cuts.same.ends):
            once += (its == rank) * cuts.update.ends[:, :, end]
        bounds = 1 + layer.shape[1]
        every_fixed, every = np.tile(fixed, (bounds, 1)), np.tile(parts, (bounds, 1, 1, 1))
        for at in range(1, bounds):
            own = slice(at * lines, (at + 1) * lines)
            every[own, 1] += layer[:, at - 1]
            every[own, 3] += layer[:, at - 1]
            every_fixed[own] = fixed + once[:, at - 1] - cuts.mean_update_s
        return every_fixed, every

    def _longest_of(self, parts: Floats, fixed: Floats, rank: int) -> Ints:
        """The lines that are the longest of some layout in some likely cut."""
        around = self.ranks - 1 - rank
        lengths = np.array([rank, 1, 2 * around, 1, rank]) * self.layers / (2 * self.ranks)
        kinds = np.bincount(self._kind_at) / self.layers
        runs = parts if self.runs.all() else np.where(self.runs[:, None], parts, 0.0)
        of_part = runs @ kinds * lengths[:, None]  # [line, part, row]
        found = set[int]()
        for uneven in self._likely:
            times = np.array(uneven) / (lengths @ uneven / self.layers)
            found |= set((np.einsum("lpr,p->lr", of_part, times) + fixed).argmax(axis=0).tolist())
        return np.array(sorted(found))

    def _at(self, fixed: Floats, parts: Floats) -> tuple[Floats, Floats]:
        """The rest, and seconds by where the chunks of a rank begin and end; `parts`: [line, part,
        row, kind] seconds of a layer before, on the first chunk, between, on the second, behind.
        """
        until = self._until(np.where(self.runs[:, None], parts, 0.0))
        return fixed + until[:, -1, :, -1], until[:, :-1] - until[:, 1:]

    def _kib(self, rank: int, cover: int) -> Floats:
        """[row, chunk of the rank, kind, mode] KiB of a layer."""
        held, late = (each[cover][self.chunks(rank)] for each in self.cuts.held())
        return self.cuts.kib_of(held, late, np.ones(2))

    def _paying(self, rank: int, own: Floats) -> Iterator[tuple[Floats, Floats]]:
        """[price, row, chunk of the rank, kind] seconds of a layer with prices of memory at which
        two modes of a kind take as long on a chunk, and [price, row] what the rank's room is worth.
        """
        cuts = self.cuts
        for cover in range(min(COVERS, cuts.room_kib.shape[1])):
            kib = self._kib(rank, cover)
            price = _prices(own, kib, cuts.runs)
            paid = own + price[:, :, None, None, None] * kib
            least = np.where(cuts.runs[:, None], paid, np.inf).min(axis=4)
            yield least, price * cuts.room_kib[:, cover, rank]


def parts_of(around: Floats, own: Floats) -> Floats:
    """[line, part, row, kind] seconds of a layer, of what is `around` the chunks of a rank [line,
    part, row, kind] and on them [line, row, chunk of the rank, kind].
    """
    before, between, behind = np.moveaxis(around, 1, 0)
    return np.stack([before, own[:, :, 0], between, own[:, :, 1], behind], axis=1)


def _prices(seconds: Floats, kib: Floats, runs: Bools) -> Floats:
    """[price, row] seconds of a KiB, each different one once: of all chunks, kinds and pairs of
    modes. Both are [row, chunk of the rank, kind, mode].
    """
    a, b = np.array(list(combinations(range(kib.shape[3]), 2))).T
    both = (runs[:, :, a] & runs[:, :, b])[:, None]
    slower = np.where(both, seconds[..., b], 0.0) - np.where(both, seconds[..., a], 0.0)
    saved = kib[..., a] - kib[..., b]
    pays = both & (slower * saved > 0)
    price = np.where(pays, slower / np.where(pays, saved, 1.0), 0.0)
    every = price.reshape(len(price), -1).T
    return np.array(list({each.tobytes(): each for each in every if each.any()}.values())).reshape(
        -1, len(price)
    )
