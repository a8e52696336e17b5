"""The closed form of a step against the simulation of the same stages: exact, or within bounds.

The bounds of uneven stages are those that docs/search.md states.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.schedule.actions import Work
from meshplan.costmodels.schedule.simulation import play
from meshplan.planner.problem.closed_form import Passes, closed_form
from meshplan.planner.problem.pipeline_shape import pipeline_shape

CHUNKS = {"zb_v": (2,), "dualpipe_v": (2,), "interleaved_1f1b": (2, 3, 4)}
BOUNDS: dict[Schedule, tuple[float, float]] = {  # closed form / simulation - 1
    "gpipe": (0.0, 0.0),
    "1f1b": (0.0, 0.30),
    "zb_h1": (-0.15, 0.30),
    "interleaved_1f1b": (-0.15, 0.65),
    "zb_v": (-0.25, 0.35),
    "dualpipe_v": (-0.15, 0.20),
}
EXACT: tuple[Schedule, ...] = ("gpipe", "1f1b", "zb_h1", "interleaved_1f1b")
LAYER_NS = 10**6


@st.composite
def pipelines(
    draw: st.DrawFn, schedule: Schedule, most: int = 4
) -> tuple[tuple[Schedule, int, int, int], Work]:
    """Chunks of 1 to `most` layers; I is longer than F, W is not."""
    pp = draw(st.sampled_from((2, 3, 4, 8)))
    vpp = draw(st.sampled_from(CHUNKS.get(schedule, (1,))))
    m = draw(st.integers(2 * pp if schedule == "dualpipe_v" else 1, 4 * pp))
    m = -(-m // pp) * pp if schedule == "interleaved_1f1b" else m
    counts = draw(st.lists(st.integers(1, most), min_size=pp * vpp, max_size=pp * vpp))
    ratios = (1.0, draw(st.floats(1.0, 2.2)), draw(st.floats(0.7, 1.0)))
    times = (tuple(float(round(r * LAYER_NS) * n) for n in counts) for r in ratios)
    return (schedule, pp, vpp, m), Work(*times, 0.0)


def closed_form_ns(shape: tuple[Schedule, int, int, int], work: Work) -> int:
    """The objective of the search, without what is once per step."""
    passes = [list(map(int, p)) for p in (work.forward_s, work.input_grad_s, work.weight_grad_s)]
    chunks = [sum(each) for each in zip(*passes, strict=True)]
    form = closed_form(*shape, Passes(*map(sum, passes)))
    slowest = sum(
        max(sum(chunks[j] for j in together) for together in group)
        for group in pipeline_shape(*shape).waits
    )
    return int(form.weight * slowest + form.share_ns(sum(chunks)) + form.constant_ns)


@settings(max_examples=60)
@given(data=st.data())
@pytest.mark.parametrize("schedule", EXACT)
def test_equal_stages_are_exact(schedule: Schedule, data: st.DataObject) -> None:
    """Also with fewer micro-batches than ranks, whatever F, I and W take (I >= F >= W)."""
    shape, work = data.draw(pipelines(schedule, most=1))
    assert closed_form_ns(shape, work) == pytest.approx(play(*shape, work).makespan_s, rel=1e-6)


@settings(max_examples=100)
@given(data=st.data())
@pytest.mark.parametrize("schedule", BOUNDS)
def test_uneven_stages_are_within_the_stated_bounds(
    schedule: Schedule, data: st.DataObject
) -> None:
    """Chunks of 1 to 4 layers: neither more optimistic nor more pessimistic than stated."""
    shape, work = data.draw(pipelines(schedule))
    distance = closed_form_ns(shape, work) / play(*shape, work).makespan_s - 1
    least, most = BOUNDS[schedule]
    assert least - 1e-6 <= distance <= most + 1e-6


@pytest.mark.parametrize(
    ("schedule", "vpp", "m", "passes", "expected"),
    [
        pytest.param("1f1b", 1, 8, (1, 2, 1), 8 * 4 + 3 * 4, id="(p - 1)(F + B)"),
        pytest.param("zb_h1", 1, 8, (2, 3, 1), 8 * 6 + 3 * 4, id="(p - 1)(F + I - W)"),
        pytest.param(
            "zb_h1", 1, 2, (2, 3, 1), 5 * 6 - 4 * 1, id="zb_h1, m < p: (m + p - 2) W less"
        ),
        pytest.param("interleaved_1f1b", 2, 8, (1, 2, 1), 8 * 8 + 3 * 4, id="(p - 1) of a chunk"),
        pytest.param("zb_v", 2, 8, (1, 1, 1), 8 * 6 + 3, id="(p - 1) F where I = W"),
        pytest.param("zb_v", 2, 8, (1, 2, 1), 8 * 8 + 3 * 2, id="(p - 1)(F + I - W)"),
        pytest.param("dualpipe_v", 2, 8, (1, 2, 1), 8 * 8 + 3 * 3, id="(p - 1)(2 I - W)"),
        pytest.param("zb_v", 2, 1, (1, 2, 1), 8 * 3 + 1, id="zb_v, m 1: there and back, and W"),
    ],
)
def test_equal_stages_by_hand(
    schedule: Schedule, vpp: int, m: int, passes: tuple[int, int, int], expected: int
) -> None:
    """Four ranks: the busy time of a rank and the bubble of the papers."""
    times = (tuple([float(1000 * each)] * (4 * vpp)) for each in passes)
    found = closed_form_ns((schedule, 4, vpp, m), Work(*times, 0.0))
    assert found == pytest.approx(1000 * expected, abs=3)
