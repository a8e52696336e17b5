"""Runners-up that may be cut as no list says: how much faster their kinds may be, and are.

Their listed cuts are settled (`planner.search.simulation.simulated`), but the fastest cut need not
be near any of these. So every cut of a runner-up's kind is bounded.
"""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from meshplan.planner.processes.second_core import done_of_each, is_idle
from meshplan.planner.search.found import Kind, Timed
from meshplan.planner.search.rows.rows_below import NEARLY
from meshplan.planner.search.simulation.free_cuts import WIDE, EveryCut
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
        ahead = _bounded_at_once(proof, k) if is_idle() else {}
        for kind in _behind_the_first(proof, k):
            found = ahead.get((kind, proof.best[kind].step_s)) or _bounded(proof, kind)
            for plan in found.faster:
                proof.judged_s(*plan)
            proof.open_kinds.every_cut_s[kind] = found.bound_s


def _bounded_at_once(proof: Simulated, k: int) -> dict[tuple[Kind, float], EveryCut]:
    """What is found of each kind that is near the first now, by the kind and its step: that depends
    on nothing that is found of others.
    """
    near = [(proof.kind(each), each.step_s) for each in _near_the_first(proof, k)]
    found = done_of_each(partial(_bounded, proof), [kind for kind, _ in near])
    return dict(zip(near, found, strict=True))


def _bounded(proof: Simulated, kind: Kind) -> EveryCut:
    """The bound of a kind, and what is faster than its best; the proof is told by who asks."""
    return KindCuts(proof.copied(), kind).settled()


def _behind_the_first(proof: Simulated, k: int) -> Iterator[Kind]:
    """Those of the best `k` kinds that are near the first, each once: that which was the first
    until another one overtook it too.
    """
    seen = set[Kind]()
    while not proof.tally.late:
        near = map(proof.kind, _near_the_first(proof, k))
        kind = next((kind for kind in near if kind not in seen), None)
        if kind is None:
            return
        seen.add(kind)
        yield kind


def _near_the_first(proof: Simulated, k: int) -> list[Timed]:
    """Those of the best `k` kinds behind the first that are nearly as fast."""
    return [each for each in proof.ranked()[1:k] if each.step_s < proof.best_s * NEARLY]
