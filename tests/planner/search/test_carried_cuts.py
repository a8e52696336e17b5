"""Runners-up of several chunks per rank, cut anywhere, are as well solved as the plan."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from every_row import every_row

from meshplan.costmodels.layout import Stage
from meshplan.planner.answer.answer import case_at, simulated_s, solve
from meshplan.planner.answer.question import Arguments, ask
from meshplan.planner.problem.stage_problem import StagePlan, StageProblem, evaluate
from meshplan.planner.search.found import kind_of_layout
from meshplan.planner.search.row_layout import layout_of_row
from meshplan.planner.search.rows.priced_space import Question, space_of
from meshplan.planner.search.simulation import carried_cuts
from meshplan.planner.search.simulation.carried_cuts import CarriedCuts
from meshplan.planner.search.simulation.simulated import Simulated
from meshplan.planner.space.pins import parse_pins


def asked(model: str, gpus: int, cluster: str, engine: str, seq_len: int, batch: int) -> Question:
    """A question of an engine that cuts anywhere."""
    return ask(Arguments(
        model=model, gpus=gpus, cluster=cluster, seq_len=str(seq_len), global_batch=batch,
        engine=engine,
    )).question  # fmt: skip


def pinned(case: str, question: Question, *, every_change: bool = True, **pins: str) -> Any:
    """What a pin finds, as a case; nightly alone where another one shows the same sooner."""
    marks = [] if every_change else [pytest.mark.nightly]
    return pytest.param(question, pins, id=case, marks=marks)


NEAR = [
    pinned(
        "with one layer moved: 0.6 %, and one at 0.4; last was 1.0",
        asked("glm-4.5-air", 64, "dgx-a100", "automodel", 8192, 36),
        context_parallel="8", virtual_stages="2", tensor_parallel="1",
    ),
    pinned(
        "the cut of a plan that was found last: 0.2 %, not 4.1",
        asked("nemotron-4-340b", 64, "mi300x-8", "torchtitan", 2048, 128),
        data_parallel="1", zero_stage="2", pipeline_parallel="4", every_change=False,
    ),
    pinned(
        "moves that go on: 1.3 %, not 2.1",
        asked("llama-2-70b", 384, "dgx-h800", "torchtitan", 8192, 64),
        tensor_parallel="4", context_parallel="2", pipeline_parallel="3",
    ),
]  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize(("question", "pins"), NEAR)
def test_a_near_tie_of_listed_cuts_is_not_missed(question: Question, pins: dict[str, str]) -> None:
    """What a pin finds within 3 % of the plan is shown as fast, to 0.01 %, or three others are."""
    best, *others = solve(question, 3).solutions
    alone = solve(replace(question, pins=parse_pins(pins)), 1).solutions[0]
    assert alone.step_time_s < 1.03 * best.step_time_s
    shown = {kind_of_layout(each.layout): each.step_time_s for each in (best, *others)}
    own_s = shown.get(kind_of_layout(alone.layout), others[-1].step_time_s)
    assert own_s <= alone.step_time_s * (1 + 1e-4)


@pytest.fixture(name="proof", scope="module")
def proof_fixture() -> Simulated:
    """Of a small question, as it ended."""
    question = asked("qwen3.5-9b", 8, "dgx-a100", "torchtitan", 8192, 32)
    question = replace(question, pins=parse_pins({"pipeline_parallel": "2", "schedule": "zb_v"}))
    space = space_of(question)
    found = Simulated(
        question, space, every_row(question, space),
        lambda layout: simulated_s(case_at(question, layout)),
        partial(layout_of_row, space.layouts), limit_s=1e6,
    )  # fmt: skip
    found.prove(None)
    return found


def test_a_cut_is_kept_where_it_is_faster_than_the_best_of_its_kind(proof: Simulated) -> None:
    """By more than prices are known to, though the last that is shown is slower."""
    best = proof.ranked()[0]
    limit_s = CarriedCuts(proof)._limit_s(proof.row_of(best), len(proof.best) + 1)
    assert limit_s == pytest.approx(best.step_s, rel=2e-6)
    assert limit_s < best.step_s


def test_what_is_carried_is_charged_and_tried_once(
    proof: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing without a budget of its own; and no cut of a row a second time."""
    carried, tried = CarriedCuts(proof), list[object]()

    def told(problem: StageProblem, stages: tuple[Stage, ...]) -> StagePlan | None:
        tried.append(stages)
        return evaluate(problem, stages)

    monkeypatch.setattr(carried_cuts, "evaluate", told)
    monkeypatch.setattr(carried_cuts, "WORK", 0)
    carried.carry(8)
    assert not tried
    monkeypatch.setattr(carried_cuts, "WORK", 500_000)
    carried.carry(8)
    carried.carry(8)
    assert 0 < len(tried) == len(carried._tried)
    assert carried.left <= 500_000
