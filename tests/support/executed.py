"""`meshplan execute` as it is called, its errors one line and an exit code."""

from collections.abc import Sequence

from typer.testing import CliRunner, Result

from meshplan.planner.cli.main import app


def executed(words: Sequence[str]) -> Result:
    """What the command with these words said, and its exit code."""
    return CliRunner().invoke(app, ["execute", *words])
