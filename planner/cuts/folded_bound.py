"""What whole layers of a V shape's chunks prove of one layout, by what costs little first.

ways    the least of all cuts by the chains that every step has, rank after rank
        (`planner.bounds.folded_cuts`)
paths   the best weights of chains over all cuts that are left (`planner.cuts.folded_paths`)
cuts    all cuts that these leave, if they are few, one after the other
        (`planner.cuts.whole_cuts`)
"""

from collections.abc import Callable

from meshplan.costmodels.layouts import Ints
from meshplan.planner.bounds.folded_cuts import FoldedCuts
from meshplan.planner.cuts import budget as costs
from meshplan.planner.cuts.folded_paths import FoldedPaths
from meshplan.planner.cuts.free_cut_program import FreeCutProgram
from meshplan.planner.cuts.known_chains import actions_of
from meshplan.planner.cuts.whole_cuts import WholeCuts

FOLD, WAYS = 12_000, 6  # units of work of a rank; ways that cost one unit
GAME, GAME_UNITS = 40, 300_000  # shortest paths at most; units of work
MOST_CUTS = 20_000  # that are listed


class FoldedBound:
    """Of steps of the only layout of `program` that are below a limit.

    work      units that were spent
    fastest   [chunk] the layers of the cut that takes least by its own chains, where that is known
              and below the limit
    """

    def __init__(self, program: FreeCutProgram, below_s: float) -> None:
        self.program, self.below_s = program, below_s
        self.work = 0
        self.fastest: Ints | None = None

    def bound_s(self, ended: Callable[[], bool]) -> float:
        """The bound, the limit where nothing is below it."""
        program, ways, answer = self.program, FoldedCuts(self.program.cuts), self.program.answer()
        means = [program.cuts.mean(program.lines, answer.by, program.limit_s)] if answer.by else []
        found_s = float(ways.bounds_s(self.below_s, program.most, means)[0])
        self.work += FOLD * program.cuts.same.pp + ways.work // WAYS
        if not means or not 0 < found_s < self.below_s:
            return found_s
        return max(found_s, self._of_paths_s(FoldedPaths(program, ways, means[0]), ended))

    def _of_paths_s(self, paths: FoldedPaths, ended: Callable[[], bool]) -> float:
        step = costs.CHAINED * actions_of(self.program.shape)
        rounds = min(GAME, 1 + GAME_UNITS // (paths.work // WAYS + step))
        found_s, mean = paths.game(self.below_s, rounds)
        self.work += paths.work // WAYS + step * paths.played
        if found_s >= self.below_s:
            return found_s
        layers = paths.below([paths.sums(paths.mean), paths.sums(mean)], self.below_s, MOST_CUTS)
        if layers is None:
            return found_s
        if not len(layers):
            return self.below_s
        every = WholeCuts(self.program, layers, [paths.mean, mean])
        for bound_s in every.bounds_s(self.below_s):
            found_s = max(found_s, bound_s)
            self.work += step + layers.size
            if ended():
                break
        self.fastest = None if every.fastest is None else layers[every.fastest]
        return found_s
