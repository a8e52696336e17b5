"""Kinds that may be nearly as fast as the best, of which the search for runners-up found little.

Where its budget ends, `Simulated.find_runners_up` has gone on with the smallest bounds. These know
next to no memory: of a kind that must recompute nothing may have been looked at, or a first plan
by rule of thumb alone. Where any cut is legal a kind whose listed cuts are settled may have a
faster one off the list. So of the kinds that are open the likeliest few are settled apart, and
layers moved on from what is known of them. How long a step of a kind takes is expected from an
estimate that knows memory (`planner.search.closed_form.likely_ways`), the least of its ways to run
a row:

    expected(K) = estimate(K) / estimate(kind of the best) * step(best)

It only decides which kinds are looked at, and in which order.
"""

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layouts import Ints
from meshplan.planner.problem.coefficients import Coefficients, Priced
from meshplan.planner.search.closed_form.likely_ways import likely_ways
from meshplan.planner.search.far_kinds import settle_kind
from meshplan.planner.search.found import SETTLED, Kind, kind_of
from meshplan.planner.search.open_kinds import least_of_kinds
from meshplan.planner.search.simulation.simulated import Simulated
from meshplan.planner.space.legal_layouts import Variant
from meshplan.planner.stages.first_plan import first_plan

PLANNED, LOOKED_AT = 6, 2  # kinds that get a first plan, and that are settled
NEAR = 1.01  # times the slowest that is shown: what is expected at most where a plan is made
STAND_IN = 1.005  # times what is expected: a known step above that may be far from the kind's best
WAYS = 512  # ways to run rows that are looked through


class Likely(NamedTuple):
    """A kind, the likeliest way to run it, and how long that is expected to take."""

    kind: Kind
    row: int
    variant: Variant
    expected_s: float


def settle_likely_kinds(proof: Simulated, k: int, every_cut_s: float) -> None:
    """Look further at the likeliest kinds that are open below the slowest of the best `k`; where
    `every_cut_s`, the bound of all cuts, leaves something faster than the best, at those too that
    only cuts of no list may bring there.
    """
    with suppress(KeyboardInterrupt):  # what was found until then is there
        any_cut = every_cut_s < proof.best_s * SETTLED
        likely = list(_likely(proof, proof.shown_below_s(k), any_cut=any_cut))
        new = (each for each in likely if each.kind not in proof.best)
        for each in islice(new, PLANNED):
            if not proof.tally.late:
                _plan(proof, each)
        for each in list(islice(_stand_ins(proof, likely, k), LOOKED_AT)):
            if not proof.tally.late:
                _look_at(proof, each.kind, proof.shown_below_s(k))


def _look_at(proof: Simulated, kind: Kind, most_s: float) -> None:
    """Settle a kind, unless it was and nothing faster was found since; where none of its listed
    cuts may be shown, only move layers.
    """
    if proof.open_kinds.bound_s(kind) >= most_s:
        proof.moves.around(proof.best[kind])
    elif proof.open_kinds.settled_s.get(kind) != proof.best[kind].step_s:
        settle_kind(proof, kind)
    proof.moves.go_on_near([proof.best[kind]])


class _PricesOf(NamedTuple):
    """The prices of some `rows`, looked up by their places among them."""

    prices: Priced
    rows: Ints

    def take(self, places: Ints) -> Coefficients:
        """The prices of some of them."""
        return self.prices.take(self.rows[places])


def _likely(proof: Simulated, most_s: float, *, any_cut: bool) -> Iterator[Likely]:
    """Open kinds that are expected to be near `most_s` or below it, the fastest first."""
    open_ = {kind for kind, bound_s in proof.open_kinds.least_s.items() if bound_s < most_s}
    if any_cut:
        open_ |= _off_list(proof, most_s)
    if not open_:
        return
    best, every = proof.kind(proof.ranked()[0]), _estimated(proof, most_s)
    of_best = next((each.expected_s for each in every if each.kind == best), 0.0)
    for each in every if of_best else ():  # else nothing says how long they take
        expected_s = each.expected_s / of_best * proof.best_s
        if each.kind in open_ - {best} and expected_s < most_s * NEAR:
            yield each._replace(expected_s=expected_s)


def _off_list(proof: Simulated, most_s: float) -> set[Kind]:
    """Kinds with a plan of which cuts that no list has may be below `most_s`, for all that rows
    say.
    """
    bounds = proof.open.row_bounds
    rows = proof.space.listed(np.flatnonzero(bounds < most_s))
    return proof.best.keys() & least_of_kinds(proof.space.layouts, rows, bounds[rows]).keys()


def _estimated(proof: Simulated, most_s: float) -> list[Likely]:
    """The likeliest kinds that may be below `most_s`, in the scale of the estimate."""
    rows, found = np.flatnonzero(proof.open.row_bounds < most_s), dict[Kind, Likely]()
    ways = likely_ways(proof.space, _PricesOf(proof.prices, rows), rows)
    for place, variant, estimate in islice(ways, WAYS):
        row = int(rows[place])
        kind = kind_of(proof.space.layouts, row)
        found.setdefault(kind, Likely(kind, row, variant, estimate))
    return list(found.values())


def _plan(proof: Simulated, each: Likely) -> None:
    """Offer the proof a first plan of the likeliest way, if there is one."""
    problem, _ = proof.problem(each.row, each.variant)
    proof.judged_s(each.row, each.variant, first_plan(problem)[1])


def _stand_ins(proof: Simulated, likely: list[Likely], k: int) -> Iterator[Likely]:
    """Those of which something slower than expected is known, though they may be shown."""
    most_s = proof.shown_below_s(k)
    for each in likely:
        known = proof.best.get(each.kind)
        if known and each.expected_s < min(most_s, known.step_s / STAND_IN):
            yield each
