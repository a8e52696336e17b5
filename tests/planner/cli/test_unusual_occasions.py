"""What commands print and keep on unusual occasions: odd names, a full disk, Ctrl-C, prices."""

import importlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from called import run

from meshplan.hardware_profiles.load_models import load_model_config
from meshplan.planner.case.plan_file import read_plan
from meshplan.planner.case.seal import sealed
from meshplan.planner.search.closed_form.first_plans import FirstPlans
from meshplan.planner.search.simulation.layer_moves import LayerMoves
from meshplan.planner.search.simulation.open_layouts import OpenLayouts
from meshplan.planner.search.simulation.simulated import Simulated

SMALL = ("plan", "llama-3.1-8b", "--gpus", "16", "--cluster", "dgx-h100", "--global-batch", "64")


def test_refused_config_is_named(tmp_path: Path) -> None:
    """What is wrong with the config to compare with is not taken for a fault of the question."""
    config = tmp_path / "overrides.yaml"
    config.write_text("model: {tensor_model_parallel_size: 4, pipeline_model_parallel_size: 8}\n"
                      "train: {global_batch_size: 64, micro_batch_size: 1}\n")  # fmt: skip
    result = run(*SMALL, "--compare", str(config))
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: --compare {config}: 16 GPUs are not a multiple of")


def test_json_document_is_a_plan_file(tmp_path: Path) -> None:
    """What `--json` prints can be kept, explained and checked, whose numbers YAML would not read
    (rms_norm_eps is 1e-05).
    """
    path = tmp_path / "plan.json"
    document = run(*SMALL, "--top", "1", "--json").stdout
    assert "1e-05" in document
    path.write_text(document)
    assert sealed(read_plan(path).model_dump(mode="json")) == json.loads(document)
    assert run("check", str(path)).exit_code == 0


def test_document_with_what_stands_beside_the_plan_is_one_too(tmp_path: Path) -> None:
    """Its price and its comparison are of the moment, and no reason not to read the plan."""
    path, again = tmp_path / "plan.json", tmp_path / "again.json"
    path.write_text(run(*SMALL, "--top", "1", "--json").stdout)
    beside = ("--price-per-gpu-hour", "2", "--compare", str(path))
    again.write_text(run(*SMALL, "--top", "1", "--json", *beside).stdout)
    assert json.loads(again.read_text()).keys() >= {"cost", "comparison"}
    assert read_plan(again).layout == read_plan(path).layout


def test_ctrl_c_before_any_layout_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the search, which has found nothing: exit 3, as docs/commands.md has it."""

    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("meshplan.planner.search.search.seed_likely", lambda run: None)
    monkeypatch.setattr(FirstPlans, "_next_rows", interrupted)
    result = run(*SMALL, "--json")
    assert result.exit_code == 3
    assert json.loads(result.stdout) == {"status": "UNKNOWN", "gpus": 16}


def test_price_is_in_the_json_document() -> None:
    """The price that people are told of is in the document too, by the same figures."""
    found = json.loads(run(*SMALL, "--top", "1", "--json", "--price-per-gpu-hour", "2").stdout)
    step_s = found["prediction"]["step_time_s"]
    assert found["cost"]["step"] == pytest.approx(16 * 2 * step_s / 3600)
    per_token = found["cost"]["step"] / (64 * 4096)
    assert found["cost"]["trillion_tokens"] == pytest.approx(1e12 * per_token)


@pytest.mark.parametrize("folder", ["[red]", "a[/b]", ":smile: x"])
def test_names_are_no_markup(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path is printed as it is, whatever rich would make of its brackets and colons."""
    monkeypatch.setenv("COLUMNS", "300")
    path = tmp_path / folder / "config.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(load_model_config("llama-3.2-1b")))
    result = run("models", str(path))
    assert result.exit_code == 0, result.output
    assert f"plan {shlex.quote(str(path))} " in result.stdout


def test_ctrl_c_between_two_stages_of_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the simulation is prepared keeps what was found; another ends it."""
    left = [KeyboardInterrupt]

    def interrupted(*arguments: Any, **options: Any) -> Any:
        if left:
            raise left.pop()
        return Simulated(*arguments, **options)

    monkeypatch.setattr("meshplan.planner.search.best_simulated.Simulated", interrupted)
    result = run(*SMALL, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["search"]["status"] == "FEASIBLE"
    left += [KeyboardInterrupt, KeyboardInterrupt]
    assert run(*SMALL, "--json").exit_code == 130


@pytest.mark.parametrize(
    ("interrupted", "left_out", "runners_up"),
    [
        ("planner.runs.evidence.nearest_runs", "reasons", 2),
        ("planner.answer.answer.chosen", "runners-up", 0),
    ],
)
def test_ctrl_c_after_the_search_keeps_the_plan(
    monkeypatch: pytest.MonkeyPatch, interrupted: str, left_out: str, runners_up: int
) -> None:
    """A plan that is found is printed with its proof, and what is missing beside it is said."""
    whole = json.loads(run(*SMALL, "--json").stdout)
    module, _, name = f"meshplan.{interrupted}".rpartition(".")
    left, real = [KeyboardInterrupt], getattr(importlib.import_module(module), name)

    def once(*arguments: Any, **options: Any) -> Any:
        if left:
            raise left.pop()
        return real(*arguments, **options)

    monkeypatch.setattr(f"{module}.{name}", once)
    monkeypatch.setattr("meshplan.planner.processes.second_core.is_idle", lambda: False)
    result = run(*SMALL, "--json")
    assert result.exit_code == 0
    assert f"interrupted: the plan is printed without {left_out}" in result.stderr
    found = json.loads(result.stdout)
    assert found["search"]["bound_s"] == whole["search"]["bound_s"]
    assert found["layout"] == whole["layout"]
    assert (len(found["runners_up"]), found["reasons"]) == (runners_up, [])


@pytest.mark.parametrize("interrupted", [OpenLayouts.reopen, LayerMoves.look])
def test_ctrl_c_while_runners_up_are_found_keeps_the_proof(
    monkeypatch: pytest.MonkeyPatch, interrupted: Callable[..., None]
) -> None:
    """What was proved before stands."""

    def once(*arguments: Any, **options: Any) -> None:
        if interrupted is OpenLayouts.reopen or not options.get("beside"):
            raise KeyboardInterrupt
        interrupted(*arguments, **options)

    owner = {OpenLayouts.reopen: OpenLayouts, LayerMoves.look: LayerMoves}[interrupted]
    monkeypatch.setattr(owner, interrupted.__name__, once)
    result = run(*SMALL, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["search"]["status"] == "OPTIMAL"


def test_ctrl_c_while_the_fewest_gpus_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """They stand beside the plan, which is printed without them."""

    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("meshplan.planner.cli.planned.fewest_gpus", interrupted)
    monkeypatch.setattr("meshplan.planner.processes.second_core.is_idle", lambda: False)
    result = run(*SMALL)
    assert result.exit_code == 0
    assert "printed without the fewest GPUs" in result.stderr
    assert result.stdout.startswith("llama-3.1-8b (8.03B parameters) on 16 x")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_full_standard_output_is_one_line(unbuffered: str) -> None:
    """Output that cannot be written is no fault of ours: one line, whenever it is noticed."""
    command = [sys.executable, "-c", "from meshplan.planner.cli.main import main; main()"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*command, "--version"], stdout=full, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "error: cannot write standard output: No space left on device\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize(
    ("words", "code", "answered"),
    [(("--version",), 0, True), (("plan", "no-such-model"), 2, False)],
)
def test_full_standard_error_changes_no_answer(
    words: tuple[str, ...], code: int, *, answered: bool, tmp_path: Path
) -> None:
    """Notes and errors that cannot be written are lost; the answer and the exit code are not."""
    noisy = "import sys; print('note', file=sys.stderr, flush=True)"
    program = "from meshplan.planner.cli import main; old = main.app; "
    program += f"main.app = lambda: (exec({noisy!r}), old()); main.main()"
    command = [sys.executable, "-c", program, *words]
    if words[0] == "plan":
        command += ["--gpus", "1"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=full, text=True, cwd=tmp_path)
    assert (done.returncode, bool(done.stdout)) == (code, answered)


def test_a_reader_that_leaves_is_no_finding() -> None:
    """`meshplan ... | head` ends without a word, by the code that a shell has for it: `check` calls
    its findings 1.
    """
    command = [sys.executable, "-m", "meshplan.planner.cli.main", "models"]
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, "")


@pytest.mark.parametrize("words", [("validate",), ("sweep", *SMALL[1:], "--cache")])
def test_what_is_no_text_is_called_that(words: tuple[str, ...], tmp_path: Path) -> None:
    """In words of ours, not of Python's decoder."""
    path = tmp_path / "noise"
    path.write_bytes(b"id,\xff\xfe\n")
    result = run(*words, str(path))
    assert result.exit_code == 2
    assert "it is not UTF-8 text" in result.stderr
    assert "codec" not in result.stderr


@pytest.mark.parametrize(
    ("gpus", "said"),
    [("9" * 20, f"--gpus '{'9' * 20}' is more than 1048576"), ("1e3", "is not a whole number")],
)
def test_numbers_of_gpus_beyond_all(gpus: str, said: str) -> None:
    """A whole number is not called none because it is long."""
    result = run("plan", "llama-3.1-8b", "--gpus", gpus, *SMALL[4:])
    assert result.exit_code == 2
    assert said in result.stderr


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-"])
def test_closed_output_is_no_failure(tmp_path: Path, closed: str) -> None:
    """Whoever starts `check` may close standard output: the exit code says what it found."""
    (tmp_path / "bad.yaml").write_text("a: 1\n")
    program = f"{shlex.quote(sys.executable)} -m meshplan.planner.cli.main"
    command = f"{program} check {shlex.quote(str(tmp_path / 'bad.yaml'))} {closed}"
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (2, "")


def test_closed_output_of_an_answer_is_one_line() -> None:
    """Of what else prints, nobody got the answer: no success."""
    command = f"{shlex.quote(sys.executable)} -m meshplan.planner.cli.main --version >&-"
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr == "error: cannot write standard output: Bad file descriptor\n"


@pytest.mark.parametrize(("again", "said"), [(("--tp=4",), True), (("--tp", "2"), False)])
def test_an_option_with_two_values_is_noted(again: tuple[str, ...], said: bool) -> None:
    """The last counts, which a note says; the same value twice is no matter."""
    result = run(*SMALL, "--top", "1", "--tp", "2", *again, "--json")
    assert json.loads(result.stdout)["layout"]["tensor_parallel"] == (4 if said else 2)
    assert ("note: --tp is given 2 times; the last counts" in result.stderr) == said


@pytest.mark.parametrize(
    ("again", "said"),
    [
        (("--global-batch", "0"), "error: --global-batch 0: "),
        (("--global-batch=1.5", "--global-batch=4M"), "error: --global-batch 4M: "),
        (("--global-batch=4M", "--global-batch", "0"), "error: --global-batch 0: "),
    ],
)
def test_a_wrong_option_is_said_with_the_value_that_counts(
    again: tuple[str, ...], said: str
) -> None:
    """Of several values the last, which is the one that was read."""
    result = run(*SMALL, "--global-batch", "8", *again)
    assert said in result.stderr


def test_what_cannot_be_read_is_said_once(tmp_path: Path) -> None:
    """A model's file that is not there, and standard input, which no command reads."""
    missing = tmp_path / "model.yaml"
    result = run("plan", str(missing), *SMALL[2:])
    assert result.stderr == f"error: {missing}: cannot be read: No such file or directory\n"
    assert "standard input is not read; write it to a file" in run("check", "-").stdout


def test_a_repository_of_the_catalogue_is_planned() -> None:
    """By its name on Hugging Face, which the answer says."""
    result = run("plan", "meta-llama/Llama-3.1-8B", *SMALL[2:], "--json")
    document = json.loads(result.stdout)
    assert document["model"]["name"] == "llama-3.1-8b"
    assert any("meta-llama/Llama-3.1-8B has the sizes of" in note for note in document["notes"])


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize(
    ("interrupted", "times", "code"),
    [
        ("cli.planned.write_plan", 1, 0),
        ("cli.planned.write_plan", 2, 130),
        ("cli.planned.print_json", 1, 0),
        ("cli.comparing.compared", 1, 0),
    ],
)
def test_one_ctrl_c_loses_no_plan_that_is_written_and_printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, interrupted: str, times: int, code: int
) -> None:
    """What is left then takes a moment, but for a comparison, which is left out. Two end it."""
    plan, again = tmp_path / "plan.yaml", tmp_path / "again.yaml"
    run(*SMALL, "--top", "1", "--json", "--out", str(plan))
    module, _, name = f"meshplan.planner.{interrupted}".rpartition(".")
    real = getattr(importlib.import_module(module), name)

    def pressed(*arguments: Any, **options: Any) -> Any:
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        return real(*arguments, **options)

    monkeypatch.setattr(f"{module}.{name}", pressed)
    words = ("--top", "1", "--json", "--out", str(again), "--compare", str(plan))
    result = run(*SMALL, *words)
    assert result.exit_code == code
    assert again.exists() == (code == 0)
    if not code:
        found = json.loads(result.stdout)
        assert found["layout"] == yaml.safe_load(plan.read_text())["layout"]
        assert ("comparison" in found) == ("compared" not in interrupted)
