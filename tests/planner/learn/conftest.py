"""Logs that commands learn from."""

from pathlib import Path

import pytest
from two_layouts import PLANS, megatron_log, model_of

from meshplan.planner.case.plan_file import write_plan


@pytest.fixture
def logs(tmp_path: Path) -> list[str]:
    """Two logs a fifth slower than predicted, each beside its plan."""
    found = []
    for at, plan in enumerate(PLANS):
        folder = tmp_path / str(at)
        folder.mkdir()
        write_plan(plan, folder / "plan.yaml")
        found.append(str(megatron_log(folder / "a.log", 1.2 * model_of(plan).time().step_time_s)))
    return found
