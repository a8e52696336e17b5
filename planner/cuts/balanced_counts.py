"""Layers moved between chunks by many at once, as long as no known chain forbids it.

With nothing recomputed a chain of actions (`Program.chain`) is linear in the layers of the chunks,
so the step, which is the longest of all chains, is convex in them. Known chains are a model of it
from below (cutting planes, Kelley 1960): where their soft maximum is least is simulated, and its
own longest chain is known then. What follows the last backward counts as it was when its chain was
learnt, so the model only says where to look.

    boundaries b[v] = the first layer of chunk v;  P[n] = seconds of the first n layers
    a chain    length = constant + sum over v >= 1 of P[b[v]] (rate[v - 1] - rate[v])
    a move     of n layers from chunk a to chunk b shifts all boundaries between them by n: of all
               moves the lengths are differences of running sums
"""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from meshplan.costmodels.layout import Stage
from meshplan.costmodels.layouts import Floats, Ints
from meshplan.costmodels.schedule.program import Chain
from meshplan.costmodels.step.cut_times import CutTimes
from meshplan.planner.cuts.cut_lengths import MOST_CHAINS, busy_rates, fixed_s, rates_of
from meshplan.planner.problem.split_peaks import SplitPeaks
from meshplan.planner.problem.stage_problem import StageProblem

SHIFTS = (1, 3)  # layers that are moved at once
SOFT = (1e-3, 5e-5)  # width of the soft maximum over the longest chain: nearer ones count
MOST_MOVES = 60  # moves of one descent
MOST_MISFITS = 40  # moves of one descent that do not fit
GAIN = 1e-7


class BalancedCounts:
    """The model of one problem; it begins with what each rank has to do, and the way to it."""

    def __init__(self, problem: StageProblem, times: CutTimes) -> None:
        self.problem, self.times = problem, times
        column = times.columns[min(problem.modes)]
        of_layer = times.passes.layer_s[times.row, list(problem.pattern), column]
        self._before = np.concatenate([np.zeros((1, 3)), of_layer.cumsum(axis=0)])
        chunks = problem.chunks
        self._fewest = np.array([problem.fewest_layers(at) for at in range(chunks)])
        self._constant = np.zeros(0)
        self._table = np.zeros((0, chunks, len(problem.pattern) + 1))  # [chain, chunk, first layer]
        for rank in range(problem.pp):
            self._add(*busy_rates(problem, rank), 0.0)

    def learn(self, chain: Chain, after_s: float) -> None:
        """Know a chain, behind which so much follows."""
        self._add(rates_of(chain), float(chain.hops), after_s)

    def _add(self, rates: Floats, hops: float, after_s: float) -> None:
        fixed = after_s + fixed_s(self.times, rates, hops) + self._before[-1] @ rates[-1]
        less = np.diff(rates, axis=0, prepend=rates[:1])  # rate[v] - rate[v - 1]
        table = -(less @ self._before.T)
        keep = 1 - MOST_CHAINS
        self._constant = np.append(self._constant[keep:], fixed)
        self._table = np.concatenate([self._table[keep:], table[None]])

    def longest_s(self, counts: Sequence[int]) -> float:
        """The longest known chain."""
        return float(self._lengths(self._first(np.array(counts))).max())

    def _first(self, counts: Ints) -> Ints:
        return counts.cumsum() - counts

    def _lengths(self, first: Ints) -> Floats:
        at = np.arange(len(first))
        found: Floats = self._constant + self._table[:, at, first].sum(axis=1)
        return found

    def least(self, counts: Sequence[int]) -> tuple[int, ...]:
        """Where a descent from `counts`, which fit, ends."""
        now, misfits = np.array(counts), MOST_MISFITS
        for soft in SOFT:
            for _ in range(MOST_MOVES):
                moved, misfits = self._moved(now, soft, misfits)
                if moved is None:
                    break
                now = moved
        return tuple(now.tolist())

    def _moved(self, counts: Ints, soft: float, misfits: int) -> tuple[Ints | None, int]:
        """The move that shortens the soft maximum most and fits, and how many may misfit yet."""
        lengths = self._lengths(self._first(counts))
        scale = soft * lengths.max()
        here = _soft_maximum(lengths[None], scale)[0]
        found = [self._of_moves(counts, lengths, shift, scale) for shift in SHIFTS]
        values = np.stack(found)  # [shift, from, to]
        for flat in np.argsort(values, axis=None, kind="stable").tolist():
            shift, at, to = (int(each) for each in np.unravel_index(flat, values.shape))
            if values[shift, at, to] >= here * (1 - GAIN) or misfits <= 0:
                break
            moved = counts.copy()
            moved[at] -= SHIFTS[shift]
            moved[to] += SHIFTS[shift]
            if self._fits(moved):
                return moved, misfits
            misfits -= 1
        return None, misfits

    def _of_moves(self, counts: Ints, lengths: Floats, shift: int, scale: float) -> Floats:
        """[from, to] the soft maximum after each move of so many layers; infinite where a chunk
        would hold too few.
        """
        first, last, at = self._first(counts), len(self.problem.pattern), np.arange(len(counts))
        now = self._table[:, at, first]
        left = self._table[:, at, np.maximum(first - shift, 0)] - now
        right = self._table[:, at, np.minimum(first + shift, last)] - now
        left[:, 0] = right[:, 0] = 0.0
        left, right = left.cumsum(axis=1), right.cumsum(axis=1)
        # From chunk a to a later one all boundaries behind a, up to b, are shifted to the left.
        later = np.triu(np.ones((len(counts), len(counts)), bool))
        moved = np.where(
            later, left[:, None, :] - left[:, :, None], right[:, :, None] - right[:, None, :]
        )
        values = _soft_maximum(np.moveaxis(lengths[:, None, None] + moved, 0, -1), scale)
        values[counts - shift < self._fewest] = np.inf
        np.fill_diagonal(values, np.inf)
        return values

    def _fits(self, counts: Ints) -> bool:
        starts, mode = [0, *accumulate(counts.tolist())], min(self.problem.modes)
        peaks = SplitPeaks(self.problem, starts).peaks_kib(
            counts * (mode == 2), counts * (mode == 1)
        )
        return bool(peaks.max() <= self.problem.cap_kib)


def least_recomputed(problem: StageProblem, counts: Sequence[int]) -> tuple[Stage, ...]:
    """A cut with as little recomputed as can be."""
    mode = min(problem.modes)
    return tuple(Stage(n, n * (mode == 1), n * (mode == 2)) for n in counts)


def _soft_maximum(lengths: Floats, scale: float) -> Floats:
    """Of the last axis: the logarithm of the mean of exponentials, `scale` wide."""
    most = lengths.max(axis=-1)
    beyond = np.exp((lengths - most[..., None]) / scale).mean(axis=-1)
    found: Floats = most + scale * np.log(beyond)
    return found
