"""Runners-up that may be cut as no list says: how much faster their kinds may be, and are.

Their listed cuts are settled (`planner.search.simulation.simulated`), but the fastest cut need not
be near any of these. So every cut of a runner-up's kind is bounded, or, where the gap of the
fastest plan is wide, layers of the runner-up's cut are shaken as those of the plan are.
"""

from collections.abc import Iterator
from contextlib import suppress

from meshplan.planner.problem.stage_problem import evaluate
from meshplan.planner.search.found import SETTLED, Kind, Timed
from meshplan.planner.search.rows.rows_below import NEARLY
from meshplan.planner.search.simulation.free_cuts import WIDE
from meshplan.planner.search.simulation.kind_cuts import KindCuts
from meshplan.planner.search.simulation.shaken_cuts import shaken
from meshplan.planner.search.simulation.simulated import Simulated

SHAKEN = 2_000_000  # units of each kind: some 0.04 seconds


def settle_near_kinds(proof: Simulated, k: int, every_cut_s: float) -> None:
    """Bound every cut of those of the best `k` kinds that are near the first; keep what is found to
    be faster. `every_cut_s` is the bound of all: where it leaves nothing that is faster than the
    first, lists have good cuts, and shaking them finds next to nothing; where it is far below the
    first, next to no kind is bounded any higher.
    """
    if proof.space.legality.uneven_stages != "free":
        return
    open_, bounded = every_cut_s < proof.best_s * SETTLED, every_cut_s > proof.best_s * WIDE
    with suppress(KeyboardInterrupt):  # of what is not looked at the bounds of rows are known
        for kind in _behind_the_first(proof, k):
            bound_s = 0.0
            if bounded:
                proof.open_kinds.every_cut_s[kind] = bound_s = KindCuts(proof, kind).offered_s()
            if open_ and bound_s < proof.best[kind].step_s:
                shake(proof, proof.best[kind])


def _behind_the_first(proof: Simulated, k: int) -> Iterator[Kind]:
    """Those of the best `k` kinds that are near the first, each once: that which was the first
    until another one overtook it too.
    """
    seen = set[Kind]()
    while not proof.tally.late:
        near = (each for each in proof.ranked()[1:k] if each.step_s < proof.best_s * NEARLY)
        kind = next((kind for kind in map(proof.kind, near) if kind not in seen), None)
        if kind is None:
            return
        seen.add(kind)
        yield kind


def shake(proof: Simulated, found: Timed) -> None:
    """Look near the cut of a layout of several chunks per rank."""
    if found.variant.virtual_stages == 1 or found.row not in proof.kept:
        return
    stages, step_s = shaken(proof, found, SHAKEN)
    if step_s < found.step_s * SETTLED:
        row = proof.row_of(found)
        problem, _ = proof.problem(row, found.variant)
        proof.judged_s(row, found.variant, evaluate(problem, stages))
