"""Pairs of left-out runs of one question: how well the order of two layouts is predicted.

    python -m benchmarks.accuracy.layout_ratios          writes fits/layout_ratios.csv
    python -m benchmarks.accuracy.layout_ratios --check  counts how often the probabilities hold

Predictions are those of `benchmarks.accuracy.intervals`, both of a pair by constants of one kind:
those that have not seen the runs' layouts, else nothing of their source, else nothing of their
framework (`KINDS`). Grades A and B; of several runs of one layout the first; only layouts that are
predicted to fit, since a plan holds no others.

Printed are how often the order was as predicted, by the probability that other sources give it, and
what is left of the predicted difference where the layout predicted faster has less, or more, of one
axis than the other (differences up to a factor of two).
"""

import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, pairwise
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.rows import ELSEWHERE, csv_of, runs_of
from benchmarks.usage import check_usage
from meshplan.costmodels.layout import differing_axes
from meshplan.hardware_profiles.errors.layout_ratios import (
    FILE,
    NEAR,
    Pair,
    kept,
    pairs,
    probability,
)
from meshplan.hardware_profiles.errors.left_out_runs import Ratio, ratios
from meshplan.planner.answer.explain import needed_bytes
from meshplan.planner.case.predict import stage_memory, step_model_of
from meshplan.planner.case.resolve import Case
from meshplan.planner.runs.runs import BUILT_IN, Run, measured_step_s
from meshplan.planner.text_files import write_text

FAR = math.log(2)
KINDS = ("layout", "source", "framework")
BANDS = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.01)
AXES = (
    "tensor_parallel", "context_parallel", "pipeline_parallel", "virtual_stages",
    "data_parallel", "expert_parallel", "micro_batch_size",
)  # fmt: skip


class Timed(NamedTuple):
    """A run, and its step by constants that have not seen it."""

    run: Run
    predicted_s: float


class Timings(NamedTuple):
    """Two runs of one question, the one that is predicted faster first."""

    faster: Timed
    slower: Timed

    @property
    def pair(self) -> Pair:
        """What of it the file holds."""
        one, other = self
        predicted = math.log(other.predicted_s / one.predicted_s)
        measured = math.log(measured_step_s(other.run) / measured_step_s(one.run))
        axes = len(differing_axes(one.run.layout, other.run.layout))
        engine = one.run.engine.name
        return Pair(one.run.suite, engine, axes, round(predicted, 4), round(measured, 4))


def main() -> None:
    """Write the pairs, and print how often the order was as predicted."""
    found = list(timings(FAR))
    near = [pair for each in found if (pair := each.pair).predicted <= NEAR]
    if "--check" not in sys.argv[1:]:
        write_text(FILE, as_csv(near))
        pairs.cache_clear()
    console = Console()
    console.print(_reliability(pairs()))
    console.print(_directions(found))


def as_csv(found: Sequence[Pair]) -> str:
    """The file's text."""
    return csv_of(Pair, found)


def questions() -> list[list[Timed]]:
    """The left-out runs of each question, one of each layout."""
    runs = {run.id: run for path in (BUILT_IN, *ELSEWHERE) for run in runs_of(path)}
    groups: dict[tuple[Any, ...], dict[str, Timed]] = defaultdict(dict)
    for ratio in of_one_kind(ratios()):
        run = runs.get(ratio.run)
        if run and run.grade in ("A", "B") and _fits(run):
            group = groups[(ratio.engine, ratio.left_out, *run.group)]
            group.setdefault(run.layout.label, Timed(run, measured_step_s(run) / ratio.step_time))
    return [list(group.values()) for group in groups.values()]


def of_one_kind(every: Sequence[Ratio]) -> list[Ratio]:
    """Those of each run by constants of the first kind that it has."""
    first: dict[str, str] = {}
    for ratio in sorted(every, key=lambda ratio: KINDS.index(ratio.left_out)):
        first.setdefault(ratio.run, ratio.left_out)
    return [ratio for ratio in every if ratio.left_out == first[ratio.run]]


def timings(most: float) -> Iterator[Timings]:
    """The pairs that are predicted to differ by no more than that, as a logarithm."""
    for group in questions():
        for each in combinations(group, 2):
            found = Timings(*sorted(each, key=lambda timed: timed.predicted_s))
            if found.pair.predicted <= most and found.pair.axes:
                yield found


def _fits(run: Run) -> bool:
    case = Case(
        model=run.model, layout=run.layout, training=run.training, cluster=run.cluster,
        engine=run.engine,
    )  # fmt: skip
    needed = needed_bytes(stage_memory(step_model_of(case)))
    return needed <= run.cluster.fillable_bytes


def held(known: Sequence[Pair]) -> Iterator[tuple[Pair, float]]:
    """Each pair with the probability that the other sources give it."""
    for suite in {pair.suite for pair in known}:
        others = [pair for pair in known if pair.suite != suite]
        for pair in known:
            if pair.suite == suite:
                yield pair, probability(others, pair.predicted, pair.axes)


def _reliability(known: Sequence[Pair]) -> Table:
    stated = list(held(known))
    table = Table(
        "P by other sources", "pairs", "said", "in that order", "the same, each source alike"
    )
    for low, high in pairwise(BANDS):
        band = [(pair, p) for pair, p in stated if low <= p < high]
        right: dict[str, list[bool]] = defaultdict(list)
        for pair, _ in band:
            right[pair.suite].append(pair.measured > 0)
        if band:
            shares = [sum(each) / len(each) for each in right.values()]
            table.add_row(
                f"{low:.0%} to {min(high, 1):.0%}", f"{len(band):,}",
                f"{sum(p for _, p in band) / len(band):.0%}",
                f"{sum(pair.measured > 0 for pair, _ in band) / len(band):.0%}",
                f"{sum(shares) / len(shares):.0%} of {len(shares)}",
            )  # fmt: skip
    return table


def direction(found: Iterable[Timings], axis: str, sign: int) -> list[Pair]:
    """The pairs whose layout predicted faster has more of an axis (`sign` 1), or less (-1)."""
    return [each.pair for each in found if sign * _difference(each, axis) > 0]


def _difference(each: Timings, axis: str) -> int:
    faster, slower = (getattr(timed.run.layout, axis) for timed in each)
    return int(faster) - int(slower)


def _directions(found: Sequence[Timings]) -> Table:
    table = Table("predicted faster has", "pairs", "sources", "what is left", "in that order")
    for axis in AXES:
        for word, sign in (("less", -1), ("more", 1)):
            some = direction(found, axis, sign)
            if some:
                right = sum(pair.measured > 0 for pair in some) / len(some)
                table.add_row(
                    f"{word} {axis}", f"{len(some):,}", str(len({pair.suite for pair in some})),
                    f"{kept(some):.2f}", f"{right:.0%}",
                )  # fmt: skip
    return table


if __name__ == "__main__":
    check_usage(str(__doc__), "--check")
    main()
