"""`meshplan execute`: run a plan for a few steps and compare what it predicted with what it did."""

import shlex
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from meshplan.executor.launch.failures import RankFailed
from meshplan.executor.launch.hugging_face_run import ENGINES as HUGGING_FACE
from meshplan.executor.launch.hugging_face_run import command_of as hugging_face_command
from meshplan.executor.launch.hugging_face_run import ready_for, run_hugging_face
from meshplan.executor.launch.other_engines import (
    NotInstalled,
    command_of,
    export_for,
    run_elsewhere,
)
from meshplan.executor.launch.plan_engine import (
    check_can_start,
    engine_of,
    for_engine,
    repriced_line,
)
from meshplan.executor.launch.preflight import (
    CannotRun,
    check_data,
    check_host,
    check_rendezvous,
    nodes_of,
    notices,
    place,
    profile_of,
    sbatch_options,
)
from meshplan.executor.launch.probe import Found, NoTorch, find_hardware
from meshplan.executor.launch.report import print_result, print_tournament
from meshplan.executor.launch.results import RunResult
from meshplan.executor.launch.run import (
    RANKS,
    TIMEOUT_S,
    RunSettings,
    job_of,
    run_plan,
    tournament,
)
from meshplan.executor.launch.slurm import SlurmFailed
from meshplan.executor.launch.start import Launcher, Starter
from meshplan.executor.launch.torchrun import Interrupted
from meshplan.executor.onerank.command import Wanted, run_one_rank
from meshplan.executor.onerank.report import print_run
from meshplan.hardware_profiles.load import UnknownProfile
from meshplan.hardware_profiles.schema import Cluster
from meshplan.planner.case.plan_file import Plan, UnreadablePlan, read_plan, write_plan
from meshplan.planner.text_files import CannotWrite, write_text

USAGE = (UnreadablePlan, UnknownProfile, CannotRun, CannotWrite, NotInstalled, NoTorch)
FAILED = (RankFailed, SlurmFailed)
EngineName = Literal[
    "native", "torchtitan", "megatron", "nanotron", "accelerate", "deepspeed", "transformers"
]
DeviceName = Literal["cpu", "cuda"]


def execute(
    plan: Annotated[Path, typer.Argument(help="Plan file that `meshplan plan` wrote.")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder of the run [default: PLAN.run].")
    ] = None,
    steps: Annotated[int, typer.Option(help="Timed steps.", min=1)] = 10,
    timeout: Annotated[
        float,
        typer.Option(help="Seconds without progress of any rank after which it failed.", min=1),
    ] = TIMEOUT_S,
    warmup: Annotated[int, typer.Option(help="Steps before them.", min=0)] = 3,
    band: Annotated[
        float | None,
        typer.Option(help="Accepted error of the step time [default: the plan's own].", min=0),
    ] = None,
    top: Annotated[
        int, typer.Option(help="Run the best K layouts of the plan, keep the fastest.", min=1)
    ] = 1,
    engine: Annotated[
        EngineName | None, typer.Option(help="What trains; unless said, the plan's own engine.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Flat token file; without it, synthetic tokens.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="Profile that priced the plan, where it is a file.")
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(help="Hosts [default: 1; with slurm, as many as the ranks fill].", min=1),
    ] = None,
    rendezvous: Annotated[
        str | None, typer.Option(help="HOST:PORT; run the same command on every host.")
    ] = None,
    launcher: Annotated[Launcher, typer.Option(help="What starts them.")] = Launcher.torchrun,
    slurm: Annotated[
        str, typer.Option(help="Further sbatch options: '--partition=gpu --gpus-per-node=8'.")
    ] = "",
    print_only: Annotated[
        bool, typer.Option("--print", help="Show what would be started, and stop.")
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(help="Write the predicted and the measured step as one Chrome trace here."),
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Build one rank without devices, at full size.")
    ] = False,
    rank: Annotated[
        int | None, typer.Option(help="Rank of --dry-run or --one-rank [default: 0].")
    ] = None,
    all_stages: Annotated[
        bool,
        typer.Option(
            "--all-stages",
            "--every-stage",
            help="With --dry-run or --one-rank: one rank of every stage.",
        ),
    ] = False,
    one_rank: Annotated[
        bool,
        typer.Option("--one-rank", help="Run one rank for real; the other ranks are answered for."),
    ] = False,
    device: Annotated[
        DeviceName | None, typer.Option(help="Of --one-rank [default: what is at hand].")
    ] = None,
    all_micro_batches: Annotated[
        bool, typer.Option("--all-micro-batches", help="With --one-rank: not only a periodic few.")
    ] = False,
) -> None:
    """Run a plan for a few steps and print predicted against measured.

    Exit 0 inside the band, 3 outside it, 1 when a rank failed, hung or diverged, 2 when the plan
    cannot be run here: a plan for GPUs is never started on a host without them.

    Example: meshplan execute plan.yaml --steps 10
    """
    if (device or all_micro_batches) and not one_rank:
        typer.echo("error: --device and --all-micro-batches belong to --one-rank; add it", err=True)
        raise typer.Exit(2)
    if dry_run:
        raise typer.Exit(_dry_run(plan, rank, all_stages=all_stages, json_output=json_output))
    if one_rank:
        wanted = Wanted(
            rank=rank or 0, every_stage=all_stages, device=device, cluster=cluster,
            warmup=warmup, steps=steps, all_micro_batches=all_micro_batches,
        )  # fmt: skip
        raise typer.Exit(_one_rank(plan, wanted, json_output=json_output))
    folder = (out or plan.with_suffix(".run")).resolve()
    try:
        starter = Starter(launcher=launcher, slurm=sbatch_options(slurm))
        asked = _on_engine(read_plan(plan), engine, cluster, starter, started=not print_only)
        if trace and (top > 1 or asked.engine != "native"):
            raise CannotRun(
                "--trace is of one run by the native engine: leave out --top, and add "
                "--engine native"
            )
        where = Where(
            nodes=nodes, rendezvous=rendezvous, cluster=cluster, data=data, started=not print_only
        )
        settings = _settings(asked, starter, where)
        settings = replace(
            settings, steps=steps, warmup=warmup, band=band, data=data, timeout_s=timeout,
            spans=trace is not None,
        )  # fmt: skip
        if print_only:
            typer.echo(_shown(asked, settings, folder))
            return
        result = _run(asked, settings, folder, top=top, console=Console(stderr=json_output))
        if trace:
            _write_trace(trace, asked, profile_of(asked, cluster), folder / RANKS)
    except USAGE as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    except FAILED as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    except Interrupted as error:
        typer.echo(f"{error}; what was measured is in {folder}", err=True)
        raise typer.Exit(130) from None
    if json_output:
        typer.echo(result.model_dump_json(indent=1))
    raise typer.Exit(3 if result.inside_band is False else 0)


def _write_trace(path: Path, plan: Plan, priced_by: Cluster | None, ranks: Path) -> None:
    from meshplan.executor.launch.measured_trace import measured_trace

    write_text(path, measured_trace(plan, priced_by, ranks))
    typer.echo(f"wrote {path}; open it at ui.perfetto.dev", err=True)


def _on_engine(
    plan: Plan, engine: EngineName | None, cluster: str | None, starter: Starter, *, started: bool
) -> Plan:
    """The plan for the engine that runs it: its own, or the one asked for, priced anew."""
    name, priced_by = engine_of(plan, engine), profile_of(plan, cluster)
    if starter.launcher is Launcher.slurm and name != "native":
        raise CannotRun(f"--launcher slurm starts the native engine only, not {name}")
    if started:
        check_can_start(name, Path.cwd(), priced_by)
    ready = for_engine(plan, name, priced_by)
    if ready is not plan:
        typer.echo(f"note: {repriced_line(plan, ready)}", err=True)
    return ready


def _dry_run(plan: Path, rank: int | None, *, all_stages: bool, json_output: bool) -> int:
    """The engine's own program of one rank with fake tensors; its exit code."""
    which = ["--all-stages"] if all_stages else [] if rank is None else ["--rank", str(rank)]
    shown = ["--json"] if json_output else []
    command = [sys.executable, "-m", "meshplan.executor.dryrun.dry_run", str(plan), *which, *shown]
    return subprocess.run(command, check=False).returncode


def _one_rank(plan: Path, wanted: Wanted, *, json_output: bool) -> int:
    """One rank of the plan, or one of every stage, for real on this device; its exit code."""
    try:
        run, said = run_one_rank(read_plan(plan), wanted)
    except USAGE as error:
        typer.echo(f"error: {error}", err=True)
        return 2
    except RankFailed as error:
        typer.echo(f"error: {error}", err=True)
        return 1
    for line in said:
        typer.echo(f"note: {line}", err=True)
    if json_output:
        typer.echo(run.model_dump_json(indent=1))
    else:
        print_run(run, Console())
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Where the ranks go; `started`: they will be, not only printed."""

    nodes: int | None
    rendezvous: str | None
    cluster: str | None
    data: Path | None
    started: bool


FIRST_HOST = "FIRST_HOST:29500"
"""Stands in a printed command for what only its reader knows."""


def _settings(plan: Plan, starter: Starter, where: Where) -> RunSettings:
    """Preflight: where the ranks go, and what the user should know before they start."""
    by_hand = starter.launcher is Launcher.torchrun
    if where.nodes and where.nodes > 1 and where.rendezvous is None and by_hand:
        raise CannotRun(
            f"--nodes {where.nodes} needs --rendezvous HOST:PORT, and the same command on every "
            "host; or --launcher slurm"
        )
    if where.rendezvous is not None:
        check_rendezvous(where.rendezvous)
    found = find_hardware() if by_hand else None
    priced_by = profile_of(plan, where.cluster)
    for_cpus = priced_by is not None and priced_by.gpu.vendor == "cpu"
    if found and for_cpus:
        found = found.as_cpu()
    here = by_hand and where.started
    nodes = where.nodes or (1 if here or for_cpus else nodes_of(plan, priced_by))
    placement = place(plan, nodes, found if where.started or nodes == 1 else None)
    if found and where.started:
        if where.data is not None:
            check_data(where.data)
        check_host(plan, placement, found, priced_by)
        for line in notices(plan, placement, found, priced_by):
            typer.echo(f"note: {line}", err=True)
    return RunSettings(
        placement=placement,
        starter=starter,
        rendezvous=where.rendezvous or (FIRST_HOST if by_hand and nodes > 1 else None),
        device="cpu" if for_cpus else "cuda",
        versions=_versions(found),
        gpu=priced_by.gpu.name if priced_by else None,
    )


def _versions(found: Found | None) -> dict[str, str]:
    if found is None:
        return {}
    said = {"torch": found.torch, "device": found.name, "host": found.host}
    return {**said, "cuda": found.cuda} if found.cuda else said


def _shown(plan: Plan, settings: RunSettings, out: Path) -> str:
    if plan.engine == "native":
        return settings.starter.shown(job_of(settings, out), out)
    if plan.engine in HUGGING_FACE:
        exported = ready_for(plan, settings)
        command = shlex.join(hugging_face_command(exported, settings, out))
        written = ", ".join(exported.files)
        return f"# `meshplan export` writes {written} into {out}\n{command}"
    exported = export_for(plan.engine, plan, settings)
    files = (f"# {out / name}\n{text}" for name, text in exported.files.items())
    return "\n".join([*files, command_of(exported, out)])


def _run(plan: Plan, settings: RunSettings, out: Path, *, top: int, console: Console) -> RunResult:
    """The run, or the best of a tournament; prints the comparison."""
    if top == 1:
        result = _run_one(plan, settings, out)
        print_result(result, console)
        return result
    ranking = tournament(
        plan, top, lambda each, number: _run_one(each, settings, out / str(number))
    )
    print_tournament(ranking, console)
    winner, result = ranking[0]
    write_plan(winner.plan, out / "best.yaml")
    typer.echo(f"the fastest is {out / 'best.yaml'}", err=True)
    return result


def _run_one(plan: Plan, settings: RunSettings, out: Path) -> RunResult:
    if plan.engine == "native":
        return run_plan(plan, settings, out)
    if plan.engine in HUGGING_FACE:
        return run_hugging_face(plan, settings, out)
    return run_elsewhere(plan.engine, plan, settings, out)
