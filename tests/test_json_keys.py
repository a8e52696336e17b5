"""docs/json.md has every key that `--json` prints, with its meaning."""

import json
from pathlib import Path

import pytest
from called import run

from benchmarks.commands import json_keys
from benchmarks.commands.json_documents import DOCUMENTS
from meshplan.hardware_profiles.dataclass import dataclass

JOB = ("tiny-llama", "--cluster", "dgx-h100", "--global-batch", "64")
PINNED = ("--tp", "1,2", "--pp", "1", "--cp", "1", "--micro-batch", "1")
RUNS = [f"examples/runs/{name}/result.json" for name in ("dp2", "tp2", "pp2")]
PLANS = [f"examples/runs/{name}/plan.yaml" for name in ("dp2", "tp2", "pp2")]
CALLS = {
    "plan": ("plan", *JOB, *PINNED, "--gpus", "16", "--price-per-gpu-hour", "2",
             "--compare", "{plan}"),
    "plan, where nothing fits": ("plan", "llama-3.1-70b", *JOB[1:], "--gpus", "8", "--tp", "1,2"),
    "explain": ("explain", "{plan}"),
    "check": ("check", "{plan}"),
    "learn": ("learn", *RUNS),
    "learn --which": ("learn", "--which", *PLANS),
    "diagnose": ("diagnose", RUNS[1]),
    "validate": ("validate", "--suite", "alpa"),
    "what-if": ("what-if", "{plan}", "--matmul", "1.1x", "--gpus", "8", "--jobs", "1"),
    "what-if, each figure moved": ("what-if", "{plan}", "--jobs", "1"),
    "what-if --break-even": ("what-if", "{plan}", "--break-even", "network"),
    "models": ("models",),
    "models MODEL": ("models", "qwen3-0.6b"),
    "sweep": ("sweep", *JOB, "--gpus", "8,16", "--tokens", "1T", "--jobs", "1"),
}  # fmt: skip
"""Commands whose documents are small, by their heading on the page."""
SLOW = {"what-if, each figure moved"}


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of a small question."""
    path = tmp_path_factory.mktemp("plan") / "plan.yaml"
    assert run("plan", *JOB, *PINNED, "--gpus", "16", "-o", str(path)).exit_code == 0
    return path


def test_the_page_is_current() -> None:
    """docs/json.md is what its command writes."""
    assert json_keys.PAGE.read_text() == json_keys.page(), "python -m benchmarks.commands.json_keys"


@pytest.mark.parametrize("command", DOCUMENTS)
def test_every_key_has_words(command: str) -> None:
    """The docstring of what makes a key says what it is."""
    assert [key.path for key in json_keys.keys(command) if not key.words] == []


@pytest.mark.parametrize("command", [
    pytest.param(each, marks=[pytest.mark.nightly] * (each in SLOW)) for each in CALLS
])  # fmt: skip
def test_a_document_has_no_other_keys(command: str, plan_file: Path) -> None:
    """Every key that a command prints is on the page."""
    words = [word.replace("{plan}", str(plan_file)) for word in CALLS[command]]
    said = run(*words, "--json")
    assert said.stdout, said.stderr
    assert json_keys.unknown(command, json.loads(said.stdout)) == set()


def test_a_run_s_file_has_no_other_keys() -> None:
    """So of the file that `execute` writes."""
    assert json_keys.unknown("execute", json.loads(Path(RUNS[0]).read_text())) == set()


def test_a_key_that_is_new_is_seen() -> None:
    """Where a list, a free name or an object has a key without a line."""
    document = {"model": {"config": {"any": {"thing": 1}}}, "prediction": {"memory": [{"new": 1}]},
                "search": {"dropped": {"a rule": 1}, "b": []}}  # fmt: skip
    assert json_keys.unknown("plan", document) == {"prediction.memory[].new", "search.b"}


@dataclass(frozen=True)
class Sized:
    """Two fields, of which one is said.

    wide_bytes, deep_s  what it is,
                        on two lines; None: not known
    """

    wide_bytes: float
    deep_s: float | None
    silent: str


def test_a_docstring_is_read_field_by_field() -> None:
    """Names that share a line share its words; the unit is by the name, else there is a type."""
    words = "what it is, on two lines; None: not known"
    assert [(key.path, key.unit, key.words) for key in json_keys.keys_of(Sized)] == [
        ("wide_bytes", "bytes", words), ("deep_s", "s", words), ("silent", "text", ""),
    ]  # fmt: skip
