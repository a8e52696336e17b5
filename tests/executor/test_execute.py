"""`meshplan execute`: before, during and after a run; the real engine on two gloo processes."""

import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from executor.engine.record import StepRecord
from executor.execute_cli import execute
from executor.execute_report import print_result
from executor.other_engines import HOMES, NotInstalled, check_installed, command_of, result_of
from executor.preflight import CannotRun, Placement, notices, pinned_torch, place
from executor.probe import Found
from executor.results import RunResult, measured_fields, read_records
from executor.run import Settings, contenders, job_of, tournament
from executor.run_row import row_of
from executor.training_logs import LoggedStep, TrainingLog
from hardware_profiles.load import cluster_hash, load_cluster
from hardware_profiles.local_cpu import num_cores
from planner.plan import (
    Plan,
    PlanCluster,
    PlanLayout,
    PlanModel,
    PlanStage,
    PlanTraining,
    Prediction,
    RunnerUp,
    StageMemory,
    layout_of,
    read_plan,
    write_plan,
)
from planner.reading import Exported
from planner.runs import read_runs, run_of

GIB = 2**30
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip
DP2 = PlanLayout(data_parallel=2, zero_stage=1, stages=(PlanStage(layers=2),))
PP2 = PlanLayout(pipeline_parallel=2, stages=(PlanStage(layers=1), PlanStage(layers=1)))
MEMORY = StageMemory(
    weights=1, gradients=1, optimizer=1, activations=1, transient=1, context=GIB / 4, slack=1,
    allocated=GIB / 4, reserved=GIB / 2,
)  # fmt: skip
CLUSTER = load_cluster("local-cpu:2")
CPU = Found(
    host="here", device="cpu", devices=2, name="cpu", memory_bytes=8e9,
    torch=f"{pinned_torch()}+cpu",
)  # fmt: skip
GPUS = CPU.model_copy(update={"device": "cuda", "devices": 8, "name": "H100"})


def _prediction(step_time_s: float, stages: int = 1) -> Prediction:
    return Prediction(
        step_time_s=step_time_s, compute_s=0.6 * step_time_s, exposed_comm_s=0.1 * step_time_s,
        bubble_s=0.2 * step_time_s, optimizer_s=0.1 * step_time_s, error_fraction=0.25,
        tokens_per_s_per_gpu=1.0, mfu=None, hfu=None, memory=(MEMORY,) * stages,
        gpu_memory_bytes=8e9,
    )  # fmt: skip


def _plan(layout: PlanLayout = DP2, prediction: Prediction | None = None) -> Plan:
    return Plan(
        model=PlanModel.of("tiny", CONFIG),
        cluster=PlanCluster(name="local-cpu:2", gpus=2, sha256=cluster_hash(CLUSTER)),
        training=PlanTraining(seq_len=64, global_batch_size=4, precision="fp32"),
        engine="native",
        layout=layout,
        prediction=prediction,
        runners_up=(RunnerUp(layout=PP2, step_time_s=0.5, reserved_bytes=GIB, lost_by={}),),
    )


def _step(
    number: int, seconds: float, *, forward_s: float = 0.2, waiting_s: float = 0.1
) -> StepRecord:
    return StepRecord(
        step=number, warmup=number == 0, loss=5.0 - number, grad_norm=1.0, step_time_s=seconds,
        forward_s=forward_s, backward_s=2 * forward_s, optimizer_s=0.05, waiting_s=waiting_s,
        exposed_comm_s=0.02, processor_s=seconds / 2,
        allocated_peak_bytes=GIB // 4, reserved_peak_bytes=GIB // 2,
    )  # fmt: skip


# --- before -------------------------------------------------------------------------------------


def test_ranks_are_spread_over_nodes() -> None:
    """Two ranks on one host, or one on each of two."""
    assert place(_plan(), 1, CPU) == Placement(2, 1)
    assert place(_plan(), 2, CPU) == Placement(1, 2)


def test_too_few_gpus_names_the_fix() -> None:
    """A plan for two GPUs on a host with one says how many nodes or GPUs to ask for."""
    one = GPUS.model_copy(update={"devices": 1})
    with pytest.raises(CannotRun, match=r"needs 2 GPUs on this host, which has 1; give --nodes 2"):
        place(_plan(), 1, one)


def test_ranks_that_do_not_divide_are_refused() -> None:
    """Two ranks over three nodes: the message has both numbers."""
    with pytest.raises(CannotRun, match=r"2 ranks \(dp2 zero1 mbs1\) do not divide by 3 nodes"):
        place(_plan(), 3, CPU)


def test_a_run_as_planned_has_nothing_to_note() -> None:
    """The profile that priced the plan, the pinned torch, enough cores: silence."""
    assert notices(_plan(prediction=_prediction(1.0)), Placement(2, 1), CPU, CLUSTER) == []


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
    (line,) = notices(_plan(prediction=_prediction(1.0)), Placement(2, 1), found, CLUSTER)
    assert said in line


def test_a_changed_profile_is_noted() -> None:
    """A profile with another hash than the plan's did not price it."""
    changed = CLUSTER.model_copy(update={"host_memory_bytes": 1.0})
    (line,) = notices(_plan(), Placement(2, 1), CPU, changed)
    assert "is not the one that priced this plan" in line


# --- during and after ---------------------------------------------------------------------------


def test_comparison_by_hand() -> None:
    """The slowest rank makes the step; parts are the busiest rank's; they add up to the step."""
    records = [
        [_step(0, 9.0), _step(1, 1.0), _step(2, 1.0), _step(3, 1.0)],
        [_step(0, 9.0), *(_step(i, 1.1, forward_s=0.3, waiting_s=0.04) for i in (1, 2, 3))],
    ]
    plan = _plan(PP2, _prediction(1.0, stages=2))
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
    plan = _plan(prediction=_prediction(predicted_s))
    fields = measured_fields(plan, [[_step(1, 1.0)], [_step(1, 1.0)]], "cpu")
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
    lines = [json.dumps(asdict(_step(i, 1.0))) for i in range(3)]
    (tmp_path / "rank0.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "rank1.jsonl").write_text("\n".join(lines[:2]) + "\n" + lines[2][:30])
    records = read_records(tmp_path, 2)
    assert [len(steps) for steps in records] == [3, 2]
    assert measured_fields(_plan(), records, "cpu")["step_times_s"] == (1.0,)


def test_nothing_measured_is_no_result(tmp_path: Path) -> None:
    """Before the first timed step there are no times, rather than zeros."""
    fields = measured_fields(_plan(), read_records(tmp_path, 2), "cpu")
    result = _result(_plan(), **fields)
    assert (result.step_time_s, result.parts, result.inside_band) == (None, (), None)


def test_tournament_picks_the_measured_best() -> None:
    """The runner-up that runs faster than the chosen plan wins, with its own prediction beside."""
    plan = _plan(prediction=_prediction(0.4))
    measured = {1: 0.9, 2: 0.6}
    ranking = tournament(plan, 3, lambda each, number: _result(each, step_time_s=measured[number]))
    assert [result.step_time_s for _, result in ranking] == [0.6, 0.9]
    assert ranking[0][0].plan.layout == PP2
    assert [contender.predicted_s for contender, _ in ranking] == [0.5, 0.4]
    assert len(contenders(plan, 1)) == 1


def test_table_shows_error_and_verdict() -> None:
    """The words that a person looks for are there: error of each part, n/a, inside or outside."""
    plan = _plan(prediction=_prediction(2.0))
    fields = measured_fields(plan, [[_step(1, 1.0)], [_step(1, 1.0)]], "cpu")
    console = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
    with console.file:
        print_result(_result(plan, band=0.25, **fields), console)
    text = console.export_text()
    assert "+100.0%" in text
    assert "n/a" in text
    assert "OUTSIDE the band of +-25%" in text


def test_a_run_reads_back_as_a_row_of_measured_runs() -> None:
    """The row says the same model, layout and step time; what it cannot say gives no row."""
    plan = _plan(PP2, _prediction(1.0, stages=2))
    fields = measured_fields(plan, [[_step(1, 1.0)], [_step(1, 1.25)]], "cuda")
    row = row_of(plan, _result(plan, **{**fields, "device": "cuda"}), "cpu")
    assert row is not None
    run = run_of(row)
    assert run.layout == layout_of(plan.layout)
    assert run.engine.name == "native"
    assert run.measured.step_time_s == 1.25
    assert run.measured.reserved_gib == 0.5
    uneven = PP2.model_copy(update={"stages": (PlanStage(layers=2), PlanStage(layers=0))})
    assert row_of(_plan(uneven), _result(_plan(uneven)), "cpu") is None


# --- other engines ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HOMES)
def test_a_missing_framework_says_how_to_install_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line with the command that installs it."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(NotInstalled, match=f"{name} is not installed; install it with: .*install"):
        check_installed(name, tmp_path)


def test_a_checkout_is_needed_where_the_script_is_not_in_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Megatron's training script is in its repository only: the folder must have it."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object())
    with pytest.raises(NotInstalled, match=r"has no pretrain_gpt\.py: run this inside a checkout"):
        check_installed("megatron", tmp_path)
    (tmp_path / "pretrain_gpt.py").touch()
    check_installed("megatron", tmp_path)


def test_emitted_files_are_found_by_the_launch_command(tmp_path: Path) -> None:
    """The command names the files where they were written, and this interpreter's torchrun."""
    exported = Exported(
        framework="nanotron",
        files={"nanotron.yaml": ""},
        launch="X=1 torchrun --nnodes 1 run_train.py --config-file nanotron.yaml",
    )
    assert command_of(exported, tmp_path) == (
        f"X=1 {sys.executable} -m torch.distributed.run --nnodes 1 run_train.py "
        f"--config-file {tmp_path}/nanotron.yaml"
    )


def test_a_framework_log_becomes_a_result() -> None:
    """Warm-up steps are left out; what the log does not say is None."""
    log = TrainingLog(tuple(LoggedStep(i, t, 1.0) for i, t in ((1, 9.0), (2, 1.0))), None, GIB)
    settings = Settings(placement=Placement(2, 1), warmup=1)
    result = result_of("torchtitan", _plan(prediction=_prediction(1.1)), settings, log)
    assert result.step_times_s == (1.0,)
    assert result.step_error == pytest.approx(0.1)
    by_name = {part.name: part for part in result.parts}
    assert by_name["memory, allocated"].measured is None
    assert by_name["memory, reserved"].error == pytest.approx(-0.5)


# --- the command --------------------------------------------------------------------------------

APP = typer.Typer()
APP.command()(execute)


def test_print_starts_nothing(tmp_path: Path) -> None:
    """--print shows the torchrun line of this plan and leaves no folder."""
    write_plan(_plan(), tmp_path / "plan.yaml")
    answer = CliRunner().invoke(APP, [str(tmp_path / "plan.yaml"), "--print"])
    assert answer.exit_code == 0, answer.output
    assert "torch.distributed.run --standalone --nproc-per-node=2" in answer.output
    assert not (tmp_path / "plan.run").exists()


def test_the_commands_import_no_torch() -> None:
    """Starting, watching and comparing is done without torch: it would cost two seconds."""
    program = (
        "import sys, executor.execute_cli, executor.profile_cli; print('torch' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert answer.stdout.strip() == "False", answer.stderr


def test_an_unreadable_plan_is_a_usage_error(tmp_path: Path) -> None:
    """Exit 2 and one line."""
    (tmp_path / "plan.yaml").write_text("nonsense: 1\n")
    answer = CliRunner().invoke(APP, [str(tmp_path / "plan.yaml")])
    assert answer.exit_code == 2
    assert "not a plan file" in answer.output


def test_dry_run_builds_the_rank_that_was_asked_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The second stage's program runs without devices, and says how much memory it took."""
    write_plan(_plan(PP2), tmp_path / "plan.yaml")
    arguments = [str(tmp_path / "plan.yaml"), "--dry-run", "--rank", "1", "--json"]
    answer = CliRunner().invoke(APP, arguments)
    said = capfd.readouterr()
    assert answer.exit_code == 0, said.err
    assert '"rank": 1' in said.out


def test_two_processes_train(tmp_path: Path) -> None:
    """The native engine trains on gloo; the result is complete, and outside an impossible band."""
    write_plan(_plan(prediction=_prediction(1e-6)), tmp_path / "plan.yaml")
    answer = CliRunner().invoke(
        APP, [str(tmp_path / "plan.yaml"), "--steps", "3", "--warmup", "1", "--json"]
    )
    assert answer.exit_code == 3, answer.output  # 1 us is not what a step takes
    written = json.loads((tmp_path / "plan.run" / "result.json").read_text())
    assert written["status"] == "complete"
    assert written["inside_band"] is False
    assert len(written["step_times_s"]) == 3
    assert len(written["losses"]) == 4
    assert written["losses"][0] == pytest.approx(math.log(256), rel=0.02)  # of 256 equal tokens
    assert {rank["rank"] for rank in written["ranks"]} == {0, 1}
    (row,) = read_runs(tmp_path / "plan.run" / "runs.csv")
    assert float(row["step_time_s"]) == pytest.approx(written["step_time_s"], rel=1e-5)
    assert read_plan(tmp_path / "plan.run" / "plan.yaml") == read_plan(tmp_path / "plan.yaml")


def test_an_interrupted_run_leaves_a_readable_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C after some steps: exit 130, and the steps until then are in the result."""
    (tmp_path / "slow_engine.py").write_text(
        textwrap.dedent(
            """
            import json, os, pathlib, sys, time
            out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
            out.mkdir(parents=True, exist_ok=True)
            step = json.loads(os.environ["STEP"])
            with open(out / f"rank{os.environ['RANK']}.jsonl", "w") as file:
                for number in range(1000):
                    line = {**step, "step": number, "warmup": number == 0}
                    file.write(json.dumps(line) + "\\n")
                    file.flush()
                    time.sleep(0.1)
            """
        )
    )
    write_plan(_plan(prediction=_prediction(1.0)), tmp_path / "plan.yaml")
    program = """
        import sys, typer, executor.run
        from executor.execute_cli import execute
        original = executor.run.job_of
        from dataclasses import replace
        executor.run.job_of = lambda s, out: original(replace(s, module="slow_engine"), out)
        typer.run(execute)
        """
    environment = {
        **os.environ, "PYTHONPATH": str(tmp_path), "STEP": json.dumps(asdict(_step(0, 1.0))),
    }  # fmt: skip
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "plan.yaml")]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    result = tmp_path / "plan.run" / "result.json"
    deadline = time.monotonic() + 40
    while not (result.exists() and json.loads(result.read_text())["step_times_s"]):
        assert time.monotonic() < deadline, "no result while running"
        time.sleep(0.1)
    assert json.loads(result.read_text())["status"] == "running"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "what was measured is in" in said
    written = json.loads(result.read_text())
    assert written["status"] == "interrupted"
    assert written["step_time_s"] == 1.0


def test_job_names_everything_the_engine_needs(tmp_path: Path) -> None:
    """The plan, the steps, the folder of the records and the data are arguments of each rank."""
    settings = Settings(placement=Placement(2, 1), steps=5, warmup=2, data=Path("tokens.bin"))
    arguments = job_of(settings, tmp_path).arguments
    alone = replace(settings, placement=Placement(1, 1))
    assert job_of(alone, tmp_path).environment == {"OMP_NUM_THREADS": str(num_cores())}
    assert job_of(replace(alone, device="cuda"), tmp_path).environment == {}
    assert arguments[1:] == (
        "--steps", "5", "--warmup", "2", "--out", str(tmp_path / "ranks"), "--device", "cpu",
        "--data", "tokens.bin",
    )  # fmt: skip
