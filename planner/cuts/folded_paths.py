"""The cuts of whole layers of a V shape as paths, rank after rank, and means of chains over them.

`planner.bounds.folded_cuts` finds the ways of each rank that are below a limit by the chains that
every step has. A cut is a path through these ways, and a mean of chains is a sum along it. So its
least sum is a bound of every cut, for any weights of the chains. The best weights are found as in a
game of two: they are the best against the paths known so far, and the shortest path under them is
known then. In between, weights are taken half-way to the best that were found, since those of few
paths are far from those of all.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layouts import Floats, Ints
from meshplan.planner.bounds.folded_cuts import FoldedCuts
from meshplan.planner.bounds.free_cuts import Mean
from meshplan.planner.bounds.simulated import SAFETY
from meshplan.planner.cuts.free_cut_program import FreeCutProgram, best_weights
from meshplan.planner.cuts.whole_cuts import fastest, layers_of_kinds, least_seconds

NEAR = 1e-7  # what the best weights may gain, as a part of the bound


class Sums(NamedTuple):
    """Of each rank [edge] seconds, and [place] the least behind it; and the rest."""

    seconds: list[Floats]
    ahead: list[Floats]
    fixed: float


class FoldedPaths:
    """Those of the only layout of `program`; `mean`: chains with prices of memory.

    work, played   ways that were looked at, and steps that were played
    """

    def __init__(self, program: FreeCutProgram, folded: FoldedCuts, mean: Mean) -> None:
        self.program, self.folded, self.mean = program, folded, mean
        self.edges = folded.edges()
        self.work, self.played = sum(len(edge.of) for edge in self.edges), 0

    def sums(self, mean: Mean) -> Sums:
        """The sums of a mean of chains."""
        seconds = self.folded.seconds_of(self.edges, mean)
        left = [np.zeros(self.edges[-1].many)]
        for before, edge, each in zip(
            self.edges[-2::-1], self.edges[:0:-1], seconds[:0:-1], strict=True
        ):
            least = np.full(before.many, np.inf)
            first = np.flatnonzero(np.diff(edge.of, prepend=-1))
            least[edge.of[first]] = np.minimum.reduceat(each + left[-1][edge.to], first)
            left.append(least)
        return Sums(seconds, left[::-1], float(mean.fixed[0]))

    def least(self, sums: Sums) -> tuple[float, Ints]:
        """The least sum, and [chunk] the layers of its path."""
        at, total, held = 0, 0.0, list[Ints]()
        for edge, each, ahead in zip(self.edges, sums.seconds, sums.ahead, strict=True):
            first, last = np.searchsorted(edge.of, [at, at + 1])
            way = first + int((each[first:last] + ahead[edge.to[first:last]]).argmin())
            total, at = total + float(each[way]), int(edge.to[way])
            held.append(edge.places[[1, 3], way] - edge.places[[0, 2], way])
        return total + sums.fixed, _in_order(np.array(held)[None])[0]

    def below(self, every: Sequence[Sums], limit_s: float, most: int) -> Ints | None:
        """[cut, chunk] all cuts whose sums are below a limit; None where there are more than
        `most`.
        """
        room = [limit_s / SAFETY - each.fixed for each in every]
        at, held = np.zeros(1, np.int64), np.zeros((1, 0, 2), np.int64)
        sums = np.zeros((len(every), 1))
        for rank, edge in enumerate(self.edges):
            first, last = (np.searchsorted(edge.of, at, side=s) for s in ("left", "right"))
            many = last - first
            before = np.repeat(np.arange(len(at)), many)
            way = np.arange(len(before)) - np.repeat(np.cumsum(many) - many - first, many)
            sums = sums[:, before] + np.array([each.seconds[rank][way] for each in every])
            ahead = np.array([each.ahead[rank][edge.to[way]] for each in every])
            some = np.flatnonzero((sums + ahead < np.array(room)[:, None]).all(axis=0))
            self.work += len(way)
            if len(some) > most:
                return None
            at, sums, way = edge.to[way[some]], sums[:, some], way[some]
            own = (edge.places[[1, 3]] - edge.places[[0, 2]])[:, way].T[:, None]
            held = np.concatenate([held[before[some]], own], axis=1)
        return _in_order(held)

    def game(self, limit_s: float, rounds: int) -> tuple[float, Mean]:
        """A bound of all paths, the limit where it reaches that; and the mean that proves it."""
        paths, tried, alone = list[Ints](), np.ones(1), False
        found_s, near, best = -np.inf, tried, self.mean
        for _ in range(rounds):
            mean = self._weighed(tried)
            least_s, path = self.least(self.sums(mean))
            self.work += sum(len(edge.of) for edge in self.edges)
            if least_s > found_s:
                found_s, near, best = least_s, tried, mean
            known = any((path == each).all() for each in paths)
            if found_s * SAFETY >= limit_s or (known and alone):
                break
            if not known:
                paths.append(path)
                self._learn(path)
            most_s, weights = best_weights(self._seconds(np.array(paths)))
            if most_s <= found_s * (1 + NEAR):
                break
            alone = known
            tried = weights if known else (weights + _grown(near, weights)) / 2
        return min(found_s * SAFETY, limit_s), best

    def _learn(self, path: Ints) -> None:
        self.played += 1
        counts = layers_of_kinds(self.program.cuts, path[None])[0]
        self.program.add(self.program.learnt(fastest(self.program.cuts, counts)))

    def _weighed(self, weights: Floats) -> Mean:
        """The mean of `mean` and of the chains that were known first."""
        layer, fixed = least_seconds(self.program.cuts, self.program.lines[: len(weights) - 1])
        every = np.concatenate([self.mean.layer, layer])
        rest = weights @ np.concatenate([self.mean.fixed, fixed])
        return Mean(np.tensordot(weights, every, axes=1)[None], np.array([rest]))

    def _seconds(self, paths: Ints) -> Floats:
        """[path, line] seconds of `mean` and of all known chains."""
        layer, fixed = least_seconds(self.program.cuts, self.program.lines)
        counts = layers_of_kinds(self.program.cuts, paths)
        every = np.concatenate([self.mean.layer, layer])
        rest = np.concatenate([self.mean.fixed, fixed])
        found: Floats = np.einsum("cjk,ljk->cl", counts, every) + rest
        return found


def _grown(weights: Floats, like: Floats) -> Floats:
    """With nothing for chains that are new."""
    return np.pad(weights, (0, len(like) - len(weights)))


def _in_order(held: Ints) -> Ints:
    """[cut, chunk] of layers [cut, rank, chunk of the rank]."""
    return np.hstack([held[:, :, 0], held[:, ::-1, 1]])
