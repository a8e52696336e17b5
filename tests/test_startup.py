"""The command answers at once, and only what trains or measures imports torch."""

import resource
import subprocess
import sys

import pytest

ROUNDS = 3
HELP_CPU_S = 0.3

PROBE = """
import contextlib, io, sys
from meshplan.planner.cli.main import app
for arguments in {calls!r}:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        with contextlib.suppress(SystemExit):
            app(arguments)
    heavy = [name for name in {heavy!r} if name in sys.modules]
    assert not heavy, (arguments, heavy)
"""

JOB = ["--gpus", "2", "--cluster", "local-cpu", "--global-batch", "16", "--top", "1"]


def probe(calls: list[list[str]], heavy: tuple[str, ...]) -> None:
    """Run `calls` one after the other in a fresh interpreter that may import none of `heavy`."""
    code = PROBE.format(calls=calls, heavy=heavy)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_help_is_quick() -> None:
    """`meshplan --help` takes less than 0.3 s of processor time (the best of a few)."""
    used = []
    for _ in range(ROUNDS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-c", "from meshplan.planner.cli.main import main; main()", "--help"],
            check=True,
            capture_output=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(used) < HELP_CPU_S, used


def test_help_imports_little() -> None:
    """The list of commands imports neither numpy, pydantic, ortools nor torch."""
    probe([["--help"], ["--version"]], ("numpy", "pydantic", "ortools", "torch", "rich"))


def test_the_options_of_plan_need_nothing_that_plans() -> None:
    """`plan --help` imports neither numpy nor a cost model."""
    probe([["plan", "--help"]], ("numpy", "meshplan.costmodels"))


def test_reading_commands_need_no_solver() -> None:
    """Commands that look up or check import neither torch nor the solver."""
    commands = ("models", "profiles", "check", "explain", "validate")
    probe([[command, "--help"] for command in commands], ("torch", "ortools"))


def test_the_solver_loads_no_pandas_and_leaves_its_name_free() -> None:
    """OR-Tools imports pandas for what is not called; whoever wants it has the real one after."""
    code = """
import sys
from meshplan.planner.stages.cpsat import new_model, solve_model
model = new_model()
model.minimize(model.new_int_var(3, 5, ""))
assert solve_model(model, 0.1).objective == 3
assert "pandas" not in sys.modules
import pandas
assert pandas.Series([1, 2]).sum() == 3
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_planning_imports_no_torch(tmp_path_factory: pytest.TempPathFactory) -> None:
    """plan, sweep, explain, check, models, profiles and validate work without torch."""
    plan = str(tmp_path_factory.mktemp("startup") / "plan.yaml")
    calls = [
        ["plan", "tiny-llama", *JOB, "-o", plan],
        ["sweep", "tiny-llama", *JOB[:-2]],
        ["explain", plan],
        ["check", plan],
        ["models", "tiny-llama"],
        ["profiles", "show", "dgx-h100"],
        ["validate", "--help"],
    ]
    probe(calls, ("torch",))


@pytest.mark.parametrize("module", ["meshplan", "meshplan.planner.cli.main"])
def test_the_command_is_a_module_too(module: str) -> None:
    """`python -m` runs it: it ended without a word and with exit code 0."""
    ran = subprocess.run(
        [sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip()
