"""The best weights of chains over the cuts of a V shape and what their ranks recompute.

As in `planner.cuts.folded_paths`, but a path says too what each rank recomputes, in whole layers:
under any weights of chains, of the mixes with which it fits those that take least
(`planner.bounds.folded.mixed_cuts`). So the game is over cuts with their mixes, and each path may
be a plan. A mean of cuts holds a mean of whole layers, which no rank does; so cuts are listed too,
by many chains at once.
"""

from collections.abc import Callable, Sequence

import numpy as np

from meshplan.costmodels.layouts import Bools, Floats, Ints
from meshplan.planner.bounds.first_chains import Line
from meshplan.planner.bounds.folded.mixed_cuts import MixedFolds
from meshplan.planner.bounds.folded.mixes import INPUT_GRAD
from meshplan.planner.bounds.free_cuts import MeanOfRows, Multipliers
from meshplan.planner.bounds.simulated import SAFETY
from meshplan.planner.cuts.folded_paths import FoldedPaths, Sums
from meshplan.planner.cuts.free_cut_program import FreeCutProgram
from meshplan.planner.cuts.whole_cuts import least_seconds

LISTED, AT_ONCE = 40, 1_000_000  # chains by which cuts are listed at least; their sums at once
NO_LONGER = 1 + 1e-9


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
        self._pairs = [folded.pairs(edge.places) for edge in self.edges]

    def shortest(self, mean: MeanOfRows) -> tuple[float, Ints]:
        """The least sum of a mean of chains, and [chunk, kind, mode] the layers of its path."""
        total, ways = self._least(self.sums(mean))
        places = [each[:, 0] for each in self.places(np.array([ways]))]
        return total, self.mixes_of(places, mean.often[0])

    def cuts_s(
        self,
        limit_s: float,
        by: Multipliers,
        rounds: int,
        that_fit: Callable[[Ints], Bools] | None = None,
    ) -> float:
        """A bound of all cuts below a limit, which are listed by the program's chains with these
        multipliers, all together and each alone; the limit where there are none, 0 where there are
        too many. Those alone count `that_fit`, [cut] of layers [cut, chunk], where that is said.
        The cut whose longest chain is shortest is played until none is left.
        """
        means = MeanOfRows.together([self._weighed(by.lines / by.lines.sum()), self._likely(by)])
        sums = self.sums(means)
        edges = self.below(sums, limit_s, AT_ONCE // len(sums.fixed))
        if edges is None:
            return 0.0
        if that_fit:
            edges = edges[that_fit(self.layers(edges))]
        return self._least_s(edges, [(means, sums)], limit_s, rounds) if len(edges) else limit_s

    def _likely(self, by: Multipliers) -> MeanOfRows:
        """Chains, those with the largest multipliers first, then the newest."""
        most = max(LISTED, AT_ONCE // max(1, sum(len(edge.of) for edge in self.edges)))
        known = np.lexsort((-np.arange(len(by.lines)), -by.lines))[:most].tolist()
        return self._alone([self.program.lines[line] for line in known])

    def _least_s(
        self, edges: Ints, known: list[tuple[MeanOfRows, Sums]], limit_s: float, rounds: int
    ) -> float:
        """A bound of cuts [cut, rank] below a limit by `known` means, with so many of them played;
        what these teach is known then.
        """
        longest = self._of_cuts(edges, known[0][1]).max(axis=0)
        for _ in range(rounds):
            at, known_s = int(longest.argmin()), float(longest.min())
            more = self._played(edges[[at]], known)
            known.append((more, self.sums(more)))
            longest = np.maximum(longest, self._of_cuts(edges, known[-1][1]).max(axis=0))
            if longest[at] <= known_s * NO_LONGER:
                break
            some = longest * SAFETY < limit_s
            edges, longest = edges[some], longest[some]
            if not len(edges):
                break
        return float(min(limit_s, longest.min(initial=np.inf) * SAFETY))

    def _played(self, cut: Ints, known: Sequence[tuple[MeanOfRows, Sums]]) -> MeanOfRows:
        """The chains that are learnt from a cut [1, rank] in the mixes that take least in the
        longest of the `known` means.
        """
        first = len(self.program.lines)
        each_s = np.concatenate([self._of_cuts(cut, sums)[:, 0] for _, sums in known])
        often = np.concatenate([means.often for means, _ in known])[int(each_s.argmax())]
        places = [each[:, 0] for each in self.places(cut)]
        self._learn(self.mixes_of(places, often))
        return self._alone(self.program.lines[first:])

    def _alone(self, lines: Sequence[Line]) -> MeanOfRows:
        """Chains, each by itself."""
        often = np.array([line.often[:, INPUT_GRAD] for line in lines])
        return MeanOfRows(*least_seconds(self.mixed.cuts, lines), often)

    def _of_cuts(self, edges: Ints, sums: Sums) -> Floats:
        """[mean, cut] the sums of means of chains, of cuts [cut, rank]."""
        self.work += edges.size * len(sums.fixed)
        found: Floats = sums.fixed[:, None] + sum(
            each[:, way] for each, way in zip(sums.seconds, edges.T, strict=True)
        )
        return found

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

    def _seconds_of(self, mean: MeanOfRows) -> list[Floats]:
        each, mixes = self.folded.seconds_of(self.edges, mean), self.mixed.mixes[0]
        more = [
            mixes.added(rank, mean.often[:, self.mixed.chunks(rank)], pairs)
            for rank, pairs in enumerate(self._pairs)
        ]
        return [fastest + added for fastest, added in zip(each, more, strict=True)]

    def _first_weights(self) -> Floats:
        first: Floats = self._weights
        return first

    def _weighed(self, weights: Floats) -> MeanOfRows:
        lines = self.program.lines[: len(weights)]
        layer, fixed = least_seconds(self.mixed.cuts, lines)
        often = weights @ np.array([line.often[:, INPUT_GRAD] for line in lines])
        mean = np.tensordot(weights, layer, axes=1)[None]
        return MeanOfRows(mean, np.array([weights @ fixed]), often[None])

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
