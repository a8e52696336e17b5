"""One layout under many settings that differ in constants alone: what its stages cost is found for
all of them at once, as columns.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from meshplan.costmodels.seconds.cost import Cost
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.step.step import StepModel


def under_each(
    model: StepModel, settings: Sequence[Setting], constants: Sequence[str]
) -> Iterator[StepModel]:
    """`model` under each of `settings`, which differ in these `constants` of their tuning alone."""
    if len(settings) == 1:
        yield model.with_figures(settings[0])
        return
    columns = {
        name: np.array([getattr(each.tuning, name) for each in settings]) for name in constants
    }
    tuning = settings[0].tuning.model_copy(update=columns)
    costs = model.with_figures(replace(settings[0], tuning=tuning)).stage_costs
    for place, setting in enumerate(settings):
        one = model.with_figures(setting)
        vars(one)["stage_costs"] = _at(costs, place)
        yield one


def _at(costs: Sequence[Cost], place: int) -> tuple[Cost, ...]:
    """One of each column, once of stages that hold the same."""
    different = {id(cost): cost for cost in costs}
    known = {number: cost.at(place) for number, cost in different.items()}
    return tuple(known[id(cost)] for cost in costs)
