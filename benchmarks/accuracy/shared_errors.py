"""What sources that share an engine or a GPU family are off by in common: a table of
docs/accuracy_tables.md.

    python -m benchmarks.accuracy.shared_errors

A constant can mend what several sources are off by together, no more. So each new source's median
of ln(measured / predicted), less the median of all, is multiplied with the mean of those that share
something with it and come from another owner; the mean product over the mean square is the
correlation. *By chance*: 95 of 100 drawings of the same errors in random order stay below.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from itertools import chain
from math import log
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.rows import ELSEWHERE
from benchmarks.accuracy.tables import new_sources
from benchmarks.pages import TABLES, show
from benchmarks.usage import check_usage
from meshplan.hardware_profiles.errors.left_out_runs import Ratio, first_step_times, ratios
from meshplan.planner.runs.runs import BUILT_IN, read_runs

FARTHEST = 0.5
"""Of a logarithm: no source counts as farther off, or the few that are would be all there is."""
DRAWS, SEED = 200, 0
SHARED: dict[str, Callable[[Ratio], Hashable]] = {
    "nothing": lambda _: None,
    "engine": lambda ratio: ratio.engine,
    "GPU family": lambda ratio: ratio.gpu,
    "engine and GPU family": lambda ratio: (ratio.engine, ratio.gpu),
    "engine and kind of model": lambda ratio: (ratio.engine, ratio.model),
    "engine and precision": lambda ratio: (ratio.engine, ratio.precision),
}


class Off(NamedTuple):
    """How far a source is off in the median, where its runs share one thing."""

    shared: Hashable
    owner: str
    error: float


class Correlation(NamedTuple):
    """Of a source's error with the mean of those that share something, and of how many sources."""

    value: float
    by_chance: float
    sources: int


def offs(
    step_times: Iterable[tuple[Ratio, float]],
    shared: Callable[[Ratio], Hashable],
    owners: Mapping[str, str],
) -> list[Off]:
    """A median for each source and thing shared, of each run's measured over predicted."""
    errors: dict[tuple[str, Hashable], list[float]] = defaultdict(list)
    for ratio, step_time in step_times:
        errors[ratio.suite, shared(ratio)].append(log(step_time))
    return [
        Off(thing, owners.get(suite, suite), median(some))
        for (suite, thing), some in errors.items()
    ]


def correlation(some: Iterable[Off]) -> Correlation:
    """Of those that another owner's shares something with."""
    every = list(some)
    fellows = np.array([
        [one.shared == other.shared and one.owner != other.owner for other in every]
        for one in every
    ])  # fmt: skip
    paired = fellows.any(axis=1)
    known = fellows[np.ix_(paired, paired)]
    errors = np.array([one.error for one in every])
    left = np.clip(errors - np.median(errors), -FARTHEST, FARTHEST)[paired]
    draw = np.random.default_rng(SEED)
    drawn = [_correlation(known, draw.permutation(left)) for _ in range(DRAWS)]
    by_chance = float(np.percentile(drawn, 95))
    return Correlation(_correlation(known, left), by_chance, len(left))


def _correlation(fellows: NDArray[np.bool_], errors: NDArray[np.float64]) -> float:
    means = fellows @ errors / fellows.sum(axis=1)
    return float(errors @ means / (errors @ errors))


def owners() -> dict[str, str]:
    """Whose repository a source is in, by its suite; what is in none is its own."""
    found: dict[str, str] = {}
    for row in chain.from_iterable(map(read_runs, (BUILT_IN, *ELSEWHERE))):
        owner, slash, _ = row["source_id"].partition("/")
        if slash and " " not in owner:
            found.setdefault(row["suite"], owner)
    return found


def table() -> str:
    """A line for each thing that sources may share."""
    alone, with_engine = new_sources(ratios())
    every = [*alone, *with_engine]
    firsts, known = first_step_times(), owners()
    first = [(ratio, firsts[ratio.run]) for ratio in every if ratio.run in firsts]
    today = [(ratio, ratio.step_time) for ratio in every]
    lines = [
        "| shared | as first predicted | by chance | sources | today | by chance | sources |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, shared in SHARED.items():
        cells = (correlation(offs(runs, shared, known)) for runs in (first, today))
        text = " | ".join(f"{c.value:+.2f} | {c.by_chance:.2f} | {c.sources}" for c in cells)
        lines.append(f"| {name} | {text} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table, and write it."""
    show(TABLES, "shared errors", table())


if __name__ == "__main__":
    check_usage(str(__doc__))
    main()
