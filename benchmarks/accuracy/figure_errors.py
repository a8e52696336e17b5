"""The standard deviation of each figure that a plan's choice among ties is tried with.

python -m benchmarks.accuracy.figure_errors    writes hardware_profiles/fits/figure_errors.csv
"""

import math
from collections.abc import Iterator
from statistics import pstdev

from benchmarks.accuracy.rows import csv_text
from benchmarks.usage import check_usage
from meshplan.hardware_profiles.engines import engine_names, load_engine
from meshplan.hardware_profiles.errors.figure_errors import CONSTANTS, FILE, OVERLAPS
from meshplan.hardware_profiles.tunings import fits_of
from meshplan.planner.runs.fit import WIDE
from meshplan.planner.text_files import write_text


def main() -> None:
    """Write the file."""
    write_text(FILE, as_csv())
    print(as_csv())


def as_csv() -> str:
    """The file's text: each figure, its deviation, and of how many values."""
    figures = (*_constants(), *_overlaps())
    rows = ((name, round(pstdev(values), 3), len(values)) for name, values in figures)
    return csv_text(("figure", "deviation", "values"), rows)


def _constants() -> Iterator[tuple[str, list[float]]]:
    for name in CONSTANTS:
        known = [
            getattr(fit.tuning, name)
            for engine in engine_names()
            if engine != WIDE
            for fit in fits_of(engine).values()
            if fit.tuning.matmul_scale != 1.0
        ]
        yield name, [math.log(value) for value in known]


def _overlaps() -> Iterator[tuple[str, list[float]]]:
    for name in OVERLAPS:
        hidden = [getattr(load_engine(engine).overlap, name) for engine in engine_names()]
        yield name, [share for share in hidden if share]


if __name__ == "__main__":
    check_usage(str(__doc__))
    main()
