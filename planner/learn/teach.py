"""Which two of several layouts teach most of the others, before any of them has run.

    v_i = J_i S' J_i^T    variance of ln(step time) of layout i once a and b are learnt from
    S'                    posterior covariance of the constants (`planner.learn.shrink`), which no
                          measured time enters: J, the prior's deviations and the noise alone

The pair of least mean sqrt(v_i) over all layouts: V-optimal design of an experiment (Chaloner and
Verdinelli, Statistical Science 10, 1995), as standard deviations, so that one layout that nothing
can teach decides little. It tends to take one layout that computes and one that communicates or
waits for its host.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from meshplan.hardware_profiles.tunings import load_fit
from meshplan.planner.case.resolve import Case
from meshplan.planner.learn.cases import UnusableRun, run_of_case
from meshplan.planner.learn.learn import check_alike
from meshplan.planner.learn.shrink import Vector, linearised, shipped, telling

FEWEST = 3


@dataclass(frozen=True, slots=True)
class Lesson:
    """Two of some layouts, to be run.

    before, after  the mean standard deviation of ln(step time) over all of the layouts that doubt
                   about the constants leaves, and what is left of it once the two have run
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
    """The two of `cases`, by file, that teach most; raises `UnusableRun`."""
    check_alike(cases)
    if len(cases) < FEWEST:
        raise UnusableRun(f"{len(cases)} configs; two are chosen of {FEWEST} or more")
    runs = [run_of_case(path, case) for path, case in cases.items()]
    prior, by = load_fit(runs[0].engine.name, runs[0].cluster.gpu.name).tuning, shipped()
    free = telling(runs, prior)
    deviation = np.array([by.deviation(each.name) for each in free])
    slopes = linearised(runs, prior, free)[1]
    two = most_telling(slopes, deviation, by.noise)
    before, after = doubts_of(slopes, deviation), doubts_of(slopes, deviation, two, by.noise)
    paths, layouts = list(cases), {path: case.layout.label for path, case in cases.items()}
    return Lesson(
        paths[two[0]], paths[two[1]], layouts, float(np.mean(before)), float(np.mean(after))
    )


def most_telling(slopes: Vector, deviation: Vector, noise: float) -> tuple[int, int]:
    """The two rows of `slopes` (layouts, constants) that leave least doubt of all rows."""
    pairs = combinations(range(len(slopes)), 2)
    return min(pairs, key=lambda two: float(np.mean(doubts_of(slopes, deviation, two, noise))))


def doubts_of(
    slopes: Vector, deviation: Vector, seen: Sequence[int] = (), noise: float = 0.0
) -> Vector:
    """sqrt(v_i) of each row, once the rows `seen` were run and learnt from."""
    weighed = slopes * deviation
    shared = weighed @ weighed[list(seen)].T
    of_seen = shared[list(seen)] + noise**2 * np.eye(len(seen))
    gone = np.sum(shared * np.linalg.solve(of_seen, shared.T).T, axis=1)
    return np.asarray(np.sqrt(np.maximum(np.sum(weighed**2, axis=1) - gone, 0.0)))
