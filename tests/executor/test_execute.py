"""`meshplan execute`: what is checked before a run, and what is made of its records."""

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from rich.console import Console
from tiny_runs import (
    CLUSTER,
    CPU,
    GPUS,
    PP2,
    tiny_plan,
    tiny_prediction,
    tiny_step,
)

from costmodels.layout import Stage
from executor.execute_report import print_result
from executor.preflight import CannotRun, Placement, notices, place
from executor.results import RunResult, measured_fields, read_records
from executor.run import contenders, tournament
from executor.run_row import row_of
from planner.plan import Plan
from planner.runs import run_of


def test_ranks_are_spread_over_nodes() -> None:
    """Two ranks on one host, or one on each of two."""
    assert place(tiny_plan(), 1, CPU) == Placement(2, 1)
    assert place(tiny_plan(), 2, CPU) == Placement(1, 2)


def test_too_few_gpus_names_the_fix() -> None:
    """A plan for two GPUs on a host with one says how many nodes or GPUs to ask for."""
    one = GPUS.model_copy(update={"devices": 1})
    with pytest.raises(CannotRun, match=r"needs 2 GPUs on this host, which has 1; give --nodes 2"):
        place(tiny_plan(), 1, one)


def test_ranks_that_do_not_divide_are_refused() -> None:
    """Two ranks over three nodes: the message has both numbers."""
    with pytest.raises(CannotRun, match=r"2 ranks \(dp2 zero1 mbs1\) do not divide by 3 nodes"):
        place(tiny_plan(), 3, CPU)


def test_a_run_as_planned_has_nothing_to_note() -> None:
    """The profile that priced the plan, the pinned torch, enough cores: silence."""
    assert notices(tiny_plan(prediction=tiny_prediction(1.0)), Placement(2, 1), CPU, CLUSTER) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param({"torch": "2.4.0"}, "torch 2.4.0 is installed", id="another torch"),
        pytest.param({"load": 3.0}, "load 3.0 on 2 cores", id="other work"),
        pytest.param({"devices": 1}, "2 processes share 1 cores", id="too few cores"),
        pytest.param(
            {"device": "cuda", "memory_bytes": 4e9}, "made for 7.5 GiB", id="a smaller GPU"
        ),
    ],
)
def test_what_differs_is_noted(change: dict[str, object], said: str) -> None:
    """Each difference from what the plan was made for is one line."""
    found = CPU.model_copy(update=change)
    (line,) = notices(tiny_plan(prediction=tiny_prediction(1.0)), Placement(2, 1), found, CLUSTER)
    assert said in line


def test_a_changed_profile_is_noted() -> None:
    """A profile with another hash than the plan's did not price it."""
    changed = CLUSTER.model_copy(update={"host_memory_bytes": 1.0})
    (line,) = notices(tiny_plan(), Placement(2, 1), CPU, changed)
    assert "is not the one that priced this plan" in line


def test_comparison_by_hand() -> None:
    """The slowest rank makes the step; parts are the busiest rank's; they add up to the step."""
    records = [
        [tiny_step(0, 9.0), tiny_step(1, 1.0), tiny_step(2, 1.0), tiny_step(3, 1.0)],
        [tiny_step(0, 9.0), *(tiny_step(i, 1.1, forward_s=0.3, waiting_s=0.04) for i in (1, 2, 3))],
    ]
    plan = tiny_plan(PP2, tiny_prediction(1.0, stages=2))
    fields = measured_fields(plan, records, "cuda")
    parts = {part.name: part for part in fields["parts"]}  # type: ignore[attr-defined]
    assert parts["step time"].measured == pytest.approx(1.1)
    assert parts["step time"].error == pytest.approx(1.0 / 1.1 - 1)
    assert parts["compute and communication"].measured == pytest.approx(0.3 + 0.6 + 0.02)
    assert parts["compute and communication"].predicted == pytest.approx(0.7)
    assert parts["bubble"].measured == pytest.approx(0.04)
    assert parts["not accounted for"].measured == pytest.approx(1.1 - 0.92 - 0.04 - 0.05)
    assert parts["memory, stage 1, reserved"].error == 0.0
    assert fields["tokens_per_s_per_gpu"] == pytest.approx(64 * 4 / 2 / 1.1)
    assert fields["losses"] == (5.0, 4.0, 3.0, 2.0)


@pytest.mark.parametrize(
    ("predicted_s", "band", "inside"),
    [
        pytest.param(1.2, 0.25, True, id="+20 % inside 25 %"),
        pytest.param(0.7, 0.25, False, id="-30 % outside 25 %"),
        pytest.param(0.7, None, None, id="no band, no verdict"),
    ],
)
def test_band_by_hand(predicted_s: float, band: float | None, inside: bool | None) -> None:
    """The verdict is about the step time, in both directions."""
    plan = tiny_plan(prediction=tiny_prediction(predicted_s))
    fields = measured_fields(plan, [[tiny_step(1, 1.0)], [tiny_step(1, 1.0)]], "cpu")
    assert _result(plan, band=band, **fields).inside_band is inside


def _result(plan: Plan, **more: object) -> RunResult:
    return RunResult.model_validate(
        {
            "status": "complete",
            "plan": "p",
            "layout": "l",
            "engine": plan.engine,
            "device": "cpu",
            "versions": {},
            "date": "d",
            **more,
        }
    )


def test_records_cut_by_a_kill_are_read_up_to_there(tmp_path: Path) -> None:
    """A half-written last line is left out; steps that not all ranks have do not count."""
    lines = [json.dumps(asdict(tiny_step(i, 1.0))) for i in range(3)]
    (tmp_path / "rank0.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "rank1.jsonl").write_text("\n".join(lines[:2]) + "\n" + lines[2][:30])
    records = read_records(tmp_path, 2)
    assert [len(steps) for steps in records] == [3, 2]
    assert measured_fields(tiny_plan(), records, "cpu")["step_times_s"] == (1.0,)


def test_nothing_measured_is_no_result(tmp_path: Path) -> None:
    """Before the first timed step there are no times, rather than zeros."""
    fields = measured_fields(tiny_plan(), read_records(tmp_path, 2), "cpu")
    result = _result(tiny_plan(), **fields)
    assert (result.step_time_s, result.parts, result.inside_band) == (None, (), None)


def test_tournament_picks_the_measured_best() -> None:
    """The runner-up that runs faster than the chosen plan wins, with its own prediction beside."""
    plan = tiny_plan(prediction=tiny_prediction(0.4))
    measured = {1: 0.9, 2: 0.6}
    ranking = tournament(plan, 3, lambda each, number: _result(each, step_time_s=measured[number]))
    assert [result.step_time_s for _, result in ranking] == [0.6, 0.9]
    assert ranking[0][0].plan.layout == PP2
    assert [contender.predicted_s for contender, _ in ranking] == [0.5, 0.4]
    assert len(contenders(plan, 1)) == 1


def test_table_shows_error_and_verdict() -> None:
    """The words that a person looks for are there: error of each part, n/a, inside or outside."""
    plan = tiny_plan(prediction=tiny_prediction(2.0))
    fields = measured_fields(plan, [[tiny_step(1, 1.0)], [tiny_step(1, 1.0)]], "cpu")
    console = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
    with console.file:
        print_result(_result(plan, band=0.25, **fields), console)
    text = console.export_text()
    assert "+100.0%" in text
    assert "n/a" in text
    assert "OUTSIDE the band of +-25%" in text


def test_a_run_reads_back_as_a_row_of_measured_runs() -> None:
    """The row says the same model, layout and step time; what it cannot say gives no row."""
    plan = tiny_plan(PP2, tiny_prediction(1.0, stages=2))
    fields = measured_fields(plan, [[tiny_step(1, 1.0)], [tiny_step(1, 1.25)]], "cuda")
    row = row_of(plan, _result(plan, **{**fields, "device": "cuda"}), "cpu")
    assert row is not None
    run = run_of(row)
    assert run.layout == plan.layout
    assert run.engine.name == "native"
    assert run.measured.step_time_s == 1.25
    assert run.measured.reserved_gib == 0.5
    uneven = replace(PP2, stages=(Stage(2), Stage(0)))
    assert row_of(tiny_plan(uneven), _result(tiny_plan(uneven)), "cpu") is None
