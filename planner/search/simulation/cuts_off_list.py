"""Cuts of layouts that leave the gap wide, from any cut that fits.

A list is made for short steps (`planner.space.stage_splits`), so where ranks have little more room
than all layers take, those of its cuts that fit may be far slower than others: of a model with
experts, whose layers hold far more than those between, ranks must hold just so many of each kind.
Moves of layers begin at cuts nearly as fast as the best plan, so not there. So where layouts whose
chunks pass in rows leave the gap wide, CP-SAT is asked for any cut that fits
(`planner.stages.any_cut`), and layers are moved from there. It is not asked of a row whose ranks
cannot hold all layers by their priced memory, however they are cut, and what it does not answer in
little time ends this. Of V shapes the bound plays cuts itself. Nothing is proved.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from meshplan.costmodels.schedule.orders import V_SHAPED
from meshplan.planner.bounds.inner import row_fits
from meshplan.planner.cuts.moved_layers import MovedLayers
from meshplan.planner.problem.stage_problem import StagePlan, StageProblem
from meshplan.planner.search.simulation.alike_layouts import Alike
from meshplan.planner.search.simulation.listed_layouts import layers_of
from meshplan.planner.search.simulation.shaken_cuts import NearCut
from meshplan.planner.search.simulation.simulated import Simulated
from meshplan.planner.space.legal_layouts import Variant
from meshplan.planner.stages.any_cut import any_cut

ASKED = 3  # layouts
LIMIT_S, BUDGET = 0.05, 4_000_000  # deterministic seconds, and units of moves, of each


def cuts_off_list(proof: Simulated, every: Sequence[Alike], below_s: float) -> Iterator[NearCut]:
    """Cuts of layouts of `every` that are bounded below a limit and may fit, the smallest bound and
    the fewest chunks first.
    """
    ways = sorted(
        (bound_s, each.shape[2], at, int(row))
        for at, each in enumerate(every) if each.shape[0] not in V_SHAPED
        for row, bound_s in zip(each.rows.tolist(), each.bounds.tolist(), strict=True)
        if bound_s < below_s
    )  # fmt: skip
    likely = ((row, every[at].variant) for _, _, at, row in ways if may_fit(proof, row))
    for row, way in islice(likely, ASKED):
        problem, _ = proof.problem(row, way)
        plan, known = (None, False) if proof.tally.late else any_cut(problem, LIMIT_S)
        if not known:
            return
        if plan is not None:
            yield _climbed(proof, row, way, problem, plan)


def may_fit(proof: Simulated, row: int) -> bool:
    """Whether a row may fit by its priced memory, in some cut."""
    own = np.array([row])
    return bool(row_fits(proof.space.take(own), proof.prices.take(own)).all())


def _climbed(
    proof: Simulated, row: int, way: Variant, problem: StageProblem, plan: StagePlan
) -> NearCut:
    """Where moves of layers from a plan end."""
    times = proof.times_of(row, way, plan.stages)
    climb = MovedLayers(problem, times, BUDGET, proof.best_s)
    stages, _ = climb.best(plan.stages, times.step_s(plan.stages))
    return NearCut(row, way, layers_of(stages, tuple(way.modes)))
