"""Runners-up further from the best than what the search for runners-up looks at.

`Simulated.find_runners_up` simulates what may be nearly as fast as the best. A kind that is slower
is shown as a first plan of the closed form found it, though another way to run it may be faster. So
the rows of each such kind are settled as others are, of a budget of their own, below its own step,
and layers are moved from its best cut. So are its rows that the proof had let go, because none of
them can be nearly as fast as the best.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layouts import Bools, Ints, Layouts
from meshplan.planner.problem.coefficients import Coefficients
from meshplan.planner.search.found import KIND_AXES, Kind
from meshplan.planner.search.held_memory.counted_kinds import CountedKinds
from meshplan.planner.search.rows.rows_below import NEARLY, Source
from meshplan.planner.search.simulation.open_layouts import OpenLayouts
from meshplan.planner.search.simulation.simulated import Simulated

WORK = 500_000  # units of each kind: some 0.04 seconds
COUNTED = 300_000  # where every moment is counted: by the bound of memory; else by moments


def settle_far_kinds(proof: Simulated, k: int) -> None:
    """Find what is faster of those of the best `k` kinds that are further off."""
    with suppress(KeyboardInterrupt):  # what was found until then is there
        for each in proof.ranked()[1:k]:
            if each.step_s >= proof.best_s * NEARLY and not proof.tally.late:
                settle_kind(proof, proof.kind(each))
                _settle_let_go(proof, proof.kind(each))


def settle_kind(proof: Simulated, kind: Kind) -> None:
    """Find what of a kind is faster than its best."""

    def limit_s(_: int = 0) -> float:
        return proof.best[kind].step_s

    rows = _rows_of(proof, kind)
    open_s = _settle(proof, rows, limit_s) if len(rows) else math.inf
    proof.open_kinds.settle(kind, proof.let_go_s, open_s)
    if len(rows):
        proof.moves.around(proof.best[kind])
    proof.open_kinds.settled_s[kind] = proof.best[kind].step_s


def _settle(proof: Simulated, rows: Ints, limit_s: Callable[..., float]) -> float:
    """Settle rows of one kind below its limit; the least bound of what stays open."""
    counts, first_s = proof.setting.engine.kernels.counts_passes, limit_s()
    before = proof.open, proof.tell
    proof.open = OpenLayouts(proof.space, proof.least, proof.passes, limit_s(), rows)
    proof.open.chains, proof.tally.left = before[0].chains, COUNTED if counts else WORK
    proof.tell = lambda *_: None  # what is open here is no part of the proof
    try:
        proof.settle_below(limit_s, limit_s)
        _, bounds = proof.open_rows()
    finally:
        proof.open, proof.tell = before
    if counts:
        bounds = proof.open.row_bounds[rows]  # others may fit when every moment is counted
    if counts and limit_s() == first_s:
        counted = CountedKinds(proof, rows, limit_s, COUNTED)
        counted.settle()
        _, bounds = counted.open_rows()
    return float(bounds.min(initial=math.inf))


def _rows_of(proof: Simulated, kind: Kind) -> Ints:
    """Those of a kind that are left and may be faster than its best, the smallest bound first."""
    bounds = proof.open.row_bounds
    rows = np.flatnonzero((bounds < proof.best[kind].step_s) & _is_of(proof.space.layouts, kind))
    found: Ints = rows[np.argsort(bounds[rows], kind="stable")]
    return found


def _is_of(layouts: Layouts, kind: Kind) -> Bools:
    """[row] whether it is of a kind."""
    pairs = zip(KIND_AXES, kind, strict=True)
    found: Bools = np.all([getattr(layouts, axis) == degree for axis, degree in pairs], axis=0)
    return found


class _Some(NamedTuple):
    """Those rows of a source that are `asked` for."""

    source: Source
    asked: Bools

    def below(self, limit_s: float) -> Ints:
        """Those of them that may be faster."""
        rows = self.source.below(limit_s)
        return rows[self.asked[rows]]

    def that_fit(self, rows: Ints) -> Ints:
        """As the source says."""
        return self.source.that_fit(rows)

    def of_each(self, rows: Ints) -> Coefficients:
        """As the source says."""
        return self.source.of_each(rows)


def _settle_let_go(proof: Simulated, kind: Kind) -> None:
    """Find what is faster of the rows of a kind that the proof had let go. Not where every moment
    is counted, for there the source keeps account of what the proof has asked.
    """
    if proof.setting.engine.kernels.counts_passes or proof.tally.late:
        return
    let_go = _is_of(proof.layouts, kind)
    let_go[proof.kept] = False
    if not let_go.any():
        return
    apart = Simulated(
        proof.question, replace(proof.space, layouts=proof.layouts), _Some(proof.source, let_go),
        proof.judged, proof.layout_of, limit_s=proof.best[kind].step_s, budget=WORK,
    )  # fmt: skip
    apart.tally.deadline = proof.tally.deadline
    try:
        apart.settle_below(lambda: apart.best_s, lambda row: apart.best_s)
        if kind in apart.best:
            apart.moves.around(apart.best[kind])
    finally:
        proof.tally.deadline = apart.tally.deadline  # Ctrl-C ends what would follow
        proof.tally.simulated += apart.tally.simulated
        proof.best.update(apart.best)
