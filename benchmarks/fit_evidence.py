"""Which of an engine's fitted constants its runs are evidence for: docs/accuracy_tables.md.

    python -m benchmarks.fit_evidence

A fit starts at a wider pool's constants, so a constant is in every table whether or not the runs
say anything of it. What they say is how far they narrow it: the standard deviation of its
logarithm after the fit over before (`planner.runs.learning`, linear at the shipped constants).
"""

from collections.abc import Iterator

import numpy as np

from benchmarks.accuracy import ROOT, put
from meshplan.hardware_profiles.tunings import fits_of
from meshplan.planner.cli.validate import BUILT_IN
from meshplan.planner.runs.fit import WIDE, Pool, pools, problem_of, sample
from meshplan.planner.runs.learning import NOISE, SMALLEST_RESIDUAL, Problem
from meshplan.planner.runs.rows import SkippedRow
from meshplan.planner.runs.runs import Run, read_runs, run_of

TOLD = 0.5
"""A constant is told where at most so much of its doubt is left."""


def doubt_left(problem: Problem) -> dict[str, float]:
    """By constant: standard deviation after over before."""
    left = np.maximum(np.abs(problem.start), SMALLEST_RESIDUAL)
    seen = problem.jacobian * (problem.weights / left / NOISE)[:, None]
    precision = problem.jacobian.T @ seen + np.diag(problem.deviation**-2.0)
    after = np.sqrt(np.diag(np.linalg.inv(precision))) / problem.deviation
    names = [constant.name for constant in problem.free]
    return dict(zip(names, map(float, after), strict=True))


def _runs() -> Iterator[Run]:
    for row in read_runs(BUILT_IN):
        try:
            yield run_of(row)
        except SkippedRow:
            continue  # `meshplan validate` says why


def _of(pool: Pool) -> dict[str, float]:
    fit = fits_of(pool.engine)[pool.family]
    return doubt_left(problem_of(pool, sample(pool), fit.tuning))


def table() -> str:
    """A line for each table of an engine, then how many constants of all are told."""
    lines = ["| engine | GPUs | sources | constants | told by its runs |", "|---|---|---|---|---|"]
    counted = told = 0
    kept = [pool for pool in pools(_runs()) if pool.engine != WIDE]
    for pool in sorted(kept, key=lambda pool: (pool.engine, pool.family)):
        if pool.family not in fits_of(pool.engine):
            continue
        left = _of(pool)
        known = [name for name, doubt in left.items() if doubt <= TOLD]
        counted, told = counted + len(left), told + len(known)
        sources = len({run.suite for run in pool.runs})
        lines.append(
            f"| {pool.engine} | {pool.family} | {sources} | {len(left)} | {', '.join(known)} |"
        )
        print(lines[-1], flush=True)
    return "\n".join([*lines, "", f"Of {counted} constants {told} are told by the engine's runs."])


def main() -> None:
    """Write the table."""
    put(ROOT / "docs/accuracy_tables.md", "evidence", table())


if __name__ == "__main__":
    main()
