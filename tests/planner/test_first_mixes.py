"""The only mix of a split where one number of first layers recomputes in every chunk: of many
layouts and splits at once, against each one alone.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from simulated_oracle import DENSE, MOE, PINNED, random_question

from meshplan.costmodels.layouts import Ints
from meshplan.costmodels.step.cut_times import CutTimes
from meshplan.hardware_profiles.engines import load_engine
from meshplan.planner.bounds.first_mixes import NEVER, first_mixes, mix_times
from meshplan.planner.bounds.simulated import Passes
from meshplan.planner.bounds.split_chains import split_bounds_s
from meshplan.planner.problem.first_layers import fewest_first
from meshplan.planner.problem.same_pipeline import SamePipeline, run_as
from meshplan.planner.problem.stage_problem import StagePlan, stage_problem
from meshplan.planner.search.priced_space import Question, closed_form, price_space, space_of
from meshplan.planner.search.search import layout_of_row
from meshplan.planner.search.simulated import Simulated
from meshplan.planner.space.legal_layouts import Variant
from meshplan.planner.space.pins import parse_pins

CLOSE = 1 + 1e-9
SEEDS = range(40)


def test_each_pair_has_the_fewest_layers_that_fit_and_takes_what_they_take() -> None:
    """The number is that of `fewest_first`, the passes are those that the simulation plays, and the
    bound is not above the simulated step; often enough some layers recompute, or none fit.
    """
    recomputed = refused = 0
    for proof, variant, rows, same in _layouts():
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


def _layouts() -> Iterator[tuple[Simulated, Variant, Ints, SamePipeline]]:
    """Layouts of several chunks that share a shape, of an engine with one number for all."""
    for seed in SEEDS:
        question = _short_of_memory(seed)
        space = space_of(question)
        if not len(space.layouts):
            continue
        proof = Simulated(
            question, space, price_space(question, space, closed_form), lambda layout: math.inf,
            lambda row, variant, plan, of=space.layouts: layout_of_row(of, row, variant, plan),
        )  # fmt: skip
        for variant, rows in proof.space.by_variant(np.arange(len(proof.space.layouts))):
            if variant.first and variant.virtual_stages > 1:
                yield proof, variant, rows[:4], run_as(proof.space, proof.prices, rows[:4], variant)


def _short_of_memory(seed: int) -> Question:
    """Layers of one kind or two; on a seventh of the questions little fits."""
    draw, question = random.Random(-seed), random_question(seed)
    layers, dense = draw.randint(4, 8), draw.choice((0, 1, 3))
    few = 1e9 + layers / 4 * draw.uniform(1e9, 5e9)
    kinds = (DENSE, MOE) if dense else (DENSE,)
    return replace(
        question, gpus=4, engine=load_engine("megatron"),
        cluster=question.cluster.model_copy(update={"usable_memory_bytes": few}),
        model=replace(
            question.model, kinds=kinds, mtp_layers=0,
            pattern=(0,) * dense + (len(kinds) - 1,) * (layers - dense),
        ),
        training=replace(question.training, global_batch_size=draw.choice((4, 8))),
        pins=parse_pins({**PINNED, "pipeline_parallel": "2..4", "virtual_stages": "2..3"}),
    )  # fmt: skip
