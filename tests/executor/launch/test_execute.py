"""`meshplan execute`: what is checked before a run, and what is made of its records."""

import json
import math
import os
import socket
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from rich.console import Console
from tiny_runs import (
    CLUSTER,
    CPU,
    DP2,
    GIB,
    GPUS,
    PP2,
    tiny_plan,
    tiny_prediction,
    tiny_step,
)

from meshplan.costmodels.layout import Stage
from meshplan.executor.launch.preflight import (
    CannotRun,
    RankPlacement,
    check_host,
    notices,
    place,
)
from meshplan.executor.launch.rendezvous import endpoint, meeting_at
from meshplan.executor.launch.report import print_result
from meshplan.executor.launch.results import (
    RankResult,
    RunResult,
    measured_fields,
    memory_parts,
    read_records,
)
from meshplan.executor.launch.run_row import row_of
from meshplan.executor.launch.tournament import contenders, heats, tournament
from meshplan.hardware_profiles.load import load_cluster
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.runs.rows import SkippedRow
from meshplan.planner.runs.runs import run_of


def test_ranks_are_spread_over_nodes() -> None:
    """Two ranks on one host, or one on each of two."""
    assert place(tiny_plan(), 1, CPU) == RankPlacement(2, 1)
    assert place(tiny_plan(), 2, CPU) == RankPlacement(1, 2)


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
    assert (
        notices(tiny_plan(prediction=tiny_prediction(1.0)), RankPlacement(2, 1), CPU, CLUSTER) == []
    )


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
    (line,) = notices(
        tiny_plan(prediction=tiny_prediction(1.0)), RankPlacement(2, 1), found, CLUSTER
    )
    assert said in line


def test_a_changed_profile_is_noted() -> None:
    """A profile with another hash than the plan's did not price it."""
    changed = CLUSTER.model_copy(update={"host_memory_bytes": 1.0})
    (line,) = notices(tiny_plan(), RankPlacement(2, 1), CPU, changed)
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
    ranking = tournament(
        contenders(plan, 3),
        lambda each, number, _: _result(each, step_time_s=measured[number]),
        heats(2, steps=10, warmup=3),
    )
    assert [result.step_time_s for _, result in ranking] == [0.6, 0.9]
    assert ranking[0][0].plan.layout == PP2
    assert [contender.predicted_s for contender, _ in ranking] == [0.5, 0.4]
    assert len(contenders(plan, 1)) == 1


@pytest.mark.parametrize(
    ("entered", "steps", "warmup", "expected"),
    [
        pytest.param(2, 10, 3, [(2, 10)], id="two: both run all"),
        pytest.param(3, 100, 3, [(3, 25), (2, 100)], id="3 x 28 + 2 x 103 < 3 x 103"),
        pytest.param(8, 100, 3, [(8, 7), (4, 25), (2, 100)], id="80 + 112 + 206 < 824"),
        pytest.param(4, 4, 3, [(4, 4)], id="4 x 6 + 2 x 7 > 4 x 7: all at once"),
    ],
)
def test_heats(entered: int, steps: int, warmup: int, expected: list[tuple[int, int]]) -> None:
    """Each heat but the last has a quarter of the next one's steps, and twice its layouts."""
    assert [(h.entered, h.steps) for h in heats(entered, steps, warmup)] == expected


def test_the_slower_half_leaves_after_a_few_steps() -> None:
    """Of four layouts the two that are faster over 25 steps run 100, in which their order turns;
    the others follow by their 25.
    """
    plan, ran = tiny_plan(prediction=tiny_prediction(0.4)), list[tuple[int, int]]()
    measured = {
        (1, 25): 0.9,
        (2, 25): 0.6,
        (3, 25): 0.5,
        (4, 25): 0.7,
        (2, 100): 0.52,
        (3, 100): 0.55,
    }

    def run(each: Plan, number: int, steps: int) -> RunResult:
        ran.append((number, steps))
        return _result(each, step_time_s=measured[number, steps])

    entered = contenders(plan, 1) * 4
    ranking = tournament(entered, run, heats(4, steps=100, warmup=3))
    assert ran == [(1, 25), (2, 25), (3, 25), (4, 25), (3, 100), (2, 100)]
    assert [result.step_time_s for _, result in ranking] == [0.52, 0.55, 0.7, 0.9]


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
    uneven = replace(PP2, stages=(Stage(layers=2), Stage(layers=0)))
    said = row_of(tiny_plan(uneven), _result(tiny_plan(uneven)), "cpu")
    assert said is not None
    assert run_of(said).layout == uneven


def test_mixed_recompute_is_a_row_too() -> None:
    """One of two layers recomputed: the stages are stated, and read back."""
    mixed = replace(DP2, stages=(Stage(layers=2, full_layers=1),))
    row = row_of(tiny_plan(mixed), _result(tiny_plan(mixed)), "cpu")
    assert row is not None
    assert row["stages"] == "2/0/1"
    assert run_of(row).layout == mixed


@pytest.mark.parametrize("stages", ["1/0", "3/0/0", "1/0/0 1/0/0"])
def test_stages_that_do_not_hold_the_model_skip_the_row(stages: str) -> None:
    """Too few numbers, too many layers, too many stages."""
    plan = tiny_plan(DP2)
    row = row_of(plan, _result(plan), "cpu")
    assert row is not None
    with pytest.raises(SkippedRow, match="stages"):
        run_of(row | {"stages": stages})


def test_parts_are_those_of_a_rank_in_the_table_and_add_up() -> None:
    """Two ranks, two timed steps of 1.0 and 1.3 s: the parts are the busier rank's in the faster
    step, its row of the table, and add up to the step time that is printed.
    """
    slow = [tiny_step(0, 1.0), tiny_step(1, 1.0, forward_s=0.21), tiny_step(2, 1.3, forward_s=0.3)]
    fast = [tiny_step(0, 1.0), tiny_step(1, 0.9), tiny_step(2, 1.2)]
    plan = tiny_plan(prediction=tiny_prediction(1.0))
    result = _result(plan, **measured_fields(plan, [fast, slow], "cpu"))
    parts = {part.name: part.measured for part in result.parts if part.unit == "s"}
    busiest = result.ranks[1]
    assert busiest.forward_s == 0.21
    assert parts["optimizer"] == busiest.optimizer_s
    assert parts["bubble"] == busiest.waiting_s
    total_s = parts.pop("step time")
    assert total_s == result.step_time_s == pytest.approx(1.15)
    assert sum(parts.values()) == pytest.approx(total_s)


def test_a_plan_for_gpus_is_not_started_without_them() -> None:
    """One line with the ways on; a plan for CPUs is started."""
    gpus = load_cluster("dgx-h100")
    with pytest.raises(CannotRun, match=r"for 2 x .*H100.*--dry-run.*--print.*--launcher slurm"):
        check_host(tiny_plan(), RankPlacement(2, 1), CPU, gpus)
    with pytest.raises(CannotRun, match=r"'local-cpu:2'.*no GPU"):
        check_host(tiny_plan(), RankPlacement(2, 1), CPU, None)
    check_host(tiny_plan(), RankPlacement(2, 1), CPU, CLUSTER)


def test_more_ranks_than_the_stated_limit_are_refused() -> None:
    """Eight a core are started: 16 on two cores, 17 not."""
    check_host(tiny_plan(), RankPlacement(16, 1), CPU, CLUSTER)
    with pytest.raises(CannotRun, match=r"17 ranks on a host of 2 cores; at most 8 for each core"):
        check_host(tiny_plan(), RankPlacement(17, 1), CPU, CLUSTER)


def test_memory_is_compared_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks of 0.25 + 0.5 GiB need 1.5 GiB; of a GPU each rank's own counts."""
    plan = tiny_plan(prediction=tiny_prediction(1.0))
    monkeypatch.setattr("meshplan.executor.launch.preflight.free_memory_bytes", lambda: 1.4 * GIB)
    with pytest.raises(CannotRun, match=r"2 ranks need 1\.5 GiB .* has 1\.4 GiB free"):
        check_host(plan, RankPlacement(2, 1), CPU, CLUSTER)
    monkeypatch.setattr("meshplan.executor.launch.preflight.free_memory_bytes", lambda: 1.6 * GIB)
    check_host(plan, RankPlacement(2, 1), CPU, CLUSTER)
    small = GPUS.model_copy(update={"memory_bytes": 0.7 * GIB})
    with pytest.raises(CannotRun, match=r"a rank needs 0\.8 GiB and H100 has 0\.7 GiB"):
        check_host(plan, RankPlacement(2, 1), small, load_cluster("dgx-h100"))


@pytest.mark.parametrize("text", ["host", "host:", ":29500", "host:0", "host:x", "host:70000"])
def test_a_rendezvous_is_a_host_and_a_port(text: str) -> None:
    """Anything else is refused with an example."""
    with pytest.raises(CannotRun, match="not a HOST:PORT"):
        endpoint(text)


def test_a_rendezvous_on_this_host() -> None:
    """Its own address means that it is here, over its own interface; a taken port is refused."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(CannotRun, match=f"127.0.0.1:{port}: the port is taken"):
            meeting_at(f"127.0.0.1:{port}")
    met = meeting_at(f"127.0.0.1:{port}")
    assert (met.is_here, met.local_address, met.interface) == (True, "127.0.0.1", "lo")
    assert met.options == ("--rdzv-conf=is_host=1", "--local-addr=127.0.0.1")


def test_what_is_not_finite_is_null(tmp_path: Path) -> None:
    """A record with a loss that is no number is valid JSON, and read back as one that diverged."""
    step = replace(tiny_step(1, 1.0), loss=math.nan)
    with (tmp_path / "rank0.jsonl").open("w") as file:
        step.write(file)
    assert json.loads((tmp_path / "rank0.jsonl").read_text())["loss"] is None
    ((read,),) = read_records(tmp_path, 1)
    assert read.diverged
    assert not tiny_step(1, 1.0).diverged
    assert measured_fields(tiny_plan(), [[read]], "cpu")["losses"] == (None,)


@pytest.mark.parametrize(
    ("device", "engine", "allocated", "expected"),
    [
        pytest.param("cuda", "native", 3.0, [("allocated", 3.0), ("reserved", 9.0)], id="GPU"),
        pytest.param("cpu", "native", 3.0, [("allocated", 3.0), ("resident", 9.0)], id="processor"),
        pytest.param("cpu", "native", 9.0, [("resident", 9.0)], id="which tells no tensors apart"),
        pytest.param("cpu", "torchtitan", 3.0, [("resident (not compared)", 9.0)], id="another's"),
    ],
)
def test_peaks_that_are_compared(
    device: str, engine: str, allocated: float, expected: list[tuple[str, float]]
) -> None:
    """What the allocator reserved on a GPU; on a processor what is resident, the process' own
    context with it. Of several ranks of a stage the fullest.
    """
    prediction = tiny_prediction(1.0)
    plan = tiny_plan(prediction=prediction).model_copy(update={"engine": engine})
    ranks = [
        RankResult(rank=at, pipeline_rank=0, allocated_peak_bytes=allocated - at,
                   reserved_peak_bytes=9.0 - at, **dict.fromkeys(SECONDS, 1.0))
        for at in (0, 1)
    ]  # fmt: skip
    found = memory_parts(plan, ranks, device)
    assert [(part.name, part.measured) for part in found] == [
        (f"memory, stage 0, {name}", size) for name, size in expected
    ]
    stage = prediction.memory[0]
    predicted = {
        "allocated": stage.allocated, "reserved": stage.reserved,
        "resident": stage.reserved + stage.context, "resident (not compared)": None,
    }  # fmt: skip
    assert [part.predicted for part in found] == [predicted[name] for name, _ in expected]


SECONDS = (
    "step_time_s", "forward_s", "backward_s", "optimizer_s", "waiting_s", "exposed_comm_s",
    "processor_s",
)  # fmt: skip
