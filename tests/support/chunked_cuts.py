"""Random layouts of several chunks in engines that cut anywhere, and a cut of each."""

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from simulated_oracle import DENSE, MOE, PINNED, random_question

from meshplan.costmodels.layout import Stage
from meshplan.costmodels.prices.passes import pass_seconds
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.step.cut_times import CutTimes
from meshplan.hardware_profiles.engines import load_engine
from meshplan.planner.problem.stage_problem import (
    StagePlan,
    StageProblem,
    evaluate,
    stage_problem,
)
from meshplan.planner.search.row_layout import layout_of_row
from meshplan.planner.search.rows.priced_space import Question, closed_form, price_space, space_of
from meshplan.planner.space.pins import parse_pins

FREE = ("native", "torchtitan", "generic")


def chunked(seed: int) -> Question:
    """Layers of two kinds in several chunks of an engine that cuts anywhere."""
    draw, q = random.Random(seed), random_question(seed)
    layers, kinds = draw.randint(5, 9), draw.choice(((0,), (0, 1), (0, 0, 1)))
    pattern = (kinds * layers)[:layers]
    model = replace(q.model, kinds=(DENSE, MOE)[: max(kinds) + 1], pattern=pattern, mtp_layers=0)
    pins = parse_pins({**PINNED, "pipeline_parallel": "2..", "virtual_stages": "2.."})
    return replace(q, engine=load_engine(draw.choice(FREE)), model=model, pins=pins)


def climbs(seeds: range) -> Iterator[tuple[StageProblem, CutTimes, tuple[Stage, ...]]]:
    """A random layout of each question, and a cut of its list that fits."""
    for seed in seeds:
        if found := _climb(seed):
            problem, priced, stages = found
            yield problem, CutTimes(*priced), stages


@cache
def _climb(seed: int) -> tuple[StageProblem, tuple[Any, ...], tuple[Stage, ...]] | None:
    """One of them, and what its `CutTimes` are made of."""
    draw, q = random.Random(seed), chunked(seed)
    space = space_of(q)
    if not len(space.layouts):
        return None
    row = draw.randrange(len(space.layouts))
    if not (variants := space.variants(row)):
        return None
    variant, only = draw.choice(variants), space.take(np.array([row]))
    problem = stage_problem(only, price_space(q, only, closed_form), 0, variant)
    mode = draw.choice(problem.modes)
    cuts = [
        tuple(Stage(n, n * (mode == 1), n * (mode == 2)) for n in counts)
        for counts in problem.splits or ()
    ]
    if not (fitting := [stages for stages in cuts if evaluate(problem, stages)]):
        return None
    stages = draw.choice(fitting)
    setting = Setting.fitted(q.model, q.training, q.cluster, q.engine)
    layout = layout_of_row(only.layouts, 0, variant, StagePlan(stages, 0, ()))
    passes = pass_seconds(only.layouts, setting)
    return problem, (setting, layout, passes, 0, variant.columns), stages
