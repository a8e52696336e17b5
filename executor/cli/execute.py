"""`meshplan execute`: run a plan for a few steps and compare what it predicted with what it did."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from meshplan.executor.cli.placing import USAGE, Where, settings_of
from meshplan.executor.cli.single_rank import run_dry, run_for_real
from meshplan.executor.launch.failures import RankFailed
from meshplan.executor.launch.hugging_face_run import ENGINES as HUGGING_FACE
from meshplan.executor.launch.hugging_face_run import command_of as hugging_face_command
from meshplan.executor.launch.hugging_face_run import ready_for, run_hugging_face
from meshplan.executor.launch.other_engines import (
    command_of,
    export_for,
    run_elsewhere,
)
from meshplan.executor.launch.plan_engine import (
    NATIVE,
    check_can_start,
    engine_of,
    for_engine,
    repriced_line,
)
from meshplan.executor.launch.preflight import (
    CannotRun,
    profile_of,
    sbatch_options,
)
from meshplan.executor.launch.report import print_result, print_tournament
from meshplan.executor.launch.results import RunResult
from meshplan.executor.launch.run import (
    RANKS,
    RESULT_FILE,
    TIMEOUT_S,
    RunSettings,
    collect_plan,
    job_of,
    run_plan,
    submit_plan,
)
from meshplan.executor.launch.slurm import SlurmFailed, cancel, submitted
from meshplan.executor.launch.start import Launcher, Starter
from meshplan.executor.launch.torchrun import Interrupted
from meshplan.executor.launch.tournament import contenders, heats, tournament
from meshplan.executor.launch.written import FILES as WRITTEN
from meshplan.executor.launch.written import file_text, given_of, write_file
from meshplan.executor.onerank.command import Wanted
from meshplan.hardware_profiles.schema import Cluster
from meshplan.planner.case.plan_file import Plan, read_plan, write_plan
from meshplan.planner.cli.options import AsJson
from meshplan.planner.text_files import write_text

FAILED = (RankFailed, SlurmFailed)
EngineName = Literal[
    "native", "torchtitan", "megatron", "nanotron", "accelerate", "deepspeed", "transformers"
]
DeviceName = Literal["cpu", "cuda"]
JobPart = Literal["run", "submit", "collect", "cancel"]


def execute(
    plan: Annotated[Path, typer.Argument(help="Plan file that `meshplan plan` wrote.")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder of the run; PLAN.run unless said.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Timed steps.", min=1)] = 10,
    timeout: Annotated[
        float,
        typer.Option(help="Seconds without progress of any rank after which it failed.", min=1),
    ] = TIMEOUT_S,
    warmup: Annotated[int, typer.Option(help="Steps before them.", min=0)] = 3,
    band: Annotated[
        float | None,
        typer.Option(help="Accepted error of the step time (the plan's own).", min=0),
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
        typer.Option(help="Hosts: 1; with slurm as many as the ranks fill.", min=1),
    ] = None,
    rendezvous: Annotated[
        str | None, typer.Option(help="HOST:PORT; run the same command on every host.")
    ] = None,
    launcher: Annotated[Launcher, typer.Option(help="What starts them.")] = Launcher.torchrun,
    slurm: Annotated[
        str, typer.Option(help="Further sbatch options: '--partition=gpu --gpus-per-node=8'.")
    ] = "",
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="KEY=VALUE of --launcher skypilot or kubeflow, such as image=IMAGE."
        ),
    ] = None,
    job: Annotated[
        JobPart,
        typer.Option(
            help="With slurm: submit and follow the job, only submit it, follow it to its end and "
            "collect what it measured, or cancel it."
        ),
    ] = "run",
    print_only: Annotated[
        bool, typer.Option("--print", help="Show what would be started, and stop.")
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(help="Write the predicted and the measured step as one Chrome trace here."),
    ] = None,
    as_json: AsJson = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Build one rank without devices, at full size.")
    ] = False,
    rank: Annotated[
        int | None, typer.Option(min=0, help="Rank of --dry-run or --one-rank; 0 unless said.")
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
        DeviceName | None, typer.Option(help="Of --one-rank; what is at hand unless said.")
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
    if (rank is not None or all_stages) and not (dry_run or one_rank):
        typer.echo(
            "error: --rank and --all-stages say of what --dry-run or --one-rank is", err=True
        )
        raise typer.Exit(2)
    if (dry_run or one_rank) and engine not in (None, NATIVE):
        typer.echo(
            f"error: --dry-run and --one-rank are of the native engine, not of {engine}; leave out "
            "--engine, and the layout is priced for native", err=True,
        )  # fmt: skip
        raise typer.Exit(2)
    if dry_run:
        raise typer.Exit(run_dry(plan, cluster, rank, all_stages=all_stages, as_json=as_json))
    if one_rank:
        wanted = Wanted(
            rank=rank or 0, every_stage=all_stages, device=device, cluster=cluster,
            warmup=warmup, steps=steps, all_micro_batches=all_micro_batches,
        )  # fmt: skip
        raise typer.Exit(run_for_real(plan, wanted, as_json=as_json))
    folder = (out or plan.with_suffix(".run")).resolve()
    try:
        _check_job(job, launcher, top)
        values = given_of(launcher, given or ())
        starter = Starter(launcher=launcher, slurm=sbatch_options(slurm))
        asked = read_plan(plan)
        if job != "cancel":  # which predicts nothing and compares nothing
            asked = _on_engine(asked, engine, cluster, starter, started=not print_only)
        if trace and (top > 1 or asked.engine != "native"):
            raise CannotRun(
                "--trace is of one run by the native engine: leave out --top, and add "
                "--engine native"
            )
        where = Where(
            nodes=nodes, rendezvous=rendezvous, cluster=cluster, data=data, started=not print_only
        )
        settings = settings_of(asked, starter, where)
        settings = replace(
            settings, steps=steps, warmup=warmup, band=band, data=data, timeout_s=timeout,
            spans=trace is not None,
        )  # fmt: skip
        if launcher in WRITTEN and job == "run":
            priced_by = profile_of(asked, cluster)
            text = file_text(asked, settings, values, priced_by.gpu if priced_by else None, folder)
            if not print_only:
                text = write_file(text, asked, settings, values, folder)
            typer.echo(text)
            return
        if print_only:
            typer.echo(_shown(asked, settings, folder))
            return
        if job in ("submit", "cancel"):
            typer.echo(_submitted_or_cancelled(job, asked, settings, folder))
            return
        console = Console(stderr=as_json)
        if job == "collect":
            result = collect_plan(settings, folder)
            print_result(result, console)
        else:
            result = _run(asked, settings, folder, top=top, console=console)
        if trace:
            _write_trace(trace, asked, profile_of(asked, cluster), folder / RANKS)
    except USAGE as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    except FAILED as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    except Interrupted as error:
        again = "; --job collect follows it again" if launcher is Launcher.slurm else ""
        typer.echo(f"{error}; what was measured is in {folder}{again}", err=True)
        raise typer.Exit(130) from None
    if as_json:
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
    if starter.launcher is not Launcher.torchrun and name != "native":
        raise CannotRun(f"--launcher {starter.launcher} is for the native engine only, not {name}")
    if started:
        check_can_start(name, Path.cwd(), priced_by)
    ready = for_engine(plan, name, priced_by)
    if ready is not plan:
        typer.echo(f"note: {repriced_line(plan, ready)}", err=True)
    return ready


def _check_job(job: JobPart, launcher: Launcher, top: int) -> None:
    """Raise `CannotRun` for a part of a job where there is no job that outlives the command."""
    if job == "run":
        return
    if launcher is Launcher.torchrun or (launcher in WRITTEN and job != "collect"):
        raise CannotRun(f"--job {job} is of a job under Slurm; add --launcher slurm")
    if top > 1:
        raise CannotRun(f"--job {job} is of one job, and --top {top} of {top}; give --job run")


def _submitted_or_cancelled(job: JobPart, plan: Plan, settings: RunSettings, out: Path) -> str:
    """Do the one or the other, and say what was done."""
    if job == "submit":
        number = submit_plan(plan, settings, out)
        return f"submitted Slurm job {number}; the same command with --job collect follows it"
    number = submitted(out)
    cancel(number)
    return f"cancelled Slurm job {number}"


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
    entered = contenders(plan, top)
    ranking = tournament(
        entered,
        lambda each, number, steps: _run_one(
            each, replace(settings, steps=steps), out / str(number)
        ),
        heats(len(entered), settings.steps, settings.warmup),
    )
    print_tournament(ranking, console)
    winner, result = ranking[0]
    write_plan(winner.plan, out / "best.yaml")
    typer.echo(f"the fastest is {out / 'best.yaml'}", err=True)
    numbers = range(1, len(entered) + 1)
    found = " ".join(str(out / str(number) / RESULT_FILE) for number in numbers)
    typer.echo(_next_plan(found, out / "learned.yaml"), err=True)
    return result


def _next_plan(results: str, learned: Path) -> str:
    """How what was measured goes into the next plan."""
    return (
        f"the next plan can learn from all of them: meshplan learn {results} -o {learned}; then "
        f"meshplan plan ... --learned {learned}"
    )


def _run_one(plan: Plan, settings: RunSettings, out: Path) -> RunResult:
    if plan.engine == "native":
        return run_plan(plan, settings, out)
    if plan.engine in HUGGING_FACE:
        return run_hugging_face(plan, settings, out)
    return run_elsewhere(plan.engine, plan, settings, out)
