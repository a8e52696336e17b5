"""Which of an engine's constants its runs tell: docs/accuracy_tables.md, and the number of them.

    python -m benchmarks.accuracy.fit_evidence

A fit starts at a wider pool's constants. What runs say of one is how far they narrow it: the
standard deviation of its logarithm after the fit over before (`planner.runs.learning`). One that
they leave above `TOLD` of it stays where it started: a table has it under `prior`. Of the others
those are named that the runs narrow to half.
"""

import numpy as np

from benchmarks.accuracy.rows import runs_of
from benchmarks.pages import ROOT, TABLES, put
from benchmarks.usage import check_usage
from meshplan.hardware_profiles.tunings import fits_of
from meshplan.planner.runs.fit import WIDE, Pool, pools, problem_of, sample
from meshplan.planner.runs.learning import TIME
from meshplan.planner.runs.runs import BUILT_IN

HALF = 0.5


def _halved(pool: Pool) -> set[str]:
    """The constants that the pool's runs narrow to half or less, linear at the shipped ones."""
    problem = problem_of(pool, sample(pool), fits_of(pool.engine)[pool.family].tuning)
    left = problem.doubt(np.arange(len(problem.runs)))
    return {c.name for c, doubt in zip(problem.free, left, strict=True) if doubt <= HALF}


def table() -> str:
    """A line for each table of an engine, then how many constants are told, of how many."""
    lines = [
        "| engine | GPUs | sources | told by its runs (**narrowed to half**) | as it started |",
        "|---|---|---|---|---|",
    ]
    counts = {"told": 0, "half": 0, "prior": 0}
    kept = [pool for pool in pools(runs_of(BUILT_IN)) if pool.engine != WIDE]
    for pool in sorted(kept, key=lambda pool: (pool.engine, pool.family)):
        fit = fits_of(pool.engine).get(pool.family)
        if fit is None:
            continue
        halved, values = _halved(pool), fit.table()["tuning"]
        told = [each.name for each in TIME if each.name in values]
        names = [f"**{name}**" if name in halved else name for name in told]
        sources = len({run.suite for run in pool.runs})
        lines.append(
            f"| {pool.engine} | {pool.family} | {sources} | {', '.join(names)} "
            f"| {', '.join(fit.prior)} |"
        )
        print(lines[-1], flush=True)
        counts["told"] += len(told)
        counts["half"] += len(halved & set(told))
        counts["prior"] += len(fit.prior)
    return "\n".join([
        *lines, "",
        f"{counts['told']} constants of engines are told by their runs, {counts['half']} of them "
        f"narrowed to half; {counts['prior']} stay where learning started.",
    ])  # fmt: skip


def main() -> None:
    """Write the table, and the number into accuracy.md."""
    text = table()
    put(TABLES, "evidence", text)
    put(ROOT / "docs/accuracy.md", "number of constants", text.rsplit("\n", 1)[-1])


if __name__ == "__main__":
    check_usage(str(__doc__))
    main()
