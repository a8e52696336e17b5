"""How often the layout that is predicted faster is the faster one, by pairs of measured runs.

A pair is two runs of one question (model, GPUs, batch, sequence, engine, precision, source) with
different layouts, each left out when the constants that predict it were learnt.

    p   |ln| of the predicted ratio of their steps; pairs with p up to `NEAR` count, since only such
        layouts are ever in question
    e   |ln(measured ratio / predicted ratio)|
    n   on how many axes the layouts differ, `MOST_AXES` standing for more
    P   that the layout predicted faster is faster:
        (1 + share of the pairs of this n with e < p) / 2

The share is weighted: a source counts as the root of its pairs, since its runs are wrong together.
Errors are taken to favour the predicted order as often as the other one. That a plan is the best of
thousands of prices, and so partly the luckiest, is not corrected for.

`python -m benchmarks.layout_ratios` writes the pairs and counts how often P holds on sources that
it has not seen.
"""

import csv
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

FILE = Path(__file__).parent / "fits" / "layout_ratios.csv"
NEAR = 0.3
MOST_AXES = 3
TIE = 0.7
"""Below this probability of being faster, two layouts are called a tie."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two left-out runs of one question.

    axes       on which their layouts differ
    predicted  ln of the predicted ratio of their steps, at least 0
    measured   ln of the measured ratio, of the same over the same
    """

    suite: str
    engine: str
    axes: int
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """|ln| of measured over predicted ratio."""
        return abs(self.measured - self.predicted)

    def cells(self) -> list[str]:
        """As a row of the file."""
        return [str(getattr(self, field.name)) for field in fields(self)]


def faster_probability(other_over_chosen: float, axes: int) -> float:
    """That the chosen of two layouts is the faster one, by the predicted ratio of their steps."""
    ordered = probability(pairs(), abs(math.log(other_over_chosen)), axes)
    return ordered if other_over_chosen >= 1 else 1 - ordered


def probability(known: Iterable[Pair], predicted: float, axes: int) -> float:
    """P of the module's equations; a half where no pair is known. Layouts that differ in none of
    the axes (in cut or sharding group) count as differing in one.
    """
    axes = max(1, axes)
    like = [pair for pair in known if min(pair.axes, MOST_AXES) == min(axes, MOST_AXES)]
    rows = Counter(pair.suite for pair in like)
    total = sum(rows[pair.suite] ** -0.5 for pair in like)
    inside = sum(rows[pair.suite] ** -0.5 for pair in like if pair.error < predicted)
    return (1 + (inside / total if total else 0.0)) / 2


@cache
def pairs() -> tuple[Pair, ...]:
    """Every pair that ships."""
    with FILE.open(encoding="utf-8", newline="") as file:
        return tuple(
            Pair(row["suite"], row["engine"], int(row["axes"]), float(row["predicted"]),
                 float(row["measured"]))
            for row in csv.DictReader(file)
        )  # fmt: skip
