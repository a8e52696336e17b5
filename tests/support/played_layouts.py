"""Layouts of several chunks per rank of small models, with the least step of every cut and mix."""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
from simulated_oracle import every_kind, recomputed
from small_cuts import cuts, every_layout, small_question

from meshplan.costmodels.layout import SCHEDULES, Schedule
from meshplan.costmodels.prices.passes import pass_seconds
from meshplan.costmodels.setting import Setting
from meshplan.planner.bounds.packed_cuts import PackedCuts
from meshplan.planner.problem.same_pipeline import run_as
from meshplan.planner.problem.stage_problem import evaluate
from meshplan.planner.search.rows.priced_space import Question, closed_form, price_space

MOST, ENDLESS = 1_000, 2**50  # mixes of a layout; KiB
ALL = frozenset(SCHEDULES)


class Played(NamedTuple):
    """A layout, and the least step of every cut and mix that fits: infinite where none does; and
    the layers of the chunks of that cut.
    """

    cuts: PackedCuts
    least_s: float
    layers: tuple[int, ...]


@cache
def played(seed: int, schedules: frozenset[Schedule] = ALL) -> tuple[Played, ...]:
    """`played_of` a small question."""
    return tuple(played_of(small_question(seed, 5), schedules))


def played_of(question: Question, schedules: frozenset[Schedule] = ALL) -> Iterator[Played]:
    """Some layouts of a question, each with its memory, and with what just holds some plan."""
    space, rule = every_kind(question), question.engine.legality.recompute_layers
    if not len(space.layouts):
        return
    setting = Setting.fitted(question.model, question.training, question.cluster, question.engine)
    prices, passes = price_space(question, space, closed_form), pass_seconds(space.layouts, setting)
    for times, problem in list(every_layout(question))[:12:3]:
        if problem.schedule not in schedules:
            continue
        every = (recomputed(counts, problem.modes, rule) for counts in cuts(problem))
        mixes = list(islice(chain.from_iterable(every), MOST + 1))
        if len(mixes) > MOST or problem.vpp == 1:
            continue
        endless = replace(problem, prices=replace(problem.prices, cap_kib=ENDLESS))
        plans = [plan for each in mixes if (plan := evaluate(endless, each))]
        needs = [
            (max(plan.peak_kib), times.step_s(plan.stages), tuple(x.layers for x in plan.stages))
            for plan in plans
        ]
        row = np.array([times.row])
        variant = next(
            each for each in space.variants(times.row)
            if (each.schedule, each.virtual_stages, each.modes)
            == (problem.schedule, problem.vpp, problem.modes)
            and each.replayed == times.layout.selective_modules
        )  # fmt: skip
        same, peaks = run_as(space, prices, row, variant), sorted(kib for kib, *_ in needs)
        for cap in (problem.cap_kib, peaks[0], peaks[len(peaks) // 4], peaks[0] - 1):
            held = replace(same, prices=replace(same.prices, cap_kib=cap))
            fit = [(step_s, layers) for kib, step_s, layers in needs if kib <= cap]
            yield Played(PackedCuts(held, passes, row), *min(fit, default=(math.inf, ())))
