"""What whole layers of a V shape's chunks prove of one layout, by what costs little first.

ways    the least of all cuts by the chains that every step has, rank after rank
        (`planner.bounds.folded_cuts`)
paths   the best weights of chains over all cuts that are left (`planner.cuts.folded_paths`)
cuts    all cuts that these leave, if they are few, one after the other
        (`planner.cuts.whole_cuts`)
"""

from meshplan.planner.bounds.folded_cuts import FoldedCuts
from meshplan.planner.cuts.folded_paths import FoldedPaths
from meshplan.planner.cuts.whole_cuts import WholeLayers

FOLD, WAYS = 12_000, 6  # units of work of a rank; ways that cost one unit
GAME, GAME_UNITS = 40, 300_000  # shortest paths at most; units of work
MOST_CUTS = 20_000  # that are listed


def folded_bound_s(whole: WholeLayers) -> float:
    """The bound, the limit where nothing is below it."""
    program, below_s = whole.program, whole.below_s
    ways, answer = FoldedCuts(program.cuts), program.answer()
    means = [program.cuts.mean(program.lines, answer.by, program.limit_s)] if answer.by else []
    found_s = float(ways.bounds_s(below_s, program.most, means)[0])
    whole.work += FOLD * program.cuts.same.pp + ways.work // WAYS
    if not means or not 0 < found_s < below_s:
        return found_s
    return max(found_s, _paths_s(whole, FoldedPaths(program, ways, means[0])))


def _paths_s(whole: WholeLayers, paths: FoldedPaths) -> float:
    """The same by the best weights of chains, and by what cuts these leave."""
    rounds = min(GAME, 1 + GAME_UNITS // (paths.work // WAYS + whole.step))
    found_s, mean = paths.game(whole.below_s, rounds)
    whole.work += paths.work // WAYS + whole.step * paths.played
    if found_s >= whole.below_s:
        return found_s
    sums = [paths.sums(paths.mean), paths.sums(mean)]
    layers = paths.below(sums, whole.below_s, MOST_CUTS)
    return whole.played_s(layers, [paths.mean, mean], found_s)
