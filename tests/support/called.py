"""meshplan as it is called: its errors are one line and an exit code."""

from collections.abc import Sequence

from typer.testing import CliRunner, Result

from meshplan.planner.cli.main import app


def run(*arguments: str) -> Result:
    """The command with these arguments, in this process."""
    return CliRunner().invoke(app, arguments)


def executed(words: Sequence[str]) -> Result:
    """What `meshplan execute` with these words said, and its exit code."""
    return run("execute", *words)


def answer(*words: str) -> tuple[int, str, str]:
    """Its exit code, what it printed and what it said beside; no other exception than an exit."""
    result = run(*words)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr
