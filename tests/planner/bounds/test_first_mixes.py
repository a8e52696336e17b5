"""The only mix of a split where one number of first layers recomputes in every chunk: of many
layouts and splits at once, against each one alone.
"""

from functools import partial

import numpy as np
import pytest
from listed_layouts import listed_layouts
from nightly import cases

from meshplan.costmodels.layout import Stage
from meshplan.costmodels.step.cut_times import CutTimes
from meshplan.planner.bounds.first_mixes import NEVER, first_mixes, mix_times
from meshplan.planner.bounds.simulated import Passes
from meshplan.planner.bounds.split_chains import split_bounds_s
from meshplan.planner.cuts.budget import Tally
from meshplan.planner.cuts.known_chains import KnownChains, Shape
from meshplan.planner.cuts.simulated_cuts import cuts_below
from meshplan.planner.problem.first_layers import fewest_first
from meshplan.planner.problem.stage_problem import (
    StagePlan,
    StageProblem,
    evaluate,
    stage_problem,
)
from meshplan.planner.search.row_layout import layout_of_row
from meshplan.planner.search.simulation.simulated import Simulated
from meshplan.planner.space.legal_layouts import Variant

CLOSE = 1 + 1e-9
SEEDS = range(cases(10, nightly=40))


def test_each_pair_has_the_fewest_layers_that_fit_and_takes_what_they_take() -> None:
    """The number is that of `fewest_first`, the passes are those that the simulation plays, and the
    bound is not above the simulated step; often enough some layers recompute, or none fit.
    """
    recomputed = refused = 0
    for proof, variant, rows, same in listed_layouts("megatron", SEEDS):
        if not same.first:
            continue
        passes = Passes.of(proof.passes, rows, same)
        layout, split = (each.ravel() for each in np.indices((len(rows), len(same.splits or ()))))
        fewest = first_mixes(same, layout, split)
        times = mix_times(same, passes, (layout, split), np.maximum(fewest, 0))
        asked = zip(layout.tolist(), split.tolist(), fewest.tolist(), strict=True)
        for pair, (at, which, number) in enumerate(asked):
            problem = stage_problem(proof.space, proof.prices, int(rows[at]), variant)
            stages = fewest_first(problem, (problem.splits or ())[which])
            if stages is None:
                assert number == NEVER
                refused += 1
                continue
            assert number == max(stage.full_layers for stage in stages)
            recomputed += number > 0
            made = layout_of_row(
                proof.space.layouts, int(rows[at]), variant, StagePlan(stages, 0, ())
            )
            cut = CutTimes(proof.setting, made, proof.passes, int(rows[at]), variant.columns)
            work = cut.work(stages)
            assert times.forward[:, pair, 0] == pytest.approx(work.forward_s, rel=1e-9)
            assert times.input_grad[:, pair, 0] == pytest.approx(work.input_grad_s, rel=1e-9)
            assert times.weight_grad[:, pair, 0] == pytest.approx(work.weight_grad_s, rel=1e-9)
            left, _, bounds, _ = split_bounds_s(problem.alone, passes.take(np.array([at])), 1e9)
            assert bounds[left.tolist().index(which)] <= cut.step_s(stages) * CLOSE
    assert min(recomputed, refused) > len(SEEDS), (recomputed, refused)


def test_of_one_chunk_per_rank_no_cut_below_the_limit_is_left_out() -> None:
    """Against every split of the list played in its own mix: with no chain known and with one, all
    that are below the limit come, none has a bound above its step, and others fall unpriced.
    """
    asked = left_out = 0
    for proof, variant, rows, same in listed_layouts("megatron", SEEDS, "1"):
        splits = same.splits or ()
        if same.pp == 1 or not splits:
            continue
        for row in rows[:2].tolist():
            problem = stage_problem(proof.space, proof.prices, row, variant)
            passes = Passes.of(proof.passes, np.array([row]), problem.alone)
            steps_s = _played(proof, variant, row, problem)
            if not steps_s:
                continue
            shape = (same.schedule, same.pp, same.vpp, problem.m)
            limit_s = float(np.median(list(steps_s.values()))) * CLOSE
            for known in (KnownChains(), _with_a_chain(proof, variant, row, problem, shape)):
                cuts = list(cuts_below(problem, passes, known, partial(float, limit_s), Tally()))
                found = {tuple(each.layers for each in cut.least): cut for cut in cuts}
                for counts, step_s in steps_s.items():
                    if step_s < limit_s / CLOSE**2:
                        assert found[counts].bound_s <= step_s * CLOSE
                        asked += 1
                left_out += len(steps_s) - len(cuts)
    assert min(asked, left_out) > len(SEEDS), (asked, left_out)


def _stages(problem: StageProblem, counts: tuple[int, ...]) -> tuple[Stage, ...] | None:
    if problem.first:
        return fewest_first(problem, counts)
    (mode,) = problem.modes
    stages = tuple(Stage(n, n * (mode == 1), n * (mode == 2)) for n in counts)
    return stages if evaluate(problem, stages) else None


def _times(proof: Simulated, variant: Variant, row: int, stages: tuple[Stage, ...]) -> CutTimes:
    made = layout_of_row(proof.space.layouts, row, variant, StagePlan(stages, 0, ()))
    return CutTimes(proof.setting, made, proof.passes, row, variant.columns)


def _played(
    proof: Simulated, variant: Variant, row: int, problem: StageProblem
) -> dict[tuple[int, ...], float]:
    """The step of each split that fits, by its layers."""
    each = {counts: _stages(problem, counts) for counts in problem.splits or ()}
    return {
        counts: _times(proof, variant, row, stages).step_s(stages)
        for counts, stages in each.items() if stages
    }  # fmt: skip


def _with_a_chain(
    proof: Simulated, variant: Variant, row: int, problem: StageProblem, shape: Shape
) -> KnownChains:
    """What the first split that fits teaches."""
    known = KnownChains()
    stages = next(filter(None, (_stages(problem, counts) for counts in problem.splits or ())))
    known.learn(shape, _times(proof, variant, row, stages), stages, 2.0)
    return known
