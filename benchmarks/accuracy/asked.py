"""What was asked of the cost model's accuracy beside what it reaches: a table of docs/accuracy.md.

    python -m benchmarks.accuracy.asked

Left-out runs are those of `hardware_profiles/fits/intervals.csv`; a suite is unseen where its
layouts, or all of it, were left out of what predicts it. What is missed is named.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import mean, median

import numpy as np

from benchmarks.accuracy.backtest import families, judged, share
from benchmarks.accuracy.coverage import FEW, held, runs_of
from benchmarks.accuracy.tables import new_sources
from benchmarks.pages import ROOT, show
from benchmarks.usage import check_usage
from meshplan.hardware_profiles.errors.intervals import STATE
from meshplan.hardware_profiles.errors.left_out_runs import Ratio, firsts, ratios
from meshplan.planner.cli.validate import CHUNK
from meshplan.planner.runs.accuracy import choice, fitting
from meshplan.planner.runs.runs import BUILT_IN, read_runs
from meshplan.planner.runs.validate import Predicted, predict_chunk

ROWS, SECONDS = 10_000, 30.0
HELD_OVERALL, HELD_ANYWHERE = (0.77, 0.83), (0.65, 0.92)


@dataclass(frozen=True, slots=True)
class Line:
    """One figure: what it is now, what was asked, and whether it is met; `said`: what misses."""

    what: str
    now: str
    asked: str
    met: bool
    said: str = ""

    def cells(self) -> str:
        """As a line of the table."""
        verdict = "met" if self.met else "missed" + (f": {self.said}" if self.said else "")
        return f"| {self.what} | {self.now} | {self.asked} | {verdict} |"


def unseen(every: Iterable[Ratio]) -> list[Ratio]:
    """Of each suite the runs as predicted with their layout left out, or all of the suite where
    nothing was fitted to it; models with a state are another table's.
    """
    known = [ratio for ratio in every if ratio.model != STATE]
    fitted = {ratio.suite for ratio in known if ratio.left_out == "layout"}
    return [r for r in known if r.left_out == "layout" or r.suite not in fitted]


def _times(some: Iterable[Ratio]) -> list[float]:
    return [abs(1 / ratio.step_time - 1) for ratio in some]


def _figure(value: float, most: float) -> str:
    """With as many decimals as show on which side of what was asked it lies."""
    alike = f"{value:.1%}" == f"{most:.1%}" and value > most
    return f"{value:.2%}" if alike else f"{value:.1%}"


def _two(what: str, errors: Sequence[float], most: tuple[float, float]) -> Line:
    """Median and 90th percentile, each at most what was asked."""
    middle, high = float(np.median(errors)), float(np.percentile(errors, 90))
    return Line(
        f"{what} ({len(errors):,} runs)", f"{_figure(middle, most[0])} / {_figure(high, most[1])}",
        f"{most[0]:.1%} / {most[1]:.0%}", middle <= most[0] and high <= most[1],
    )  # fmt: skip


def _one(what: str, value: float, most: float, said: str = "") -> Line:
    return Line(what, _figure(value, most), f"{most:.0%}", value <= most, said)


def times() -> Iterator[Line]:
    """Of the step time."""
    every = list(ratios())
    graded = {row["id"]: row["grade"] for row in read_runs(BUILT_IN)}
    layouts = [ratio for ratio in every if ratio.left_out == "layout"]
    grade_a = [ratio for ratio in layouts if graded.get(ratio.run) == "A"]
    yield _two("layouts left out, grade A", _times(grade_a), (0.04, 0.16))
    yield _two("layouts left out, A and B", _times(layouts), (0.065, 0.22))
    suites: dict[str, list[Ratio]] = defaultdict(list)
    for ratio in unseen(every):
        suites[ratio.suite].append(ratio)
    medians = {suite: median(_times(some)) for suite, some in suites.items()}
    worst = sorted(medians, key=lambda suite: -medians[suite])[:5]
    said = "farthest off are " + ", ".join(f"{each} ({medians[each]:.0%})" for each in worst)
    yield _one(f"mean of {len(suites)} unseen suites' medians", mean(medians.values()), 0.08, said)
    experts = [ratio for ratio in unseen(every) if ratio.model == "experts"]
    yield _one(f"unseen models with experts ({len(experts)} runs), median",
               median(_times(experts)), 0.10)  # fmt: skip
    alone, with_engine = new_sources(every)
    plain = [ratio for ratio in with_engine if ratio.model != STATE]
    yield _one("sources left out, the engine has another, median", median(_times(alone)), 0.08)
    yield _one("sources left out with their engine, median", median(_times(plain)), 0.12)


def memory(rows: Sequence[Predicted]) -> Iterator[Line]:
    """Of memory, and of the choice between layouts."""
    found = [abs(1 / r.reserved - 1) for r in ratios() if r.reserved and r.left_out == "layout"]
    yield _two("reserved memory, layouts left out", found, (0.045, 0.15))
    fits, best = fitting(rows), choice(rows)
    good = choice([row for row in rows if row.run.grade in ("A", "B")])
    assert best is not None
    assert good is not None
    assert fits.balanced_accuracy is not None
    yield _two_shares("ran, said not to fit", fits.careful, fits.fitting, 0.015)
    right = fits.balanced_accuracy
    said = f"{fits.missed} of {fits.out_of_memory} that ran out of memory were said to fit"
    yield Line("does it fit, balanced accuracy", f"{right:.1%}", "98.5%", right >= 0.985, said)
    yield _one(
        "price of the choice, mean", best.mean_regret, 0.02,
        f"of grades A and B alone {good.mean_regret:.1%} ({good.groups} of {best.groups} groups)",
    )  # fmt: skip


def _two_shares(what: str, some: int, of: int, most: float) -> Line:
    return Line(what, f"{some} of {of:,} ({some / of:.1%})", f"{most:.1%}", some / of <= most)


def intervals() -> Iterator[Line]:
    """How often the range of 8 of 10 runs holds, and how wide it is."""
    found = held(ratios(), "step_time")
    whole = found.pop(("", ""))
    several = {key: cell.share for key, cell in found.items() if runs_of(cell) >= FEW}
    yield from _held("left-out runs", whole.share, several)
    yield Line("half of the ranges are within", whole.width, "stated", met=True)
    unseen = list(judged(firsts(), ratios()))
    several = {key: share(some) for key, some in families(unseen).items()}
    yield from _held("the next batch's runs, as first predicted", share(unseen), several)


Shares = Mapping[tuple[str, str], float]


def _held(runs: str, whole: float, several: Shares) -> Iterator[Line]:
    low, high = HELD_OVERALL
    yield Line(f"range of 8 of 10 runs holds for {runs}", f"{whole:.0%}",
               f"{low:.0%} to {high:.0%}", low <= round(whole, 2) <= high)  # fmt: skip
    low, high = HELD_ANYWHERE
    outside = [
        f"{engine} on {gpu} {held:.0%}"
        for (engine, gpu), held in sorted(several.items())
        if not low <= round(held, 2) <= high
    ]
    yield Line(f"the same in each engine x GPU family of ten runs ({len(several)})",
               f"{len(several) - len(outside)} inside", f"{low:.0%} to {high:.0%}",
               not outside, ", ".join(outside))  # fmt: skip


def table() -> str:
    """Every figure that was asked for."""
    cells = list(read_runs(BUILT_IN))
    began = time.process_time()
    chunks = (cells[first : first + CHUNK] for first in range(0, len(cells), CHUNK))
    every = chain.from_iterable(map(predict_chunk, chunks))
    rows = [row for row in every if isinstance(row, Predicted)]
    took = (time.process_time() - began) * ROWS / len(cells)
    speed = Line(f"{ROWS:,} rows of runs.csv's kind, processor time of one core", f"{took:.0f} s",
                 f"{SECONDS:.0f} s", took <= SECONDS)  # fmt: skip
    lines = [*times(), *memory(rows), *intervals(), speed]
    head = ["| figure | now | asked for: at most | |", "|---|---|---|---|"]
    return "\n".join([*head, *(line.cells() for line in lines)])


def main() -> None:
    """Print the table, and write it."""
    show(ROOT / "docs/accuracy.md", "accuracy asked", table())


if __name__ == "__main__":
    check_usage(str(__doc__))
    main()
