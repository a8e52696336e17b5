"""Known chains over many cuts at once, whatever their chunks recompute.

A chain of actions (`Program.chain`) is linear in what each chunk takes. What ranks reduce and
update behind it counts as linear in how many layers more or less than in one cut they hold, so
lengths only say where to look.
"""

from typing import NamedTuple

import numpy as np

from meshplan.costmodels.elementwise import most_along
from meshplan.costmodels.layout import Stage
from meshplan.costmodels.layouts import Floats, Ints
from meshplan.costmodels.schedule.in_flight import ZERO_BUBBLE
from meshplan.costmodels.schedule.program import Chain
from meshplan.costmodels.step.cut_times import CutTimes
from meshplan.planner.problem.recompute_mixes import prefix
from meshplan.planner.problem.split_peaks import SplitPeaks
from meshplan.planner.problem.stage_problem import StageProblem

MOST_CHAINS, MOST_KNOWN = 40, 100  # of `BalancedCounts`, and beside them
LAYERS, SELECTIVE, FULL = range(3)  # of a chunk in an array of cuts [cut, chunk, 3]


class CutSeconds(NamedTuple):
    """What cuts take: each pass of each chunk, [cut, chunk x 3]; what each rank reduces after its
    last one, [cut, rank]; and the update, [cut].
    """

    passes: Floats
    reduce: Floats
    update: Floats


class CutLengths:
    """Those of one problem; it begins with what each rank has to do, and the way to it."""

    def __init__(self, problem: StageProblem, times: CutTimes) -> None:
        self.problem, self.times = problem, times
        of_layer = times.passes.layer_s[times.row][list(problem.pattern)][:, list(times.columns)]
        none, selective, full = (prefix(of_layer[:, mode]) for mode in range(3))
        self._kept, self._more, self._most, self._full = (
            none,
            selective - none,
            full - selective,
            full,
        )
        self._rank_of = np.zeros(problem.chunks, int)
        for rank, chunks in enumerate(problem.chunks_of_rank):
            self._rank_of[list(chunks)] = rank
        self._constant, self._rates = np.zeros(0), np.zeros((0, 3 * problem.chunks))
        self._ends = np.zeros(0, int)  # [chain] the rank where it ends
        for rank in range(problem.pp):
            self._add(*busy_rates(problem, rank), rank)

    def begin(self, stages: tuple[Stage, ...]) -> None:
        """Lengths are wanted of cuts near that one."""
        self._held = self._layers_of(as_row(stages)[None])
        self._reduce, self._update = (np.array(each) for each in self.times.after_near_s(stages))

    def learn(self, chain: Chain) -> None:
        """Know a chain."""
        self._add(rates_of(chain), float(chain.hops), chain.rank)

    def _add(self, rates: Floats, hops: float, rank: int) -> None:
        fixed = fixed_s(self.times, rates, hops) + float(self.times.passes.step_s[self.times.row])
        self._constant = np.append(self._constant, fixed)[-MOST_KNOWN:]
        self._rates = np.vstack([self._rates, rates.reshape(1, -1)])[-MOST_KNOWN:]
        self._ends = np.append(self._ends, rank)[-MOST_KNOWN:]

    def seconds(self, cuts: Ints) -> CutSeconds:
        """Of cuts near the one that was begun with."""
        end = cuts[..., LAYERS].cumsum(axis=-1)
        first = end - cuts[..., LAYERS]
        full = first + cuts[..., FULL]
        passes = np.take(self._most, full, axis=0)
        passes += np.take(self._more, full + cuts[..., SELECTIVE], axis=0)
        passes += np.take(self._kept, end, axis=0)
        passes -= np.take(self._full, first, axis=0)
        more = self._layers_of(cuts) - self._held
        update = most_along(_near(self._update, more), 1)
        return CutSeconds(passes.reshape(len(cuts), -1), _near(self._reduce, more), update)

    def longest_s(self, cuts: CutSeconds) -> Floats:
        """[cut] the longest known chain, with what follows it."""
        found: Floats = most_along(self._lengths(cuts, 0), 1)
        return found

    def last_s(self, cuts: CutSeconds) -> Floats:
        """[cut] the chain that was learnt last, with what follows it."""
        found: Floats = self._lengths(cuts, len(self._constant) - 1)[:, 0]
        return found

    def weights(self, cut: Ints) -> Floats:
        """[chunk] seconds that a mean layer more, with nothing recomputed, takes of the longest
        known chain of a cut.
        """
        lengths = self._lengths(self.seconds(cut[None]), 0)
        row = self._rates[int(lengths.argmax())].reshape(-1, 3)
        found: Floats = row @ (self._kept[-1] / len(self.problem.pattern))
        return found

    def _lengths(self, cuts: CutSeconds, since: int) -> Floats:
        """[cut, chain] but the first so many."""
        found: Floats = cuts.passes @ self._rates[since:].T
        found += self._constant[since:] + cuts.reduce[:, self._ends[since:]]
        found += cuts.update[:, None]
        return found

    def _layers_of(self, cuts: Ints) -> Ints:
        """[cut, rank] layers."""
        found = np.zeros((len(cuts), self.problem.pp), np.int64)
        for chunk, rank in enumerate(self._rank_of.tolist()):
            found[:, rank] += cuts[:, chunk, LAYERS]
        return found


def _near(of_layers: Floats, more: Ints) -> Floats:
    """[cut, rank] of [a layer less, as many, one more][rank] with so many more."""
    less, same, one = of_layers
    found: Floats = same + np.where(more > 0, one - same, same - less) * more
    return found


def fitting(problem: StageProblem, cuts: Ints) -> Ints:
    """Which of the cuts fit, by their places."""
    starts = np.pad(cuts[..., LAYERS].cumsum(axis=-1), ((0, 0), (1, 0)))
    peaks = SplitPeaks(problem, starts).peaks_kib(cuts[..., FULL], cuts[..., SELECTIVE])
    return np.flatnonzero(peaks.max(axis=-1) <= problem.cap_kib)


def as_row(stages: tuple[Stage, ...]) -> Ints:
    """[chunk, 3] a cut."""
    return np.array([[each.layers, each.selective_layers, each.full_layers] for each in stages])


def as_stages(cut: Ints) -> tuple[Stage, ...]:
    """A cut [chunk, 3]."""
    return tuple(Stage(*chunk) for chunk in cut.tolist())


def busy_rates(problem: StageProblem, rank: int) -> tuple[Floats, float]:
    """[chunk, pass] how often and hops of all that a rank has to do, the way to its first chunk,
    and the way back where no weight gradient is left for later.
    """
    chunks, rates = list(problem.chunks_of_rank[rank]), np.zeros((problem.chunks, 3))
    ways = 1 if problem.schedule in ZERO_BUBBLE else 2
    rates[: min(chunks)] = (1.0, 0.0, 0.0) if ways == 1 else 1.0
    rates[chunks] = problem.m
    return rates, float(ways * min(chunks))


def rates_of(chain: Chain) -> Floats:
    """[chunk, pass] how often a chain takes forwards, input and weight gradients."""
    forward, both, input_grad, weight_grad = np.array(chain.counts, float).reshape(4, -1)
    return np.stack([forward, both + input_grad, both + weight_grad], axis=1)


def fixed_s(times: CutTimes, rates: Floats, hops: float) -> float:
    """What does not depend on the cut: hops, what passes wait for, embedding and head."""
    ends = (
        times.passes.embedding_s[times.row] @ rates[0] + times.passes.head_s[times.row] @ rates[-1]
    )
    return float(hops * times.hop_s + rates[:, :2].sum() * times.extra_s + ends)
