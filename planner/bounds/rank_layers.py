"""How many layers each rank holds in steps below a limit, of layouts of several chunks per rank.

Of each chain that any step has (`planner.bounds.first_chains.first_lines`), the rank of which it
has most passes: a layer more on that rank makes the chain longer by its fastest layer at least,
also where what memory asks for is paid for at some price. So

    t >= fixed + sum over kinds of layers of the rank x layer[kind]

for each line, whatever the other ranks hold. With the kind that takes least for all of them, the
least number of layers of its lines is the most of a rank. Some kinds may take little that the model
has few layers of, as where the first layers are dense. So that is asked of all kinds but the
cheapest ones as well (`planner.bounds.whole_kinds.dearer`): all ranks together hold those, and no
rank holds more beside them than the model has of the others.

Where many layers are cheap that says little. Count a layer of a kind as b[kind]. With any line of
each rank, and s[rank] the most that a second of it is worth, the largest b[kind] / layer[kind],

    sum of all b  <=  sum over ranks of s (t - fixed)

so t >= (sum of all b + sum of s fixed) / sum of s. The lines that bind most at some t are a step of
Newton's method, since the least of them is concave in t.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layouts import Bools, Floats, Ints
from meshplan.planner.bounds.first_chains import Line
from meshplan.planner.bounds.free_cuts import ENDLESS_S, FreeCuts
from meshplan.planner.bounds.late import SHOWN
from meshplan.planner.bounds.simulated import SAFETY
from meshplan.planner.bounds.whole_kinds import dearer

COVERS = 2  # of a rank whose layers are counted: its fullest moment, and a mean of all
ALL_MEMORY = 1e3  # seconds of a KiB
TINY, WHOLE = 1e-30, 1e-9  # seconds of a layer at least; rounding of a number of layers
NEWTON = 3  # steps
MOST_WORTHS = 20  # ways to count layers of several kinds
TOGETHER = 500_000  # seconds of layers that are looked at together


class _Lines(NamedTuple):
    """Of each line the rank, [line, row] seconds fixed, and [line, row, kind] for each layer."""

    rank: Ints
    fixed: Floats
    layer: Floats


class RankLayers:
    """The lines of all ranks of `cuts`, those of one rank together."""

    def __init__(self, cuts: FreeCuts, lines: Sequence[Line]) -> None:
        runs = cuts.runs
        few = max(1, TOGETHER // (runs.size * cuts.same.chunks))
        parts = [
            part for first in range(0, len(lines), few)
            for part in _lines_of(cuts, lines[first : first + few])
        ]  # fmt: skip
        rank, fixed, layer = (np.concatenate(each) for each in zip(*parts, strict=True))
        order = np.argsort(rank, kind="stable")
        self._first = np.searchsorted(rank[order], np.arange(cuts.same.pp))
        self._fixed = fixed[order].T
        self._kinds = np.maximum(layer[order].swapaxes(0, 1), TINY)  # [row, line, kind]
        of_sets = dearer(self._kinds, cuts.counts)
        self._sets = [(self._kinds[..., kinds].min(axis=2), number) for kinds, number in of_sets]
        self._many = np.diff(self._first, append=len(rank))
        worths = [part.layer.mean(axis=0) for part in parts[:MOST_WORTHS]]
        self._worths = [np.minimum(each, ENDLESS_S) for each in worths]

    def held(self, limits_s: Floats) -> tuple[Floats, Bools]:
        """[row, rank] the most layers in steps below the limits, below 0 where there are none; and
        [row] whether ranks hold all layers there.
        """
        every = list(self._most_of_sets(limits_s))
        (most, layers), holds = every[0], np.ones(len(limits_s), bool)
        for each, number in every:
            holds &= each.sum(axis=1) >= number
            most = np.minimum(most, each + layers - number)
        return most, holds & (most >= 0).all(axis=1) & (most.sum(axis=1) >= layers)

    def _most_of_sets(self, limits_s: Floats) -> Iterator[tuple[Floats, float]]:
        """Of all kinds, and of those but the cheapest ones, [row, rank] the most layers; and how
        many the model has.
        """
        beyond = limits_s[:, None] / SAFETY - self._fixed
        for layer, number in self._sets:
            each = np.minimum(np.floor(beyond / layer + WHOLE), number)
            each = np.where(beyond > 0, each, -1.0)
            yield np.minimum.reduceat(each, self._first, axis=1), number

    def of_kinds_s(self, counts: Floats, limit_s: float) -> Floats:
        """[row] a lower bound of every cut's step, at most the limit, with so many layers of each
        kind, which count as they do in the lines of one price of memory, that for which it is most.
        """
        found = np.zeros(len(self._fixed))
        for worth in self._worths:
            rate = (worth[:, None] / self._kinds).max(axis=2)  # [row, line]
            step_s = np.full(len(found), limit_s)
            for _ in range(NEWTON):
                beyond = (step_s[:, None] / SAFETY - self._fixed) * rate
                least = np.minimum.reduceat(beyond, self._first, axis=1)  # [row, rank]
                binds = beyond <= np.repeat(least, self._many, axis=1)
                rates = np.maximum.reduceat(np.where(binds, rate, 0.0), self._first, axis=1)
                lacks = worth @ counts - least.sum(axis=1)
                step_s = step_s + SAFETY * lacks / rates.sum(axis=1)
                step_s = np.minimum(step_s, limit_s)
                found = np.maximum(found, step_s)
        return found


def _lines_of(cuts: FreeCuts, lines: Sequence[Line]) -> Iterator[_Lines]:
    """By each chain alone, and with prices of memory for which modes cost as much."""
    seconds, fixed = cuts.seconds_of_each(lines)
    rank = np.array([_busiest(line, cuts.rank_of) for line in lines])
    of_kind = np.where(cuts.runs[:, None], seconds, np.inf).min(axis=4)
    least = of_kind.min(axis=3)  # [line, row, chunk]
    others = (cuts.rank_of != rank[:, None])[:, None]
    fixed = fixed + (np.maximum(least, 0) * others) @ cuts.fewest
    fixed += np.minimum(least * others, 0).sum(axis=2) * cuts.counts.sum()
    own = np.array(cuts.same.chunks_of_rank)[rank]  # [line, chunk of the rank]
    at = np.arange(len(lines))[:, None], slice(None), own
    yield _line(cuts, rank, own, fixed, of_kind[at])
    shown = np.array([_is_own(line, int(rank[n])) for n, line in enumerate(lines)])
    if shown.any():
        own_s = seconds[at][shown]  # [line, chunk of the rank, row, kind, mode]
        yield from _paying(cuts, rank[shown], own[shown], fixed[shown], own_s)


def _paying(
    cuts: FreeCuts, rank: Ints, own: Ints, fixed: Floats, seconds: Floats
) -> Iterator[_Lines]:
    """With prices of memory, under each of some covers."""
    each_held, each_late = cuts.held()
    for cover in range(min(COVERS, len(each_held))):
        held, late = (each[cover][own][:, :, None, None, None] for each in (each_held, each_late))
        kib = held * cuts.saved_kib + late * cuts.deferred_kib[..., None]
        kib += cuts.state_kib[..., None]
        room = cuts.room_kib[:, cover, rank].T
        for price in _prices(cuts, seconds[:, 0], kib[:, 0]):
            each = np.where(cuts.runs, seconds + price[:, None, :, None, None] * kib, np.inf)
            yield _line(cuts, rank, own, fixed - price * room, each.min(axis=4))


def _line(cuts: FreeCuts, rank: Ints, own: Ints, fixed: Floats, each: Floats) -> _Lines:
    """`each`: [line, chunk of the rank, row, kind] seconds of a layer."""
    each = np.minimum(each, ENDLESS_S)
    layer = each.min(axis=1)
    more = (each - layer[:, None]).min(axis=3) * cuts.fewest[own][:, :, None]
    return _Lines(rank, fixed + more.sum(axis=1), layer)


def _is_own(line: "Line", rank: int) -> bool:
    """Whether a chain is all work of a rank, down to its first chunk."""
    return line.late == SHOWN and line.rank == rank and line.hops == rank


def _prices(cuts: FreeCuts, seconds: Floats, kib: Floats) -> Iterator[Floats]:
    """[line, row] seconds of a KiB at which two modes of a kind cost as much, on the first chunk;
    and one at which memory alone counts.
    """
    for kind in range(len(cuts.kinds)):
        for a, b in combinations(range(kib.shape[3]), 2):
            slower = seconds[..., kind, b] - seconds[..., kind, a]
            saved = kib[..., kind, a] - kib[..., kind, b]
            both: Bools = cuts.runs[:, kind, a] & cuts.runs[:, kind, b]
            both = both & (slower * saved > 0)
            yield np.where(both, slower / np.where(both, saved, 1.0), 0.0)
    most = ALL_MEMORY * cuts.passes.once.mean() + ALL_MEMORY
    yield np.full(seconds.shape[:2], most)


def _busiest(line: "Line", rank_of: Ints) -> int:
    """The rank of which a chain has most passes."""
    passes = np.zeros(int(rank_of.max()) + 1)
    np.add.at(passes, rank_of, line.often.sum(axis=1))
    return int(passes.argmax())
