"""The tables of `meshplan execute --one-rank`."""

from collections.abc import Iterator

from rich.console import Console

from meshplan.costmodels.units import GIB, MIB, format_bytes, format_seconds
from meshplan.executor.launch.report import parts_table
from meshplan.executor.launch.results import ComparedPart
from meshplan.executor.onerank.result import OneRankRun


def print_run(run: OneRankRun, console: Console) -> None:
    """A table for each rank, what was not run, and the step of the plan."""
    for rank, parts in run.parts.items():
        title = f"{run.layout}, rank {rank} alone on {run.device}"
        console.print(parts_table(title, parts, _shown))
    for line in notes(run):
        console.print(f"- {line}")
    console.print(_step(run.step))


def notes(run: OneRankRun) -> Iterator[str]:
    """What a reader of the figures must know."""
    ran = {found.micro_batches for found in run.ranks}
    yield "messages are answered locally and take the predicted time; tokens are routed evenly"
    if ran != {run.micro_batches}:
        yield (
            f"ran {min(ran)} of {run.micro_batches} micro-batches: seconds are scaled to all of "
            "them, bytes are as measured, since the few hold as much at once"
        )
    if run.estimated_pipeline_ranks:
        told = ", ".join(map(str, run.estimated_pipeline_ranks))
        yield f"pipeline ranks {told} were not run: the step of the plan uses their prediction"


def _step(part: ComparedPart) -> str:
    assert part.predicted is not None
    assert part.measured is not None
    return (
        f"step of the plan {format_seconds(part.measured)}, predicted "
        f"{format_seconds(part.predicted)} ({part.error or 0.0:+.1%})"
    )


def _shown(part: ComparedPart, value: float | None) -> str:
    if value is None:
        return "n/a"
    if part.unit == "s":
        return format_seconds(value)
    return format_bytes(value) if value >= GIB else f"{value / MIB:.2f} MiB"
