"""Measured over predicted, of runs left out of the fits that predict them: `fits/intervals.csv`.

A run to which nothing was fitted is unseen once, when it is first predicted: what its error showed
may have been mended since. So its first step time is kept for ever in `fits/first_predictions.csv`
(nothing of that kind is known of the sources that came before 2026-11-23).

`python -m benchmarks.accuracy.intervals` writes the one and adds to the other.
"""

import csv
from dataclasses import fields
from functools import cache
from operator import itemgetter
from pathlib import Path

from meshplan.hardware_profiles.dataclass import dataclass

FILE = Path(__file__).parents[1] / "fits" / "intervals.csv"
FIRST_FILE = FILE.with_name("first_predictions.csv")


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


@dataclass(frozen=True, slots=True)
class First:
    """Measured over predicted step time of a run when it was first predicted, on that `date`: the
    day and, behind a T, the hour and minute at which its batch came (runs of one batch share it).

    low, high  the range that was printed then; None where it was not kept
    """

    run: str
    step_time: float
    date: str
    low: float | None = None
    high: float | None = None


@cache
def ratios() -> tuple[Ratio, ...]:
    """Every ratio that ships."""
    with FILE.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    return tuple(map(_ratio, map(itemgetter(*map(header.index, COLUMNS)), rows)))


@cache
def firsts() -> tuple[First, ...]:
    """The first prediction of every run of which it was kept."""
    with FIRST_FILE.open(encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file)
    return tuple(First(run, float(x), date, *map(_end, ends)) for run, x, date, *ends in rows)


@cache
def first_step_times() -> dict[str, float]:
    """The first ratio of step times of each run of which it was kept."""
    return {first.run: first.step_time for first in firsts()}


COLUMNS = tuple(field.name for field in fields(Ratio))


def _end(cell: str) -> float | None:
    return float(cell) if cell else None


def _ratio(cells: tuple[str, ...]) -> Ratio:
    """Of a row's cells in `COLUMNS`: a command reads some thousand rows."""
    run, engine, gpu, suite, left_out, gpus, precision, model, step_time, reserved, away = cells
    return Ratio(
        run=run, engine=engine, gpu=gpu, suite=suite, left_out=left_out, gpus=int(gpus),
        precision=precision, model=model, step_time=float(step_time),
        reserved=float(reserved) if reserved else None, between_nodes=away == "True",
    )  # fmt: skip
