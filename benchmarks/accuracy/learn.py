"""What two runs teach of a framework that nobody measured: error on left-out layouts of its source.

    python -m benchmarks.accuracy.learn --choose   writes hardware_profiles/learning.toml
    python -m benchmarks.accuracy.learn            the table of `SHOWN`, into docs/learn.md

A source is a suite of measured runs on one GPU. It is treated as an unknown framework: priced with
the habits of the generic engine and with constants learnt from all runs but those of its engine and
its suite. Then two runs of different layouts are drawn, learnt from (`planner.learn.shrink`), and
its other layouts predicted; the error is the median over these, averaged over the draws.

`--choose` takes the shrinkage that does this best over the sources that are not in `SHOWN`, each
alike, and counts how far off 8 of 10 left-out runs are then. There the constants without an engine
are found to first order (from the derivatives at those that ship), in the table of `SHOWN` exactly.
"""

import datetime
import itertools
import math
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import mean

import numpy as np

from benchmarks.accuracy.tables import put
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.intervals import STATE
from meshplan.hardware_profiles.toml_io import write_toml
from meshplan.hardware_profiles.tunings import Tuning, gpu_family, load_fit
from meshplan.planner.cli.validate import BUILT_IN
from meshplan.planner.learn.learn import factor_of
from meshplan.planner.learn.shrink import (
    FILE,
    LEARNT,
    Shrinkage,
    Vector,
    linearised,
    most_likely,
    predicted_s,
    shipped,
    shrunk,
)
from meshplan.planner.runs.fit import FEW, WIDE, Pool, problem_of, sample
from meshplan.planner.runs.learning import NOISE, SMALLEST_RESIDUAL, TIME, layout_of
from meshplan.planner.runs.rows import SkippedRow
from meshplan.planner.runs.runs import Run, read_runs, run_of

PAGE = Path(__file__).parents[2] / "docs" / "learn.md"
OTHERS = tuple(BUILT_IN.parent / name for name in ("elsewhere.csv", "internlm.csv", "lora.csv"))
SHOWN = ("playbook", "dgxc", "vtrain", "mosaic")
"""The largest suites, each of another framework."""

FEWEST_LAYOUTS, MOST_ROWS, PRIOR_ROWS = 4, 150, 120
LEARNT_FROM, DRAWS, MOST_PREDICTED = 2, 30, 40
GRID = {
    "scale_deviation": (0.03, 0.1, 0.2, 0.3), "communication_deviation": (0.03, 0.1, 0.3),
    "host_deviation": (0.2, 0.5, 1.0), "noise": (0.03, 0.05, 0.1, 0.2), "freedom": (1.0, 2.0, 4.0),
}  # fmt: skip
GRID_DRAWS, NUMBERS = 10, (1, 2, 4, 8)
COMMAND = "python -m benchmarks.accuracy.learn --choose"
FREE = [each for each in TIME if each.name in LEARNT]


@dataclass(frozen=True, slots=True)
class Row:
    """A run as the generic engine prices it; errors and derivatives at its own constants."""

    run: Run
    engine: str
    error: float
    slope: Vector

    @property
    def source(self) -> tuple[str, str]:
        """The suite and the GPU."""
        return self.run.suite, self.run.cluster.gpu.name


def measured() -> Iterator[Run]:
    """Runs with a step time, at most `MOST_ROWS` of a suite on one GPU."""
    seen: Counter[tuple[str, str]] = Counter()
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
    """Every run as the shipped generic constants predict it."""
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


def sources(every: Sequence[Row], *, shown: bool) -> dict[tuple[str, str], list[Row]]:
    """Rows by source, of sources with enough layouts."""
    found: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in every:
        if (row.run.suite in SHOWN) == shown:
            found[row.source].append(row)
    return {
        source: some for source, some in sorted(found.items())
        if len({layout_of(row.run) for row in some}) >= FEWEST_LAYOUTS
    }  # fmt: skip


def draws(some: Sequence[Row], number: int, times: int) -> Iterator[tuple[list[Row], list[Row]]]:
    """Runs of `number` layouts, and the runs of all other layouts."""
    rng = np.random.default_rng(zlib.crc32(repr(some[0].source).encode()))
    layouts: dict[Hashable, list[Row]] = defaultdict(list)
    for row in some:
        layouts[layout_of(row.run)].append(row)
    keys = sorted(layouts, key=repr)
    for _ in range(times if len(keys) > number else 0):
        chosen = {keys[at] for at in rng.choice(len(keys), number, replace=False)}
        seen = [layouts[k][rng.integers(len(layouts[k]))] for k in sorted(chosen, key=repr)]
        yield seen, [row for row in some if layout_of(row.run) not in chosen]


def left_out_errors(some: Sequence[Row], number: int, by: Shrinkage) -> list[Vector]:
    """ln(measured / predicted) of the left-out runs of each draw, to first order."""
    deviation = np.array([by.deviation(each.name) for each in FREE])
    found = []
    for seen, rest in draws(some, number, GRID_DRAWS):
        errors, slopes = np.array([r.error for r in seen]), np.array([r.slope for r in seen])
        move, _ = most_likely(errors, slopes, deviation, by)
        found.append(np.array([row.error - row.slope @ move for row in rest]))
    return found


def size(logs: Vector) -> float:
    """Median |predicted / measured - 1|."""
    return float(np.median(np.abs(np.expm1(-logs))))


def choose() -> None:
    """Write the shrinkage that is best over the other sources, and what it leaves."""
    every = without_engine(rows())
    known = sources(every, shown=False)
    head = {
        "factors": {}, "date": datetime.date.today().isoformat(),
        "rows": sum(map(len, known.values())), "sources": len(known), "command": COMMAND,
    }  # fmt: skip
    before = mean(size(np.array([row.error for row in each])) for each in known.values())
    scored = []
    for values in itertools.product(*GRID.values()):
        by = Shrinkage.model_validate({**dict(zip(GRID, values, strict=True)), **head})
        errors = (left_out_errors(each, LEARNT_FROM, by) for each in known.values())
        scored.append((mean(mean(map(size, each)) for each in errors), values))
    best, values = min(scored)
    by = Shrinkage.model_validate({**dict(zip(GRID, values, strict=True)), **head})
    factors = {number: _factor(list(known.values()), number, by) for number in NUMBERS}
    write_toml(by.model_copy(update={"factors": factors}).model_dump(), FILE)
    print(f"{len(known)} sources: {before:.1%} before, {best:.1%} after two runs; {FILE}")


def _factor(known: Sequence[Sequence[Row]], number: int, by: Shrinkage) -> float:
    """80th percentile of |ln(measured / predicted)|, each source alike, as a factor."""
    pooled, weights = [], []
    for some in known:
        found = left_out_errors(some, number, by)
        if found:
            errors = np.abs(np.concatenate(found))
            pooled.append(errors)
            weights.append(np.full(len(errors), 1 / len(errors)))
    errors, share = np.concatenate(pooled), np.concatenate(weights)
    order = np.argsort(errors)
    reached = np.cumsum(share[order]) / share.sum()
    return round(math.exp(errors[order][np.searchsorted(reached, 0.8)]), 3)


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


def shown(some: Sequence[Row], by: Shrinkage) -> tuple[float, float, float, float]:
    """Of one source: the median error before and after two runs, that of the worst tenth of draws,
    and the share of left-out runs inside the interval of 8 of 10.
    """
    run = some[0].run
    prior = prior_without(some[0].engine, run.suite, gpu_family(run.cluster.gpu.name))
    before = np.array([_log(row.run, prior) for row in some])
    after, inside = [], []
    for seen, rest in draws(some, LEARNT_FROM, DRAWS):
        learnt = shrunk([row.run for row in seen], prior, by).tuning
        logs = np.array([_log(row.run, learnt) for row in rest[:MOST_PREDICTED]])
        after.append(size(logs))
        own = [_log(row.run, learnt) for row in seen]
        widest = math.log(factor_of(own, by.factor(LEARNT_FROM)))
        inside.append(float(np.mean(np.abs(logs) <= widest)))
    return size(before), mean(after), float(np.percentile(after, 90)), mean(inside)


def _log(run: Run, tuning: Tuning) -> float:
    assert run.measured.step_time_s is not None
    return math.log(run.measured.step_time_s / predicted_s(run, tuning))


def table() -> str:
    """The sources of `SHOWN`, before and after two runs."""
    lines = [
        "| source | engine left out | GPU | runs | before | after two runs | worst tenth of draws "
        "| inside 8 of 10 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    every = [
        Row(as_unknown(run), engine_of(run), 0.0, np.zeros(0))
        for run in measured()
        if run.suite in SHOWN
    ]
    for (suite, gpu), some in sources(every, shown=True).items():
        before, after, worst, inside = shown(some, shipped())
        lines.append(
            f"| {suite} | {some[0].engine} | {gpu} | {len(some)} | {before:.1%} | {after:.1%} "
            f"| {worst:.1%} | {inside:.0%} |"
        )
        print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    """Choose, or show."""
    if "--choose" in sys.argv[1:]:
        choose()
    else:
        put(PAGE, "learn table", table())


if __name__ == "__main__":
    main()
