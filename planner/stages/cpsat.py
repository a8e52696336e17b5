"""CP-SAT as this project runs it: one worker, a fixed seed, a deterministic limit, little presolve.

One worker and the deterministic limit make equal questions give equal plans. Presolve's probing
costs ten times what it saves on models this small (measured). Ctrl-C stays ours, and is heard when
the model is solved. OR-Tools is imported when a model is built, so that a question that needs none
does not wait for it.
"""

import sys
from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from meshplan.planner.processes.late_binding import bound_when_called

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

Status = Literal["OPTIMAL", "FEASIBLE", "INFEASIBLE", "UNKNOWN"]


class Solved(NamedTuple):
    """A solved model: `bound` and `objective` in the model's own unit, deterministic `seconds`."""

    status: Status
    objective: int
    bound: int
    solver: Any
    seconds: float

    @property
    def found(self) -> bool:
        """Whether there is a solution to read."""
        return self.status in ("OPTIMAL", "FEASIBLE")

    def value(self, expression: Any) -> int:
        """The value of a variable or linear expression."""
        return int(self.solver.value(expression))


@cache
def _ortools() -> ModuleType:
    """OR-Tools' Python module of CP-SAT.

    It imports pandas, 0.16 s and 41 MiB, for the types of methods on series of variables, which are
    not called here. Unless it is there already an empty module stands for it meanwhile.
    """
    series = ModuleType("pandas")
    series.__dict__.update(Index=type("Index", (), {}), Series=type("Series", (), {}))
    stands_in = sys.modules.setdefault("pandas", series) is series
    try:
        with bound_when_called():
            from ortools.sat.python import cp_model
    finally:
        if stands_in:
            del sys.modules["pandas"]
    return cp_model


def new_model() -> "cp_model.CpModel":
    """An empty one."""
    model: cp_model.CpModel = _ortools().CpModel()
    return model


def weighted_sum(variables: Sequence[Any], coefficients: Sequence[int]) -> Any:
    """A linear expression."""
    return _ortools().LinearExpr.weighted_sum(variables, coefficients)


def solve_model(model: "cp_model.CpModel", seconds: float) -> Solved:
    """Minimise `model` within deterministic `seconds`; raises RuntimeError if it is not a model."""
    cp_model = _ortools()
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 1
    solver.parameters.max_deterministic_time = seconds
    solver.parameters.cp_model_probing_level = 0
    solver.parameters.max_presolve_iterations = 1
    solver.parameters.catch_sigint_signal = False  # else Ctrl-C kills from then on, unheard
    code = solver.solve(model)
    names: dict[Any, Status] = {
        cp_model.OPTIMAL: "OPTIMAL",
        cp_model.FEASIBLE: "FEASIBLE",
        cp_model.INFEASIBLE: "INFEASIBLE",
        cp_model.UNKNOWN: "UNKNOWN",
    }
    if code not in names:
        raise RuntimeError(f"CP-SAT refused the model: {model.validate()}")
    found = names[code] in ("OPTIMAL", "FEASIBLE")
    objective = round(solver.objective_value) if found else 0
    bound = round(solver.best_objective_bound) if names[code] != "INFEASIBLE" else 0
    spent_s = float(solver.response_proto.deterministic_time)
    return Solved(names[code], objective, bound, solver, spent_s)
