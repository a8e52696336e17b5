"""Where torch or a framework is not there: one line and exit code 2, by any command."""

import importlib.util
import subprocess
from pathlib import Path

import pytest
from called import run
from tiny_runs import DP2, tiny_plan

from meshplan.executor.launch.probe import NoTorch, find_hardware
from meshplan.hardware_profiles.fingerprint import cluster_hash
from meshplan.hardware_profiles.load import load_cluster
from meshplan.planner.case.plan_file import PlanCluster, read_plan, write_plan


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    """A plan of two ranks of a tiny model."""
    path = tmp_path / "plan.yaml"
    write_plan(tiny_plan(DP2), path)
    return path


def test_a_host_without_torch(
    tmp_path: Path, plan_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`execute`, `profile` and a dry run say what installs it, before anything else is done."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    run_it, job = ("execute", str(plan_file)), ("plan", "tiny-llama", "--gpus", "8")
    profiled = ("profile", "-o", str(tmp_path / "x.toml"))
    alone = ((*run_it, "--dry-run"), (*run_it, "--one-rank"), (*job, "--dry-run"))
    for words in (run_it, profiled, *alone):
        result = run(*words)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith("error: torch is not installed; install it with: pip")


def test_a_torch_that_is_killed_when_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it says nothing, as by the system for want of memory, its exit code is said."""
    killed = subprocess.CompletedProcess((), -9, stdout="", stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: killed)
    with pytest.raises(NoTorch, match="torch does not start: exit code -9"):
        find_hardware()


def test_a_host_without_the_framework(plan_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`execute` says what installs it."""
    gpus = PlanCluster(name="dgx-h100", gpus=2, sha256=cluster_hash(load_cluster("dgx-h100")))
    plan = read_plan(plan_file).model_copy(update={"cluster": gpus, "engine": "megatron"})
    write_plan(plan, plan_file)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    result = run("execute", str(plan_file))
    assert result.exit_code == 2
    assert result.stderr.startswith("error: megatron is not installed; install it with: ")
