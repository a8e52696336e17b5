"""What the page draws of memory over a step, and what it leaves out."""

import re
from types import SimpleNamespace
from typing import Any

import pytest

from meshplan.costmodels.units import GIB
from meshplan.planner.case.plan_file import StageMemory
from meshplan.planner.report.page.memory import phases_picture
from meshplan.planner.report.page.page import _others
from meshplan.planner.report.timeline import Event


def test_saved_activations_lie_on_what_stays() -> None:
    """Five kinds of 1 GiB each stay; a forward of a second adds 2 GiB, which its backward gives
    back: 5, 7, 7, 5 GiB of the 1.06 x 10 that the picture is high, from above.
    """
    memory = StageMemory(
        context=GIB, slack=GIB, weights=GIB, gradients=GIB, optimizer=GIB, activations=2 * GIB,
        transient=0, allocated=6 * GIB, reserved=7 * GIB,
    )  # fmt: skip
    events = [Event(0, "F", 0, 0, 0.0, 1.0), Event(0, "B", 0, 0, 1.0, 2.0)]
    timeline: Any = SimpleNamespace(of_rank=lambda _: events, end_s=2.0)
    model: Any = SimpleNamespace(stage_saved_bytes=(2 * GIB,))
    drawn = phases_picture(model, [memory], timeline, 10 * GIB)
    (shape,) = (each for each in re.findall("<polygon[^>]*>", drawn) if "activations" in each)
    heights = [float(each) for each in re.findall(r",([\d.]+)", shape)]
    assert [10.6 * (1 - each / 100) for each in heights] == pytest.approx(
        [5, 5, 5, 7, 7, 5, 5], abs=1e-3
    )


def test_a_plan_that_nothing_is_beside_has_no_picture_of_others() -> None:
    """One alternative is the plan itself."""
    plan = SimpleNamespace(runners_up=(), reasons=())
    explained: Any = SimpleNamespace(plan=plan, alternatives=[object()])
    prediction: Any = SimpleNamespace(gpu_memory_bytes=1.0)
    assert "one axis changed" not in _others(explained, prediction)
