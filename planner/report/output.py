"""Standard output: the answer and nothing else, for people or as one JSON document."""

import json
import sys
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table

WIDTH = 100


def console() -> Console:
    """Standard output; a fixed width where it is no terminal."""
    return Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)


def print_json(document: Any) -> None:
    """`document` as one JSON document on stdout."""
    print(json.dumps(document, indent=2))


def print_tables(*tables: RenderableType) -> None:
    """Each of `tables` on stdout."""
    out = console()
    for table in tables:
        out.print(table)


def listing(*headings: str, left: tuple[str, ...] = ()) -> Table:
    """A table without lines; numbers to the right, the columns `left` to the left."""
    table = Table(
        box=None,
        padding=(0, 2 if headings else 1, 0, 0),
        pad_edge=False,
        title_justify="left",
        show_header=bool(headings),
    )
    for heading in headings:
        table.add_column(heading, justify="left" if heading in left else "right")
    return table
