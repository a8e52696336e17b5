"""Cuts of layouts of which no cut of a list fits.

A list is made for short steps (`planner.space.stage_splits`), so where ranks have little more room
than all layers take, none of its cuts may fit, though others do: of a model with experts, whose
layers hold far more than those between, ranks may need just so many of each kind. Nothing of such a
layout is simulated, and moves of layers have nowhere to begin. So where one of them leaves the gap
wide, CP-SAT is asked for any cut that fits (`planner.search.unlisted_cuts.any_cut`), and layers are
moved from there. Nothing is proved.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

from meshplan.planner.bounds.split_memory import some_mix_fits
from meshplan.planner.cuts.moved_layers import MovedLayers
from meshplan.planner.problem.stage_problem import StagePlan, StageProblem
from meshplan.planner.search.simulation.alike_layouts import Alike
from meshplan.planner.search.simulation.listed_layouts import layers_of
from meshplan.planner.search.simulation.shaken_cuts import NearCut
from meshplan.planner.search.simulation.simulated import Simulated
from meshplan.planner.search.unlisted_cuts import any_cut
from meshplan.planner.space.legal_layouts import Variant

LOOKED, ASKED = 24, 3  # layouts whose lists are looked at; of which any cut is asked
LIMIT_S, BUDGET = 0.2, 4_000_000  # deterministic seconds, and units of moves, of each


def cuts_off_list(proof: Simulated, every: Sequence[Alike], below_s: float) -> Iterator[NearCut]:
    """Cuts of layouts of `every` that are bounded below a limit and have no listed cut that fits,
    the smallest bound and the fewest chunks first.
    """
    ways = sorted(
        (bound_s, each.shape[2], int(row), each.variant)
        for each in every
        for row, bound_s in zip(each.rows.tolist(), each.bounds.tolist(), strict=True)
        if bound_s < below_s
    )
    problems = ((row, way, proof.problem(row, way)[0]) for _, _, row, way in ways[:LOOKED])
    for row, way, problem in islice((each for each in problems if no_listed_fits(each[2])), ASKED):
        plan, _ = (None, False) if proof.tally.late else any_cut(problem, LIMIT_S)
        if plan is not None:
            yield _climbed(proof, row, way, problem, plan)


def no_listed_fits(problem: StageProblem) -> bool:
    """Whether no cut of the layout's list fits in any mix."""
    return bool(problem.splits) and not some_mix_fits(problem).any()


def _climbed(
    proof: Simulated, row: int, way: Variant, problem: StageProblem, plan: StagePlan
) -> NearCut:
    """Where moves of layers from a plan end."""
    times = proof.times_of(row, way, plan.stages)
    climb = MovedLayers(problem, times, BUDGET, proof.best_s)
    stages, _ = climb.best(plan.stages, times.step_s(plan.stages))
    return NearCut(row, way, layers_of(stages, tuple(way.modes)))
