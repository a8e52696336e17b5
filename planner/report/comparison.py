"""A config beside a layout, as `plan --compare` prints it and as the page shows it."""

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from meshplan.costmodels.units import format_bytes, format_seconds
from meshplan.planner.answer.compare import Comparison, Quantity
from meshplan.planner.report.output import listing
from meshplan.planner.report.tables import bullets, indented


def print_comparison(out: Console, path: str, found: Comparison) -> None:
    """Both sides with their parts, what they answer, what was assumed, and what makes the time."""
    out.print(Text(f"\n{path} beside the best layout found", style="bold"))
    out.print(indented(f"both sides: {found.question}"))
    if said := assumed_line(found):
        out.print(indented(Text(said, style="dim")))
    out.print(indented(comparison_table(found)))
    lines = [each for each in (found.verdict, *found.differences) if each]
    out.print(indented(bullets([*lines, *(f"note: {note}" for note in found.notes)])))


def assumed_line(found: Comparison) -> str:
    """What the config leaves open and was taken from the question; empty where it is nothing."""
    return f"assumed where the config is silent: {', '.join(found.assumed)}" * bool(found.assumed)


def comparison_table(found: Comparison) -> Table:
    """Each quantity of both, and the difference in its own unit."""
    table = listing("", "yours", "ours", "difference", left=("",))
    for row in found.rows:
        name = "  " * row.part + row.name
        table.add_row(name, shown(row, row.yours), shown(row, row.ours), difference(row))
    return table


def shown(row: Quantity, value: float | str | None) -> str:
    """A quantity with its unit."""
    if value is None:
        return "n/a"
    if isinstance(value, str):
        return value
    if row.unit == "s":
        return format_seconds(value)
    if row.unit == "bytes":
        return format_bytes(value)
    return f"{value:.1%}" if row.unit == "fraction" else f"{value:,.0f}"


def difference(row: Quantity) -> str:
    """ours - yours in the row's unit, of whole quantities as a percentage; empty where there is
    none to tell.
    """
    if not isinstance(row.yours, float) or not isinstance(row.ours, float):
        return ""
    change = row.ours - row.yours
    if shown(row, abs(change)) == shown(row, 0.0):
        return "the same"
    if row.unit == "fraction":
        return f"{change * 100:+.1f} points"
    if row.unit == "count" or (row.unit == "s" and not row.part):
        return "" if row.change is None else f"{row.change:+.1%}"
    return f"{'+' if change > 0 else '-'}{shown(row, abs(change))}"


def comparison_document(path: str, found: Comparison) -> dict[str, Any]:
    """A config beside the plan, as JSON; the unit of each row is beside it.

    path  of the config
    """
    return {"path": path, **asdict(found)}
