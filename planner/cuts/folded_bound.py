"""What whole layers of a V shape's chunks prove of one layout, by what costs little first.

ways    the least of all cuts by the chains that every step has, rank after rank
        (`planner.bounds.folded.cuts`)
paths   the best weights of chains over all cuts that are left (`planner.cuts.folded_paths`)
cuts    all cuts that these leave, if they are few, one after the other
        (`planner.cuts.whole_cuts`)
"""

from meshplan.planner.bounds.folded.cuts import FoldedCuts
from meshplan.planner.bounds.folded.mixed_cuts import FEW, MANY, MixedFolds
from meshplan.planner.bounds.free_cuts import MeanOfRows, Multipliers
from meshplan.planner.cuts.folded_paths import FoldedPaths
from meshplan.planner.cuts.mixed_paths import MixedPaths
from meshplan.planner.cuts.whole_cuts import WholeLayers

FOLD, WAYS = 1_100, 12  # units of work of a rank, and of each of its layouts; ways of one unit
GAME, GAME_UNITS = 40, 300_000  # shortest paths at most; units of work
MOST_CUTS = 20_000  # that are listed
FIRST, TRIES, ROUNDS = 0.25, 6, 10  # part of the way; limits; shortest paths of each
PLAYED = 30  # cuts of a list
NEAR = 2e-3  # of a bound: so near its limits are told apart


def folded_bound_s(whole: WholeLayers) -> float:
    """The bound, the limit where nothing is below it."""
    program, below_s = whole.program, whole.below_s
    most = MANY if whole.is_wide else FEW
    mixed, answer = MixedFolds.of(program.cuts, program.most, below_s, most), program.answer()
    means = [program.cuts.mean(program.lines, answer.by, program.limit_s)] if answer.by else []
    ways = mixed or FoldedCuts(program.cuts)
    found_s = float(ways.bounds_s(below_s, program.most, means)[0])
    whole.work += 2 * FOLD * program.cuts.same.pp + ways.work // WAYS
    if not answer.by or not 0 < found_s < below_s:
        return found_s
    if mixed:
        return _mixed_s(whole, mixed, answer.by, found_s)
    return max(found_s, _paths_s(whole, FoldedPaths(program, ways, means[0])))


def _paths_s(whole: WholeLayers, paths: FoldedPaths) -> float:
    """The same by the best weights of chains, and by what cuts these leave."""
    found_s, mean = _game(whole, paths, whole.below_s, GAME)
    if found_s >= whole.below_s:
        return found_s
    both = MeanOfRows.together([paths.mean, mean])
    edges = paths.below(paths.sums(both), whole.below_s, MOST_CUTS)
    layers = None if edges is None else paths.layers(edges)
    return whole.played_s(layers, [paths.mean, mean], found_s)


def _mixed_s(whole: WholeLayers, mixed: MixedFolds, by: Multipliers, low_s: float) -> float:
    """The same where ranks recompute whole layers. A cut below some limit has ranks below it, so
    the game over these alone says more, and its cuts take less; if it does not reach the limit, the
    cuts are listed. Limits are tried from near the bound to where that proves nothing.
    """
    high_s, whole.halved, fails = whole.below_s, True, False
    middle_s = low_s + FIRST * (high_s - low_s)
    for _ in range(TRIES):
        before = mixed.work
        ranks_s = float(mixed.bounds_s(middle_s, whole.program.most)[0])
        whole.work += (mixed.work - before) // WAYS
        game_s = middle_s
        if ranks_s < middle_s:
            paths = MixedPaths(whole.program, mixed, by)
            game_s = _proved_s(whole, paths, middle_s)
            whole.cuts.append((paths.step_s, paths.fastest))
        low_s = max(low_s, min(ranks_s, middle_s), game_s)
        if low_s < middle_s:
            high_s, fails = middle_s, True
        elif middle_s < high_s and not fails:
            middle_s = high_s
            continue
        if high_s - low_s < NEAR * low_s:
            break
        middle_s = (low_s + high_s) / 2
    return low_s


def _proved_s(whole: WholeLayers, paths: MixedPaths, below_s: float) -> float:
    """What a game, and a list while there is budget, prove of cuts below a limit. While a wide gap
    is closed limits are low and lists short, so they come first: mostly no game is needed then.
    """
    found_s = 0.0
    for way in (_listed_s, _rounds_s) if whole.is_wide else (_rounds_s, _listed_s):
        if found_s < below_s and not (way is _listed_s and whole.ended(whole.work)):
            found_s = max(found_s, way(whole, paths, below_s))
    return found_s


def _rounds_s(whole: WholeLayers, paths: MixedPaths, below_s: float) -> float:
    """What a game of some rounds proves."""
    return _game(whole, paths, below_s, ROUNDS)[0]


def _listed_s(whole: WholeLayers, paths: MixedPaths, below_s: float) -> float:
    """What a list of all cuts below a limit proves of them."""
    answer, before, played = whole.program.answer(), paths.work, paths.played
    if not answer.by:
        return 0.0
    found_s = paths.cuts_s(below_s, answer.by, PLAYED, whole.that_fit)
    whole.work += (paths.work - before) // WAYS + whole.step * (paths.played - played)
    return found_s


def _game(
    whole: WholeLayers, paths: FoldedPaths, below_s: float, most: int
) -> tuple[float, MeanOfRows]:
    before, played = paths.work, paths.played
    path = sum(len(edge.of) for edge in paths.edges)
    rounds = min(most, 1 + GAME_UNITS // (path // WAYS + whole.step))
    found = paths.game(below_s, rounds)
    whole.work += (paths.work - before) // WAYS + whole.step * (paths.played - played)
    return found
