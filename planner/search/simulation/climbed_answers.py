"""Cuts of whole layers near a program's answer, from which single layers are moved.

A program's answer holds parts of layers (`planner.cuts.free_cut_program`). Its chunks end where the
sum of its layers is rounded to, and recompute in full as much as it does, rounded up; one layer
more each; or all: climbs (`planner.cuts.moved_layers`) begin at the first of these that fit.
The list of cuts has even ones and those with a few layers less at the ends, so where ranks have
room for unequal numbers of layers this finds what is not near any cut of the list.
"""

import math
from collections.abc import Iterator

import numpy as np

from meshplan.costmodels.layout import Stage
from meshplan.costmodels.layouts import Floats, Ints
from meshplan.planner.cuts.free_cut_program import FreeCutProgram
from meshplan.planner.cuts.moved_layers import MovedLayers, can_move
from meshplan.planner.problem.stage_problem import StagePlan, StageProblem, modes_of
from meshplan.planner.search.simulation.listed_layouts import plan_of
from meshplan.planner.search.simulation.simulated import Simulated
from meshplan.planner.space.legal_layouts import Variant

CLIMBS = 2  # from one answer
ROUNDING = 1e-6  # of a layer
FULL = 2  # the mode that recomputes all


def climbed(
    proof: Simulated, row: int, variant: Variant, program: FreeCutProgram, budget: int
) -> tuple[Ints | None, int]:
    """[chunk, mode] layers of the fastest cut where climbs end from the answer of one layout's
    program, of the last one that its solver found, None where none begins; and the units that this
    took of a `budget`, which ends rounds and climbs.
    """
    cut, spent = _answered(program, budget)
    if cut is None:
        return None, spent
    problem, _ = proof.problem(row, variant)
    found, found_s = None, math.inf
    for plan in those_that_fit(problem, cut)[:CLIMBS]:
        times = proof.times_of(row, variant, plan.stages)
        climb = MovedLayers(problem, times, (budget - spent) // CLIMBS)
        stages, step_s = climb.best(plan.stages, times.step_s(plan.stages))
        spent += climb.spent + climb.actions
        if step_s < found_s:
            found, found_s = layers_of(stages, tuple(problem.modes)), step_s
    return found, spent


def _answered(program: FreeCutProgram, budget: int) -> tuple[Floats | None, int]:
    """[chunk, mode] layers of the last answer within a budget that holds all layers, as none does
    where the solver fails; and the units of all.
    """
    cut, spent = None, 0
    for _ in program.answers(program.limit_s):
        spent += program.round_work
        found = program.cut().sum(axis=1)
        cut = found if math.isclose(found.sum(), program.cuts.counts.sum(), rel_tol=1e-3) else cut
        if spent >= budget:
            break
    return cut, spent


def rounded_cuts(cut: Floats, modes: tuple[int, ...]) -> Iterator[Ints]:
    """[chunk, mode] layers of an answer [chunk, mode]."""
    ends = np.rint(np.cumsum(cut.sum(axis=1))).astype(int)
    counts, most = np.diff(ends, prepend=0), modes.index(FULL)
    part = cut[:, most] / np.maximum(cut.sum(axis=1), ROUNDING)
    least = np.ceil(part * counts - ROUNDING).astype(int)
    for full in (least, least + 1, counts):
        found = np.zeros((len(counts), len(modes)), int)
        found[:, most] = np.minimum(full, counts)
        found[:, 0] = counts - found[:, most]
        yield found


def those_that_fit(problem: StageProblem, cut: Floats) -> list[StagePlan]:
    """Plans of rounded cuts; none where layers cannot recompute in full, or must, or the order of
    actions is too long to climb.
    """
    modes = tuple(problem.modes)
    if modes[0] != 0 or FULL not in modes or not can_move(problem):
        return []
    plans = (plan_of(problem, layers) for layers in rounded_cuts(cut, modes))
    return [plan for plan in plans if plan]


def layers_of(stages: tuple[Stage, ...], modes: tuple[int, ...]) -> Ints:
    """[chunk, mode] layers of a cut."""
    each = [[modes_of(stage).count(mode) for mode in modes] for stage in stages]
    return np.array(each)
