"""One rank of a plan, or one of every stage, without the others: dry, or for real."""

import subprocess
import sys
import tempfile
from pathlib import Path

import typer

from meshplan.executor.launch.failures import RankFailed
from meshplan.executor.launch.plan_engine import for_engine, repriced_line
from meshplan.executor.launch.preflight import profile_of
from meshplan.executor.launch.probe import check_torch
from meshplan.executor.onerank.command import Wanted, run_one_rank
from meshplan.executor.onerank.report import print_run
from meshplan.hardware_profiles.engines import NATIVE
from meshplan.planner.case.plan_file import read_plan, write_plan
from meshplan.planner.report.terminal import as_written


def run_dry(
    path: Path, cluster: str | None, rank: int | None, *, all_stages: bool, as_json: bool
) -> int:
    """The native engine's own program of one rank with fake tensors, beside what is predicted for
    that engine; its exit code. Raises `NoTorch`.
    """
    check_torch()
    which = ["--all-stages"] if all_stages else [] if rank is None else ["--rank", str(rank)]
    shown = ["--json"] if as_json else []
    plan = read_plan(path)
    native = for_engine(plan, NATIVE, profile_of(plan, cluster))
    if native is not plan:
        typer.echo(f"note: {repriced_line(plan, native)}", err=True)
    with tempfile.TemporaryDirectory() as folder:
        priced = Path(folder) / "plan.yaml"
        write_plan(native, priced)
        command = [sys.executable, "-m", "meshplan.executor.dryrun.dry_run", str(priced)]
        return subprocess.run([*command, *which, *shown], check=False).returncode


def run_for_real(plan: Path, wanted: Wanted, *, as_json: bool) -> int:
    """One rank of the plan, or one of every stage, for real on this device; its exit code."""
    try:
        run, said = run_one_rank(read_plan(plan), wanted)
    except RankFailed as error:
        typer.echo(f"error: {error}", err=True)
        return 1
    for line in said:
        typer.echo(f"note: {line}", err=True)
    if as_json:
        typer.echo(run.model_dump_json(indent=1))
    else:
        print_run(run, as_written())
    return 0
