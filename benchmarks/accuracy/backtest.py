"""How often ranges hold for the next sources: those of each day had seen only what came before.

    python -m benchmarks.accuracy.backtest    write the table

The first predictions of `fits/first_predictions.csv` came in batches of new sources. For each batch
today's rules make ranges of what came before it alone: the errors of runs that constants were
learnt from, and the first errors of earlier batches. The former are those of today, and count from
the start, since neither theirs nor their day was kept, so they are somewhat too good. A range holds
where the batch's own first prediction is inside. `as printed` are the ranges that were kept beside
a first prediction, made by the rules of their day.

Runs that are of grade C since, because their source turned out not to state enough, are not in the
table, and were farther off than others.

Below the table, printed alone: all with these, by their one prediction; how alike runs of one
source are in being farther off than 80 % of all (`left_out_errors.WITHIN`), the intraclass
correlation by analysis of variance (Donner, International Statistical Review 54, 1986); and the
share inside by engine and GPU family.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import mean, median
from typing import NamedTuple

import numpy as np

from benchmarks.accuracy.coverage import FEW
from benchmarks.accuracy.intervals import left_out_with
from benchmarks.accuracy.rows import ELSEWHERE, runs_of
from benchmarks.accuracy.tables import new_sources
from benchmarks.pages import ROOT, put
from benchmarks.usage import check_usage
from meshplan.hardware_profiles.errors.asked import asked_like
from meshplan.hardware_profiles.errors.intervals import (
    STATE,
    Evidence,
    Interval,
    evidence_of,
    interval,
)
from meshplan.hardware_profiles.errors.left_out_errors import COVERAGE
from meshplan.hardware_profiles.errors.left_out_runs import First, Ratio, firsts, ratios

COLUMNS = (
    "batch",
    "runs",
    "sources",
    "inside",
    "each source alike",
    "half of the ranges within",
    "as printed",
)


class Judged(NamedTuple):
    """A first prediction and the range that what came before its batch makes around it."""

    first: First
    run: Ratio
    around: Interval

    @property
    def inside(self) -> bool:
        """Whether the measured step was."""
        return self.around.low <= self.first.step_time <= self.around.high


def judged(first: Iterable[First], left_out: Iterable[Ratio]) -> Iterator[Judged]:
    """Every first prediction of a run that is still predicted, batch by batch."""
    every = list(left_out)
    then = {one.run: one for one in first}
    errors = {run: one.step_time for run, one in then.items()}
    seen = [run for run in _whole(every) if run.run in then]
    came = _came(seen, then)
    for batch in sorted({earliest for earliest, _ in came.values()}):
        before = [run for run in every if run.suite not in came or came[run.suite][1] < batch]
        evidence = {
            of_states: evidence_of(_of_kind(before, of_states), "step_time", errors)
            for of_states in (True, False)
        }
        for run in seen:
            if came[run.suite][0] == batch:
                yield Judged(then[run.run], run, _around(evidence, run))


def regraded(first: Iterable[First], left_out: Iterable[Ratio]) -> Iterator[Ratio]:
    """Runs that were counted when they were first predicted and are of grade C since: by that."""
    counted = {run.run for run in left_out}
    then = {one.run: one.step_time for one in first if one.run not in counted}
    for run in (run for path in ELSEWHERE for run in runs_of(path)):
        if run.id in then and run.grade == "C":
            asked = run.asked
            yield Ratio(
                run=run.id, engine=asked.engine, gpu=asked.gpu, suite=run.suite,
                left_out=left_out_with(run), gpus=asked.gpus, precision=asked.precision,
                model=asked.model, step_time=then[run.id], reserved=None,
                between_nodes=asked.between_nodes,
            )  # fmt: skip


def _whole(left_out: Sequence[Ratio]) -> list[Ratio]:
    """Every run of a source that was left out as a whole, once."""
    alone, with_engine = new_sources(left_out)
    return list({run.run: run for run in (*with_engine, *alone)}.values())


def _came(seen: Iterable[Ratio], then: Mapping[str, First]) -> dict[str, tuple[str, str]]:
    """The batches of each source's earliest and latest run: it is judged in the one, and known
    after the other.
    """
    days: dict[str, set[str]] = defaultdict(set)
    for run in seen:
        days[run.suite].add(then[run.run].date)
    return {suite: (min(some), max(some)) for suite, some in days.items()}


def _of_kind(runs: Iterable[Ratio], of_states: bool) -> list[Ratio]:
    """Models with a state and others are judged by their own kind alone, as plans are."""
    return [run for run in runs if (run.model == STATE) == of_states]


def _around(evidence: Mapping[bool, Evidence], run: Ratio) -> Interval:
    return interval(evidence[run.model == STATE], asked_like(run))


def table(runs: Iterable[Judged]) -> str:
    """One line for each batch, then all."""
    every = list(runs)
    came = _came((each.run for each in every), {each.first.run: each.first for each in every})
    batches: dict[str, list[Judged]] = defaultdict(list)
    for each in every:
        batches[came[each.run.suite][0]].append(each)
    head = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    lines = [_line(batch.replace("T", " "), batches[batch]) for batch in sorted(batches)]
    return "\n".join([*head, *lines, _line("**all**", every)])


def _line(name: str, runs: Sequence[Judged]) -> str:
    sources: dict[str, list[bool]] = defaultdict(list)
    for each in runs:
        sources[each.run.suite].append(each.inside)
    alike = mean(mean(some) for some in sources.values())
    low, high = (median(getattr(each.around, end) for each in runs) - 1 for end in ("low", "high"))
    return (
        f"| {name} | {len(runs):,} | {len(sources)} | {share(runs):.0%} "
        f"| {alike:.0%} | {low:+.0%} to {high:+.0%} | {as_printed(runs)} |"
    )


def share(runs: Iterable[Judged]) -> float:
    """Of them that are inside."""
    return mean(each.inside for each in runs)


def families(runs: Iterable[Judged]) -> dict[tuple[str, str], list[Judged]]:
    """By engine and GPU family, those of `FEW` runs and more."""
    found: dict[tuple[str, str], list[Judged]] = defaultdict(list)
    for each in runs:
        found[each.run.engine, each.run.gpu].append(each)
    return {key: some for key, some in sorted(found.items()) if len(some) >= FEW}


def as_printed(runs: Iterable[Judged]) -> str:
    """Of those whose range was kept."""
    kept = [
        one.low <= one.step_time <= one.high
        for one in (each.first for each in runs)
        if one.low is not None and one.high is not None
    ]
    return f"{sum(kept)} of {len(kept)}" if kept else ""


def correlation(runs: Iterable[Judged]) -> float:
    """Of runs of one source, of being farther off than `COVERAGE` of all were at first."""
    sources: dict[str, list[float]] = defaultdict(list)
    for each in runs:
        sources[each.run.suite].append(abs(math.log(each.first.step_time)))
    far = float(np.quantile([error for some in sources.values() for error in some], COVERAGE))
    return intraclass([[float(error > far) for error in some] for some in sources.values()])


def intraclass(groups: Sequence[Sequence[float]]) -> float:
    """(between - within) / (between + (n - 1) within) of the mean squares between and within
    groups, n being their size, and where sizes differ (N - sum n^2 / N) / (groups - 1).
    """
    sizes = np.array([len(group) for group in groups])
    number, total = len(groups), float(sizes.sum())
    means = np.array([mean(group) for group in groups])
    middle = float((sizes * means).sum()) / total
    between = float((sizes * (means - middle) ** 2).sum()) / (number - 1)
    apart = [(x - m) ** 2 for group, m in zip(groups, means, strict=True) for x in group]
    within = float(sum(apart)) / (total - number)
    size = (total - float((sizes**2).sum()) / total) / (number - 1)
    return (between - within) / (between + (size - 1) * within)


def main() -> None:
    """Print the table, families and the correlation, and write the table."""
    runs = list(judged(firsts(), ratios()))
    text = table(runs)
    print(f"{text}\n\ncorrelation of being far off within a source: {correlation(runs):.2f}")
    gone = list(regraded(firsts(), ratios()))
    print(_line(f"with {len(gone)} of grade C since", list(judged(firsts(), [*ratios(), *gone]))))
    for (engine, gpu), some in families(runs).items():
        print(f"{engine} on {gpu}: {share(some):.0%} of {len(some)}")
    put(ROOT / "docs/accuracy.md", "accuracy backtest", text)


if __name__ == "__main__":
    check_usage(str(__doc__))
    main()
