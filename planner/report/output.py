"""Standard output: the answer and nothing else, for people or as one JSON document.

Tables are imported when one is made: a document needs none.
"""

import json
import os
import sys
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

WIDTH, LEAST_WIDTH = 100, 40


def console() -> "Console":
    """Standard output: as wide as COLUMNS or the terminal says, else a fixed width."""
    from meshplan.planner.report.terminal import standard_output

    said = os.environ.get("COLUMNS", "")
    if said.isdecimal() and int(said) > 0:
        return standard_output(max(int(said), LEAST_WIDTH))
    return standard_output(None if sys.stdout.isatty() else WIDTH)


def print_json(document: Any) -> None:
    """`document` as one JSON document on stdout."""
    print(json.dumps(document, indent=2))


def print_tables(*tables: "RenderableType") -> None:
    """Each of `tables` on stdout."""
    out = console()
    for table in tables:
        out.print(table)


def listing(*headings: str, left: tuple[str, ...] = ()) -> "Table":
    """A table without lines; numbers to the right, the columns `left` to the left."""
    from rich.table import Table

    table = Table(
        box=None,
        padding=(0, 2 if headings else 1, 0, 0),
        pad_edge=False,
        title_justify="left",
        show_header=bool(headings),
    )
    for heading in headings:
        justify: Literal["left", "right"] = "left" if heading in left else "right"
        table.add_column(heading, justify=justify, overflow="fold")  # no figure is cut short
    return table
