"""`meshplan profile`: starts the measuring processes, shows their progress, says what was written.

Imports no torch: `executor.profile.session` measures, in processes of its own. A process that
already is a rank of a job (torchrun or srun started it) measures as that rank instead.
"""

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Table

from meshplan.costmodels.units import GB, TFLOPS, format_bytes, format_seconds
from meshplan.executor.launch.failures import RankFailed
from meshplan.executor.launch.preflight import RANKS_PER_CORE, CannotRun, sbatch_options
from meshplan.executor.launch.probe import Found, find_hardware
from meshplan.executor.launch.slurm import SlurmFailed, cancel, submitted
from meshplan.executor.launch.start import Launcher, Starter, become_rank, is_rank
from meshplan.executor.launch.torchrun import CPU_ENVIRONMENT, Interrupted, TorchrunJob
from meshplan.executor.profile.options import Options
from meshplan.executor.profile.progress import Bar
from meshplan.executor.profile.record import partial_path
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.local_cpu import num_cores
from meshplan.hardware_profiles.schema import Cluster
from meshplan.planner.cli.options import panel
from meshplan.planner.profiles.plot import bus_bandwidth
from meshplan.planner.report.terminal import as_written
from meshplan.planner.text_files import CannotWrite, check_writable

QUICK_LIMIT_S = 105.0  # with starting the processes and writing, under two minutes on a busy host
MOST_CPU_RANKS = 8  # more processes than this on one host measure its contention, not its cores


option, where = panel("The measurement"), panel("Where it runs")


def profile(
    out: Annotated[Path, option("Profile to write (TOML).", "-o", "--out")],
    quick: Annotated[bool, option("Fewer shapes, in under two minutes.", "--quick")] = False,
    minutes: Annotated[float, option("Time limit in minutes, without --quick.", min=1.0)] = 15.0,
    device: Annotated[Literal["auto", "cpu", "cuda"], option("Device to measure.")] = "auto",
    processes: Annotated[
        int | None, where("Ranks per host; default: its GPUs, or cores.", min=1)
    ] = None,
    nodes: Annotated[int, where("Hosts, with --launcher slurm.", min=1)] = 1,
    launcher: Annotated[Literal["torchrun", "slurm"], where("What starts the ranks.")] = "torchrun",
    slurm: Annotated[str, where("Further sbatch options: '--partition=gpu --time=30'.")] = "",
    restart: Annotated[
        bool, option("Start anew; drop what an interrupted run measured.", "--restart")
    ] = False,
    print_only: Annotated[bool, where("Show what would be started, and stop.", "--print")] = False,
) -> None:
    """Measure this machine or cluster and write the profile that `plan --cluster` reads.

    Example: meshplan profile -o my-cluster.toml --quick
    """
    options = Options(
        out=out.absolute(),
        quick=quick,
        limit_s=QUICK_LIMIT_S if quick else minutes * 60,
        restart=restart,
        device=device,
        command=shlex.join(["meshplan", *sys.argv[1:]]),
    )
    if is_rank(os.environ):
        _measure_as_rank(options)
        return
    try:
        starter = Starter(launcher=Launcher(launcher), slurm=sbatch_options(slurm, launcher))
        _start(options, starter, nodes=nodes, processes=processes, print_only=print_only)
    except (RankFailed, SlurmFailed) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    except Interrupted as error:
        kept = partial_path(options.out)
        typer.echo(f"{error}; the same command goes on from {kept}", err=True)
        raise typer.Exit(130) from None


def _measure_as_rank(options: Options) -> None:
    from meshplan.executor.profile.session import profile_here

    become_rank()
    profile_here(options)


def _start(
    options: Options, starter: Starter, *, nodes: int, processes: int | None, print_only: bool
) -> None:
    if nodes > 1 and starter.launcher is Launcher.torchrun:
        raise CannotRun(
            f"--nodes {nodes} needs --launcher slurm; without Slurm start `meshplan profile` by "
            "torchrun on every host"
        )
    here = starter.launcher is Launcher.torchrun and not (print_only and processes)
    found = find_hardware() if here else None
    per_node = processes or _ranks_of_a_host(found, options.device)
    out = options.out.with_name(options.out.name + ".run")
    progress = out / "progress.json"
    told = options.model_copy(update={"progress": progress})
    job = TorchrunJob(
        module="meshplan.executor.profile.session",
        arguments=(told.model_dump_json(),),
        processes_per_node=per_node,
        nodes=nodes,
        environment={} if told.device == "cuda" else CPU_ENVIRONMENT,
    )
    if print_only:
        typer.echo(starter.shown(job, out))
        return
    check_writable(options.out)
    if found:
        _check_host(found, options.device, per_node)
    try:
        out.mkdir(exist_ok=True)
    except OSError as error:
        raise CannotWrite(f"cannot write {out}: {error.strerror}") from None
    try:
        with _Watch(progress) as watch:
            starter.start(job, out, watch)
    except Interrupted:
        if starter.launcher is Launcher.torchrun:
            raise
        cancel(submitted(out))
        raise Interrupted(f"cancelled Slurm job {submitted(out)}") from None
    _report(load_cluster(options.out), options.out)


def _ranks_of_a_host(found: Found | None, device: str) -> int:
    if found is None:
        raise SlurmFailed(
            "give --processes: this host cannot tell how many ranks a host of the job takes"
        )
    if device == "cpu" or found.device == "cpu":
        return min(num_cores(), MOST_CPU_RANKS)
    return found.devices


def _check_host(found: Found, device: str, ranks: int) -> None:
    """Raise `CannotRun` for a device that this host lacks, or more ranks than it can carry."""
    if device == "cuda" and found.device != "cuda":
        raise CannotRun(
            "--device cuda: this host has no GPU that torch can use; run it on the cluster, with "
            "--launcher slurm, or measure the host with --device cpu"
        )
    on_gpus = found.device == "cuda" and device != "cpu"
    most = found.devices if on_gpus else RANKS_PER_CORE * num_cores()
    if ranks > most:
        of = f"{found.devices} GPUs" if on_gpus else f"{num_cores()} cores"
        raise CannotRun(f"--processes {ranks}: this host has {of}; at most {most} are started")


class _Watch:
    """Draws what rank 0 leaves in its progress file; called while the job runs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._bar: Bar | None = None

    def __enter__(self) -> "_Watch":
        self._path.unlink(missing_ok=True)
        return self

    def __call__(self) -> None:
        if not self._path.exists():
            return
        state = json.loads(self._path.read_text(encoding="utf-8"))
        if self._bar is None:
            self._bar = Bar(total=state["total"])
        self._bar.show(state["title"], done=state["done"], left_s=state["left_s"])

    def __exit__(self, *error: object) -> None:
        if self._bar:
            self._bar.close()


def slowdowns(shared: dict[str, float]) -> str:
    """How much longer work takes than alone, by kind, in one line."""
    return ", ".join(f"{kind} {factor:.2f}x" for kind, factor in shared.items()) + " of alone"


def busbw_of_all_ranks(cluster: Cluster) -> float:
    """Bus bandwidth of the largest all_reduce of all ranks: of two nodes a tree's, where the
    profile's network has a ring's.
    """
    return bus_bandwidth(
        max(
            (point for point in cluster.collective_points if point.kind == "all_reduce"),
            key=lambda point: (point.nodes * point.ranks_per_node, point.size_bytes),
        )
    )


def _report(cluster: Cluster, out: Path) -> None:
    """What was found, in one table, and what to type next."""
    kernels, node = cluster.kernels, cluster.node
    assert kernels is not None, "a measured profile has kernels"
    table = Table("measured", "", title=cluster.title, box=None)
    for dtype, fraction in kernels.matmul_efficiency.items():
        rate = fraction * cluster.gpu.peak_flops_per_s[dtype] / TFLOPS
        table.add_row(f"matmul {dtype}, sustained", f"{rate:.3g} TFLOP/s, {fraction:.0%} of peak")
    peak = cluster.gpu.memory_bandwidth_bytes_per_s
    table.add_row("memory, pointwise kernels", f"{kernels.memory_efficiency * peak / GB:.3g} GB/s")
    table.add_row("kernel launch", format_seconds(kernels.launch_s))
    if cluster.max_gpus and cluster.max_gpus > 1:
        table.add_row("all_reduce, all ranks", f"busbw {busbw_of_all_ranks(cluster) / GB:.3g} GB/s")
        table.add_row("one step of a ring", format_seconds(node.latency_s))
    if kernels.shared_slowdown:
        table.add_row("shared with others", slowdowns(kernels.shared_slowdown))
    table.add_row("usable memory", format_bytes(cluster.usable_memory_bytes or 0.0))
    for name in ("slow_ranks", "slow_links", "outliers"):
        table.add_row(name.replace("_", " "), cluster.conditions[name])
    as_written().print(table)
    typer.echo(f"\nwritten: {out}\nnext: meshplan plan MODEL --cluster {out} ...")
