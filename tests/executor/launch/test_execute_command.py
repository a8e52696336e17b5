"""The command `meshplan execute`: the real engine on two gloo processes, and its ends."""

import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from called import executed, run
from small_torchrun import stand_in
from tiny_runs import (
    DP2,
    PP2,
    tiny_plan,
    tiny_prediction,
    tiny_step,
)

import meshplan.executor.cli.placing
from meshplan.costmodels.layout import Stage
from meshplan.executor.engine.watch.record import StepRecord
from meshplan.executor.launch.measured_trace import FIRST_PROCESS
from meshplan.executor.launch.preflight import RankPlacement
from meshplan.executor.launch.probe import find_hardware
from meshplan.executor.launch.run import RunSettings, job_of
from meshplan.executor.launch.torchrun import CPU_ENVIRONMENT
from meshplan.hardware_profiles.fingerprint import cluster_hash
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.local_cpu import num_cores
from meshplan.planner.case.plan_file import (
    PlanCluster,
    read_plan,
    write_plan,
)
from meshplan.planner.runs.runs import read_runs

# --- the command --------------------------------------------------------------------------------

ROOT = Path(__file__).parents[3]
known_hardware = cache(find_hardware)


@pytest.fixture(autouse=True)
def _looks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host's hardware is asked for once: torch takes seconds to start, `test_launch` looks."""
    monkeypatch.setattr(meshplan.executor.cli.placing, "find_hardware", known_hardware)


def test_print_starts_nothing(tmp_path: Path) -> None:
    """--print shows the torchrun line of this plan and leaves no folder."""
    write_plan(tiny_plan(), tmp_path / "plan.yaml")
    answer = executed([str(tmp_path / "plan.yaml"), "--print"])
    assert answer.exit_code == 0, answer.output
    assert "torch.distributed.run --standalone --nproc-per-node=2" in answer.output
    assert not (tmp_path / "plan.run").exists()


def test_a_printed_command_of_a_module_finds_it(tmp_path: Path) -> None:
    """torchtitan's configuration is a module in the run's folder, which Python is told of."""
    plan = tiny_plan(replace(DP2, zero_stage=2)).model_copy(update={"engine": "torchtitan"})
    write_plan(plan, tmp_path / "plan.yaml")
    answer = executed([str(tmp_path / "plan.yaml"), "--print", "--out", str(tmp_path / "a b")])
    assert answer.exit_code == 0, answer.output
    command = answer.output.splitlines()[-1]
    assert command.startswith(f"PYTHONPATH='{tmp_path}/a b':$PYTHONPATH {sys.executable} ")


def test_hosts_of_a_profile_are_not_left_out(tmp_path: Path) -> None:
    """Two hosts need Slurm, or torchrun by hand; measuring one is no answer."""
    out = tmp_path / "cluster.toml"
    answer = run("profile", "-o", str(out), "--nodes", "2", "--print")
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert answer.stderr.startswith("error: --nodes 2 needs --launcher slurm; without Slurm")
    assert not list(tmp_path.iterdir())


def test_the_commands_import_no_torch() -> None:
    """Starting, watching and comparing is done without torch: it would cost two seconds."""
    commands = "meshplan.executor.cli.execute, meshplan.executor.cli.profile"
    program = f"import sys, {commands}; print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert answer.stdout.strip() == "False", answer.stderr


def test_an_unreadable_plan_is_a_usage_error(tmp_path: Path) -> None:
    """Exit 2 and one line."""
    (tmp_path / "plan.yaml").write_text("nonsense: 1\n")
    answer = executed([str(tmp_path / "plan.yaml")])
    assert answer.exit_code == 2
    assert "not a plan file" in answer.output


@pytest.mark.parametrize("path", ["/", ".", ".."])
def test_a_folder_is_no_plan(path: str) -> None:
    """A path without a name of its own is a usage error as well."""
    answer = executed([path, "--print"])
    assert answer.exit_code == 2
    assert answer.exception is None or isinstance(answer.exception, SystemExit)
    assert "cannot be read: Is a directory" in answer.output


def test_two_processes_train(tmp_path: Path) -> None:
    """The native engine trains a pipeline on gloo; the result is complete, outside an impossible
    band. The file's 1 us is not what its layout takes: the run is compared with what it does take.
    """
    layout = replace(PP2, stages=(Stage(layers=1, full_layers=1), Stage(layers=1)))
    planned = tiny_plan(layout, tiny_prediction(1e-6, stages=2))
    training = replace(planned.training, precision="bf16")
    write_plan(planned.model_copy(update={"training": training}), tmp_path / "plan.yaml")
    tokens = tmp_path / "tokens.bin"
    (np.arange(8192) % 256).astype(np.uint16).tofile(tokens)
    options = ("--steps", "3", "--warmup", "1", "--json", "--band", "0", "--data", str(tokens))
    trace = ("--trace", str(tmp_path / "trace.json"))
    answer = executed([str(tmp_path / "plan.yaml"), *options, *trace])
    assert answer.exit_code == 3, answer.output
    assert "the file predicts 1e-06 s a step" in answer.output
    written = json.loads((tmp_path / "plan.run" / "result.json").read_text())
    assert written["status"] == "complete"
    assert written["inside_band"] is False
    assert len(written["step_times_s"]) == 3
    assert len(written["losses"]) == 4
    assert written["losses"][0] == pytest.approx(math.log(256), rel=0.05)  # of 256 equal tokens
    assert written["losses"][-1] < written["losses"][0]
    assert {rank["rank"] for rank in written["ranks"]} == {0, 1}
    (row,) = read_runs(tmp_path / "plan.run" / "runs.csv")
    assert float(row["step_time_s"]) == pytest.approx(written["step_time_s"], rel=1e-5)
    ran, asked = (read_plan(tmp_path / name / "plan.yaml") for name in ("plan.run", "."))
    assert ran.prediction is not None
    assert ran.prediction.step_time_s > 1e-4
    assert ran.model_copy(update={"prediction": None}) == asked.model_copy(
        update={"prediction": None}
    )
    check_records(tmp_path / "plan.run" / "ranks")
    check_trace(json.loads((tmp_path / "trace.json").read_text()), written)


def check_records(folder: Path) -> None:
    """Each rank writes one line per step; both know the loss and the gradient norm of all."""
    texts = [(folder / f"rank{rank}.jsonl").read_text() for rank in (0, 1)]
    ranks = [[json.loads(line) for line in text.splitlines()] for text in texts]
    for records in ranks:
        assert [record["step"] for record in records] == [0, 1, 2, 3]
        assert [record["warmup"] for record in records] == [True, False, False, False]
        assert set(records[0]) == {each.name for each in fields(StepRecord)}
        parts = ("forward_s", "backward_s", "optimizer_s", "waiting_s", "exposed_comm_s")
        assert all(0 < sum(r[p] for p in parts) <= r["step_time_s"] for r in records)
    for name in ("loss", "grad_norm"):
        assert [r[name] for r in ranks[0]] == [r[name] for r in ranks[1]]


def check_trace(trace: dict[str, Any], written: dict[str, Any]) -> None:
    """A rank's events are its phases of the step of median time, one after the other."""
    for rank in written["ranks"]:
        events = [
            event for event in trace["traceEvents"]
            if event["ph"] == "X" and event["pid"] == FIRST_PROCESS + rank["rank"]
        ]  # fmt: skip
        by_phase = Counter[str]()
        for event in events:
            by_phase[event["cat"]] += event["dur"]
        assert by_phase["forward"] == pytest.approx(rank["forward_s"] * 1e6, abs=1)
        assert by_phase["wait"] == pytest.approx(rank["waiting_s"] * 1e6, abs=1)
        assert all(b["ts"] >= a["ts"] + a["dur"] - 0.01 for a, b in pairwise(events))
        assert events[-1]["name"] == "weight update"
    predicted = {event["pid"] for event in trace["traceEvents"]} - {
        FIRST_PROCESS,
        FIRST_PROCESS + 1,
    }
    assert predicted == {0, 1}  # a process for each pipeline rank


def test_a_gpu_plan_exits_2_and_is_still_printed(tmp_path: Path) -> None:
    """Nothing is started and no folder is left; --print shows the command for GPUs."""
    gpus = PlanCluster(name="dgx-h100", gpus=2, sha256=cluster_hash(load_cluster("dgx-h100")))
    plan = tiny_plan().model_copy(update={"cluster": gpus})
    write_plan(plan, tmp_path / "plan.yaml")
    answer = executed([str(tmp_path / "plan.yaml")])
    assert answer.exit_code == 2
    assert len(answer.output.strip().splitlines()) == 1
    assert "--launcher slurm" in answer.output
    assert not (tmp_path / "plan.run").exists()
    printed = executed([str(tmp_path / "plan.yaml"), "--print"])
    assert printed.exit_code == 0
    assert "--device cuda" in printed.output
    document = executed([str(tmp_path / "plan.yaml"), "--print", "--json"])
    assert (document.exit_code, document.stdout) == (2, "")
    assert document.stderr.startswith("error: --print shows files and a command")


def test_slurm_gets_the_nodes_that_the_ranks_fill(tmp_path: Path) -> None:
    """Sixteen ranks of a cluster with eight GPUs per node: two nodes, unless --nodes says more."""
    cluster = PlanCluster(name="dgx-h100", gpus=16, sha256=cluster_hash(load_cluster("dgx-h100")))
    alone = {"cluster": cluster, "runners_up": ()}
    plan = tiny_plan(replace(DP2, data_parallel=16)).model_copy(update=alone)
    write_plan(plan, tmp_path / "plan.yaml")
    asked = [str(tmp_path / "plan.yaml"), "--launcher", "slurm", "--print"]
    for options, nodes, each in (([], 2, 8), (["--nodes", "4"], 4, 4)):
        printed = executed([*asked, *options]).output
        assert f"#SBATCH --nodes={nodes}\n" in printed
        assert f"--nproc-per-node={each} " in printed
    by_hand = executed([str(tmp_path / "plan.yaml"), "--print"]).output
    assert "--nnodes=2 " in by_hand
    assert "--rdzv-endpoint=FIRST_HOST:29500 " in by_hand


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--slurm", '"'], "No closing quotation"),
        (["--data", "none.bin"], "No such file"),
        (["--data", "."], "not a file"),
        (["--data", "/dev/null"], "not a file"),
        (["--out", "a\nrm -r b", "--print"], "is not a printable line of text"),
    ],
)
def test_an_option_that_cannot_be_used_exits_2(
    tmp_path: Path, options: list[str], said: str
) -> None:
    """One line, before any rank is started."""
    write_plan(tiny_plan(), tmp_path / "plan.yaml")
    answer = executed([str(tmp_path / "plan.yaml"), *options])
    assert answer.exit_code == 2, answer.output
    assert said in answer.output.splitlines()[-1]
    assert not (tmp_path / "plan.run").exists()


def test_an_out_that_is_a_file_exits_2(tmp_path: Path) -> None:
    """One line, and the file is as it was."""
    write_plan(tiny_plan(), tmp_path / "plan.yaml")
    (tmp_path / "taken").write_text("mine")
    answer = executed([str(tmp_path / "plan.yaml"), "--out", str(tmp_path / "taken")])
    assert answer.exit_code == 2
    assert "taken" in answer.output
    assert (tmp_path / "taken").read_text() == "mine"


SCRIPTED = """
    import json, os, pathlib, sys, time
    out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
    out.mkdir(parents=True, exist_ok=True)
    rank = os.environ["RANK"]
    (pathlib.Path(os.environ["PIDS"]) / rank).write_text(str(os.getpid()))
    from meshplan.executor.engine.watch.heartbeat import Heartbeat
    from meshplan.planner.processes.parent_death import die_with_parent
    die_with_parent()
    beat = Heartbeat(out / f"rank{rank}.phase")
    step = json.loads(os.environ["STEP"])
    with open(out / f"rank{rank}.jsonl", "w") as file:
        for number in range(int(os.environ["STEPS"])):
            file.write(json.dumps({**step, "step": number, "warmup": number == 0}) + "\\n")
            file.flush()
            time.sleep(float(os.environ["PAUSE_S"]))
    if os.environ["STEPS"] == "2":
        beat.say("forward" if rank == "1" else "reduce")
        time.sleep(600)
    """
PROGRAM = """
    import os, signal, typer, meshplan.executor.cli.placing, meshplan.executor.launch.run
    from dataclasses import replace
    from meshplan.executor.cli.execute import execute
    from meshplan.executor.launch.probe import Found
    # what a script starts in the background ignores it: the tests may run so
    signal.signal(signal.SIGINT, signal.default_int_handler)
    original = meshplan.executor.launch.run.job_of
    changed = lambda s, out: original(replace(s, module="scripted_engine"), out)
    meshplan.executor.launch.run.job_of = changed
    found = Found.model_validate_json(os.environ["FOUND"])
    meshplan.executor.cli.placing.find_hardware = lambda: found
    typer.run(execute)
    """


@pytest.fixture
def scripted(tmp_path: Path) -> Callable[..., "subprocess.Popen[str]"]:
    """Starts `execute` in a process of its own, with ranks that follow a script."""
    (tmp_path / "scripted_engine.py").write_text(textwrap.dedent(SCRIPTED))
    write_plan(tiny_plan(prediction=tiny_prediction(1.0)), tmp_path / "plan.yaml")

    def start(
        steps: int, *options: str, pause_s: float = 0, **step: object
    ) -> "subprocess.Popen[str]":
        told = {**asdict(tiny_step(0, 1.0)), **step}
        environment = {
            **os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}",
            "STEP": json.dumps(told), "STEPS": str(steps), "PIDS": str(tmp_path),
            "PAUSE_S": str(pause_s), "FOUND": known_hardware().model_dump_json(),
        }  # fmt: skip
        command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path / "plan.yaml")]
        return subprocess.Popen(
            [*command, *options], env=environment, stderr=subprocess.PIPE, text=True, cwd=ROOT
        )

    return start


def test_a_diverged_run_has_failed(tmp_path: Path, scripted) -> None:
    """A loss that is no number: exit 1, a result that says so, and no row to learn from."""
    stand_in(tmp_path)
    process = scripted(4, loss=None)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "step 0 diverged: loss nan" in said
    written = json.loads((tmp_path / "plan.run" / "result.json").read_text())
    assert written["status"] == "failed"
    assert not (tmp_path / "plan.run" / "runs.csv").exists()


def test_a_hung_rank_is_named_with_its_phase(tmp_path: Path, scripted) -> None:
    """Rank 1 stops in a forward pass, rank 0 waits for it: rank 1 is named; exit 1."""
    stand_in(tmp_path)
    process = scripted(2, "--timeout", "3")
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "rank 1 hangs in phase 'forward' of step 2" in said
    assert "the others are in: reduce" in said
    assert json.loads((tmp_path / "plan.run" / "result.json").read_text())["status"] == "failed"


def test_no_rank_survives_a_kill_of_the_command(tmp_path: Path, scripted) -> None:
    """SIGKILL leaves `execute` no time to clean up: its ranks are gone seconds later."""
    process = scripted(2)
    files = [tmp_path / "0", tmp_path / "1"]
    deadline = time.monotonic() + 120
    while not all(file.exists() and file.read_text() for file in files):
        assert time.monotonic() < deadline, "no ranks"
        time.sleep(0.1)
    process.kill()
    process.communicate(timeout=60)
    pids = [int(file.read_text()) for file in files]
    deadline = time.monotonic() + 45
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, "ranks are alive"
        time.sleep(0.2)


def test_an_interrupted_run_leaves_a_readable_result(tmp_path: Path, scripted) -> None:
    """Ctrl-C after some steps: exit 130, and the steps until then are in the result."""
    stand_in(tmp_path)
    process = scripted(1000, pause_s=0.1)
    result = tmp_path / "plan.run" / "result.json"
    deadline = time.monotonic() + 120
    while not (result.exists() and json.loads(result.read_text())["step_times_s"]):
        assert time.monotonic() < deadline, "no result while running"
        time.sleep(0.1)
    assert json.loads(result.read_text())["status"] == "running"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "what was measured is in" in said
    written = json.loads(result.read_text())
    assert written["status"] == "interrupted"
    assert written["step_time_s"] == 1.0


def test_job_names_everything_the_engine_needs(tmp_path: Path) -> None:
    """The plan, the steps, the folder of the records and the data are arguments of each rank."""
    settings = RunSettings(
        placement=RankPlacement(2, 1), steps=5, warmup=2, data=Path("tokens.bin")
    )
    arguments = job_of(settings, tmp_path).arguments
    alone = replace(settings, placement=RankPlacement(1, 1))
    assert job_of(alone, tmp_path).environment == {
        "OMP_NUM_THREADS": str(num_cores()), **CPU_ENVIRONMENT,
    }  # fmt: skip
    assert job_of(replace(alone, device="cuda"), tmp_path).environment == {}
    assert arguments[1:] == (
        "--steps", "5", "--warmup", "2", "--out", str(tmp_path / "ranks"), "--device", "cpu",
        "--data", "tokens.bin",
    )  # fmt: skip
