"""Files that are no table of measured runs, or hold none, are refused."""

import pytest
from typer.testing import CliRunner

from meshplan.planner.cli.main import app
from meshplan.planner.runs.rows import SkippedRow
from meshplan.planner.runs.runs import read_runs, run_of


def test_a_file_without_ids_is_refused(tmp_path):
    """A CSV that is no table of runs gets one line, not a traceback."""
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="no column 'id' among 'a, b'"):
        list(read_runs(path))
    refusal = CliRunner().invoke(app, ["validate", str(path)])
    assert refusal.exit_code == 2
    assert refusal.stderr.count("other.csv") == 1


@pytest.mark.parametrize("sign", [",", ";", "\t"])
def test_what_parts_the_cells(tmp_path, sign):
    """A spreadsheet may write semicolons or tabs, and commas in a name then part nothing."""
    path = tmp_path / "own.csv"
    path.write_text(f"id{sign}model\na{sign}{'b' if sign == ',' else 'b,c'}\n")
    assert list(read_runs(path)) == [{"id": "a", "model": "b" if sign == "," else "b,c"}]


def test_a_suite_of_a_file_that_names_none(tmp_path):
    """What it has is said, also where it has nothing."""
    path = tmp_path / "own.csv"
    path.write_text("id,suite\na,\n")
    refusal = CliRunner().invoke(app, ["validate", str(path), "--suite", "mine"])
    assert "no run of it in own.csv; it has no suite stated" in refusal.stderr


def test_a_row_that_ends_before_its_id_is_skipped() -> None:
    """A line cut off is no defect of ours."""
    with pytest.raises(SkippedRow, match="before its id"):
        run_of({"suite": "own", "id": None})  # type: ignore[dict-item]


def test_a_file_of_columns_alone_is_refused(tmp_path):
    """An empty score would look like a clean one to a pipeline that reads the exit code."""
    own = tmp_path / "own.csv"
    own.write_text("id,model,gpu\n")
    refusal = CliRunner().invoke(app, ["validate", str(own)])
    assert refusal.exit_code == 2
    assert "own.csv: no run below the line of columns" in refusal.stderr


OWN = {
    "id": "mine", "framework": "megatron", "gpu": "h100-sxm", "gpus": "8", "seq_len": "4096",
    "dp": "8", "micro_batch": "1", "global_batch": "256", "step_time_s": "10.1",
}  # fmt: skip


@pytest.mark.parametrize("name", ["qwen3-8b", "Qwen/Qwen3-8B"])
def test_a_row_without_a_shape_may_name_a_model_of_the_catalogue(name):
    """As for every other command; a shape that is stated wins over what the name says."""
    assert run_of({**OWN, "model": name}).model.num_layers == 36
    shape = {"layers": "2", "hidden": "64", "ffn": "128", "heads": "4", "vocab": "1000"}
    assert run_of({**OWN, "model": name, **shape}).model.num_layers == 2


def test_a_file_of_which_no_row_can_be_priced_is_no_clean_score(tmp_path):
    """Nor is an empty table; each row's reason says what would help."""
    own = tmp_path / "own.csv"
    row = {**OWN, "model": "our-7b"}
    own.write_text(f"{','.join(row)}\n{','.join(row.values())}\n")
    scored = CliRunner().invoke(app, ["validate", str(own)])
    assert scored.exit_code == 2
    told = " ".join(scored.stdout.split())
    assert "without a shape (layers, hidden, ...), model 'our-7b' is no model" in told
    assert "own.csv: no run could be priced" in scored.stderr


def test_own_runs_without_suite_and_grade_are_scored_without_blanks(tmp_path):
    """Their suite is called so, and no mean over graded suites is announced."""
    own = tmp_path / "own.csv"
    row = {**OWN, "model": "qwen3-8b"}
    own.write_text(f"{','.join(row)}\n{','.join(row.values())}\n")
    told = CliRunner().invoke(app, ["validate", str(own)]).stdout
    assert "none named" in told
    assert "suites' medians" not in told
