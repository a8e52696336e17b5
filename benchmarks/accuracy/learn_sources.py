"""Published suites as frameworks that nobody measured, for `benchmarks.accuracy.learn`.

A source is a suite of measured runs on one GPU: priced with the habits of the generic engine, by
constants that have seen neither its engine nor its suite. Two runs of it are either drawn, or the
two that teach most of `CANDIDATES` layouts drawn (`planner.learn.teach`).
"""

import zlib
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.intervals import STATE
from meshplan.hardware_profiles.tunings import Tuning, gpu_family, load_fit
from meshplan.planner.cli.validate import BUILT_IN
from meshplan.planner.learn.shrink import LEARNT, Shrinkage, Vector, linearised
from meshplan.planner.learn.teach import most_telling
from meshplan.planner.runs.fit import FEW, WIDE, Pool, problem_of, sample
from meshplan.planner.runs.learning import NOISE, SMALLEST_RESIDUAL, TIME, Indices, layout_of
from meshplan.planner.runs.rows import SkippedRow
from meshplan.planner.runs.runs import Run, read_runs, run_of

OTHERS = tuple(BUILT_IN.parent / name for name in ("elsewhere.csv", "internlm.csv", "lora.csv"))
FEWEST_LAYOUTS, MOST_ROWS, PRIOR_ROWS = 4, 150, 120
CANDIDATES = 8
FREE = [each for each in TIME if each.name in LEARNT]
Source = tuple[str, str]
"""The suite and the GPU."""


@dataclass(frozen=True, slots=True)
class Row:
    """A run as the generic engine prices it; errors and derivatives at its own constants."""

    run: Run
    engine: str
    error: float
    slope: Vector

    @property
    def source(self) -> Source:
        """Where the run was published, on which GPU."""
        return self.run.suite, self.run.cluster.gpu.name


def measured() -> Iterator[Run]:
    """Runs with a step time, at most `MOST_ROWS` of a suite on one GPU."""
    seen: Counter[Source] = Counter()
    for path in (BUILT_IN, *OTHERS):
        for cells in sorted(read_runs(path), key=lambda row: zlib.crc32(row["id"].encode())):
            try:
                run = run_of(cells)
            except SkippedRow:
                continue
            timed = run.measured.step_time_s and not run.measured.oom
            source = (run.suite, run.cluster.gpu.name)
            known = run.model.kind != STATE and run.grade in ("", "A", "B")
            if timed and known and seen[source] < MOST_ROWS:
                seen[source] += 1
                yield run


def engine_of(run: Run) -> str:
    """The engine whose constants price the run."""
    return run.engine.fitted_as or run.engine.name


def as_unknown(run: Run) -> Run:
    """The run with the habits of the generic engine."""
    return replace(run, engine=load_engine(WIDE))


def rows() -> list[Row]:
    """Every run as the shipped generic constants predict it, with its derivatives."""
    found = []
    for run in measured():
        prior, own = load_fit(WIDE, run.cluster.gpu.name).tuning, as_unknown(run)
        errors, slopes = linearised([own], prior, FREE)
        found.append(Row(own, engine_of(run), float(errors[0]), slopes[0]))
    return found


def without_engine(every: Sequence[Row]) -> list[Row]:
    """The rows as constants would predict them that were learnt without their engine and suite, to
    first order.
    """
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in every:
        groups[row.engine, gpu_family(row.run.cluster.gpu.name)].append(row)
    found = []
    for (engine, family), mine in groups.items():
        suites = {row.run.suite for row in mine}
        rest = [row for row in every if row.engine != engine and row.run.suite not in suites]
        near = [row for row in rest if gpu_family(row.run.cluster.gpu.name) == family]
        enough = len(near) >= FEW and len({row.engine for row in near}) > 1
        move = _least_error(near if enough else rest)
        found += [replace(row, error=row.error - float(row.slope @ move)) for row in mine]
    return found


def _least_error(some: Sequence[Row]) -> Vector:
    """The move of constants that `planner.runs.learning` would make, linear in them."""
    repeats = Counter(layout_of(row.run) for row in some)
    sizes = Counter(row.run.suite for row in some)
    weights = np.array([
        repeats[layout_of(row.run)] ** -0.5 * min(1.0, 60 / sizes[row.run.suite]) for row in some
    ])  # fmt: skip
    errors, slopes = np.array([row.error for row in some]), np.array([row.slope for row in some])
    pull, move = np.diag([each.deviation**-2.0 for each in FREE]), np.zeros(len(FREE))
    for _ in range(20):
        left = np.maximum(np.abs(errors - slopes @ move), SMALLEST_RESIDUAL)
        by = weights / left / NOISE
        move = np.linalg.solve(slopes.T @ (by[:, None] * slopes) + pull, slopes.T @ (by * errors))
    return move


@cache
def prior_without(engine: str, suite: str, family: str) -> Tuning:
    """The generic constants of a GPU family, learnt without an engine and a suite."""
    rest = tuple(
        run for run in measured()
        if engine_of(run) != engine and run.suite != suite
        and run.model.kind != STATE and run.cluster.gpu.vendor != "cpu"
    )  # fmt: skip
    start = Tuning() if family == "any" else prior_without(engine, suite, "any")
    near = [run for run in rest if family in ("any", gpu_family(run.cluster.gpu.name))]
    if len(near) < FEW or len({engine_of(run) for run in near}) < 2:
        return start
    some = sample(pool := Pool(WIDE, family, tuple(near)))[:PRIOR_ROWS]
    return problem_of(pool, some, start).solve(np.arange(len(some)))


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


def drawn(some: Sequence[Row], number: int, times: int) -> Iterator[Draw]:
    """One run each of `number` layouts, drawn, and the runs of all other layouts."""
    layouts, rng = _by_layout(some)
    for _ in range(times if len(layouts) > number else 0):
        yield _split(layouts, rng.choice(len(layouts), number, replace=False), rng)


def asked_for(some: Sequence[Row], by: Shrinkage, times: int) -> Iterator[Draw]:
    """The two layouts that teach most of `CANDIDATES` drawn, and the runs of all others; once
    where there are no more to draw from.
    """
    layouts, rng = _by_layout(some)
    deviation = np.array([by.deviation(each.name) for each in FREE])
    for _ in range(times if len(layouts) > CANDIDATES else 1):
        known = rng.choice(len(layouts), min(CANDIDATES, len(layouts)), replace=False)
        slopes = np.array([layouts[at][0].slope for at in known])
        yield _split(layouts, known[list(most_telling(slopes, deviation, by.noise))], rng)


def _by_layout(some: Sequence[Row]) -> tuple[list[list[Row]], np.random.Generator]:
    layouts: dict[Hashable, list[Row]] = defaultdict(list)
    for row in some:
        layouts[layout_of(row.run)].append(row)
    rng = np.random.default_rng(zlib.crc32(repr(some[0].source).encode()))
    return [layouts[key] for key in sorted(layouts, key=repr)], rng


def _split(layouts: list[list[Row]], chosen: Indices, rng: np.random.Generator) -> Draw:
    seen = [layouts[at][rng.integers(len(layouts[at]))] for at in sorted(chosen)]
    rest = [row for at, each in enumerate(layouts) if at not in chosen for row in each]
    return seen, rest
