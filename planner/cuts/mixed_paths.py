"""The best weights of chains over the cuts of a V shape and what their ranks recompute.

As in `planner.cuts.folded_paths`, but a path says too what each rank recomputes, in whole layers:
under any weights of chains, of the mixes with which it fits those that take least
(`planner.bounds.folded.mixed_cuts`). So the game is over cuts with their mixes, and each path may
be a plan.
"""

import numpy as np

from meshplan.costmodels.layouts import Floats, Ints
from meshplan.planner.bounds.folded.mixed_cuts import MixedFolds
from meshplan.planner.bounds.folded.mixes import INPUT_GRAD
from meshplan.planner.bounds.free_cuts import Mean, Multipliers
from meshplan.planner.cuts.folded_paths import FoldedPaths
from meshplan.planner.cuts.free_cut_program import FreeCutProgram
from meshplan.planner.cuts.whole_cuts import least_seconds


class MixedPaths(FoldedPaths):
    """Those of the only layout of `program`; `by`: the multipliers that the game begins with.

    step_s, fastest   the longest chain of the fastest path that was played, and its layers [chunk,
                      mode]
    """

    def __init__(self, program: FreeCutProgram, folded: MixedFolds, by: Multipliers) -> None:
        self.mixed, self._weights = folded, by.lines / by.lines.sum()
        self.step_s, self.fastest = np.inf, np.zeros((0, 0))
        self.program = program
        mean = self._weighed(self._weights)
        super().__init__(program, folded, mean)

    def shortest(self, mean: Mean) -> tuple[float, Ints]:
        """The least sum of a mean of chains, and [chunk, kind, mode] the layers of its path."""
        self.work += sum(len(edge.of) for edge in self.edges)
        total, ways = self._least(self.sums(mean))
        places = [edge.places[:, way] for edge, way in zip(self.edges, ways, strict=True)]
        return total, self.mixes_of(places, mean.often)

    def mixes_of(self, places: list[Ints], often: Floats) -> Ints:
        """[chunk, kind, mode] the layers of a cut with the mixes that take least in a chain with so
        many backwards; `places` of each rank as in `Edges`.
        """
        mixes = self.mixed.mixes[0]
        found = np.zeros((len(often), *mixes.listed.mixes.shape[1:]), np.int64)
        for rank, each in enumerate(places):
            pair, points = self.mixed.pairs(each[:, None])[0], mixes.points[rank]
            first, last = np.searchsorted(points.pair, [pair, pair + 1])
            chunks = self.mixed.chunks(rank)
            takes = points.added_s[first:last] @ often[chunks]
            found[chunks] = mixes.listed.mixes[points.mixes[first + int(takes.argmin())]]
        return found

    def _seconds_of(self, mean: Mean) -> list[Floats]:
        each = self.folded.seconds_of(self.edges, mean)
        more = [
            self.mixed.added(rank, mean.often)[0, self.mixed.pairs(edge.places)]
            for rank, edge in enumerate(self.edges)
        ]
        return [fastest + added for fastest, added in zip(each, more, strict=True)]

    def _first_weights(self) -> Floats:
        first: Floats = self._weights
        return first

    def _weighed(self, weights: Floats) -> Mean:
        lines = self.program.lines[: len(weights)]
        layer, fixed = least_seconds(self.mixed.cuts, lines)
        often = weights @ np.array([line.often[:, INPUT_GRAD] for line in lines])
        mean = np.tensordot(weights, layer, axes=1)[None]
        return Mean(mean, np.array([weights @ fixed]), often)

    def _learn(self, path: Ints) -> None:
        self.played += 1
        lines, cut = self.program.learnt(path.astype(float)), path.astype(float)
        step_s = self.program.value_s(lines, cut)
        if step_s < self.step_s:
            self.step_s, self.fastest = step_s, path.sum(axis=1)
        self.program.add(lines)

    def _seconds(self, paths: Ints) -> Floats:
        each, fixed = self.program.cuts.seconds_of_each(self.program.lines)
        each = np.where(self.program.cuts.runs[0], each[:, 0], 0.0)
        found: Floats = np.einsum("pjkm,ljkm->pl", paths, each) + fixed[:, 0]
        return found
