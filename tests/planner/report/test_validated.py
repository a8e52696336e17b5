"""The table of runs that `validate` prints. Run: pytest tests/planner/report."""

from pathlib import Path

import pytest
from rows import ROW
from typer.testing import CliRunner

from meshplan.costmodels.units import GIB, format_bytes
from meshplan.planner.cli.main import app
from meshplan.planner.runs.validate import Predicted, predict_rows


def printed(folder: Path, rows: list[dict[str, str]], *options: str) -> list[str]:
    """What `validate` prints of `rows`."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [",".join(row.get(name, "") for name in columns) for row in rows]
    path = folder / "runs.csv"
    path.write_text("\n".join([",".join(columns), *lines]) + "\n", encoding="utf-8")
    result = CliRunner().invoke(app, ["validate", str(path), *options], env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


@pytest.fixture(scope="module")
def predicted() -> Predicted:
    """The prediction of one row."""
    (found,) = predict_rows([ROW])
    assert isinstance(found, Predicted)
    return found


def test_each_number_of_a_run_has_a_line(tmp_path: Path, predicted: Predicted) -> None:
    """A run that took twice what is predicted is off by -50 % and outside; a run that reserved what
    is predicted is inside; those out of memory have a verdict; one without numbers, the prediction.
    """
    seconds, gib = predicted.time.step_time_s, predicted.reserved_gib
    slow = {"id": "slow", "step_time_s": str(2 * seconds)}
    held = {"id": "held", "step_time_s": "", "mem_gb": str(gib), "mem_kind": "reserved"}
    lines = printed(
        tmp_path,
        [
            ROW | {"id": "asked", "step_time_s": ""},
            ROW | held,
            ROW | {"id": "full", "step_time_s": "", "oom": "1", "micro_batch": "16"},
            ROW | {"id": "fitted", "step_time_s": "", "oom": "1", "recompute": "full"},
            ROW | slow,
        ],
    )
    of_run = {line.split()[0]: line for line in lines[2:7]}
    assert of_run["slow"].split()[1:3] == ["step", "time"]
    assert " -50.0% " in of_run["slow"]
    assert of_run["slow"].endswith(" no")
    assert " +0.0% " in of_run["held"]
    assert of_run["held"].endswith(" yes")
    assert of_run["full"].split() == ["full", "memory", "ran", "out", "does", "not", "fit"]
    assert of_run["fitted"].split() == ["fitted", "memory", "ran", "out", "fits"]
    assert of_run["held"].split()[2:4] == format_bytes(gib * GIB).split()
    assert " n/a " in of_run["asked"]
    assert f" {seconds:.2f} s " in of_run["asked"]


def test_the_farthest_off_come_first(tmp_path: Path, predicted: Predicted) -> None:
    """Of a run at the prediction, one at three times it and one at half of it, `--rows 2` lists the
    last two, and says that there are more.
    """
    rows = [
        ROW | {"id": f"x{factor}", "step_time_s": str(predicted.time.step_time_s * factor)}
        for factor in (1, 0.5, 3)
    ]
    title, _, first, second, rest, *_ = printed(tmp_path, rows, "--rows", "2")
    assert title == "Runs, farthest off first (2 of 3: --rows)"
    assert (first.split()[0], second.split()[0], rest) == ("x3", "x0.5", "")
    assert first.endswith(" no")
    assert second.endswith(" no")
    assert printed(tmp_path, rows, "--rows", "0")[0].strip().startswith("Error of")


def test_a_run_out_of_memory_that_was_said_to_fit_comes_before_all(tmp_path: Path) -> None:
    """No factor of a step time says how wrong that is."""
    full = ROW | {"id": "full", "step_time_s": "", "oom": "1", "seq_len": "2048", "zero": "3"}
    lines = printed(tmp_path, [ROW | {"step_time_s": "99"}, full], "--rows", "1")
    assert lines[2].split() == ["full", "memory", "ran", "out", "fits"]


def test_skipped_runs_are_named(tmp_path: Path) -> None:
    """With their reason, so that they are found in a long file; of many the first three."""
    odd = [ROW | {"id": f"odd{number}", "dp": "7"} for number in range(4)]
    lines = printed(tmp_path, [ROW, ROW | {"id": "other", "dp": "5"}, *odd])
    assert any(line.startswith("skipped 1 (other): dp 5") for line in lines)
    assert any(line.startswith("skipped 4 (odd0, odd1, odd2, ...): dp 7") for line in lines)
