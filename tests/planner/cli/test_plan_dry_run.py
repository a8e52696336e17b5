"""`plan --dry-run`: the native engine's program beside what is predicted for that engine."""

import re

from typer.testing import CliRunner

from meshplan.planner.cli.main import app

PLAN = (
    "plan", "tiny-llama", "--gpus", "2", "--cluster", "local-cpu", "--global-batch", "8",
    "--seq-len", "128", "--precision", "fp32", "--engine", "accelerate", "--dry-run",
)  # fmt: skip


def test_the_program_is_compared_with_its_own_engine() -> None:
    """A plan for Accelerate: the error is that of the native price, and Accelerate's is named."""
    done = CliRunner().invoke(app, PLAN)
    assert done.exit_code == 0, done.output
    said = re.search(
        r"on the native engine: .* predicted for it .* \(([-+.\d]+)%\), and for accelerate",
        done.stdout,
    )
    assert said, done.stdout
    assert abs(float(said[1])) < 1
