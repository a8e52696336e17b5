"""`meshplan execute`: run a plan for a few steps and compare what it predicted with what it did."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from meshplan.executor.cli import execute_options as options
from meshplan.executor.cli.job import EngineName, Order, carry_out
from meshplan.executor.cli.placing import Where
from meshplan.executor.cli.single_rank import run_dry, run_for_real
from meshplan.executor.launch.failures import RankFailed
from meshplan.executor.launch.preflight import sbatch_options
from meshplan.executor.launch.run import TIMEOUT_S
from meshplan.executor.launch.slurm import SlurmFailed
from meshplan.executor.launch.start import Launcher, Starter
from meshplan.executor.launch.torchrun import Interrupted
from meshplan.executor.launch.written import given_of
from meshplan.executor.onerank.command import Wanted
from meshplan.hardware_profiles.engines import NATIVE
from meshplan.planner.cli.options import AsJson
from meshplan.planner.report.terminal import as_written


def execute(
    context: typer.Context,
    plan: options.Plan,
    out: options.Out = None,
    steps: options.Steps = 10,
    timeout: options.Timeout = TIMEOUT_S,
    warmup: options.Warmup = 3,
    band: options.Band = None,
    top: options.Top = 1,
    engine: options.Engine = None,
    data: options.Data = None,
    cluster: options.Cluster = None,
    nodes: options.Nodes = None,
    rendezvous: options.Rendezvous = None,
    launcher: options.Launcher = Launcher.torchrun,
    slurm: options.Slurm = "",
    given: options.Given = None,
    job: options.Job = "run",
    print_only: options.PrintOnly = False,
    trace: options.Trace = None,
    as_json: AsJson = False,
    dry_run: options.DryRun = False,
    rank: options.Rank = None,
    all_stages: options.AllStages = False,
    one_rank: options.OneRank = False,
    device: options.Device = None,
    all_micro_batches: options.AllMicroBatches = False,
) -> None:
    """Run a plan for a few steps and print predicted against measured.

    Exit 0: inside the band, 3: outside it, 1: a rank failed, hung or diverged, 2: the plan cannot
    run here (a plan for GPUs never starts on a host without them).

    Example: meshplan execute plan.yaml --steps 10
    """
    _check_single(
        engine=engine, one_rank=one_rank, single=dry_run or one_rank,
        of_one_rank=bool(device or all_micro_batches), of_single=rank is not None or all_stages,
        printed_json=print_only and as_json,
    )  # fmt: skip
    if dry_run or one_rank:
        _check_taken(context, _OF_DRY_RUN if dry_run else _OF_ONE_RANK)
    if dry_run:
        raise typer.Exit(run_dry(plan, cluster, rank, all_stages=all_stages, as_json=as_json))
    if one_rank:
        wanted = Wanted(
            rank=rank or 0, every_stage=all_stages, device=device, cluster=cluster,
            warmup=warmup, steps=steps, all_micro_batches=all_micro_batches,
        )  # fmt: skip
        raise typer.Exit(run_for_real(plan, wanted, as_json=as_json))
    folder = (out or plan.parent / f"{plan.stem}.run").absolute()
    with _ends(folder, launcher):
        order = Order(
            plan=plan, engine=engine, job=job, top=top, trace=trace,
            where=Where(
                nodes=nodes, rendezvous=rendezvous, cluster=cluster, data=data,
                started=not print_only,
            ),
            folder=folder,
            starter=Starter(launcher=launcher, slurm=sbatch_options(slurm, launcher)),
            given=given_of(launcher, given or ()),
            steps=steps, warmup=warmup, band=band, timeout_s=timeout,
        )  # fmt: skip
        result = carry_out(order, as_written(stderr=as_json))
    if result is None:
        return
    if as_json:
        typer.echo(result.model_dump_json(indent=1))
    raise typer.Exit(3 if result.inside_band is False else 0)


_OF_DRY_RUN = frozenset(("plan", "engine", "cluster", "as_json", "dry_run", "rank", "all_stages"))
_OF_ONE_RANK = _OF_DRY_RUN - {"dry_run"} | {
    "one_rank", "warmup", "steps", "device", "all_micro_batches",
}  # fmt: skip
"""What one rank alone takes, by the names of `execute`'s parameters."""


def _check_taken(context: typer.Context, taken: Collection[str]) -> None:
    """Exit 2 where the command line gives an option that a rank alone does not take."""
    given = [
        option for option in context.command.params
        if option.name not in taken
        and (source := context.get_parameter_source(str(option.name))) is not None
        and source.name == "COMMANDLINE"
    ]  # fmt: skip
    if given:
        kind = "--dry-run" if "dry_run" in taken else "--one-rank"
        names = ", ".join(option.opts[-1] for option in given)
        typer.echo(f"error: {kind} does not take {names}: leave them out", err=True)
        raise typer.Exit(2)


@contextmanager
def _ends(folder: Path, launcher: Launcher) -> Iterator[None]:
    """What ends a run early is an exit code, behind all that a rank or Slurm said of it."""
    try:
        yield
    except (RankFailed, SlurmFailed) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    except Interrupted as error:
        again = "; --job collect follows it again" if launcher is Launcher.slurm else ""
        typer.echo(f"{error}; what was measured is in {folder}{again}", err=True)
        raise typer.Exit(130) from None


def _check_single(
    *,
    engine: EngineName | None,
    one_rank: bool,
    single: bool,
    of_one_rank: bool,
    of_single: bool,
    printed_json: bool,
) -> None:
    """Exit 2 for an option of `--one-rank` or `--dry-run` where neither runs, for an engine that
    they are not of, and for what is printed as JSON, which only a run is.
    """
    if printed_json:
        wrong = "--print shows files and a command, --json the result of a run; drop one"
    elif of_one_rank and not one_rank:
        wrong = "--device and --all-micro-batches belong to --one-rank; add it"
    elif of_single and not single:
        wrong = "--rank and --all-stages belong to --dry-run or --one-rank; add one of them"
    elif single and engine not in (None, NATIVE):
        wrong = (
            f"--dry-run and --one-rank run the native engine, not {engine}; leave out --engine, "
            "and the layout is priced for native"
        )
    else:
        return
    typer.echo(f"error: {wrong}", err=True)
    raise typer.Exit(2)
