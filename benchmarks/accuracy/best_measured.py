"""What a claim over a published layout is worth where that one is the best of several measured.

    python -m benchmarks.accuracy.best_measured

A recipe is not any layout: who published it ran some and kept the fastest. Here every question with
`LEAST` measured layouts or more is such a laboratory's (runs left out of the fits, as in
`benchmarks.accuracy.layout_ratios`): of its n layouts k are drawn and measured, the fastest of them
is published, and the plan is the one predicted fastest of all n.

    P(i)   = C(n - 1 - i, k - 1) / C(n, k), that the i-th fastest as measured is published
    claim  ln(predicted step of the published one / of the plan), truth the same as measured
    left   = sum of w claim truth / sum of w claim^2 over claims above `LARGE`; w = P(i) over the
             root of the questions of the source
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.layout_ratios import Timed, questions
from benchmarks.usage import check_usage
from meshplan.planner.runs.runs import measured_step_s

LEAST = 4
LARGE = 0.10
TRIED = (1, 2, 3, 4, 6, 8)


class Claim(NamedTuple):
    """Of the plan over a layout that may be the published one, in logarithms, with its weight."""

    claim: float
    truth: float
    weight: float


class Worth(NamedTuple):
    """Of claims above `LARGE`: their share of all, how many hold, and what is left of them."""

    share: float
    right: float
    left: float


def claims(groups: Sequence[Sequence[Timed]], tried: int) -> Iterator[Claim]:
    """Of each question's plan over the fastest of `tried` layouts; all where there are fewer."""
    sources = Counter(group[0].run.suite for group in groups)
    for group in groups:
        n, weight = len(group), sources[group[0].run.suite] ** -0.5
        k = min(tried, n)
        plan = min(group, key=lambda timed: timed.predicted_s)
        for i, each in enumerate(sorted(group, key=lambda timed: measured_step_s(timed.run))):
            chance = math.comb(n - 1 - i, k - 1) / math.comb(n, k)
            yield Claim(
                math.log(each.predicted_s / plan.predicted_s),
                math.log(measured_step_s(each.run) / measured_step_s(plan.run)), weight * chance,
            )  # fmt: skip


def worth(found: Sequence[Claim]) -> Worth:
    """Of the large ones among all."""
    large = [each for each in found if each.claim > math.log1p(LARGE)]
    weight = sum(each.weight for each in large)
    if not weight:
        return Worth(0.0, math.nan, math.nan)
    return Worth(
        share=weight / sum(each.weight for each in found),
        right=sum(each.weight for each in large if each.truth > 0) / weight,
        left=sum(w * claim * truth for claim, truth, w in large)
        / sum(w * claim**2 for claim, _, w in large),
    )


def main() -> None:
    """Print the table."""
    groups = [group for group in questions() if len(group) >= LEAST]
    sources = {group[0].run.suite for group in groups}
    table = Table(
        "published: the fastest of", "claims above 10 %", "of these faster", "what is left of them"
    )
    for tried in TRIED:
        of = worth(list(claims(groups, tried)))
        table.add_row(f"{tried}", f"{of.share:.0%}", f"{of.right:.0%}", f"{of.left:.2f}")
    console = Console()
    console.print(f"{len(groups)} questions of {len(sources)} sources")
    console.print(table)


if __name__ == "__main__":
    check_usage(str(__doc__))
    main()
