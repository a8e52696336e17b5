"""The best weights of chains over all cuts of whole layers of one layout, which are paths.

A mean of chains is a sum along the chunks, so the shortest path is a bound of every cut, for any
weights of the chains. The best weights are found as in a game of two: they are the best against the
paths known so far, and the shortest path under them is known then. In between, weights are taken
half-way to the best that were found, since those of few paths are far from those of all.
"""

from abc import ABC, abstractmethod

import numpy as np

from meshplan.costmodels.layouts import Floats, Ints
from meshplan.planner.bounds.free_cuts import MeanOfRows
from meshplan.planner.bounds.simulated import SAFETY
from meshplan.planner.cuts.free_cut_program import FreeCutProgram, best_weights
from meshplan.planner.cuts.whole_cuts import fastest, layers_of_kinds, least_seconds

NEAR = 1e-7  # what the best weights may gain, as a part of the bound
VAIN, LITTLE = 4, 1e-5  # rounds that gain less of the bound, in all


class PathGame(ABC):
    """Of the only layout of `program`; `mean`: chains with prices of memory.

    played   steps that were played
    """

    def __init__(self, program: FreeCutProgram, mean: MeanOfRows) -> None:
        self.program, self.mean, self.played = program, mean, 0

    @abstractmethod
    def shortest(self, mean: MeanOfRows) -> tuple[float, Ints]:
        """The least sum of a mean of chains, and [chunk] the layers of its path."""

    def game(self, limit_s: float, rounds: int) -> tuple[float, MeanOfRows]:
        """A bound of all paths, the limit where it reaches that; and the mean that proves it."""
        paths, tried, alone = list[Ints](), self._first_weights(), False
        found_s, near, best = -np.inf, tried, self.mean
        gained = [found_s]
        for _ in range(rounds):
            mean = self._weighed(tried)
            least_s, path = self.shortest(mean)
            if least_s > found_s:
                found_s, near, best = least_s, tried, mean
            gained.append(found_s)
            if len(gained) > VAIN + 1 and found_s < gained[-1 - VAIN] * (1 + LITTLE):
                break
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

    def _first_weights(self) -> Floats:
        """Those that are tried first."""
        return np.ones(1)

    def _learn(self, path: Ints) -> None:
        self.played += 1
        counts = layers_of_kinds(self.program.cuts, path[None])[0]
        self.program.add(self.program.learnt(fastest(self.program.cuts, counts)))

    def _weighed(self, weights: Floats) -> MeanOfRows:
        """The mean of `mean` and of the chains that were known first."""
        layer, fixed = least_seconds(self.program.cuts, self.program.lines[: len(weights) - 1])
        every = np.concatenate([self.mean.layer, layer])
        rest = weights @ np.concatenate([self.mean.fixed, fixed])
        return MeanOfRows(np.tensordot(weights, every, axes=1)[None], np.array([rest]))

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
