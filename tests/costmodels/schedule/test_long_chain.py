"""Chains of long steps: as long as the step, and no longer than the step of any other work."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.schedule.actions import Work
from meshplan.costmodels.schedule.long_chain import longest_chain
from meshplan.costmodels.schedule.program import program
from meshplan.costmodels.schedule.steady_state import repeating

CHUNKS: dict[Schedule, int] = {
    "1f1b": 1, "zb_h1": 1, "interleaved_1f1b": 3, "zb_v": 2, "dualpipe_v": 2,
}  # fmt: skip


def works(chunks: int) -> st.SearchStrategy[Work]:
    """Passes that are often alike, so that chains tie, and messages."""
    seconds = st.one_of(st.sampled_from((1.0, 2.0)), st.floats(0.1, 3))
    times = st.lists(seconds, min_size=chunks, max_size=chunks).map(tuple)
    return st.builds(Work, times, times, times, st.sampled_from((0.0, 0.3)))


@pytest.mark.few(2)
@settings(max_examples=25, deadline=None)
@given(data=st.data(), pp=st.integers(2, 4), groups=st.integers(5, 30))
@pytest.mark.parametrize("schedule", CHUNKS)
def test_a_chain_of_a_long_step(schedule: Schedule, data, pp: int, groups: int) -> None:
    """To the rank that is done last with what comes after it; every action played is the oracle."""
    vpp, m = CHUNKS[schedule], groups * pp
    shape, places = (schedule, pp, vpp, m), pp * vpp
    own, other = (data.draw(works(places)) for _ in range(2))
    after_s = data.draw(st.lists(st.sampled_from((0.0, 0.5, 9.0)), min_size=pp, max_size=pp))
    chain, order = longest_chain(*shape, own, after_s), program(*shape)
    ends = [end + after for end, after in zip(order.end_s(own), after_s, strict=True)]
    length_s = chain.length_s(own) + after_s[chain.rank]
    assert length_s == pytest.approx(max(ends), rel=1e-9)
    assert chain.length_s(other) <= order.end_s(other)[chain.rank] * (1 + 1e-9)


def test_long_steps_are_not_played_as_a_whole() -> None:
    """Of 400 micro-batches on 4 ranks with equal passes; the chain is that of all of them."""
    work = Work((1.0,) * 4, (1.5,) * 4, (0.5,) * 4, 0.1)
    found = repeating("1f1b", 4, 1, 400)
    assert found is not None
    assert len(found.played(work).periods.passed) < 40
    assert longest_chain("1f1b", 4, 1, 400, work, [0.0] * 4).length_s(work) == pytest.approx(
        program("1f1b", 4, 1, 400).chain(work, [0.0] * 4).length_s(work), rel=1e-12
    )
