"""What could not be written is refused before the work, not after it."""

from pathlib import Path

import pytest
from tiny_runs import CPU
from typer.testing import CliRunner

from meshplan.planner.cli.main import app
from meshplan.planner.text_files import CannotWrite, check_writable

PLAN = str(Path(__file__).parents[3] / "examples" / "runs" / "dp2" / "plan.yaml")
QUESTION = ("plan", "llama-3.2-1b", "--gpus", "8", "--cluster", "dgx-h100", "--global-batch", "64")


def test_what_can_be_written(tmp_path: Path) -> None:
    """A new file, an old one, one behind a link, a device; nothing is made."""
    (tmp_path / "old").touch()
    (tmp_path / "link").symlink_to("behind")
    names = ("new", "old", "link", "/dev/null")
    check_writable(None, *(tmp_path / name for name in names))
    assert {each.name for each in tmp_path.iterdir()} == {"old", "link"}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("folder", "it is a folder"), ("absent/x", "no such folder"), ("old/x", "Not a directory"),
        ("loop", "Too many levels of symbolic links"), ("x" * 300, "File name too long"),
    ],
)  # fmt: skip
def test_what_cannot_be_written(tmp_path: Path, name: str, why: str) -> None:
    """One line with the path and the reason."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "old").touch()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(CannotWrite, match=f"cannot write .*: {why}"):
        check_writable(tmp_path / name)


@pytest.mark.parametrize("words", [("explain", "in", "--html"), ("learn", "in", "-o")])
def test_what_is_read_is_not_replaced(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor behind a link: the file is as it was."""
    monkeypatch.chdir(tmp_path)
    Path("in").write_text("mine")
    Path("link").symlink_to("in")
    done = CliRunner().invoke(app, [*words, "link"])
    said = "error: cannot write link: it is read; name another file\n"
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", said)
    assert Path("in").read_text() == "mine"


@pytest.mark.parametrize(
    "words",
    [
        ("explain", PLAN, "--html", "a", "--trace", "./a"),
        ("sweep", *QUESTION[1:], "--cache", "a", "--csv", "a"),
        ("sweep", *QUESTION[1:], "--csv", "a.svg", "--plot", "a.svg"),
        ("what-if", PLAN, "--cache", "a.svg", "--plot", "a.svg"),
    ],
)
def test_two_outputs_are_two_files(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the second would replace the first; nothing is made."""
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, words)
    said = f"error: cannot write {Path(words[-1])}: two options name it; name another file\n"
    assert (done.exit_code, done.stderr) == (2, said)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [
    QUESTION, ("explain", "plan.yaml", "--html"), ("explain", "plan.yaml", "--json", "--trace"),
    ("learn", "absent.log"), ("profile", "--quick", "--device", "cpu"),
])  # fmt: skip
def test_nothing_is_done_first(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 2 and that line alone; no input is read, searched or measured before."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("meshplan.executor.cli.profile.find_hardware", lambda: CPU)
    option = () if words[-1].startswith("--") else ("-o",)
    done = CliRunner().invoke(app, [*words, *option, "."])
    assert (done.exit_code, done.stdout) == (2, "")
    where = tmp_path if words[0] == "profile" else "."
    assert done.stderr == f"error: cannot write {where}: it is a folder\n"


@pytest.mark.parametrize(("words", "said"), [
    (("--device", "cuda"), "--device cuda: this host has no GPU that torch can use"),
    (("--processes", "33"), "--processes 33: this host has 4 cores; at most 32 are started"),
])  # fmt: skip
def test_profile_starts_nothing_that_its_host_cannot_run(
    words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, exit 2, and no folder of a run."""
    monkeypatch.setattr("meshplan.executor.cli.profile.find_hardware", lambda: CPU)
    monkeypatch.setattr("meshplan.executor.cli.profile.num_cores", lambda: 4)
    path = tmp_path / "mine.toml"
    done = CliRunner().invoke(app, ["profile", "--quick", "-o", str(path), *words])
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: {said}")
    assert list(tmp_path.iterdir()) == []


def test_a_file_where_the_folder_of_a_measurement_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks write their logs to OUT.run: where that cannot be a folder nothing is started."""
    monkeypatch.setattr("meshplan.executor.cli.profile.find_hardware", lambda: CPU)
    (tmp_path / "mine.toml.run").write_text("a file")
    done = CliRunner().invoke(app, ["profile", "--quick", "-o", str(tmp_path / "mine.toml")])
    said = f"error: cannot write {tmp_path}/mine.toml.run: File exists\n"
    assert (done.exit_code, done.stderr) == (2, said)
