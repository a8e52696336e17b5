"""The table of runs that `validate` prints: a line for each number that a run states.

A run that states none has the line of its predicted step time.
"""

from collections.abc import Callable, Iterator, Sequence

from rich.table import Table

from meshplan.costmodels.units import GIB, format_bytes, format_seconds
from meshplan.planner.report.output import listing
from meshplan.planner.runs.compared import (
    Compared,
    compared,
    farthest_first,
    step_time_between,
)
from meshplan.planner.runs.validate import Predicted


def runs_table(rows: Sequence[Predicted], most: int) -> Table:
    """The `most` runs that are farthest off, worst first."""
    table = listing(
        "run", "", "measured", "predicted", "error", "8 of 10 runs", "inside", left=("run", "")
    )
    shown = farthest_first(rows)[:most]
    some = f" ({len(shown)} of {len(rows)}: --rows)" if len(shown) < len(rows) else ""
    table.title = f"Runs, farthest off first{some}"
    for row in shown:
        for cells in _lines(row):
            table.add_row(row.run.id, *cells)
    return table


def _lines(row: Predicted) -> Iterator[tuple[str, ...]]:
    if row.run.measured.oom:
        yield "memory", "ran out", "fits" if row.fits else "does not fit"
    elif not row.run.measured.ran:
        seconds = format_seconds(row.time.step_time_s)
        yield "step time", "n/a", seconds, "", _span(step_time_between(row), format_seconds)
    for each in compared(row):
        yield _cells(each)


def _cells(each: Compared) -> tuple[str, ...]:
    form = format_seconds if each.what == "step time" else _gib
    cells = each.what, form(each.measured), form(each.predicted), f"{each.error:+.1%}"
    if each.between is None:
        return cells
    return *cells, _span(each.between, form), "yes" if each.inside else "no"


def _span(between: tuple[float, float], form: Callable[[float], str]) -> str:
    return " to ".join(map(form, between))


def _gib(size: float) -> str:
    return format_bytes(size * GIB)
