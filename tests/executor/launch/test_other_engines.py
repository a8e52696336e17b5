"""Installed frameworks as engines: found, launched, and their logs read as results."""

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from tiny_runs import GIB, tiny_plan, tiny_prediction

from meshplan.executor.frameworks import framework_named
from meshplan.executor.launch import other_engines
from meshplan.executor.launch.failures import RankFailed
from meshplan.executor.launch.other_engines import (
    HOMES,
    NotInstalled,
    check_installed,
    command_of,
    export_for,
    for_steps,
    result_of,
    run_elsewhere,
)
from meshplan.executor.launch.preflight import CannotRun, RankPlacement
from meshplan.executor.launch.run import RESULT_FILE, RunSettings
from meshplan.executor.launch.torchrun import Interrupted
from meshplan.planner.case.reading import Exported
from meshplan.planner.logs.console import LoggedStep, TrainingLog


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


@pytest.mark.parametrize("folder", ["a b", "$(touch P)", "`touch P`", "x;touch P", "it's", 'q"'])
def test_a_folder_of_any_name_is_one_word(tmp_path: Path, folder: str) -> None:
    """The command is read by a shell, here one whose `bash` prints what it was given."""
    exported = Exported(framework="megatron", files={"train.sh": ""}, launch="bash train.sh --x 1")
    command = command_of(exported, tmp_path / folder)
    shell = f"bash() {{ printf '%s|' \"$@\"; }}; {command}"
    answer = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, cwd=tmp_path)
    assert answer.stdout == f"{tmp_path}/{folder}/train.sh|--x|1|"
    assert not (tmp_path / "P").exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("torchtitan", "--config meshplan --training.steps 13 --metrics.log_freq 1"),
        ("megatron", "bash train.sh --train-iters 13"),
    ],
)
def test_a_framework_runs_as_many_steps_as_asked(name: str, said: str) -> None:
    """3 to warm up and 10 to time are 13, each of them logged; flags win over the files."""
    exported = for_steps(framework_named(name).export(tiny_plan(), 2), 13)
    assert exported.launch.endswith(said)


def test_warm_up_steps_are_run_too() -> None:
    """2 to warm up and 6 to time: 8 in all."""
    settings = RunSettings(placement=RankPlacement(2, 1), warmup=2, steps=6)
    assert export_for("megatron", tiny_plan(), settings).launch.endswith("--train-iters 8")


def test_hosts_of_another_engine_meet_where_it_was_said() -> None:
    """Not at a name that only an exported command has."""
    settings = RunSettings(placement=RankPlacement(1, 2), rendezvous="gpu1:29400")
    launch = export_for("nanotron", tiny_plan(), settings).launch
    assert "--rdzv-endpoint gpu1:29400 " in launch


def test_a_framework_without_flags_is_told_in_its_file() -> None:
    """nanotron reads its steps from the file, and logs each."""
    before = framework_named("nanotron").export(tiny_plan(), 2)
    after = for_steps(before, 13)
    assert after.launch == before.launch
    old, new = (yaml.safe_load(each.files["nanotron.yaml"]) for each in (before, after))
    assert new["tokens"].pop("train_steps") == 13
    assert old["tokens"].pop("train_steps") != 13
    assert new == old


@pytest.mark.parametrize(
    ("ended", "status", "problem"),
    [
        pytest.param(None, "complete", None, id="to its end"),
        pytest.param(Interrupted("by hand"), "interrupted", "by hand", id="Ctrl-C"),
        pytest.param(RankFailed("rank 1 died"), "failed", "rank 1 died", id="a rank that failed"),
        pytest.param(OSError("disk full"), "failed", None, id="a log that cannot be read"),
    ],
)
def test_a_result_says_how_the_run_ended(
    ended: Exception | None,
    status: str,
    problem: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever ends it, the file is written and is not that of a run that came to its end."""

    def run(*_: object, **__: object) -> None:
        if ended:
            raise ended

    monkeypatch.setattr(other_engines, "run_job", run)
    settings = RunSettings(placement=RankPlacement(1, 2))
    with suppress(Interrupted, RankFailed, OSError):
        run_elsewhere("torchtitan", tiny_plan(prediction=tiny_prediction(0.5)), settings, tmp_path)
    said = json.loads((tmp_path / RESULT_FILE).read_text())
    assert (said["status"], said["problem"]) == (status, problem)


def test_a_folder_that_cannot_be_made_is_said_before_the_run(tmp_path: Path) -> None:
    """As for the native engine."""
    (tmp_path / "file").touch()
    settings = RunSettings(placement=RankPlacement(1, 2))
    with pytest.raises(CannotRun, match=r"--out .*: Not a directory; give a folder"):
        run_elsewhere("torchtitan", tiny_plan(), settings, tmp_path / "file" / "run")


def test_a_framework_log_becomes_a_result() -> None:
    """Warm-up steps are left out; what the log does not say is None."""
    log = TrainingLog(tuple(LoggedStep(i, t, 1.0) for i, t in ((1, 9.0), (2, 1.0))), None, GIB)
    settings = RunSettings(placement=RankPlacement(2, 1), warmup=1)
    result = result_of("torchtitan", tiny_plan(prediction=tiny_prediction(1.1)), settings, log)
    assert result.step_times_s == (1.0,)
    assert result.step_error == pytest.approx(0.1)
    by_name = {part.name: part for part in result.parts}
    assert by_name["memory, allocated"].measured is None
    assert by_name["memory, reserved"].error == pytest.approx(-0.5)
