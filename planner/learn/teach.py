"""Which two of several layouts to run first: those that the others are most like.

    d_ij  doubt in ln(step_i / step_j): the standard deviation of (J_i - J_j) u, J and u as in
          `planner.learn.shrink`, u's by the prior. A run of j leaves it of i, if nothing else

The two of which every layout has one nearest: least sum over i of min(d_ia, d_ib), as the medoids
of two clusters (Kaufman and Rousseeuw, 1987). So they are like the rest, one mostly of layouts that
compute and one of those that communicate or wait for their host. Pairs of least posterior variance
(V-optimal designs) are the odd ones, whose errors no constant explains, and teach less: measured in
docs/accuracy_history.md.
"""

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from meshplan.costmodels.units import counted
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.tunings import load_fit
from meshplan.planner.case.resolve import Case
from meshplan.planner.learn.cases import UnusableRun, run_of_case
from meshplan.planner.learn.learn import check_alike
from meshplan.planner.learn.shrink import Vector, linearised, shipped, telling

FEWEST = 3


@dataclass(frozen=True, slots=True)
class Lesson:
    """Two of some layouts, to be run.

    before  the standard deviation of ln(step time) that doubt about the constants makes, mean of
            the layouts
    after   the same of its ratio to the nearer of the two, once they have run
    """

    first: Path
    second: Path
    layouts: dict[Path, str]
    before: float
    after: float

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "run": [str(self.first), str(self.second)], "layouts": len(self.layouts),
            "doubt_before": self.before, "doubt_after": self.after,
        }  # fmt: skip


def lesson_of(cases: Mapping[Path, Case]) -> Lesson:
    """The two of `cases`, by file, to run first; raises `UnusableRun`."""
    check_alike(cases)
    if len(cases) < FEWEST:
        raise UnusableRun(f"{counted(len(cases), 'config')}; two are chosen of {FEWEST} or more")
    runs = [run_of_case(path, case) for path, case in cases.items()]
    names = runs[0].engine.name, runs[0].cluster.gpu.name
    prior, by = load_fit(*names).tuning, shipped(*names)
    free = telling(runs, prior)
    covariance = by.covariance([each.name for each in free])
    slopes = linearised(runs, prior, free)[1]
    doubts = doubts_of_ratios(slopes, covariance)
    two = most_telling(doubts)
    paths, layouts = list(cases), {path: case.layout.label for path, case in cases.items()}
    return Lesson(
        paths[two[0]], paths[two[1]], layouts,
        float(np.mean(np.sqrt(np.sum((slopes @ covariance) * slopes, axis=1)))),
        float(np.mean(np.min(doubts[:, list(two)], axis=1))),
    )  # fmt: skip


def most_telling(doubts: Vector) -> tuple[int, int]:
    """The two layouts of least doubt in the ratio of each layout to the nearer of them."""
    pairs = combinations(range(len(doubts)), 2)
    return min(pairs, key=lambda two: float(np.sum(np.min(doubts[:, list(two)], axis=1))))


def doubts_of_ratios(slopes: Vector, covariance: Vector) -> Vector:
    """d, of all pairs of rows of `slopes` (layouts, constants)."""
    weighed = slopes @ np.linalg.cholesky(covariance)
    return np.asarray(np.linalg.norm(weighed[:, None] - weighed[None], axis=2))
