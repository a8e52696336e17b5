"""What whole layers in the order of the model prove of one layout whose chunks pass in rows.

The cuts whose known chains are below a limit are listed (`planner.cuts.ordered_cuts`); if they are
few, the one whose longest known chain is shortest is played until none is faster
(`planner.cuts.whole_cuts`).
"""

from collections.abc import Callable

from meshplan.costmodels.layouts import Ints
from meshplan.planner.cuts import budget as costs
from meshplan.planner.cuts.free_cut_program import FreeCutProgram
from meshplan.planner.cuts.known_chains import actions_of
from meshplan.planner.cuts.ordered_cuts import OrderedCuts
from meshplan.planner.cuts.whole_cuts import WholeCuts

LISTED, SECONDS = 50_000, 4  # units of work of a list; seconds that cost one unit
GAME, GAME_UNITS = 30, 300_000  # shortest paths at most; units of work of what is played


class OrderedBound:
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
        program, answer = self.program, self.program.answer()
        if not answer.by:
            return 0.0
        mean = program.cuts.mean(program.lines, answer.by, program.limit_s)
        ordered = OrderedCuts(program, mean)
        step = costs.CHAINED * actions_of(program.shape)
        found_s, best = ordered.game(self.below_s, min(GAME, 1 + GAME_UNITS // step))
        layers = None
        if found_s < self.below_s:
            layers = ordered.below([mean, best], self.below_s)
        self.work += LISTED + ordered.work // SECONDS + step * ordered.played
        if layers is None:
            return found_s
        if not len(layers):
            return self.below_s
        every = WholeCuts(program, layers, [mean, best])
        for bound_s in every.bounds_s(self.below_s):
            found_s = max(found_s, bound_s)
            self.work += step + layers.size
            if ended():
                break
        self.fastest = None if every.fastest is None else layers[every.fastest]
        return found_s
