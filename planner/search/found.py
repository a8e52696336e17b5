"""What a search holds: the best layout of each kind, that is of each choice of degrees."""

from typing import NamedTuple

from meshplan.costmodels.layouts import Layouts
from meshplan.planner.problem.stage_problem import StagePlan
from meshplan.planner.space.legal_layouts import Variant

Kind = tuple[int, int, int, int]
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
