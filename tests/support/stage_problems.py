"""An inner problem from plain numbers, as tests write them."""

from collections.abc import Sequence
from dataclasses import astuple, fields
from typing import Any

import numpy as np

from meshplan.planner.problem.closed_form import Passes
from meshplan.planner.problem.coefficients import Coefficients
from meshplan.planner.problem.stage_problem import End, StageProblem

LAYER = {
    "layer_ns": "layer_ns", "saved_kib": "layer_saved_kib", "state_kib": "layer_state_kib",
    "update_kib": "layer_update_kib", "step_ns": "layer_step_ns", "transient_kib": "transient_kib",
    "send_ns": "send_ns", "fixed_kib": "fixed_kib", "fixed_step_ns": "fixed_step_ns",
}  # fmt: skip


def problem_of(
    *, embedding: End, head: End, passes_ns: Passes[int], cap_kib: int, **numbers: Any
) -> StageProblem:
    """Columns by the names of `StageProblem`'s views; what is left are its own fields."""
    columns: dict[str, Sequence[int] | int] = {
        column: numbers.pop(name) for name, column in LAYER.items()
    }
    for name, end in (("embedding", embedding), ("head", head)):
        values = zip(fields(End), astuple(end), strict=True)
        columns |= {f"{name}_{field.name}": value for field, value in values}
    del columns["embedding_transient_kib"]  # an embedding has none
    kinds = [0] * (max(numbers["pattern"]) + 1)
    columns |= {"layer_deferred_kib": kinds, "layer_waiting_kib": kinds, "put_off_kib": 0}
    columns |= {"forward_ns": passes_ns.forward_ns, "input_grad_ns": passes_ns.input_grad_ns}
    columns |= {"weight_grad_ns": passes_ns.weight_grad_ns}
    row: dict[str, Any] = {name: np.array([value]) for name, value in columns.items()}
    return StageProblem(prices=Coefficients(**row, cap_kib=cap_kib), **numbers)
