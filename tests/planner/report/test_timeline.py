"""The timeline of a step, its trace, and what is held over it."""

import json
from itertools import pairwise

import pytest
from explained_cases import LAYOUTS, case
from hypothesis import given
from hypothesis import strategies as st

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.planner.case.predict import step_model_of
from meshplan.planner.case.resolve import Case
from meshplan.planner.report.page.memory import saved_over_time
from meshplan.planner.report.streams import Sent, Traffic
from meshplan.planner.report.timeline import Event, shortened, step_timeline
from meshplan.planner.report.trace import _ending, chrome_trace, transfers


@pytest.mark.parametrize("given_case", LAYOUTS)
def test_timeline_ends_with_the_step(given_case: Case) -> None:
    """The last event ends when the step does, but for what is added once per step."""
    model = step_model_of(given_case)
    time = model.time()
    timeline = step_timeline(model)
    assert timeline.end_s + time.fixed_s == pytest.approx(time.step_time_s, rel=2e-3)
    la = given_case.layout
    forwards = sum(event.kind == "F" for event in timeline.events)
    assert forwards == model.m * la.pipeline_parallel * la.virtual_stages


@pytest.mark.parametrize("given_case", LAYOUTS)
def test_no_rank_does_two_things_at_once(given_case: Case) -> None:
    """The events of one rank never overlap."""
    timeline = step_timeline(step_model_of(given_case))
    for rank in range(timeline.ranks):
        events = sorted((e.start_s, e.end_s) for e in timeline.events if e.rank == rank)
        for (_, end), (start, _) in pairwise(events):
            assert start >= end - 1e-9


@given(micro_batches=st.integers(1, 4096), most=st.integers(1, 512), pp=st.integers(1, 64))
def test_shortened(micro_batches: int, most: int, pp: int) -> None:
    """A shortened step has no more micro-batches than the whole, and fills the pipeline."""
    layout = Layout(pipeline_parallel=pp, stages=even_stages(pp, pp))
    kept = shortened(layout, micro_batches, most)
    assert kept == micro_batches or (
        kept % pp == 0 and kept >= 2 * pp and kept <= max(most, 2 * pp)
    )


def test_chrome_trace_fields() -> None:
    """A process for each pipeline rank, in it computing and streams; times in microseconds."""
    model = step_model_of(case())
    timeline = step_timeline(model)
    document = json.loads(json.dumps(chrome_trace(timeline, Traffic(model), "title")))
    events = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert {event["pid"] for event in events} == {0, 1, 2, 3}
    first = next(event for event in events if event["name"] == "forward 0 (stage 0)")
    assert (first["ts"], first["tid"]) == (0, 0)
    end_us = max(event["ts"] + event["dur"] for event in events if event["tid"] == 0)
    assert end_us == pytest.approx(timeline.end_s * 1e6, abs=0.01)
    threads = {e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name"}
    assert {"computing", "tensor-parallel collectives", "pipeline messages"} <= threads


@pytest.mark.parametrize("given_case", LAYOUTS)
def test_exposed_communication_of_the_streams_is_that_of_the_step(given_case: Case) -> None:
    """What the streams of the busiest rank show of tensor-parallel collectives is the step's part,
    and no collective of a pass outlasts its action.
    """
    model = step_model_of(given_case)
    timeline = step_timeline(model)
    sent = list(transfers(timeline, Traffic(model)))
    by_rank = [0.0] * timeline.ranks
    for each in sent:
        if each.stream == "tensor":
            by_rank[each.rank] += each.exposed_s
            assert each.end_s <= each.beside.end_s + 1e-9
        assert each.exposed_s <= each.end_s - each.start_s + 1e-9
    assert any(seconds == pytest.approx(float(model.time().tensor_s)) for seconds in by_rank)


def test_gathers_before_the_optimizer_end_with_what_is_shown() -> None:
    """Of 3 s of which 1 s shows, at the end of an action at 10 s: from 7 s, or the last second."""
    event, sent = Event(0, "O", -1, -1, 8.0, 10.0), Sent(whole_s=3.0, exposed_s=1.0)
    began = [_ending(event, "weights", sent, 10.0, shown=each).start_s for each in (False, True)]
    assert began == [7.0, 9.0]


def test_saved_activations_come_and_go() -> None:
    """Over a step a rank ends with nothing saved, and reaches what the schedule holds at once:
    1F1B's rank 0 of 4 holds 4 micro-batches of its one stage.
    """
    model = step_model_of(case())
    events = [event for event in step_timeline(model).events if event.rank == 0]
    held = [size for _, size in saved_over_time(events, model.stage_saved_bytes)]
    assert held[-1] == pytest.approx(0.0, abs=1.0)
    assert max(held) == pytest.approx(4 * model.stage_saved_bytes[0])
