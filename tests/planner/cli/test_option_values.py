"""Every option of every command refuses values that mean nothing: empty, not finite, negative."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import CPU
from typer.testing import CliRunner

from meshplan.planner.cli.main import COMMANDS, app, load_command

RUN = Path(__file__).parents[3] / "examples" / "runs" / "dp2"
PLAN, RESULT = str(RUN / "plan.yaml"), str(RUN / "result.json")
QUESTION = ("llama-3.2-1b", "--gpus", "2", "--cluster", "dgx-h100", "--global-batch", "8")
CALLS: dict[str, tuple[str, ...]] = {
    "plan": QUESTION, "sweep": QUESTION, "what-if": (PLAN,), "explain": (PLAN,), "ui": (),
    "export": (PLAN, "--to", "megatron"), "execute": (PLAN, "--print"), "check": (PLAN,),
    "profile": (), "validate": (), "learn": (RESULT,), "diagnose": (RESULT,), "models": (),
    "profiles list": (), "profiles show": ("dgx-h100",),
    "profiles diff": ("dgx-h100", "dgx-h200"), "profiles import": (PLAN,),
}  # fmt: skip
"""A legal call of each, which the value under test spoils."""
TEXT_NUMBERS = frozenset((
    *("--gpus", "--seq-len", "--global-batch", "--global-batch-tokens", "--packed-mean-length"),
    *("--image-tokens", "--headroom", "--dp", "--tp", "--pp", "--vpp", "--cp", "--ep", "--etp"),
    *("--zero", "--shard-group", "--micro-batch", "--tokens", "--price-per-gpu-hour", "--by"),
    *("--network", "--network-latency", "--nvlink", "--hbm", "--memory", "--matmul"),
    *("--attention", "--host-link", "--offload-optimizer", "--offload-activations"),
))  # fmt: skip
"""Numbers with units, lists or signs, that are read as text."""
MAY_BE_0 = frozenset((
    *("--zero", "--shard-group", "--headroom", "--price-per-gpu-hour", "--offload-optimizer"),
    "--offload-activations",
))  # fmt: skip
NOT_FINITE = ("inf", "-inf", "nan", "1e400", "-1")


def options() -> Iterator[tuple[str, Any]]:
    """Each command with each of its options that takes a value."""
    for name in COMMANDS:
        command = load_command(name)
        inner = getattr(command, "commands", {})
        for full, each in {f"{name} {sub}": found for sub, found in inner.items()}.items() or [
            (name, command)
        ]:
            for option in each.params:
                if option.opts[0].startswith("-") and not option.is_flag:
                    yield full, option


def values(option: Any) -> Iterator[str]:
    """What `option` must refuse."""
    kind, name = option.type_descriptor.annotation, option.opts[0]
    yield ""
    if kind in (int, float) or name in TEXT_NUMBERS:
        yield from NOT_FINITE
        if (kind is int and option.min == 1) or (name in TEXT_NUMBERS - MAY_BE_0):
            yield "0"


CASES = [
    pytest.param(name, option.opts[0], (*values(option),), id=f"{name} {option.opts[0]}")
    for name, option in options()
]


@pytest.mark.parametrize(("command", "option", "refused"), CASES)
def test_what_means_nothing_is_refused(command: str, option: str, refused: tuple[str, ...]) -> None:
    """Exit code 2 with a message and nothing on stdout; no failure of ours."""
    call = [*command.split(), *CALLS[command]]
    at = call.index(option) if option in call else len(call)
    for value in refused:
        result = CliRunner().invoke(app, [*call[:at], option, value, *call[at + 2 :]])
        failure = result.exception
        assert failure is None or isinstance(failure, SystemExit), (value, failure)
        assert (value, result.exit_code, result.stdout) == (value, 2, "")
        assert result.stderr


def test_empty_arguments_and_equal_signs() -> None:
    """`check ''` would walk the folder that one is in; `--engine=` is as empty as `--engine ''`."""
    for words in (("check", ""), ("plan", "", "--gpus", "2"), ("check", PLAN, "--model=")):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 2
        assert "is empty; give a value" in result.stderr
        assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("explain", PLAN, "--html", "--json"), id="a file"),
        pytest.param(("check", PLAN, "--cluster", "--json"), id="a name"),
        pytest.param(("check", PLAN, "--env", "A=1", "--env", "--gpus"), id="one of several"),
        pytest.param(("execute", PLAN, "--print", "--slurm", "-h"), id="help"),
        pytest.param(("plan", "llama-3.1-8b", "--tp", "--pp", "2"), id="a word too many"),
    ],
)
def test_an_option_is_no_value_of_another(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forgotten value: `explain PLAN --html --json` wrote a page called `--json`."""
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, words)
    before, after = [word for word in words if word.startswith("-")][-2:]
    assert result.exit_code == 2
    assert result.stderr == f"error: {before} has no value: {after} is an option itself\n"
    assert not list(tmp_path.iterdir())


def test_what_begins_with_dashes_may_be_a_value() -> None:
    """sbatch's options, of which `execute` has some itself."""
    words = ("execute", PLAN, "--print", "--launcher", "slurm", "--slurm", "--time=1")
    result = CliRunner().invoke(app, words)
    assert "has no value" not in result.stderr


def test_an_option_inside_a_value_is_not_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--nodes 2 --slurm --nodes=3` has one `--nodes` of its own; of two the last counts."""
    monkeypatch.setattr("meshplan.executor.cli.placing.find_hardware", lambda: CPU)
    words = ("execute", PLAN, "--print", "--launcher", "slurm", "--nodes", "2", "--slurm")
    assert "is given" not in CliRunner().invoke(app, (*words, "--nodes=3")).stderr
    twice = CliRunner().invoke(app, ("execute", PLAN, "--print", "--steps=2", "--steps", "3"))
    assert "note: --steps is given 2 times; the last counts" in twice.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--slurm", "--time=1"), "is of a job under Slurm; add --launcher slurm"),
        (("--launcher", "slurm", "--slurm", "-N3"), "-N3 is what the script says of its ranks"),
        (("--launcher", "slurm", "--slurm", "-N2-4"), "-N2-4 is what the script says"),
        (("--launcher", "slurm", "--job", "cancel"), "--job cancel starts nothing"),
    ],
)
def test_what_a_launcher_would_not_take_is_refused(words: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(app, ("execute", PLAN, "--print", *words))
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert said in result.stderr


@pytest.mark.parametrize(
    ("command", "most"), [("plan", "1048576"), ("what-if", "1048576"), ("sweep", "1e+18")]
)
def test_more_gpus_than_numbers_hold_are_refused(command: str, most: str) -> None:
    """With the rule that is broken: it is a whole number of at least 1."""
    before = {"plan": QUESTION, "sweep": QUESTION, "what-if": (PLAN,)}[command]
    result = CliRunner().invoke(app, (command, *before, "--gpus", "9" * 30))
    assert result.exit_code == 2
    assert most in result.stderr.splitlines()[-1]
