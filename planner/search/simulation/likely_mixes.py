"""Plans of the likeliest cuts of the fastest kinds, mixed before anything is bounded.

First plans of several chunks recompute by rule of thumb. Where memory is short the mixes that means
of chains lead to are some per cent faster, and a better plan early leaves less to bound. As other
first plans these are not charged to the budget.
"""

import numpy as np

from meshplan.planner.cuts import budget as costs
from meshplan.planner.cuts.known_chains import actions_of
from meshplan.planner.cuts.simulated_cuts import cuts_below
from meshplan.planner.search.closed_form.first_plans import Found
from meshplan.planner.search.found import Timed
from meshplan.planner.search.simulation.cut_mixes import CutMixes
from meshplan.planner.search.simulation.simulated import Simulated

KINDS = 3


def mix_likely(proof: Simulated) -> None:
    """Offer mixes of the fastest kinds that recompute in several chunks."""
    for timed in proof.ranked()[:KINDS]:
        recomputes = any(each.full_layers or each.selective_layers for each in timed.plan.stages)
        if timed.variant.virtual_stages > 1 and recomputes and not proof.tally.late:
            _mix(proof, timed)


def _mix(proof: Simulated, timed: Timed) -> None:
    """Offer the fastest mix of the cut of a layout that is bounded least."""
    places, variant = np.flatnonzero(proof.kept == timed.row), timed.variant
    if not len(places):  # far from the best
        return
    row = int(places[0])
    too_long = actions_of(proof.open.shape(row, variant)) > costs.MOST_CHAINED
    problem, passes = proof.problem(row, variant)
    limit_s = timed.step_s
    cuts = cuts_below(problem, passes, proof.open.chains, lambda: limit_s, proof.tally)
    cut = next(iter(cuts), None)
    if cut is None or not cut.recomputes() or too_long:
        return
    times = proof.times_of(row, variant, cut.least)
    answer = CutMixes(problem, times, cut, limit_s).by_chains()
    if answer.plan is not None and answer.step_s < limit_s:
        proof.offer(Found(answer.plan.objective, timed.row, variant, answer.plan))
