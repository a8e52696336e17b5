"""Published suites as frameworks that nobody measured, for `benchmarks.accuracy.learn`.

A source is a suite of measured runs of one engine (a release of a framework, as `learn` takes them)
on one GPU: priced with the habits of the generic engine, by constants that have seen neither its
framework nor its suite. Runs of it are either drawn, or those
that teach most of `CANDIDATES` layouts drawn (`planner.learn.teach`).
"""

import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from rich.progress import track

from benchmarks.accuracy.priors import FREE, Priors, engine_of, moved, priced
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.errors.intervals import STATE
from meshplan.hardware_profiles.tunings import Tuning, gpu_family, load_fit
from meshplan.planner.learn.cases import facts_of_run
from meshplan.planner.learn.odd_runs import believed
from meshplan.planner.learn.shrink import Shrinkage, Vector, likeliest, linearised
from meshplan.planner.learn.teach import doubt_of, most_telling
from meshplan.planner.runs.fit import WIDE
from meshplan.planner.runs.learning import Indices, layout_of
from meshplan.planner.runs.rows import SkippedRow
from meshplan.planner.runs.runs import BUILT_IN, Run, read_runs, run_of

OTHERS = tuple(BUILT_IN.parent / name for name in ("elsewhere.csv", "internlm.csv", "lora.csv"))
FEWEST_LAYOUTS, MOST_ROWS = 4, 150
CANDIDATES = 8
NAMES = [each.name for each in FREE]
Source = tuple[str, str, str]
"""The suite, the engine and the GPU."""


@dataclass(frozen=True, slots=True)
class Row:
    """A run as the generic engine prices it at `prior`; `engine` is its own.

    error  ln(measured / predicted)
    slope  d ln(predicted) / d ln of each constant
    """

    run: Run
    engine: str
    prior: Tuning
    error: float
    slope: Vector

    @property
    def facts(self) -> dict[str, str]:
        """What tells it from other runs."""
        return facts_of_run(self.run)

    @property
    def source(self) -> Source:
        """Where the run was published, what ran on which GPU."""
        return self.run.suite, self.engine, self.run.cluster.gpu.name


@cache
def measured(paths: tuple[Path, ...] = (BUILT_IN, *OTHERS)) -> tuple[Run, ...]:
    """Runs with a step time, at most `MOST_ROWS` of a suite on one GPU."""
    seen: Counter[tuple[str, str]] = Counter()
    found = []
    for path in paths:
        for cells in sorted(read_runs(path), key=lambda row: zlib.crc32(row["id"].encode())):
            try:
                run = run_of(cells)
            except SkippedRow:
                continue
            timed = run.measured.step_time_s and not run.measured.oom
            place = (run.suite, run.cluster.gpu.name)
            known = run.model.kind != STATE and run.grade in ("", "A", "B")
            if timed and known and seen[place] < MOST_ROWS:
                seen[place] += 1
                found.append(run)
    return tuple(found)


def rows(suites: Collection[str] = (), *, habits: bool = False) -> list[Row]:
    """Every run, or those of some suites, by constants that have seen neither its engine nor its
    suite; `habits`: of a framework whose habits are stated (MESHPLAN_ENGINES), its engine's.
    """
    found = []
    priors = Priors(priced(measured()))
    some = [run for run in measured() if not suites or run.suite in suites]
    for run in track(some, "pricing runs as strangers'"):
        unknown = run if habits else replace(run, engine=load_engine(WIDE))
        prior = priors.without(engine_of(run), run.suite, gpu_family(run.cluster.gpu.name))
        errors, slopes = linearised([unknown], prior, FREE)
        found.append(Row(unknown, run.engine.name, prior, float(errors[0]), slopes[0]))
    return found


def own_rows() -> list[Row]:
    """Runs that nothing was fitted to, as their own engines price them, by what ships."""
    found = []
    for run in track(measured(OTHERS), "pricing runs that nothing was fitted to"):
        prior = load_fit(run.engine.name, run.cluster.gpu.name).tuning
        free = [each for each in FREE if getattr(prior, each.name)]
        errors, slopes = linearised([run], prior, free)
        told = dict(zip((each.name for each in free), slopes[0], strict=True))
        slope = np.array([told.get(each.name, 0.0) for each in FREE])
        found.append(Row(run, run.engine.name, prior, float(errors[0]), slope))
    return found


@dataclass(frozen=True, slots=True)
class Scaled:
    """Runs whose steps add up what constants scale (`benchmarks.accuracy.priors`); x: logarithms of
    what the constants are multiplied by. What another part hides stays hidden.

    first   ln(measured / predicted) at x = 0
    shares  d ln(predicted) / d x there, the share of the step that each constant scales
    """

    first: Vector
    shares: Vector

    def errors(self, x: Vector) -> Vector:
        """ln(measured / predicted)."""
        return np.asarray(self.first - moved(self.shares, np.exp(x)))

    def slopes(self, x: Vector) -> Vector:
        """d ln(predicted) / d x."""
        times = np.exp(x)
        return np.asarray(self.shares * times / np.exp(moved(self.shares, times))[:, None])


def scaled(some: Sequence[Row]) -> Scaled:
    """The rows, around their prior; of none nothing is learnt."""
    shares = np.reshape([row.slope for row in some], (len(some), len(FREE)))
    return Scaled(np.array([row.error for row in some]), shares)


def without_prices(seen: Sequence[Row], rest: Sequence[Row], by: Shrinkage) -> Vector:
    """ln(measured / predicted) of `rest` after learning from `seen` as `meshplan learn` does, but
    for what is hidden behind something else, and changes places with it.
    """
    told = believed(np.array([row.error for row in seen]))
    known = scaled([row for row, counts in zip(seen, told, strict=True) if counts])
    x = likeliest(known, np.zeros(len(FREE)), known.first, by.covariance(NAMES), by)[0]
    return scaled(rest).errors(x)


def sources(every: Sequence[Row]) -> dict[Source, list[Row]]:
    """Rows by source, of sources with enough layouts."""
    found: dict[Source, list[Row]] = defaultdict(list)
    for row in every:
        found[row.source].append(row)
    return {
        source: some for source, some in sorted(found.items())
        if len({layout_of(row.run) for row in some}) >= FEWEST_LAYOUTS
    }  # fmt: skip


Draw = tuple[list[Row], list[Row]]
Layouts = dict[Hashable, list[Row]]


def drawn(some: Sequence[Row], number: int, times: int) -> Iterator[Draw]:
    """One run each of `number` layouts, drawn, and the runs of all other layouts."""
    layouts, rng = _by_layout(some)
    for _ in range(times if len(layouts) > number else 0):
        yield _split(layouts, rng.choice(len(layouts), number, replace=False), some)


def asked_for(some: Sequence[Row], by: Shrinkage, times: int, number: int = 2) -> Iterator[Draw]:
    """The `number` layouts that teach most of `CANDIDATES` drawn, and the runs of all others; once
    where there are no more to draw from.
    """
    layouts, rng = _by_layout(some)
    if len(layouts) <= number:
        return
    covariance = by.covariance(NAMES)
    first = [rows[0] for rows in layouts.values()]
    for _ in range(times if len(layouts) > CANDIDATES else 1):
        known = rng.choice(len(first), min(CANDIDATES, len(first)), replace=False)
        some_known = [first[at] for at in known]
        slopes = np.array([row.slope for row in some_known])
        doubt = doubt_of([row.run for row in some_known], slopes, covariance)
        yield _split(layouts, known[most_telling(doubt, number)], some)


def _by_layout(some: Sequence[Row]) -> tuple[Layouts, np.random.Generator]:
    layouts: Layouts = defaultdict(list)
    for row in sorted(some, key=lambda row: repr(layout_of(row.run))):
        layouts[layout_of(row.run)].append(row)
    return layouts, np.random.default_rng(zlib.crc32(repr(some[0].source).encode()))


def _split(layouts: Layouts, chosen: Indices, some: Sequence[Row]) -> Draw:
    """The first run of each chosen layout, and all of `some` of other layouts, in their order."""
    keys = [list(layouts)[at] for at in sorted(chosen)]
    rest = [row for row in some if layout_of(row.run) not in keys]
    return [layouts[key][0] for key in keys], rest
