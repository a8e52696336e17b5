"""How often the layout that is predicted faster is the faster one, and by how much, by pairs of
measured runs.

A pair is two runs of one question (model, GPUs, batch, sequence, engine, precision, source) with
different layouts that are predicted to fit, each left out when the constants that predict it were
learnt, both by constants of one kind: two runs of which one is priced without its layout and one
without its framework say nothing of either.

    d   ln of the predicted ratio of their steps, at least 0; pairs with d up to `NEAR` count, since
        only such layouts are ever in question
    m   ln of the measured ratio, of the same over the same
    w   of a pair: 1 / root of its source's pairs, since the runs of a source are wrong together
    b   = sum of w d m / sum of w d^2: what is left of a predicted difference, of all pairs
    n   on how many axes the layouts differ, `MOST_AXES` standing for more
    e   |m - d|
    P   that the layout predicted faster is faster: errors are taken to favour the predicted order
        as often as the other one, (1 + weighted share of the pairs of this n with e < d) / 2

The expected ratio is exp(b d). That corrects for the choice: with true differences t ~ N(0, T^2)
among the layouts of a question and predictions d ~ N(t, S^2), the mean of t given d is b d,
b = T^2 / (T^2 + S^2), and stays so however d was selected, as the largest of thousands too (a
posterior mean does not depend on the selection: Efron, Tweedie's formula and selection bias, JASA
106, 2011). That holds as far as the layouts of a plan's question are to each other as those that
people measured, and not where the other layout was chosen by measuring several: what is left of a
claim over such a one says `python -m benchmarks.accuracy.best_measured`.

`python -m benchmarks.accuracy.layout_ratios` writes the pairs and counts how often P holds on
sources that it has not seen; `python -m benchmarks.search.recipes` sets plans beside published
recipes.
"""

import csv
import math
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from meshplan.hardware_profiles.dataclass import dataclass

FILE = Path(__file__).parents[1] / "fits" / "layout_ratios.csv"
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


def faster_probability(other_over_chosen: float, axes: int) -> float:
    """That the chosen of two layouts is the faster one, by the predicted ratio of their steps."""
    ordered = probability(pairs(), abs(math.log(other_over_chosen)), axes)
    return ordered if other_over_chosen >= 1 else 1 - ordered


def is_tie(probability: float) -> bool:
    """Whether that probability, in whole per cent as it is printed, is too near to a half."""
    return 1 - TIE < round(probability, 2) < TIE


def in_of_100(probability: float) -> str:
    """In how many cases of 100 the faster of two layouts is really so: "in 57 of 100, a tie"."""
    cases = round(probability * 100)
    return f"in {cases if cases < 100 else 'more than 99'} of 100{', a tie' * is_tie(probability)}"


def expected_slower(other_over_chosen: float) -> float:
    """By which fraction the other of two layouts is expected to take longer, corrected for the
    choice; negative where it is expected to be the faster one.
    """
    return math.expm1(_kept() * math.log(other_over_chosen))


def probability(known: Sequence[Pair], predicted: float, axes: int) -> float:
    """P of the module's equations; a half where no pair is known. Layouts that differ in none of
    the axes (in cut or sharding group) count as differing in one.
    """
    axes = max(1, axes)
    like = [pair for pair in known if min(pair.axes, MOST_AXES) == min(axes, MOST_AXES)]
    weights = _weights(like)
    inside = [
        weight for pair, weight in zip(like, weights, strict=True) if pair.error < predicted
    ]  # fmt: skip
    return (1 + (sum(inside) / sum(weights) if weights else 0.0)) / 2


def kept(known: Sequence[Pair]) -> float:
    """b of the module's equations, 1 where no pair is known."""
    weighed = list(zip(known, _weights(known), strict=True))
    square = sum(weight * pair.predicted**2 for pair, weight in weighed)
    return sum(w * p.predicted * p.measured for p, w in weighed) / square if square else 1.0


def _weights(known: Sequence[Pair]) -> list[float]:
    rows = Counter(pair.suite for pair in known)
    return [rows[pair.suite] ** -0.5 for pair in known]


@cache
def _kept() -> float:
    """Never above 1: that a layout was chosen makes no difference larger."""
    return min(kept(pairs()), 1.0)


@cache
def pairs() -> tuple[Pair, ...]:
    """Every pair that ships."""
    with FILE.open(encoding="utf-8", newline="") as file:
        return tuple(
            Pair(row["suite"], row["engine"], int(row["axes"]), float(row["predicted"]),
                 float(row["measured"]))
            for row in csv.DictReader(file)
        )  # fmt: skip
