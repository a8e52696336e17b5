"""The fullest moment of a rank, where what is alive inside each pass is known."""

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from meshplan.costmodels.step.pass_memory import Known, rank_peak


@settings(max_examples=60)
@given(data=st.data())
def test_chunks_that_hold_the_same_are_looked_at_once(
    cases: Callable[..., st.SearchStrategy], data: st.DataObject
):
    """Each rank's peak is what it is where its chunks are looked at for it alone."""
    step = data.draw(cases(pipelined=True, engine="native")).step
    sharding, known, ranks = step.traffic.sharding, Known(), range(step.layout.pipeline_parallel)
    together = [rank_peak(step, rank, sharding, known) for rank in ranks]
    assert together == [rank_peak(step, rank, sharding, {}) for rank in ranks]
