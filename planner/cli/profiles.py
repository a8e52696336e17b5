"""`meshplan profiles`: what is known about GPUs and clusters, and what you measured yourself."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from meshplan.hardware_profiles.files.profile_file import UnknownProfile
from meshplan.hardware_profiles.load import load_cluster, save_cluster
from meshplan.hardware_profiles.schema import Cluster, Dtype
from meshplan.planner.cli.options import AsJson, Finite, refuse
from meshplan.planner.profiles.compare import compare, comparison_tables
from meshplan.planner.profiles.import_points import (
    UnreadableLog,
    read_measurements,
    with_measurements,
)
from meshplan.planner.profiles.plot import plot_profile
from meshplan.planner.profiles.report import (
    find_profile,
    listing,
    listing_markdown,
    listing_tables,
    profile_table,
)
from meshplan.planner.report.output import print_json
from meshplan.planner.report.picture import NoPlot
from meshplan.planner.report.terminal import as_written
from meshplan.planner.text_files import CannotWrite, check_writable

profiles_app = typer.Typer(
    help="Known GPUs and clusters: list, show, compare, import measurements.\n\n"
    "Example: meshplan profiles show dgx-h100",
    invoke_without_command=True,
    add_completion=False,
)


@profiles_app.callback()
def bare(context: typer.Context) -> None:
    """Known GPUs and clusters: list, show, compare, import measurements.

    Example: meshplan profiles show dgx-h100
    """
    if context.invoked_subcommand is None:
        _list(as_json=False)


@profiles_app.command("list")
def list_profiles(
    as_json: AsJson = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="As the Markdown tables of docs/hardware.md.")
    ] = False,
) -> None:
    """List every built-in GPU and cluster with its main figures.

    Example: meshplan profiles list
    """
    if markdown:
        print(listing_markdown(listing()))
    else:
        _list(as_json=as_json)


@profiles_app.command(cls=Finite)
def show(
    name: Annotated[str, typer.Argument(help="Name of a cluster or GPU, or a profile file.")],
    as_json: AsJson = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw roofline and bandwidth curves here (.png, .svg).")
    ] = None,
) -> None:
    """Show every number of a profile with its source.

    Example: meshplan profiles show dgx-h100 --plot dgx-h100.png
    """
    try:
        profile = find_profile(name)
        if plot:
            if not isinstance(profile, Cluster):
                refuse(f"{name} is a GPU; --plot draws clusters, such as dgx-h100")
            plot_profile(profile, plot)
            print(f"wrote {plot}", file=sys.stderr)
    except (UnknownProfile, NoPlot, CannotWrite, OSError) as error:
        refuse(str(error))
    if as_json:
        print_json(profile.model_dump(mode="json"))
    else:
        _print(profile_table(profile))


@profiles_app.command(cls=Finite)
def diff(
    before: Annotated[str, typer.Argument(help="Cluster name or profile file.")],
    after: Annotated[str, typer.Argument(help="Cluster name or profile file.")],
    tolerance: Annotated[
        float, typer.Option(help="Fraction by which two numbers may differ.", min=0.0)
    ] = 0.1,
    as_json: AsJson = False,
) -> None:
    """Compare two clusters, measured points kind by kind; exit 1 if one changed beyond noise.

    Example: meshplan profiles diff dgx-h100 aws-p5 --tolerance 0.2
    """
    try:
        found = compare(load_cluster(before), load_cluster(after), tolerance)
    except UnknownProfile as error:
        refuse(str(error))
    if as_json:
        print_json({"agree": found.agree, **asdict(found)})
    else:
        _print(*comparison_tables(found))
        agreeing = found.num_compared - len(found.differences)
        if found.agree:
            print(f"{agreeing} numbers agree within {tolerance:.0%} and their noise")
    raise typer.Exit(0 if found.agree else 1)


@profiles_app.command("import", cls=Finite)
def import_files(
    files: Annotated[list[Path], typer.Argument(help="nccl-tests logs and matmul tables.")],
    base: Annotated[
        str, typer.Option("--cluster", help="Built-in cluster that they were measured on.")
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="Profile to write (TOML).")],
    dtype: Annotated[
        str, typer.Option(help="Format of matmul tables that do not state it.")
    ] = "bf16",
    as_json: AsJson = False,
) -> None:
    """Write a profile from nccl-tests logs and matmul tables on top of a built-in cluster.

    Example:
      meshplan profiles import all_reduce_perf.log --cluster dgx-h100 \\
        -o mine.toml
    """
    if dtype not in get_args(Dtype):
        refuse(f"--dtype {dtype}: one of {', '.join(get_args(Dtype))}")
    try:
        check_writable(out, read=files)
        imported = [read_measurements(path, dtype=dtype) for path in files]  # type: ignore[arg-type]
        cluster = with_measurements(load_cluster(base), imported, out.stem)
        save_cluster(cluster, out)
    except (UnknownProfile, UnreadableLog, CannotWrite) as error:
        refuse(str(error))
    except OSError as error:
        refuse(f"cannot write {out}: {error.strerror}")
    counts = {
        file.file: {"collectives": len(file.curves), "matmuls": len(file.matmuls)}
        for file in imported
    }
    if as_json:
        print_json({"profile": str(out), "name": cluster.name, "imported": counts})
        return
    for name, count in counts.items():
        print(f"{name}: {count['collectives']} collectives, {count['matmuls']} matmuls")
    print(f"wrote {out}; use it with --cluster {out}")


def _list(*, as_json: bool) -> None:
    found = listing()
    if as_json:
        print_json(dict(found))
        return
    _print(*listing_tables(found))


def _print(*tables: Any) -> None:
    console = as_written(width=None if sys.stdout.isatty() else 160)
    for table in tables:
        console.print(table)
