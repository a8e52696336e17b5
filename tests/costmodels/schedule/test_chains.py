"""The longest chain of a schedule's program: the makespan of its own work, a bound of any other."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import cases

from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.schedule.actions import Work
from meshplan.costmodels.schedule.program import program
from meshplan.costmodels.schedule.simulation import play

CLOSE = 1 + 1e-9
CHUNKS: dict[Schedule, int] = {"interleaved_1f1b": 3, "zb_v": 2, "dualpipe_v": 2}
SHAPES: tuple[Schedule, ...] = (
    "1f1b", "gpipe", "interleaved_1f1b", "zb_h1", "zb_v", "dualpipe_v",
)  # fmt: skip


def works(chunks: int) -> st.SearchStrategy[Work]:
    """Passes of 0.1 to 3 s, and messages."""
    times = st.lists(st.floats(0.1, 3), min_size=chunks, max_size=chunks).map(tuple)
    return st.builds(Work, times, times, times, st.sampled_from((0.0, 0.3)))


@settings(max_examples=cases(30, nightly=300), deadline=None)
@given(data=st.data(), pp=st.integers(2, 4), groups=st.integers(1, 4))
@pytest.mark.parametrize("schedule", SHAPES)
def test_a_chain_bounds_every_other_work(schedule: Schedule, data, pp: int, groups: int) -> None:
    """The longest chain of one work is its makespan, and of no other work longer than the step."""
    vpp = CHUNKS.get(schedule, 1)
    shape = (schedule, pp, vpp, groups * pp)
    own, other = (data.draw(works(pp * vpp)) for _ in range(2))
    chain = program(*shape).chain(own, [0.0] * pp)
    assert chain.length_s(own) == pytest.approx(play(*shape, own).makespan_s, rel=1e-12)
    assert chain.length_s(other) <= play(*shape, other).makespan_s * CLOSE
