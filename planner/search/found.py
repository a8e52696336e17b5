"""What a search holds: the best layout of each kind, that is of each choice of degrees."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layout import Layout
from meshplan.costmodels.layouts import Floats, Ints, Layouts
from meshplan.planner.problem.stage_problem import StagePlan
from meshplan.planner.space.legal_layouts import Variant

Kind = tuple[int, int, int, int]
SETTLED = 1 - 1e-6  # prices in whole nanoseconds, rounded down for bounds, are known no better
KIND_AXES = ("tensor_parallel", "context_parallel", "pipeline_parallel", "expert_parallel")


class Timed(NamedTuple):
    """A simulated layout."""

    step_s: float
    row: int
    variant: Variant
    plan: StagePlan


def kind_of(layouts: Layouts, row: int) -> Kind:
    """The kind of a row: runners-up differ in it."""
    tp, cp, pp, ep = (int(getattr(layouts, axis)[row]) for axis in KIND_AXES)
    return tp, cp, pp, ep


def kind_of_layout(layout: Layout) -> Kind:
    """The same of one layout."""
    tp, cp, pp, ep = (getattr(layout, axis) for axis in KIND_AXES)
    return tp, cp, pp, ep


def own_s(best: Mapping[Kind, Timed], layouts: Layouts, rows: Ints) -> Floats:
    """[row] what a step must be below to be faster than the best of its own kind by what counts;
    infinite where there is none.
    """
    kinds = np.stack([getattr(layouts, axis)[rows] for axis in KIND_AXES])
    found = np.full(len(rows), math.inf)
    for kind, timed in best.items():
        found[(kinds == np.array(kind)[:, None]).all(axis=0)] = timed.step_s * SETTLED
    return found
