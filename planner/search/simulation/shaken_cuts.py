"""Cuts a few layers away from the fastest one, from which layers are moved anew.

Moves of layers (`planner.cuts.moved_layers`) end where no change of one or two layers is faster.
Some layers of the fastest cut are moved at random, by a fixed seed, and the moves begin there; what
is faster is shaken next (iterated local search: Lourenço, Martin and Stützle 2003). This is for
plans whose gap stays wide, and has a budget of its own. Nothing is proved.
"""

import random
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layout import Stage
from meshplan.costmodels.layouts import Floats, Ints
from meshplan.costmodels.step.cut_times import CutTimes
from meshplan.planner.cuts.cut_lengths import FULL, LAYERS, SELECTIVE, as_row, as_stages, fitting
from meshplan.planner.cuts.moved_layers import MovedLayers, can_move
from meshplan.planner.problem.stage_problem import StageProblem
from meshplan.planner.search.found import SETTLED
from meshplan.planner.search.simulation.listed_layouts import layers_of
from meshplan.planner.search.simulation.simulated import Simulated
from meshplan.planner.space.legal_layouts import Variant

BUDGET = 16_000_000  # units
SHAKEN, DRAWN = 6, 50  # layers that are moved; drawings of a cut that fits
SHARE = 4  # one part in so many of the budget is for a climb


class NearCut(NamedTuple):
    """[chunk, mode] layers of a layout, a row of the proof."""

    row: int
    variant: Variant
    layers: Floats | Ints


def near_the_fastest(proof: Simulated) -> list[NearCut]:
    """The fastest cut that is found near that of the fastest plan, where this has several chunks
    and a list cuts its layout; none where none is faster.
    """
    best = proof.ranked()[0]
    if best.variant.virtual_stages == 1 or best.row not in proof.kept:
        return []
    row, stages = proof.row_of(best), best.plan.stages
    problem, _ = proof.problem(row, best.variant)
    times = proof.times_of(row, best.variant, stages)
    ends = shakes(problem, times, stages, best.step_s, BUDGET)
    stages, step_s = next(ends)
    while not proof.tally.late and (end := next(ends, None)) is not None:
        stages, step_s = end
    if step_s >= best.step_s * SETTLED:
        return []
    return [NearCut(row, best.variant, layers_of(stages, tuple(best.variant.modes)))]


def shakes(
    problem: StageProblem, times: CutTimes, best: tuple[Stage, ...], best_s: float, budget: int
) -> Iterator[tuple[tuple[Stage, ...], float]]:
    """The fastest cut so far and its step, at first and after each climb."""
    draw, spent = random.Random(0), 0
    yield best, best_s
    while spent < budget and can_move(problem):
        cut = shaken_cut(problem, as_row(best), draw)
        if cut is None:
            break
        begun = as_stages(cut)
        climb = MovedLayers(problem, times, budget // SHARE, best_s)
        stages, step_s = climb.best(begun, times.step_s(begun))
        spent += climb.spent + climb.play
        if step_s < best_s:
            best, best_s = stages, step_s
        yield best, best_s


def shaken_cut(problem: StageProblem, cut: Ints, draw: random.Random) -> Ints | None:
    """[chunk, 3] with some layers moved, which recompute as much as they may: fewer where none that
    was drawn fits; None if none at all does.
    """
    for number in sorted(list(range(1, 1 + SHAKEN)) * DRAWN, reverse=True):
        moved = cut.copy()
        for _ in range(number):
            _move(problem, moved, draw)
        if len(fitting(problem, moved[None])):
            return moved
    return None


def _move(problem: StageProblem, cut: Ints, draw: random.Random) -> None:
    """One layer of a cut from one chunk to another, if the first may hold fewer."""
    at, to = draw.sample(range(len(cut)), 2)
    if cut[at, LAYERS] <= problem.fewest_layers(at):
        return
    kept = cut[at, LAYERS] - cut[at, SELECTIVE] - cut[at, FULL]
    held = np.array([kept, cut[at, SELECTIVE], cut[at, FULL]])
    for chunk, mode, n in (
        (at, draw.choice(np.flatnonzero(held).tolist()), -1),
        (to, max(problem.modes), 1),
    ):
        cut[chunk, LAYERS] += n
        if mode:
            cut[chunk, mode] += n
