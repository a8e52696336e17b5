"""Linear programs as messages, held against OR-Tools' own classes."""

import math
import subprocess
import sys

import pytest

from meshplan.planner.cuts.free_cut_program import _loaded as loaded
from meshplan.planner.cuts.linear_model import LinearModel

COLUMNS = [0, 1, 127, 128, 300, 20_000]
VALUES = [1.0, -2.5, 1e-300, math.pi, -0.0, 7e20]


@pytest.mark.parametrize("maximizes", [False, True])
def test_the_message_is_read_as_what_was_written(maximizes: bool):
    """By the classes that OR-Tools generates, numbers of one to three bytes and rows longer than
    127 bytes included.
    """
    model = LinearModel(maximizes=maximizes)
    model.add_variable(-math.inf, 2.5, -1.0)
    model.add_variable(0.0, math.inf, 1e3)
    model.add_row(-1.5, math.inf, COLUMNS, VALUES)
    model.add_row(0.0, 0.0, [], [])

    from ortools.linear_solver.linear_solver_pb2 import MPModelProto

    read = MPModelProto.FromString(model.SerializeToString())
    variables = [(v.lower_bound, v.upper_bound, v.objective_coefficient) for v in read.variable]
    rows = [
        (row.lower_bound, row.upper_bound, list(row.var_index), list(row.coefficient))
        for row in read.constraint
    ]
    assert read.maximize == maximizes
    assert variables == [(-math.inf, 2.5, -1.0), (0.0, math.inf, 1e3)]
    assert rows == [(-1.5, math.inf, COLUMNS, VALUES), (0.0, 0.0, [], [])]


def test_a_program_is_solved_without_protobuf():
    """Cuts take 3 w and 1 - w by two weighted chains: most alike, 3/4, at w = 1/4."""
    code = """
import sys
import numpy as np
from meshplan.planner.cuts.free_cut_program import best_weights
most, weights = best_weights(np.array([[3.0, 0.0], [0.0, 1.0]]))
assert abs(most - 0.75) < 1e-9 and np.allclose(weights, [0.25, 0.75]), (most, weights)
sys.exit("google.protobuf" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("columns", "value"), [([0], math.nan), ([0, 0], 1.0), ([1], 1.0)])
def test_a_program_that_is_none_is_refused(columns: list[int], value: float):
    """The solver would take it for an empty one, and find that optimal."""
    model = LinearModel()
    model.add_variable(0.0, math.inf, 1.0)
    model.add_row(1.0, math.inf, columns, [value] * len(columns))
    with pytest.raises(ValueError, match="constraint"):
        loaded(model)
