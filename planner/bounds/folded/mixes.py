"""What ranks of a V shape recompute at least to fit, in whole layers.

The two chunks of a rank hold runs of layers in the model's order: words of kinds. A chunk
recomputes its first layers in full, the next selectively, the rest not at all, so a word has few
mixes. Each takes so much more in a backward, keeps so many KiB of a micro-batch, and asks for the
transient of its largest mode. Of each pair of words some pairs of mixes fit under every cover; the
others, and those that another one beats on both chunks, are left out. What is left is

    added = min over these pairs of (c first + c' second)

for a chain with c and c' backwards of the two chunks. Prices of memory (`planner.bounds.folded.
cuts`) recompute half a layer too, and know the smallest transient alone.
"""

from itertools import combinations_with_replacement, pairwise
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layouts import Bools, Floats, Ints
from meshplan.planner.bounds.free_cuts import FreeCuts
from meshplan.planner.bounds.simulated import SAFETY
from meshplan.planner.problem.pipeline_shape import pipeline_shape

KIB = 1.0  # that a rank may lack by rounding alone
INPUT_GRAD = 1  # the pass that replays
AT_ONCE = 1_000_000  # sums of a chain and a pair of mixes
RANK, WORD, BESIDE = 54_000, 2_900, 18
"""Ways (`planner.bounds.folded.cuts`) that take as long as a rank's mixes, as each of its words for
a transient, and as each mix beside one: 0.42 ms, 23 us and 0.14 us (measured, least squares)."""


class Words:
    """The words of 0 to `most` layers of a model, and their mixes.

    of       [layers, first layer] which word; 0 beyond the model's end
    kinds    [word, kind] layers
    mixes    [mix, kind, mode] layers; of one word after the other, as `word` says
    """

    def __init__(self, kind_at: Ints, shape: tuple[int, int], most: int) -> None:
        layers, known = len(kind_at), {(): 0}
        self.of = np.zeros((most + 1, layers + 1), np.int64)
        for many in range(1, most + 1):
            for first in range(layers - many + 1):
                word = tuple(kind_at[first : first + many].tolist())
                self.of[many, first] = known.setdefault(word, len(known))
        self._shape, self._words = shape, list(known)

    @property
    def many(self) -> int:
        """Mixes of all words at most: where each layer may run in any mode."""
        bars = self._shape[1] - 1
        return sum((len(word) + 1) ** bars for word in self._words)

    def listed(self) -> "Listed":
        """All mixes."""
        (kinds, modes), found, of = self._shape, list[Floats](), list[int]()
        for which, word in enumerate(self._words):
            is_kind = np.array(word, np.int64)[:, None] == np.arange(kinds)
            for bars in combinations_with_replacement(range(len(word) + 1), modes - 1):
                ends = (0, *bars, len(word))
                each = [is_kind[a:b].sum(axis=0) for a, b in pairwise(ends)]
                found.append(np.array(each[::-1], float).T)  # the first layers recompute most
                of.append(which)
        return Listed(np.array(found), np.array(of), len(self._words))


class Listed(NamedTuple):
    """`Words.mixes`, [mix] of which word, and how many words there are."""

    mixes: Floats
    word: Ints
    words: int


class Moments(NamedTuple):
    """[moment, chunk of the rank] micro-batches held, and those that await their weight gradient;
    [moment] the KiB for layers.
    """

    held: Floats
    late: Floats
    room_kib: Floats


class Points(NamedTuple):
    """Of a rank: [point] pairs of words (the first times all words, and the second), in order;
    [point, chunk of the rank] the seconds that a backward takes more, and the mixes.
    """

    pair: Ints
    added_s: Floats
    mixes: Ints


class FoldedMixes:
    """Those of one layout of `cuts`; `limit_s`: what is not below it is of no interest.

    work   ways that take as long as finding them
    """

    def __init__(self, cuts: FreeCuts, row: int, listed: Listed, limit_s: float) -> None:
        self.work = RANK * cuts.same.pp
        self.listed, mixes, same = listed, listed.mixes, cuts.same
        self._cuts, self._row = cuts, row
        backward = np.where(cuts.runs[row], cuts.seconds[row, :, :, INPUT_GRAD], np.inf)
        extra = backward - backward.min(axis=1, keepdims=True)
        used = mixes > 0
        self.added_s = np.where(used, mixes * np.where(used, extra, 0.0), 0.0).sum(axis=(1, 2))
        self.saved_kib = np.tensordot(mixes, np.where(cuts.runs[row], cuts.saved_kib[row], 0.0))
        transient = same.prices.transient_kib[row, list(same.modes)].astype(float)
        self.transient_kib = np.where(used.any(axis=1), transient, transient.min()).max(axis=1)
        kinds = mixes.sum(axis=2)
        self._state_kib, self._late_kib = (
            kinds @ cuts.state_kib[row],
            kinds @ cuts.deferred_kib[row],
        )
        passes = np.where(cuts.runs[row], cuts.seconds[row].sum(axis=2), np.inf)
        each_s = kinds @ passes.min(axis=1) + self.added_s
        self._some: Bools = np.isfinite(each_s) & (each_s * same.m[row] * SAFETY < limit_s)
        self._levels = np.unique(transient).tolist()
        self.points = [self._of_rank(rank) for rank in range(same.pp)]
        self._starts = [np.flatnonzero(np.diff(each.pair, prepend=-1)) for each in self.points]

    def added(self, rank: int, often: Floats, pairs: Ints) -> Floats:
        """[chain, pair] the least seconds that chains with so many backwards of the chunks of a
        rank, [chain, chunk], take more with some pairs of words; infinite where these do not fit.
        """
        (pair, added_s, _), starts = self.points[rank], self._starts[rank]
        found = np.full((len(often), len(pairs)), np.inf)
        if not len(pair):
            return found
        at = np.minimum(np.searchsorted(pair[starts], pairs), len(starts) - 1)
        fits, few = np.flatnonzero(pair[starts][at] == pairs), max(1, AT_ONCE // len(pair))
        for first in range(0, len(often), few):
            some = slice(first, first + few)
            least = np.minimum.reduceat(often[some] @ added_s.T, starts, axis=1)
            found[some, fits] = least[:, at[fits]]
        return found

    def _of_rank(self, rank: int) -> Points:
        every = [self._below(rank, level) for level in self._levels]
        pair, first, second = (np.concatenate(each) for each in zip(*every, strict=True))
        order = np.lexsort((self.added_s[second], self.added_s[first], pair))
        pair, first, second = pair[order], first[order], second[order]
        # along each pair `first` rises: only what takes less on the second chunk is of use
        kept = _falling(pair, self.added_s[second])
        pair, first, second = pair[kept], first[kept], second[kept]
        mixes = np.stack([first, second], axis=1)
        return Points(pair, self.added_s[mixes], mixes)

    def _below(self, rank: int, level: float) -> tuple[Ints, Ints, Ints]:
        """Pairs of words, and of their mixes that use no larger transient: with each of the first
        word the one of the second that takes least of those with which the rank fits.
        """
        listed = self.listed
        some = np.flatnonzero(self._some & (self.transient_kib <= level))
        ordered = some[np.lexsort((self.saved_kib[some], listed.word[some]))]
        words, starts = np.unique(listed.word[ordered], return_index=True)
        self.work += len(words) * (WORD + BESIDE * len(some))
        ends = [*starts[1:].tolist(), len(ordered)]
        moments, pairs = self._moments(rank), list[Ints]()
        room = self._room(moments, rank, level, some)
        for word, start, end in zip(words.tolist(), starts.tolist(), ends, strict=True):
            own = ordered[start:end]
            budget = self._left(moments, room, own[0])
            best = own[_least_so_far(self.added_s[own])]
            at = np.searchsorted(self.saved_kib[own], budget, side="right")
            fits = np.flatnonzero(at > 0)
            first = some[fits]
            pair = listed.word[first] * listed.words + word
            pairs.append(np.stack([pair, first, best[at[fits] - 1]]))
        if not pairs:
            return (np.zeros(0, np.int64),) * 3
        pair, first, second = np.concatenate(pairs, axis=1)
        return pair, first, second

    def _room(self, moments: Moments, rank: int, level: float, some: Ints) -> Floats:
        """[moment, mix] what is left beside a mix of the first chunk."""
        same, lowest = self._cuts.same, self._levels[0]
        if rank == same.ends[1][0]:
            lowest = max(lowest, float(same.prices.head_transient_kib[self._row]))
        more = np.where(moments.late.any(axis=1), 0.0, max(level - lowest, 0.0))
        kib = np.outer(moments.held[:, 0], self.saved_kib[some]) + self._state_kib[some]
        kib += np.outer(moments.late[:, 0], self._late_kib[some])
        left: Floats = (moments.room_kib + KIB - more)[:, None] - kib
        return left

    def _left(self, moments: Moments, room: Floats, mix: int) -> Floats:
        """[mix] KiB of a micro-batch that the word of another mix may keep on the second chunk;
        below 0 where none.
        """
        late, often = moments.late[:, 1, None], moments.held[:, 1, None]
        left = room - self._state_kib[mix] - late * self._late_kib[mix]
        each = np.where(often > 0, left / np.maximum(often, 1.0), np.inf)
        found: Floats = np.where((left < 0).any(axis=0), -1.0, each.min(axis=0))
        return found

    def _moments(self, rank: int) -> Moments:
        """Of a rank all that its schedule holds, where no micro-batch counts apart."""
        same, chunks = self._cuts.same, [rank, 2 * self._cuts.same.pp - 1 - rank]
        held, late = (each[:, chunks] for each in self._cuts.held())
        if same.waits_apart:
            return Moments(held, late, self._cuts.room_kib[self._row, :, rank])
        shape = pipeline_shape(
            same.schedule, same.pp, same.vpp, same.sizes[0][same.sizes[1][self._row]]
        )
        every, prices = shape.matrices[rank].astype(float), same.prices
        room = np.full(
            len(every), self._cuts.room_kib[self._row, 0, rank]
        )  # beside the fullest moment
        saved = (prices.embedding_saved_kib[self._row], prices.head_saved_kib[self._row])
        for kib, (holder, place) in zip(saved, same.ends, strict=True):
            room += (holder == rank) * (shape.fullest[rank, place] - every[:, place]) * kib
        return Moments(every, 0 * every, room)


def _least_so_far(values: Floats) -> Ints:
    """[place] where the least value up to a place is."""
    least = np.minimum.accumulate(values)
    fresh = np.flatnonzero(np.diff(least, prepend=np.inf) < 0)
    found: Ints = fresh[np.searchsorted(fresh, np.arange(len(values)), side="right") - 1]
    return found


def _falling(group: Ints, values: Floats) -> Bools:
    """Whether a value is less than all before it in its group; groups stand together, in order."""
    each = np.unique(values, return_inverse=True)[1]
    of = np.cumsum(np.diff(group, prepend=-1) > 0)
    lowered = each - of * (len(values) + 1)  # all of a group are below those of groups before
    found = np.ones(len(values), bool)
    found[1:] = lowered[1:] < np.minimum.accumulate(lowered)[:-1]
    return found
