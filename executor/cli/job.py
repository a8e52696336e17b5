"""What `meshplan execute` does with the ranks of a plan: write, print, submit, collect or run."""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import typer
from rich.console import Console

from meshplan.executor.cli.placing import Where, settings_of
from meshplan.executor.launch.hugging_face_run import ENGINES as HUGGING_FACE
from meshplan.executor.launch.hugging_face_run import command_of as hugging_face_command
from meshplan.executor.launch.hugging_face_run import ready_for, run_hugging_face
from meshplan.executor.launch.other_engines import command_of, export_for, run_elsewhere
from meshplan.executor.launch.plan_engine import (
    check_can_start,
    engine_of,
    for_engine,
    repriced_line,
)
from meshplan.executor.launch.preflight import CannotRun, profile_of
from meshplan.executor.launch.report import print_result, print_tournament
from meshplan.executor.launch.results import RunResult
from meshplan.executor.launch.run import (
    RANKS,
    RESULT_FILE,
    RunSettings,
    collect_plan,
    job_of,
    run_plan,
    submit_plan,
)
from meshplan.executor.launch.slurm import cancel, submitted
from meshplan.executor.launch.start import Launcher, Starter
from meshplan.executor.launch.tournament import contenders, heats, tournament
from meshplan.executor.launch.written import FILES as WRITTEN
from meshplan.executor.launch.written import file_text, write_file
from meshplan.hardware_profiles.engines import NATIVE
from meshplan.hardware_profiles.local_cpu import NOT_MEASURED, is_unmeasured
from meshplan.hardware_profiles.schema import Cluster
from meshplan.planner.case.plan_file import Plan, read_plan, write_plan
from meshplan.planner.case.reading import python_path
from meshplan.planner.text_files import check_writable, write_text

EngineName = Literal[
    "native", "torchtitan", "megatron", "nanotron", "accelerate", "deepspeed", "transformers"
]
JobPart = Literal["run", "submit", "collect", "cancel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The options of one `meshplan execute` that is of every rank.

    plan, engine  the plan file, and what trains it: the plan's own engine where None
    job           which part of a job under Slurm; `run` is the whole of it, and of any launcher
    top           how many of the plan's layouts are raced
    trace         where the Chrome trace goes, None: none is written
    starter       what starts the ranks
    given         KEY=VALUE of a launcher whose job is written, not started
    where         on which hosts
    folder        of the run
    steps, warmup, band, timeout_s   as in `RunSettings`
    """

    plan: Path
    engine: EngineName | None
    job: JobPart
    top: int
    trace: Path | None
    starter: Starter
    given: dict[str, str]
    where: Where
    folder: Path
    steps: int
    warmup: int
    band: float | None
    timeout_s: float


def carry_out(order: Order, console: Console) -> RunResult | None:
    """Do what was ordered and print it: what was measured, None where nothing was to be.

    Raises what `planner.cli.main` has an exit code for, `RankFailed`, `SlurmFailed` and
    `Interrupted` for what went wrong on the way.
    """
    _check_job(order)
    _check_folder(order.folder)
    plan = read_plan(order.plan)
    if order.job != "cancel":  # which predicts nothing and compares nothing
        plan = _on_engine(plan, order)
    _check_trace(order, plan)
    settings = replace(
        settings_of(plan, order.starter, order.where), steps=order.steps, warmup=order.warmup,
        band=order.band, data=order.where.data, timeout_s=order.timeout_s,
        spans=order.trace is not None,
    )  # fmt: skip
    told = _without_a_run(order, plan, settings)
    if told is not None:
        typer.echo(told)
        return None
    if order.job == "collect":
        result = collect_plan(settings, order.folder)
        print_result(result, console)
    else:
        result = _run(plan, settings, order.folder, top=order.top, console=console)
    if result.inside_band is False and is_unmeasured(order.where.cluster or plan.cluster.name):
        typer.echo(f"note: the plan is priced by {NOT_MEASURED}", err=True)
    if order.trace:
        priced_by = profile_of(plan, order.where.cluster)
        _write_trace(order.trace, plan, priced_by, order.folder / RANKS)
    return result


def _without_a_run(order: Order, plan: Plan, settings: RunSettings) -> str | None:
    """What is said where nothing is measured: a file for another launcher, a command, a job's
    number. None where the plan is to be run, or its job followed.
    """
    if order.starter.launcher in WRITTEN and order.job == "run":
        return _file_for_launcher(order, plan, settings)
    if not order.where.started:
        return _shown(plan, settings, order.folder)
    if order.job in ("submit", "cancel"):
        return _submitted_or_cancelled(order.job, plan, settings, order.folder)
    return None


def _file_for_launcher(order: Order, plan: Plan, settings: RunSettings) -> str:
    priced_by = profile_of(plan, order.where.cluster)
    gpu = priced_by.gpu if priced_by else None
    text = file_text(plan, settings, order.given, gpu, order.folder)
    if order.where.started:
        return write_file(text, plan, settings, order.given, order.folder)
    return text


def _check_trace(order: Order, plan: Plan) -> None:
    """Raise `CannotRun` for a trace of what records none, and `CannotWrite` before the run for one
    that could not be written after it.
    """
    if order.trace and (order.top > 1 or plan.engine != NATIVE):
        raise CannotRun(
            "--trace is of one run by the native engine: leave out --top, and add --engine native"
        )
    check_writable(order.trace, read=[order.plan])


def _on_engine(plan: Plan, order: Order) -> Plan:
    """The plan for the engine that runs it: its own, or the one asked for, priced anew."""
    name, priced_by = engine_of(plan, order.engine), profile_of(plan, order.where.cluster)
    launcher = order.starter.launcher
    if launcher is not Launcher.torchrun and name != NATIVE:
        raise CannotRun(f"--launcher {launcher} is for the native engine only, not {name}")
    if order.where.started:
        check_can_start(name, Path.cwd(), priced_by)
    ready = for_engine(plan, name, priced_by)
    if ready is not plan:
        typer.echo(f"note: {repriced_line(plan, ready)}", err=True)
    return ready


def _check_job(order: Order) -> None:
    """Raise `CannotRun` for a part of a job where there is no job that outlives the command."""
    job, launcher = order.job, order.starter.launcher
    if job == "run":
        return
    if launcher is Launcher.torchrun or (launcher in WRITTEN and job != "collect"):
        raise CannotRun(f"--job {job} is of a job under Slurm; add --launcher slurm")
    if job != "submit" and not order.where.started:
        raise CannotRun(f"--job {job} starts nothing that --print could show; drop one")
    if order.top > 1:
        raise CannotRun(
            f"--job {job} is of one job, and --top {order.top} of {order.top}; give --job run"
        )


def _check_folder(folder: Path) -> None:
    """Raise `CannotRun` for a folder that is more than a line of the scripts that name it."""
    if not str(folder).isprintable():
        raise CannotRun(
            f"the folder of the run, {str(folder)!r}, is not a printable line of text; give "
            "another with --out"
        )


def _submitted_or_cancelled(job: JobPart, plan: Plan, settings: RunSettings, out: Path) -> str:
    """Do the one or the other, and say what was done."""
    if job == "submit":
        number = submit_plan(plan, settings, out)
        return f"submitted Slurm job {number}; the same command with --job collect follows it"
    number = submitted(out)
    cancel(number)
    return f"cancelled Slurm job {number}"


def _shown(plan: Plan, settings: RunSettings, out: Path) -> str:
    if plan.engine == NATIVE:
        return settings.starter.shown(job_of(settings, out), out)
    if plan.engine in HUGGING_FACE:
        exported = ready_for(plan, settings)
        command = shlex.join(hugging_face_command(exported, settings, out))
        written = ", ".join(exported.files)
        return f"# `meshplan export` writes {written} into {out}\n{command}"
    exported = export_for(plan.engine, plan, settings)
    files = (f"# {out / name}\n{text}" for name, text in exported.files.items())
    path = python_path(exported.launch, exported.files, out)
    return "\n".join([*files, path + command_of(exported, out)])


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
    if plan.engine == NATIVE:
        return run_plan(plan, settings, out)
    if plan.engine in HUGGING_FACE:
        return run_hugging_face(plan, settings, out)
    return run_elsewhere(plan.engine, plan, settings, out)


def _write_trace(path: Path, plan: Plan, priced_by: Cluster | None, ranks: Path) -> None:
    from meshplan.executor.launch.measured_trace import measured_trace

    write_text(path, measured_trace(plan, priced_by, ranks))
    typer.echo(f"wrote {path}; open it at ui.perfetto.dev", err=True)
