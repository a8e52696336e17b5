"""Runners-up that may be cut as no list says: how much faster their kinds may be, and are.

Their listed cuts are settled (`planner.search.simulation.simulated`), but the fastest cut need not
be near any of these. So every cut of a runner-up's kind is bounded.
"""

from collections.abc import Iterator
from contextlib import suppress

from meshplan.planner.search.found import Kind
from meshplan.planner.search.rows.rows_below import NEARLY
from meshplan.planner.search.simulation.free_cuts import WIDE
from meshplan.planner.search.simulation.kind_cuts import KindCuts
from meshplan.planner.search.simulation.simulated import Simulated


def settle_near_kinds(proof: Simulated, k: int, every_cut_s: float) -> None:
    """Bound every cut of those of the best `k` kinds that are near the first; keep what is found to
    be faster. `every_cut_s` is the bound of all: where it is far below the first, next to no kind
    is bounded any higher.
    """
    if proof.space.legality.uneven_stages != "free" or every_cut_s <= proof.best_s * WIDE:
        return
    with suppress(KeyboardInterrupt):  # of what is not looked at the bounds of rows are known
        for kind in _behind_the_first(proof, k):
            proof.open_kinds.every_cut_s[kind] = KindCuts(proof, kind).offered_s()


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
