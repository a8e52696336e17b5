"""A time limit that comes while the space is listed, or while it is said why nothing fits."""

import time
from dataclasses import replace

import pytest

from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.planner.answer.answer import chosen_plan, solve
from meshplan.planner.answer.models import read_model
from meshplan.planner.answer.question import Arguments, Asked, ask
from meshplan.planner.report.fit import misfit_document, misfit_lines
from meshplan.planner.report.proof import proof_lines
from meshplan.planner.report.runners_up import open_runners_line
from meshplan.planner.search.footprint import FEWER, LARGER, NEAREST, PINS, explain
from meshplan.planner.search.result import NoLayoutFits, SearchEnded
from meshplan.planner.search.rows.priced_space import Question, space_of
from meshplan.planner.space import legal_layouts
from meshplan.planner.space.pins import parse_pins
from meshplan.planner.space.words import UNLISTED


@pytest.fixture
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A space is listed in many parts."""
    monkeypatch.setattr(legal_layouts, "PART", 16)


def _asked(gpus: int = 64, **pins: str) -> Asked:
    return ask(
        Arguments(
            model="llama-3.1-8b",
            cluster="dgx-h100",
            engine="megatron",
            seq_len="4096",
            global_batch=128,
            gpus=gpus,
            pins=pins,
        )
    )


@pytest.mark.usefixtures("short_parts")
def test_an_ended_list_proves_nothing_and_says_so() -> None:
    """The plan is one of the space, no faster than the best; the bound is 0, and the words neither
    claim a bound nor hide what was left out.
    """
    asked = _asked()
    whole, ended = solve(asked.question, 3), solve(asked.question, 3, time_limit_s=0.0)
    assert whole.whole_space
    assert not ended.whole_space
    assert (ended.status, ended.bound_s, ended.listed_bound_s, ended.gap) == ("FEASIBLE", 0, 0, 1)
    assert ended.candidates < whole.candidates
    assert ended.solutions[0].step_time_s >= whole.solutions[0].step_time_s
    assert not any(each.proved for each in ended.solutions)
    chosen = chosen_plan(asked, ended)
    plan = chosen.plan.model_copy(update={"runners_up": chosen.runners_up()})
    assert plan.search
    assert UNLISTED in plan.search.space
    claim = proof_lines(plan.search)[0]
    assert claim.startswith("FEASIBLE: the time limit ended the list of the space")
    assert "less than" not in claim
    assert "looked at" in open_runners_line(plan)


@pytest.mark.usefixtures("short_parts")
def test_a_list_that_ends_by_itself_is_whole() -> None:
    """With time enough, in parts or not, the rows are the same ones in the same order."""
    question = _asked().question
    timed, free = space_of(question, deadline=time.perf_counter() + 600), space_of(question)
    assert not timed.ended
    assert (timed.layouts.pipeline_parallel == free.layouts.pipeline_parallel).all()
    assert (timed.layouts.micro_batch_size == free.layouts.micro_batch_size).all()


@pytest.mark.usefixtures("short_parts")
def test_an_ended_list_of_which_nothing_fits_is_not_a_refusal() -> None:
    """Something of the rest may fit: the search ended. Listed to the end, it is a refusal."""
    question = Question(
        model=read_model("llama-3.1-405b")[1],
        training=Training(seq_len=4096, global_batch_size=64),
        cluster=load_cluster("dgx-h100"),
        engine=load_engine("megatron"),
        gpus=16,
        pins=parse_pins({}),
    )
    with pytest.raises(SearchEnded) as ended:
        solve(question, 1, time_limit_s=0.0)
    assert not ended.value.proved
    with pytest.raises(NoLayoutFits) as refused:
        solve(question, 1)
    assert not isinstance(refused.value, SearchEnded)


def test_an_explanation_says_what_the_deadline_left_out() -> None:
    """With time enough it is that without a deadline; with none everything is left out, and the
    lines claim nothing of numbers of GPUs that nobody looked at.
    """
    asked = _asked(8, tensor_parallel="1", pipeline_parallel="1", zero_stage="0")
    question = asked.question
    whole = explain(question)
    assert whole.ended == ()
    assert explain(question, deadline=time.perf_counter() + 600) == whole
    none = explain(question, deadline=time.perf_counter())
    assert {PINS, NEAREST, LARGER, FEWER} <= set(none.ended)
    assert (none.core, none.relaxations, none.nearest, none.enough) == ((), {}, None, None)
    lines = misfit_lines(question, none)
    assert len(lines) == 1
    assert lines[0].startswith("the time limit left out: ")
    document = misfit_document(asked, none, None, proved=True)
    assert document["time_limit_left_out"] == list(none.ended)


def test_an_explanation_keeps_to_its_deadline() -> None:
    """One that scans hundreds of sizes takes much longer than a fifth of a second without."""
    question = replace(_asked(8, tensor_parallel="1").question, gpus=8)
    question = replace(question, model=read_model("deepseek-v3")[1], engine=load_engine("native"))
    begun = time.perf_counter()
    found = explain(question, most_gpus=4096, deadline=begun + 0.2)
    assert found.ended
    assert time.perf_counter() - begun < 2.0
