"""Measured over predicted, of runs left out of the fits that predict them: `fits/intervals.csv`.

`python -m benchmarks.accuracy.intervals` writes it.
"""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILE = Path(__file__).parent / "fits" / "intervals.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Measured over predicted of one left-out run; None where the run does not state it.

    engine    that priced it
    gpu       the family of the run's GPU
    left_out  together with it: its "layout", its whole "source", or its "framework", of which no
              run was ever fitted to
    """

    run: str
    engine: str
    gpu: str
    suite: str
    left_out: str
    gpus: int
    precision: str
    model: str
    step_time: float
    reserved: float | None
    between_nodes: bool = False


@cache
def ratios() -> tuple[Ratio, ...]:
    """Every ratio that ships."""
    with FILE.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    return tuple(_ratio(dict(zip(header, row, strict=True))) for row in rows)


def _ratio(row: dict[str, str]) -> Ratio:
    return Ratio(
        run=row["run"], engine=row["engine"], gpu=row["gpu"], suite=row["suite"],
        left_out=row["left_out"], gpus=int(row["gpus"]), precision=row["precision"],
        model=row["model"], step_time=float(row["step_time"]),
        reserved=float(row["reserved"]) if row["reserved"] else None,
        between_nodes=row.get("between_nodes") == "True",
    )  # fmt: skip
