"""The benchmarks as commands: `--help` starts nothing, and an unknown option is refused."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.usage import check_usage

ROOT = Path(__file__).parents[1]
GUARD = "if __name__ == '__main__':"


def guarded(path: Path) -> list[str]:
    """The statements that a module runs as a command, as they are written."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    ends = [node for node in tree.body if ast.unparse(node).startswith(GUARD)]
    return [ast.unparse(line) for node in ends if isinstance(node, ast.If) for line in node.body]


def test_every_benchmark_shows_its_help_before_it_starts() -> None:
    """By argparse, or by `check_usage` as the first statement."""
    commands = {path: guarded(path) for path in sorted((ROOT / "benchmarks").rglob("*.py"))}
    found = {path: body for path, body in commands.items() if body}
    assert len(found) > 30
    for path, body in found.items():
        parses = "parse_args()" in path.read_text(encoding="utf-8")
        assert parses or body[0].startswith("check_usage(str(__doc__)"), path


def test_help_writes_nothing() -> None:
    """`memory_needs --help` wrote its table anew."""
    written = ROOT / "hardware_profiles/fits/memory_needs.csv"
    before = written.stat().st_mtime_ns
    command = [sys.executable, "-m", "benchmarks.accuracy.memory_needs", "--help"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert "--check  counts how often" in result.stdout
    assert written.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("words", "code"), [(["-h"], 0), (["--chek"], 2), (["--check", "name"], None), ([], None)]
)
def test_usage(words: list[str], code: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Help ends with 0, a misspelt option with 2, all else starts."""
    monkeypatch.setattr(sys, "argv", ["benchmark", *words])
    if code is None:
        check_usage("What it does.", "--check")
        return
    with pytest.raises(SystemExit) as end:
        check_usage("What it does.", "--check")
    assert end.value.code == code
