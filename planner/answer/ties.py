"""The choice among layouts that measured runs cannot tell apart: the one that is never far behind.

    ties          layouts whose probability of being slower than the fastest is below
                  `hardware_profiles.errors.layout_ratios.TIE`
    figures       matrix products, attention, memory-bound kernels, communication and the host's
                  time, each longer and shorter by one standard deviation, and what is hidden behind
                  computing less and more by one (`hardware_profiles.errors.figure_errors`); one
                  at a time
    loss(L, x)    step of L with the figures x over the least of all candidates with x, minus 1
    worst(L)      the largest loss over all x, the unmoved figures among them

Of ties the plan is the one with the smallest `worst`; where several are within `ALIKE` of that, the
one whose fullest GPU has most memory left. With `robust` the candidates are all layouts that were
found, tied or not. Each is the best of its kind (tp, cp, pp, ep) under unmoved figures: what would
be best of its kind under moved ones is not looked for.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import NamedTuple

from meshplan.costmodels.layout import Layout, differing_axes
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.step.moved_figures import under_each
from meshplan.costmodels.step.step import StepModel
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.errors.figure_errors import CONSTANTS, OVERLAPS, figure_errors
from meshplan.hardware_profiles.errors.layout_ratios import faster_probability, is_tie
from meshplan.planner.answer.explain import needed_bytes
from meshplan.planner.case.plan_findings import Choice
from meshplan.planner.case.predict import stage_memory
from meshplan.planner.processes.second_core import done_of_each
from meshplan.planner.search.result import Solution
from meshplan.planner.search.rows.priced_space import Question

ALIKE = 0.001
ROBUST_CANDIDATES = 12
"""Layouts that `--robust` chooses from, each the best of its kind."""


class MovedFigure(NamedTuple):
    """The figures with one of them moved, and what that means."""

    words: str
    setting: Setting


@dataclass(frozen=True, slots=True)
class Worst:
    """The largest loss of a layout, and under what."""

    loss: float
    words: str
    needed_bytes: float


def moved_settings(question: Question) -> Iterator[MovedFigure]:
    """The question's figures unmoved, then with each moved."""
    q = question
    setting = Setting.fitted(q.model, q.training, q.cluster, q.engine)
    yield MovedFigure("as predicted", setting)
    errors = figure_errors()
    for name, words in CONSTANTS.items():
        for sign, slower in ((1, "slower"), (-1, "faster")):
            value = getattr(setting.tuning, name) * math.exp(sign * errors[name])
            tuning = setting.tuning.model_copy(update={name: value})
            said = f"{words} {math.expm1(errors[name]):.0%} {slower}"
            yield MovedFigure(said, replace(setting, tuning=tuning))
    for sign, much in ((-1, "less"), (1, "more")):
        overlap = q.engine.overlap
        update = {
            name: min(1.0, max(0.0, share + sign * errors[name]))
            for name in OVERLAPS
            if (share := getattr(overlap, name))
        }
        engine = q.engine.model_copy(update={"overlap": overlap.model_copy(update=update)})
        yield MovedFigure(
            f"{much} communication hidden behind compute", replace(setting, engine=engine)
        )


def worst_losses(question: Question, layouts: Sequence[Layout]) -> list[Worst]:
    """The worst loss of each layout."""
    every = list(moved_settings(question))
    settings = [moved.setting for moved in every]
    models = [StepModel(settings[0], each) for each in layouts]
    steps_s = done_of_each(partial(_steps_s, settings), models)
    least_s = [min(each) for each in zip(*steps_s, strict=True)]
    found = list[Worst]()
    for model, own_s in zip(models, steps_s, strict=True):
        own = [step_s / least for step_s, least in zip(own_s, least_s, strict=True)]
        worst = max(range(len(every)), key=own.__getitem__)
        memory = stage_memory(model)
        found.append(Worst(own[worst] - 1, every[worst].words, needed_bytes(memory)))
    return found


def _steps_s(settings: Sequence[Setting], model: StepModel) -> list[float]:
    """Of one layout under each setting: those of one engine differ in constants alone."""
    return [
        moved.time().step_time_s
        for _, same in groupby(settings, key=lambda each: id(each.engine))
        for moved in under_each(model, list(same), tuple(CONSTANTS))
    ]


def chosen(
    question: Question, solutions: Sequence[Solution], *, robust: bool = False
) -> tuple[int, Choice | None]:
    """Which of `solutions`, the fastest first, is the plan, and why; None: nothing is to be chosen
    from.
    """
    fastest = solutions[0]
    among = [
        index for index, each in enumerate(solutions)
        if robust or index == 0 or _tied(fastest, each)
    ]  # fmt: skip
    if len(among) == 1:
        return 0, None
    worst = worst_losses(question, [solutions[index].layout for index in among])
    least = min(each.loss for each in worst)
    alike = [at for at, each in enumerate(worst) if each.loss <= least + ALIKE]
    best = min(alike, key=lambda at: worst[at].needed_bytes)
    plan = solutions[among[best]]
    return among[best], Choice(
        robust=robust,
        candidates=len(among),
        fastest=fastest.layout.full_label,
        fastest_step_time_s=fastest.step_time_s,
        slower_fraction=plan.step_time_s / fastest.step_time_s - 1,
        worst_loss_fraction=worst[best].loss,
        worst_where=worst[best].words,
        fastest_worst_loss_fraction=worst[0].loss,
        fastest_worst_where=worst[0].words,
        spares_bytes=worst[0].needed_bytes - worst[best].needed_bytes,
    )


def _tied(fastest: Solution, other: Solution) -> bool:
    axes = len(differing_axes(fastest.layout, other.layout))
    return is_tie(faster_probability(other.step_time_s / fastest.step_time_s, axes))
