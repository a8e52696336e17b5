"""Pairs of left-out runs of one question: how well the order of two layouts is predicted.

    python -m benchmarks.accuracy.layout_ratios          writes fits/layout_ratios.csv
    python -m benchmarks.accuracy.layout_ratios --check  counts how often the probabilities hold

Predictions are those of `benchmarks.accuracy.intervals`: by constants that have not seen the run's
layout, or nothing of its framework. Grades A and B; of several runs of one layout the first.
"""

import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.rows import ELSEWHERE, csv_of, runs_of
from benchmarks.usage import check_usage
from meshplan.costmodels.layout import differing_axes
from meshplan.hardware_profiles.layout_ratios import FILE, NEAR, Pair, pairs, probability
from meshplan.hardware_profiles.left_out_runs import ratios
from meshplan.planner.cli.validate import BUILT_IN
from meshplan.planner.runs.runs import Run
from meshplan.planner.text_files import write_text

BANDS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.01)
Timed = tuple[Run, float]


def main() -> None:
    """Write the pairs, and print how often the order was as predicted, by stated probability."""
    if "--check" not in sys.argv[1:]:
        write_text(FILE, as_csv(list(_pairs())))
        pairs.cache_clear()
    Console().print(_table(pairs()))


def as_csv(found: Sequence[Pair]) -> str:
    """The file's text."""
    return csv_of(Pair, found)


def _pairs() -> Iterator[Pair]:
    runs = {run.id: run for path in (BUILT_IN, *ELSEWHERE) for run in runs_of(path)}
    groups: dict[tuple[Any, ...], dict[str, Timed]] = defaultdict(dict)
    for ratio in ratios():
        run = runs.get(ratio.run)
        if run and ratio.left_out != "source" and run.grade in ("A", "B"):
            group = groups[(ratio.engine, *run.group)]
            group.setdefault(run.layout.label, (run, _measured_s(run) / ratio.step_time))
    for group in groups.values():
        for one, other in combinations(group.values(), 2):
            pair = _pair(one, other)
            if pair.predicted <= NEAR and pair.axes:
                yield pair


def _pair(one: Timed, other: Timed) -> Pair:
    predicted = math.log(other[1] / one[1])
    measured = math.log(_measured_s(other[0]) / _measured_s(one[0]))
    sign = -1 if predicted < 0 else 1
    axes = len(differing_axes(one[0].layout, other[0].layout))
    return Pair(
        one[0].suite, one[0].engine.name, axes, round(sign * predicted, 4),
        round(sign * measured, 4),
    )  # fmt: skip


def _measured_s(run: Run) -> float:
    assert run.measured.step_time_s is not None
    return run.measured.step_time_s


def held(known: Sequence[Pair]) -> Iterator[tuple[Pair, float]]:
    """Each pair with the probability that the other sources give it."""
    for suite in {pair.suite for pair in known}:
        others = [pair for pair in known if pair.suite != suite]
        for pair in known:
            if pair.suite == suite:
                yield pair, probability(others, pair.predicted, pair.axes)


def _table(known: Sequence[Pair]) -> Table:
    stated = list(held(known))
    table = Table("P by other sources", "pairs", "in that order", "the same, each source alike")
    for low, high in pairwise(BANDS):
        band = [pair for pair, p in stated if low <= p < high]
        right: dict[str, list[bool]] = defaultdict(list)
        for pair in band:
            right[pair.suite].append(pair.measured > 0)
        if band:
            shares = [sum(each) / len(each) for each in right.values()]
            table.add_row(
                f"{low:.0%} to {min(high, 1):.0%}", f"{len(band):,}",
                f"{sum(pair.measured > 0 for pair in band) / len(band):.0%}",
                f"{sum(shares) / len(shares):.0%} of {len(shares)}",
            )  # fmt: skip
    return table


if __name__ == "__main__":
    check_usage(str(__doc__), "--check")
    main()
