"""What runs were off by when they were first predicted, and now, and the sources that are farthest
off: two tables of docs/accuracy.md.

    python -m benchmarks.accuracy.blind    write the tables

A run to which nothing was fitted is blind once. By the day of its first prediction
(`fits/first_predictions.csv`): the mean of the suites' medians of |predicted / measured - 1|, and
the median of the runs, then and by the ratios of `fits/intervals.csv`.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from statistics import mean, median
from typing import NamedTuple

from benchmarks.accuracy.tables import new_sources
from benchmarks.pages import ROOT, show
from benchmarks.usage import check_usage
from meshplan.hardware_profiles.errors.left_out_runs import First, Ratio, firsts, ratios

COLUMNS = (
    "first predicted",
    "runs",
    "suites",
    "suites' mean then",
    "now",
    "runs' median then",
    "now",
)

DAY = len("2026-11-28")
FARTHEST = 12
"""Sources that are shown."""


class Blind(NamedTuple):
    """A run's error when it was first predicted, and now."""

    date: str
    suite: str
    then: float
    now: float


def blind(first: Iterable[First], left_out: Iterable[Ratio]) -> Iterator[Blind]:
    """Every run of which the first prediction was kept, and that is still predicted."""
    found = _unseen(left_out)
    for one in first:
        if now := found.get(one.run):
            yield Blind(
                one.date[:DAY], now.suite, _error_of(one.step_time), _error_of(now.step_time)
            )


def _unseen(left_out: Iterable[Ratio]) -> dict[str, Ratio]:
    """By its run each ratio of a source that was left out as a whole."""
    alone, with_engine = new_sources(left_out)
    return {ratio.run: ratio for ratio in (*with_engine, *alone)}


def farthest(left_out: Iterable[Ratio]) -> str:
    """The sources that are farthest off in the median, left out as a whole."""
    suites: dict[str, list[Ratio]] = defaultdict(list)
    for ratio in _unseen(left_out).values():
        suites[ratio.suite].append(ratio)
    lines = []
    for suite, some in suites.items():
        off = sorted(1 / ratio.step_time - 1 for ratio in some)
        middle = median(map(abs, off))
        engines = ", ".join(sorted({ratio.engine for ratio in some}))
        ends = f"{off[0]:+.0%} to {off[-1]:+.0%}"
        lines.append((middle, f"| `{suite}` | {engines} | {len(off)} | {middle:.0%} | {ends} |"))
    head = "| suite | engine | runs | median | predicted against measured |\n|---|---|---|---|---|"
    return "\n".join([head, *(line for _, line in sorted(lines, reverse=True)[:FARTHEST])])


def _error_of(measured_over_predicted: float) -> float:
    return abs(1 / measured_over_predicted - 1)


def table(runs: Iterable[Blind]) -> str:
    """One line for each day, then all."""
    every = list(runs)
    days = sorted({run.date for run in every})
    lines = [_line(day, [run for run in every if run.date == day]) for day in days]
    head = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    return "\n".join([*head, *lines, _line("**all**", every)])


def _line(name: str, runs: list[Blind]) -> str:
    suites: dict[str, list[Blind]] = defaultdict(list)
    for run in runs:
        suites[run.suite].append(run)
    then = mean(median(run.then for run in some) for some in suites.values())
    now = mean(median(run.now for run in some) for some in suites.values())
    of_runs = f"{median(run.then for run in runs):.1%} | {median(run.now for run in runs):.1%}"
    return f"| {name} | {len(runs):,} | {len(suites)} | {then:.1%} | {now:.1%} | {of_runs} |"


def main() -> None:
    """Write the tables."""
    tables = {
        "accuracy blind": table(blind(firsts(), ratios())),
        "accuracy farthest": farthest(ratios()),
    }
    for marker, text in tables.items():
        show(ROOT / "docs/accuracy.md", marker, text)


if __name__ == "__main__":
    check_usage(str(__doc__))
    main()
