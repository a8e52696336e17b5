"""The picture of `validate`: whose runs have a name, and what file it is."""

from itertools import islice
from pathlib import Path

import pytest
from typer.testing import CliRunner

from meshplan.planner.cli.main import app
from meshplan.planner.report import picture
from meshplan.planner.report.validate_plot import OTHERS, draw, groups
from meshplan.planner.runs.runs import BUILT_IN, read_runs
from meshplan.planner.runs.validate import Predicted, predict_rows


@pytest.mark.parametrize(
    ("suites", "names"),
    [
        pytest.param("abcdefgh", "abcdefgh", id="8 suites: 8 names"),
        pytest.param("aabbccddeeffgghi", "abcdefg+", id="9 suites: the 7 largest and the others"),
    ],
)
def test_plot_has_at_most_eight_names(suites: str, names: str) -> None:
    """Suites that are not among the largest share one colour."""
    found = groups(list(suites))
    assert {name if name != OTHERS else "+" for name in found.values()} == set(names)


@pytest.mark.parametrize("name", ["runs.html", "runs.svg", "runs.png"])
def test_a_picture_is_written_alone(name: str, tmp_path: Path) -> None:
    """Each kind of file by its ending; a file of another ending beside it stays as it was."""
    pytest.importorskip("matplotlib")
    for other in {"runs.svg", "runs.png"} - {name}:
        (tmp_path / other).write_text("mine")
    found = [
        row for row in predict_rows(islice(read_runs(BUILT_IN), 8)) if isinstance(row, Predicted)
    ]
    draw(found, tmp_path / name)
    starts = {"runs.html": b"<!doctype html>", "runs.svg": b"<?xml", "runs.png": b"\x89PNG"}
    assert (tmp_path / name).read_bytes().startswith(starts[name])
    kept = [path.read_text() for path in tmp_path.iterdir() if path.name != name]
    assert set(kept) == {"mine"}


@pytest.mark.parametrize("installed", [True, False])
def test_a_picture_that_cannot_be_drawn_is_refused_first(
    installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another ending, or no matplotlib: one line and exit 2 before any run is predicted."""
    monkeypatch.setattr(picture, "find_spec", lambda name: installed or None)
    monkeypatch.setattr("meshplan.planner.cli.validate.predict_chunk", None)
    result = CliRunner().invoke(app, ["validate", "--plot", "x.gif" if installed else "x.html"])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: --plot")
    assert result.stderr.count("\n") == 1
    assert ".png or .svg or .html" in result.stderr or "meshplan[plot]" in result.stderr
