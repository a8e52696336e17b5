"""The only mix of a split where one number of first layers recomputes in every chunk: of many
layouts and splits at once, against each one alone.
"""

import numpy as np
import pytest
from listed_layouts import listed_layouts

from meshplan.costmodels.step.cut_times import CutTimes
from meshplan.planner.bounds.first_mixes import NEVER, first_mixes, mix_times
from meshplan.planner.bounds.simulated import Passes
from meshplan.planner.bounds.split_chains import split_bounds_s
from meshplan.planner.problem.first_layers import fewest_first
from meshplan.planner.problem.stage_problem import StagePlan, stage_problem
from meshplan.planner.search.search import layout_of_row

CLOSE = 1 + 1e-9
SEEDS = range(40)


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
    assert min(recomputed, refused) > 50, (recomputed, refused)
