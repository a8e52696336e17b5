"""All cuts into whole layers of one layout whose known chains are below a limit, chunk after chunk.

With A layers on the chunks before a chunk and B up to its end, a chain has so many passes of the
layers between, in the order of the model. So of each known chain, and of each mean of chains with
prices of memory, the least that all later chunks can add is known at each place (`_ahead`): what is
begun is let go where any of them would end above the limit, and where a rank lacks memory with as
little kept as can be. Chains have each layer in its fastest mode; what recomputation costs is in
the means alone.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshplan.costmodels.layouts import Bools, Floats, Ints
from meshplan.planner.bounds.free_cuts import MeanOfRows
from meshplan.planner.bounds.simulated import SAFETY
from meshplan.planner.cuts.free_cut_program import FreeCutProgram
from meshplan.planner.cuts.path_game import PathGame
from meshplan.planner.cuts.whole_cuts import least_seconds

MOST_WORK, AT_ONCE = 6_000_000, 1_500_000  # seconds that are looked at: in all, of one chunk
MOST_CHAINS = 64  # the longest ones of the program's answer
FIRST = 8  # chains that are looked at before the others, of which they let few cuts go on
BLOCK = 4_096  # cuts that are looked at together
KIB = 1.0  # that a rank may lack by rounding alone


class _Begun(NamedTuple):
    """[cut, chunk] layers on the chunks so far, and [cut] in all; [line, cut] seconds; and [cover,
    rank, cut] KiB that ranks hold.
    """

    layers: NDArray[np.int16]
    at: Ints
    seconds: Floats
    kib: Floats


class _More(NamedTuple):
    """What is begun with a chunk more: the place of what it begins with, the layers of the chunk,
    and those in all.
    """

    of: Ints
    n: Ints
    end: Ints

    def added(self, before: Floats, until: Floats) -> Floats:
        """[line, cut] what was before [line, begun] and what the chunk adds to it: [line, place]
        the sum of its layers up to a place; of covers alike. (`take` takes a quarter less than an
        index. A line at a time: no second and third array of all lines is made.)
        """
        found: Floats = before.take(self.of, axis=1)
        begin = self.end - self.n
        for line, own in zip(found, until, strict=True):
            line += own.take(self.end)
            line -= own.take(begin)
        return found

    def where(self, holds: "Callable[[_More], Bools]") -> "_More":
        """Those of which something holds, asked of `BLOCK` at a time to take little memory."""
        blocks = range(0, len(self.of), BLOCK)
        held = [holds(_More(*(each[at : at + BLOCK] for each in self))) for at in blocks]
        some = np.flatnonzero(np.concatenate(held)) if held else self.of
        return _More(*(each[some] for each in self))


class OrderedCuts(PathGame):
    """The cuts of the only layout of `program`, whose last answer is known; `mean`: chains with
    prices of memory.

    work   seconds that were looked at
    """

    def __init__(self, program: FreeCutProgram, mean: MeanOfRows) -> None:
        super().__init__(program, mean)
        self.work, same, self._answer = 0, program.cuts.same, program.cut().sum(axis=2)
        self._layers, self._fewest = len(same.pattern), program.cuts.fewest.astype(int)
        self._most = np.clip(program.most[0], 0, self._layers).astype(int)
        self._kib_until = self._places(self._kib())

    def shortest(self, mean: MeanOfRows) -> tuple[float, Ints]:
        """The least sum of a mean of chains, and [chunk] the layers of its path; infinite where
        ranks cannot hold all layers.
        """
        until = self._places(mean.layer.swapaxes(0, 1))
        ahead, found, at = self._least_ahead(until), list[int](), 0
        self.work += 2 * until.size * len(self._held(0))
        least_s = float(ahead[0][0, 0] + mean.fixed[0])
        for chunk in range(len(until) if math.isfinite(least_s) else 0):
            held = np.array(self._held(chunk))
            held = held[at + held <= self._layers]
            after = until[chunk, 0, at + held] + ahead[chunk + 1][0, at + held]
            found.append(int(held[after.argmin()]))
            at += found[-1]
        return least_s, np.array(found)

    def _places(self, layer: Floats) -> Floats:
        """[..., place] the sum of all layers before a place, of each kind [..., kind]."""
        cuts = self.program.cuts
        place = {kind: at for at, kind in enumerate(cuts.kinds)}
        kind_at = [place[kind] for kind in cuts.same.pattern]
        found = np.zeros((*layer.shape[:-1], self._layers + 1))
        np.cumsum(layer[..., kind_at], axis=-1, out=found[..., 1:])
        return found

    def _longest(self) -> tuple[Floats, Floats]:
        """The chains of the program that are the longest of its answer and of an even cut."""
        cuts, lines = self.program.cuts, self.program.lines
        layer, fixed = least_seconds(cuts, lines)
        counts = self._answer + cuts.counts / cuts.same.chunks
        order = np.argsort(-(fixed + np.einsum("ljk,jk->l", layer, counts) / 2), kind="stable")
        return layer[order[:MOST_CHAINS]], fixed[order[:MOST_CHAINS]]

    def _kib(self) -> Floats:
        """[chunk, cover, kind] KiB of a layer at least."""
        cuts = self.program.cuts
        held, late = cuts.held()
        every = [
            np.where(cuts.runs[0], cuts.kib_of(h, d, np.ones(len(h)))[0], np.inf).min(axis=2)
            for h, d in zip(held, late, strict=True)
        ]
        return np.stack(every, axis=1)

    def _least_ahead(self, until: Floats) -> list[Floats]:
        """Of each chunk [line, place] the least of it and of all behind it; infinite where these
        cannot hold the layers behind that place. `until`: [chunk, line, place].
        """
        ahead = np.full(until.shape[1:], np.inf)
        ahead[:, -1] = 0.0
        found = [ahead]
        for chunk in range(len(until))[::-1]:
            own, least = until[chunk], np.full(ahead.shape, np.inf)
            behind, places = ahead + own, self._layers + 1
            for n in self._held(chunk):
                each = behind[:, n:] - own[:, : places - n]
                np.minimum(least[:, : places - n], each, out=least[:, : places - n])
            ahead = least
            found.append(ahead)
        return found[::-1]

    def _held(self, chunk: int) -> range:
        """So many layers may be on a chunk."""
        most = self._most[self.program.cuts.rank_of[chunk]]
        return range(int(self._fewest[chunk]), int(most) + 1)

    def below(self, means: Sequence[MeanOfRows], limit_s: float) -> Ints | None:
        """[cut, chunk] all cuts below a limit by `means` and the program's chains; None where there
        are too many to look at.
        """
        layer, fixed = self._longest()
        layer = np.concatenate([*(mean.layer for mean in means), layer])
        fixed = np.concatenate([*(mean.fixed for mean in means), fixed])
        until, room = self._places(layer.swapaxes(0, 1)), (limit_s / SAFETY - fixed)[:, None]
        ahead = self._least_ahead(until)
        covers, ranks = self.program.cuts.room_kib.shape[1:]
        begun = _Begun(
            np.zeros((1, 0), np.int16), np.zeros(1, int), np.zeros((len(room), 1)),
            np.zeros((covers, ranks, 1)),
        )  # fmt: skip
        for chunk, own in enumerate(until):
            longer = self._longer(begun, chunk, own, room - ahead[chunk + 1])
            if longer is None:
                return None
            begun = longer
        return begun.layers.astype(np.int64)

    def _longer(self, begun: _Begun, chunk: int, own: Floats, room: Floats) -> _Begun | None:
        """What is begun with each number of layers of one chunk more, None where that is too much;
        `own`, `room`: [line, place] seconds of that chunk up to a place, and that are left to what
        is before it.
        """
        more = self._that_fit(begun, chunk, AT_ONCE // len(room[:FIRST]))
        for lines in (slice(FIRST), slice(FIRST, None)):
            seen = len(room[lines]) * len(more.of)
            if seen > AT_ONCE or self.work + seen > MOST_WORK:
                return None
            self.work += seen
            more = more.where(partial(_below, begun.seconds[lines], own[lines], room[lines]))
        kib = begun.kib.take(more.of, axis=2)
        rank = self.program.cuts.rank_of[chunk]
        kib[:, rank] = more.added(begun.kib[:, rank], self._kib_until[chunk])
        layers = np.concatenate([begun.layers[more.of], more.n[:, None]], axis=1, dtype=np.int16)
        return _Begun(layers, more.end, more.added(begun.seconds, own), kib)

    def _that_fit(self, begun: _Begun, chunk: int, most: int) -> _More:
        """Each number of layers more that the rank of a chunk can hold: of `BLOCK` cuts at a time,
        until there are more than `most`, which is too many.
        """
        found, number, held = list[_More](), 0, np.array(self._held(chunk), int)
        for first in range(0, max(1, len(begun.at)), BLOCK):
            ends = begun.at[first : first + BLOCK, None] + held
            of, which = np.nonzero(ends <= self._layers)
            more = _More(of + first, held[which], ends[of, which])
            found.append(more.where(partial(self._fits, begun, chunk)))
            number += len(found[-1].of)
            if number > most:
                break
        return _More(*map(np.concatenate, zip(*found, strict=True)))

    def _fits(self, begun: _Begun, chunk: int, more: _More) -> Bools:
        """Which of these the rank of the chunk can hold."""
        cuts, rank = self.program.cuts, self.program.cuts.rank_of[chunk]
        holds = more.added(begun.kib[:, rank], self._kib_until[chunk])
        found: Bools = np.all(holds <= cuts.room_kib[0, :, rank, None] + KIB, axis=0)
        return found


def _below(before: Floats, until: Floats, room: Floats, more: _More) -> Bools:
    """Of which of these all chains are below what is left to them."""
    found: Bools = np.all(more.added(before, until) < room.take(more.end, axis=1), axis=0)
    return found
