"""The least step of some cuts of whole layers of one layout, by cutting planes.

The cut whose longest known chain is shortest is played; its longest chain is known then. Where it
is no longer than what was known, no cut is faster: the known chains bound all others. Chains have
each layer in its fastest mode, so where cuts must recompute this is a bound alone.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from meshplan.costmodels.layouts import Bools, Floats, Ints
from meshplan.costmodels.step.mix_memory import Span
from meshplan.planner.bounds.first_chains import Line
from meshplan.planner.bounds.free_cuts import FreeCuts, MeanOfRows
from meshplan.planner.bounds.simulated import SAFETY
from meshplan.planner.cuts.free_cut_program import FreeCutProgram
from meshplan.planner.cuts.known_chains import actions_of

ROUNDS, AT_ONCE = 200, 2_000_000  # cuts that are played at most; cuts times chains looked at
NO_LONGER = 1e-9
MOST_ASKED = 1_000  # ranks of a list of cuts that are asked whether they fit
PLAYED, ACTION = 15_000, 2  # units of work of a cut that is played; of each of its actions


class WholeCuts:
    """`layers`: [cut, chunk]; `means` of chains with prices of memory are known too.

    fastest   the place of the cut that takes least by its own chains, once no other is faster
    """

    def __init__(self, program: FreeCutProgram, layers: Ints, means: Sequence[MeanOfRows]) -> None:
        self.program, self.layers = program, layers_of_kinds(program.cuts, layers)
        self.fastest: int | None = None
        self._beside = slowest_update_s(program.cuts, self.layers) - program.cuts.mean_update_s[0]
        self._longest = np.max(
            [np.einsum("cjk,jk->c", self.layers, x.layer[0]) + x.fixed[0] for x in means], axis=0
        )
        self._learn(program.lines)

    def bounds_s(self, limit_s: float) -> Iterator[float]:
        """Lower bounds of all cuts, each by one more that is played; the limit where none is below
        it. The last one is the least step, or what is known of cuts that must recompute.
        """
        for _ in range(ROUNDS):
            steps = self._longest + self._beside
            at, known_s = int(steps.argmin()), float(self._longest[steps.argmin()])
            yield min(float(steps[at]) * SAFETY, limit_s)
            if steps[at] * SAFETY >= limit_s:
                return
            lines = self.program.learnt(fastest(self.program.cuts, self.layers[at]))
            self.program.add(lines)
            self._learn(lines)
            if self._longest[at] <= known_s * (1 + NO_LONGER):
                self.fastest = at
                return

    def _learn(self, lines: Sequence[Line]) -> None:
        """The chains of `lines` are known."""
        least, fixed = least_seconds(self.program.cuts, lines)
        flat, few = self.layers.reshape(len(self.layers), -1), max(1, AT_ONCE // len(lines))
        for first in range(0, len(flat), few):
            some = slice(first, first + few)
            each = flat[some] @ least.reshape(len(lines), -1).T + fixed
            self._longest[some] = np.maximum(self._longest[some], each.max(axis=1))


class WholeLayers:
    """What bounds steps of the only layout of `program` that are below a limit, by its whole layers
    (`planner.cuts.folded_bound`, `planner.cuts.ordered_bound`).

    fits      whether a rank with some (chunk, first layer, end) may fit, where that is known better
              than by prices of memory
    is_wide   whether a gap that is wide is to be closed, for which more may be spent
    ended     whether time or budget has ended, by the units of work that were spent
    work      these units
    step      those of a cut that is played
    cuts      the fastest cuts that were played: the longest chain, and [chunk, mode] layers
    halved    whether limits were halved already
    """

    def __init__(
        self,
        program: FreeCutProgram,
        below_s: float,
        ended: Callable[[int], bool],
        *,
        is_wide: bool = False,
        fits: Callable[[int, Sequence[Span]], bool] | None = None,
    ) -> None:
        self.program, self.below_s, self.ended, self.is_wide = program, below_s, ended, is_wide
        self.fits = fits
        self.work, self.step = 0, PLAYED + ACTION * actions_of(program.shape)
        self.cuts, self.halved = list[tuple[float, Floats | Ints]](), False

    def that_fit(self, layers: Ints) -> Bools:
        """[cut] whether all ranks of cuts [cut, chunk] may fit. What a rank holds in several cuts
        is asked once; once `MOST_ASKED` were, the others may.
        """
        found, asked, ends = np.ones(len(layers), bool), 0, np.cumsum(layers, axis=1)
        held = np.stack([ends - layers, ends], axis=2)
        for rank, chunks in enumerate(self.program.cuts.same.chunks_of_rank):
            rows = held[found][:, list(chunks)].reshape(-1, 2 * len(chunks))
            own, which = np.unique(rows, axis=0, return_inverse=True)
            asked += len(own)
            if self.fits is None or asked > MOST_ASKED:
                break
            fits = [self.fits(rank, _spans(chunks, each)) for each in own.tolist()]
            found[found] = np.array(fits, bool)[which.reshape(-1)]
        return found

    def played_s(self, layers: Ints | None, means: Sequence[MeanOfRows], found_s: float) -> float:
        """The bound by all cuts that may be below the limit, [cut, chunk] layers, and may fit;
        `found_s` where they are too many to list.
        """
        if layers is None:
            return found_s
        layers = layers[self.that_fit(layers)]
        if not len(layers):
            return self.below_s
        every = WholeCuts(self.program, layers, means)
        for bound_s in every.bounds_s(self.below_s):
            found_s = max(found_s, bound_s)
            self.work += self.step + layers.size
            if self.ended(self.work):
                break
        if every.fastest is not None:
            modes = np.arange(len(self.program.cuts.same.modes)) == 0
            self.cuts.append((found_s, layers[every.fastest][:, None] * modes))
        return found_s


def _spans(chunks: Sequence[int], places: Sequence[int]) -> list[Span]:
    """Of the chunks of a rank, by where each begins and ends."""
    return list(zip(chunks, places[::2], places[1::2], strict=True))


def layers_of_kinds(cuts: FreeCuts, layers: Ints) -> Floats:
    """[cut, chunk, kind] layers of cuts [cut, chunk], in the order of the model."""
    pattern = cuts.same.pattern
    kind_at = np.array([[kind == each for each in pattern] for kind in cuts.kinds])
    until = np.zeros((len(kind_at), len(pattern) + 1))
    np.cumsum(kind_at, axis=1, out=until[:, 1:])
    ends = np.cumsum(layers, axis=1)
    return np.moveaxis(until[:, ends] - until[:, ends - layers], 0, 2)


def slowest_update_s(cuts: FreeCuts, layers: Floats) -> Floats:
    """[cut] the update of the slowest rank at least, not below the mean one's; `layers`: [cut,
    chunk, kind].
    """
    held = np.zeros((len(layers), cuts.same.pp, len(cuts.kinds)))
    for chunk, rank in enumerate(cuts.rank_of.tolist()):
        held[:, rank] += layers[:, chunk]
    lines = cuts.update
    found = held @ lines.layer[0][:, cuts.kinds].T + lines.fixed[0]  # [cut, rank, bound]
    for end, (rank, _) in enumerate(cuts.same.ends):
        found[:, rank] += lines.ends[0, :, end]
    slowest: Floats = np.maximum(found.max(axis=(1, 2)), cuts.mean_update_s[0])
    return slowest


def fastest(cuts: FreeCuts, layers: Floats) -> Floats:
    """[chunk, kind, mode] layers [chunk, kind] of the only layout, each in the mode whose passes
    take least.
    """
    passes = np.where(cuts.runs[0], cuts.seconds[0].sum(axis=2), np.inf)
    which = passes.argmin(axis=1)[:, None] == np.arange(passes.shape[1])
    found: Floats = layers[:, :, None] * which
    return found


def least_seconds(cuts: FreeCuts, lines: Sequence[Line]) -> tuple[Floats, Floats]:
    """[line, chunk, kind] seconds of a layer of the only layout in the mode that takes least, and
    [line] the rest.
    """
    if not lines:
        return np.zeros((0, cuts.same.chunks, len(cuts.kinds))), np.zeros(0)
    seconds, fixed = cuts.seconds_of_each(lines)
    return np.where(cuts.runs[0], seconds[:, 0], np.inf).min(axis=3), fixed[:, 0]
