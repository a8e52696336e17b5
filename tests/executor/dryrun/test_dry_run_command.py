"""The command `meshplan execute --dry-run`: the rank that was asked for, beside its prediction."""

import subprocess
import sys
from pathlib import Path

import pytest
from called import executed
from tiny_runs import PP2, tiny_plan, tiny_prediction

from meshplan.executor.cli import single_rank
from meshplan.executor.dryrun import dry_run
from meshplan.planner.case.plan_file import write_plan


@pytest.fixture
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dry run's own command line is run here, which has torch: a process would import it, as
    that of `plan --dry-run` does (`test_plan_dry_run`).
    """

    def run(command: list[str], *, check: bool) -> subprocess.CompletedProcess[str]:
        assert command[:3] == [sys.executable, "-m", dry_run.__name__]
        monkeypatch.setattr(sys, "argv", command[2:])
        dry_run.main()
        return subprocess.CompletedProcess(command, returncode=0)

    monkeypatch.setattr(single_rank.subprocess, "run", run)


@pytest.mark.usefixtures("_in_this_process")
def test_dry_run_builds_the_rank_that_was_asked_for(tmp_path: Path) -> None:
    """The second stage's program runs without devices, and says how much memory it took."""
    write_plan(tiny_plan(PP2), tmp_path / "plan.yaml")
    arguments = [str(tmp_path / "plan.yaml"), "--dry-run", "--rank", "1", "--json"]
    answer = executed(arguments)
    assert answer.exit_code == 0, answer.output
    assert '"rank": 1' in answer.stdout


@pytest.mark.usefixtures("_in_this_process")
def test_dry_run_stands_beside_the_prediction(tmp_path: Path) -> None:
    """A table for people: each stage's peak by category, predicted below it, and bytes by axis."""
    write_plan(tiny_plan(PP2, tiny_prediction(1.0, stages=2)), tmp_path / "plan.yaml")
    answer = executed([str(tmp_path / "plan.yaml"), "--dry-run", "--all-stages"])
    said = answer.output
    assert answer.exit_code == 0, said
    assert said.count("dry run") == said.count("predicted") == 2
    for name in ("optimizer", "peak by phase", "FLOP of the step", "communicated, by axis"):
        assert name in said
    assert "2 of 2 ranks" in said


@pytest.mark.usefixtures("_in_this_process")
@pytest.mark.parametrize(
    ("engine", "noted"),
    [
        ("native", "the file predicts"),
        ("accelerate", "planned for accelerate, run by native: priced anew"),
    ],
)
def test_a_dry_run_is_beside_the_prediction_for_its_own_engine(
    tmp_path: Path, engine: str, noted: str
) -> None:
    """A plan for another engine is priced anew for the native one, whose program it is, and says
    so, as one whose file says what its layout does not hold: 64 GiB, made up, is never shown.
    """
    plan = tiny_plan(prediction=tiny_prediction(1.0)).model_copy(update={"engine": engine})
    assert plan.prediction
    huge = plan.prediction.memory[0].model_copy(update={"allocated": 2**36})
    prediction = plan.prediction.model_copy(update={"memory": (huge,)})
    write_plan(plan.model_copy(update={"prediction": prediction}), tmp_path / "plan.yaml")
    answer = executed([str(tmp_path / "plan.yaml"), "--dry-run"])
    said = answer.output
    assert answer.exit_code == 0, said
    assert "dry run" in said
    assert "64 GiB" not in said
    assert noted in said


def test_a_dry_run_is_of_no_other_engine(tmp_path: Path) -> None:
    """--engine with another name than native: exit 2 and a line."""
    write_plan(tiny_plan(), tmp_path / "plan.yaml")
    for kind in ("--dry-run", "--one-rank"):
        options = [str(tmp_path / "plan.yaml"), kind, "--engine", "deepspeed"]
        answer = executed(options)
        assert answer.exit_code == 2
        assert "run the native engine, not deepspeed" in answer.output


@pytest.mark.parametrize(
    ("kind", "option", "named"),
    [
        pytest.param("--dry-run", ("--steps", "10"), "--steps", id="steps, as the default has"),
        pytest.param("--dry-run", ("--top", "2", "--warmup", "1"), "--warmup, --top", id="two"),
        pytest.param("--dry-run", ("-o", "run"), "--out", id="a folder"),
        pytest.param("--one-rank", ("--top", "2"), "--top", id="of one rank"),
    ],
)
def test_one_rank_alone_takes_no_option_of_a_run(
    tmp_path: Path, kind: str, option: tuple[str, ...], named: str
) -> None:
    write_plan(tiny_plan(), tmp_path / "plan.yaml")
    answer = executed([str(tmp_path / "plan.yaml"), kind, *option])
    assert answer.exit_code == 2
    assert f"{kind} does not take {named}: leave them out" in answer.output
