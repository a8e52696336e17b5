"""Rows that the benchmarks read, and rows that they write."""

import csv
import io
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

from meshplan.planner.runs.rows import SkippedRow
from meshplan.planner.runs.runs import BUILT_IN, Run, read_runs, run_of

NEVER_FITTED = ("elsewhere.csv", "internlm.csv", "lora.csv", "aleph.csv")
ELSEWHERE = tuple(BUILT_IN.parent / name for name in NEVER_FITTED)


def runs_of(path: Path) -> Iterator[Run]:
    """The measured runs of a file that are priced; `meshplan validate` says why others are not."""
    for row in read_runs(path):
        with suppress(SkippedRow):
            yield run_of(row)


def csv_text(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A CSV file's text."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


def csv_of(kind: type[Any], records: Iterable[Any]) -> str:
    """The same of dataclasses of one kind, a column for each field."""
    return csv_text((field.name for field in fields(kind)), map(astuple, records))
