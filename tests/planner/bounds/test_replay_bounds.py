"""Bounds of cuts of several chunks that count what every rank must recompute."""

import math
import random
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from every_row import every_row
from nightly import cases
from simulated_oracle import DENSE, PINNED, every_plan, random_question

from meshplan.costmodels.layout import Stage
from meshplan.costmodels.layouts import Floats
from meshplan.costmodels.schedule.program import Chain
from meshplan.costmodels.step.cut_times import CutTimes
from meshplan.hardware_profiles.engines import load_engine
from meshplan.planner.bounds.simulated import Passes
from meshplan.planner.bounds.split_chains import rough_split_bounds_s
from meshplan.planner.bounds.split_times import Replays
from meshplan.planner.cuts.known_chains import MOST_MEANS, KnownChains, Shape, shape_of
from meshplan.planner.cuts.recompute_chains import MeanOfChains, RecomputeChains
from meshplan.planner.problem.stage_problem import (
    StagePlan,
    StageProblem,
    evaluate,
    stage_problem,
)
from meshplan.planner.search.row_layout import layout_of_row
from meshplan.planner.search.rows.priced_space import Question, space_of
from meshplan.planner.search.simulation.simulated import Simulated
from meshplan.planner.space.pins import parse_pins

CLOSE = 1 + 1e-9
MOST_PLANS = 20_000


@pytest.mark.parametrize(
    ("rank_s", "most_s", "often", "expected"),
    [
        pytest.param([3, 0], [2, 0, 2, 0], [1, 4], [2 * 1 + 1 * 4, 0], id="2-once-1-four-times"),
        pytest.param([3, 1], [5, 5, 5, 5], [0, 4], [0, 0], id="all-where-the-chain-is-not"),
        pytest.param([4, 4], [3, 3, 3, 3], [2, 2], [8, 8], id="4-twice-wherever"),
    ],
)
def test_what_is_replayed_is_where_it_costs_a_chain_least(
    rank_s: list[float], most_s: list[float], often: list[int], expected: list[float]
) -> None:
    """Two ranks of two chunks: 0 and 2, 1 and 3."""
    replays = Replays(
        np.array(rank_s, float)[:, None, None], np.array(most_s, float)[:, None, None]
    )
    found = replays.least(np.array([[0, 2], [1, 3]]), np.array(often))
    assert found[:, 0, 0].tolist() == expected


def test_no_bound_with_replays_is_above_a_mix_that_fits() -> None:
    """Of cuts that must recompute, the fastest of all mixes takes as long as the bound at least;
    with a chain that is known too, and with means of the chains of two cuts. Often enough the bound
    says more than nothing recomputed, and with means more than with the chain: not always, for
    memory is priced by the likeliest split, which may be another one then.
    """
    compared = closer = by_means = 0
    for seed in range(cases(9, nightly=60)):
        for problem, passes, times in _problems(random.Random(seed), _short_of_memory(seed)):
            known = KnownChains()
            shape = shape_of(problem)
            plans = _fitting(problem)
            if plans:
                known.learn(shape, times, plans[0], 2.0)
            means = deepcopy(known)
            for plan in plans[:: max(1, len(plans) - 1)]:
                means.keep_mean(shape, _mean_of(problem, times, plan).chains, 2.0)
            bounds = list[Floats]()
            for chains in (None, known.bounds_s, means.bounds_s):
                split, _, least, _ = rough_split_bounds_s(problem.alone, passes, 1e9, chains)
                bounds.append(least)
                for at, bound_s in zip(split.tolist(), least, strict=True):
                    cut = (problem.splits or ())[at]
                    steps = [times.step_s(each) for each in plans if _counts(each) == cut]
                    if steps:
                        assert bound_s <= min(steps) * CLOSE
                        compared += 1
                        closer += bound_s > times.step_s(tuple(Stage(n, 0, 0) for n in cut))
            by_means += bool((bounds[2] > bounds[1] * CLOSE).any())
    assert compared > 25
    assert closer > 10
    assert by_means > 2


def test_means_are_kept_where_they_bring_something() -> None:
    """Half of each of two chains; the first few of a shape, and none that is no closer."""
    shape: Shape = ("interleaved_1f1b", 2, 2, 8)
    one, two = Chain((2,) * 16, 3, 0), Chain((4,) * 16, 1, 1)
    known = KnownChains()
    known.keep_mean(shape, [(0.5, one), (0.5, two)], 1.0)
    assert known.count(shape) == 0
    for _ in range(MOST_MEANS + 1):
        known.keep_mean(shape, [(0.5, one), (0.5, two)], 1.1)
    assert known.count(shape) == MOST_MEANS
    assert known._means[shape][0].tolist() == [3.0] * 16 + [2.0, 0.5, 0.5]
    assert known.of(shape) == []


def _short_of_memory(seed: int) -> Question:
    draw, question = random.Random(-seed), random_question(seed)
    layers = draw.randint(4, 6)
    few = 1.5e9 + layers / 4 * draw.uniform(1.5e9, 5e9)
    return replace(
        question, gpus=4, engine=load_engine(draw.choice(("generic", "native"))),
        cluster=question.cluster.model_copy(update={"usable_memory_bytes": few}),
        model=replace(question.model, kinds=(DENSE,), pattern=(0,) * layers, mtp_layers=0),
        training=replace(question.training, global_batch_size=draw.choice((4, 8))),
        pins=parse_pins({**PINNED, "pipeline_parallel": "2", "virtual_stages": "2..3"}),
    )  # fmt: skip


def _problems(
    draw: random.Random, question: Question
) -> Iterator[tuple[StageProblem, Passes, CutTimes]]:
    """Two layouts of several chunks, as they are bounded and played."""
    space = space_of(question)
    if not len(space.layouts):
        return
    proof = Simulated(
        question, space, every_row(question, space), lambda layout: math.inf,
        lambda row, variant, plan: layout_of_row(space.layouts, row, variant, plan),
    )  # fmt: skip
    kept = len(proof.space.layouts)
    for row in draw.sample(range(kept), min(2, kept)):
        variant = draw.choice(proof.space.variants(row))
        problem = stage_problem(proof.space, proof.prices, row, variant)
        stages = tuple(Stage(n, 0, 0) for n in (problem.splits or ())[0])
        layout = layout_of_row(proof.space.layouts, row, variant, StagePlan(stages, 0, ()))
        times = CutTimes(proof.setting, layout, proof.passes, row, variant.columns)
        yield problem, Passes.of(proof.passes, np.array([row]), problem.alone), times


def _mean_of(problem: StageProblem, times: CutTimes, stages: tuple[Stage, ...]) -> MeanOfChains:
    """The mean of chains of the split of `stages`, which has a plan."""
    counts = _counts(stages)
    bare = tuple(Stage(n, 0, 0) for n in counts)
    alone = replace(problem, splits=(counts,))
    mean = RecomputeChains(alone, times, bare, times.after_s(bare)).answer(math.inf).mean
    assert mean is not None
    return mean


def _fitting(problem: StageProblem) -> list[tuple[Stage, ...]]:
    every = islice(every_plan(problem), MOST_PLANS)
    return [stages for stages in every if evaluate(problem, stages) is not None]


def _counts(stages: tuple[Stage, ...]) -> tuple[int, ...]:
    return tuple(stage.layers for stage in stages)
