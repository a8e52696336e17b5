"""The facts that words beside measured runs state, written into their file as columns.

    python -m benchmarks.run_columns hardware_profiles/published/runs.csv

Fills the columns of `planner.runs.notes.FACTS` from each row's words and keeps every other cell as
it is. A file that has the columns already is left alone, since a person may have corrected them.
"""

import csv
import io
import sys
from pathlib import Path

from meshplan.planner.runs.notes import FACTS, facts_in_words
from meshplan.planner.text_files import write_text


def main() -> None:
    """Fill the files named on the command line."""
    for path in map(Path, sys.argv[1:]):
        print(f"{path}: {_fill(path)}")


def _fill(path: Path) -> str:
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        rows, columns = list(reader), list(reader.fieldnames or ())
    if not FACTS.keys().isdisjoint(columns):
        return "has the columns already"
    place = columns.index("note") if "note" in columns else len(columns)
    columns[place:place] = FACTS
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(row | facts_in_words(row) for row in rows)
    write_text(path, text.getvalue())
    return f"{len(rows)} rows, {sum(bool(facts_in_words(row)) for row in rows)} with a fact"


if __name__ == "__main__":
    main()
