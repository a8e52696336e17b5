"""The facts that words beside measured runs state, written into their file as columns.

    python -m benchmarks.accuracy.run_columns hardware_profiles/published/runs.csv [COLUMN...]

Fills the columns of `planner.runs.notes.FACTS` from each row's words and keeps every other cell as
it is. A file that has the columns already is left alone, since a person may have corrected them;
of the columns that are named, which are new or whose words have come to say more, empty cells are
filled.
"""

import csv
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.accuracy.rows import csv_text
from benchmarks.usage import check_usage
from meshplan.planner.runs.notes import FACTS, facts_in_words
from meshplan.planner.text_files import write_text


def main() -> None:
    """Fill the files named on the command line, or the named columns of them."""
    columns = [name for name in sys.argv[1:] if name in FACTS]
    for path in (Path(name) for name in sys.argv[1:] if name not in FACTS):
        print(f"{path}: {_fill(path, columns)}")


def _fill(path: Path, wanted: Sequence[str]) -> str:
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        rows, columns = list(reader), list(reader.fieldnames or ())
    place = columns.index("note") if "note" in columns else len(columns)
    if wanted:
        columns[place:place] = [name for name in wanted if name not in columns]
        return _written(path, columns, [_with_empty_filled(row, wanted) for row in rows])
    if not FACTS.keys().isdisjoint(columns):
        return "has the columns already"
    columns[place:place] = FACTS
    return _written(path, columns, [row | facts_in_words(row) for row in rows])


def _with_empty_filled(row: dict[str, str], wanted: Sequence[str]) -> dict[str, str]:
    said = facts_in_words(row)
    return row | {name: said.get(name, "") for name in wanted if not row.get(name)}


def write_rows(path: Path, columns: Sequence[str], rows: Sequence[dict[str, str]]) -> None:
    """The rows as the file's text."""
    cells = ([row.get(name, "") for name in columns] for row in rows)
    write_text(path, csv_text(columns, cells))


def _written(path: Path, columns: Sequence[str], rows: Sequence[dict[str, str]]) -> str:
    write_rows(path, columns, rows)
    told = sum(any(row.get(name) for name in FACTS) for row in rows)
    return f"{len(rows)} rows, {told} with a fact"


if __name__ == "__main__":
    check_usage(str(__doc__))
    main()
