"""CP-SAT beside what else a process does."""

import subprocess
import sys

SOLVES_THEN_HEARS = """
import signal
from meshplan.planner.stages.cpsat import new_model, solve_model

signal.signal(signal.SIGINT, signal.default_int_handler)
model = new_model()
model.minimize(model.new_int_var(1, 9, ""))
solved = solve_model(model, 1.0)
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print(solved.status, solved.objective)
"""


def test_ctrl_c_is_heard_after_a_model_was_solved() -> None:
    """In a process of its own: one that does not hear it dies."""
    ended = subprocess.run(
        [sys.executable, "-c", SOLVES_THEN_HEARS], capture_output=True, text=True, check=True
    )
    assert ended.stdout.split() == ["OPTIMAL", "1"]
