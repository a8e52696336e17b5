"""What whole layers in the order of the model prove of one layout whose chunks pass in rows.

The cuts whose known chains are below a limit are listed (`planner.cuts.ordered_cuts`); if they are
few, the one whose longest known chain is shortest is played until none is faster
(`planner.cuts.whole_cuts`).
"""

from meshplan.planner.cuts.ordered_cuts import OrderedCuts
from meshplan.planner.cuts.whole_cuts import WholeLayers

LISTED, SECONDS = 50_000, 4  # units of work of a list; seconds that cost one unit
GAME, GAME_UNITS = 30, 300_000  # shortest paths at most; units of work of what is played


def ordered_bound_s(whole: WholeLayers) -> float:
    """The bound, the limit where nothing is below it."""
    program, answer = whole.program, whole.program.answer()
    if not answer.by:
        return 0.0
    mean = program.cuts.mean(program.lines, answer.by, program.limit_s, program.most)
    ordered = OrderedCuts(program, mean)
    found_s, best = ordered.game(whole.below_s, min(GAME, 1 + GAME_UNITS // whole.step))
    layers = ordered.below([mean, best], whole.below_s) if found_s < whole.below_s else None
    whole.work += LISTED + ordered.work // SECONDS + whole.step * ordered.played
    return whole.played_s(layers, [mean, best], found_s)
