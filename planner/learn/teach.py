"""Which of several layouts to run first: the two that leave least doubt about all, then others.

    ln(step_i)      = J_i u + g_i, J and u as in `planner.learn.shrink`, u's deviations the prior's
    cov(g_i, g_j)   = `UNEXPLAINED`^2 exp(-n_ij / `FEW_FACTS`): what no constant explains is shared
                      the less, the more facts n (axes of the layout, GPUs, model, sequence,
                      precision, LoRA) differ
    d_i             the standard deviation of ln(step_i) that runs leave, each seen with `NOISE`

The two of least sum of d over all layouts, then one more at a time: least posterior variance
(optimal designs: Chaloner and Verdinelli, Statistical Science 10, 1995). Left-out layouts of
published sources chose this rule and the three numbers, near which others are as good:
docs/accuracy_history.md, "Ranges and `learn`".
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from meshplan.costmodels.units import counted
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.tunings import load_fit
from meshplan.planner.case.resolve import Case
from meshplan.planner.case.run_facts import differing
from meshplan.planner.learn.cases import UnusableRun, facts_of_run, run_of_case
from meshplan.planner.learn.learn import check_alike
from meshplan.planner.learn.shrink import Vector, linearised, shipped, telling
from meshplan.planner.runs.runs import Run

FEWEST, FURTHER = 3, 2
UNEXPLAINED, FEW_FACTS, NOISE = 0.1, 3.0, 0.05


@dataclass(frozen=True, slots=True)
class Lesson:
    """Two of some layouts, to be run, and what one and two more would be worth.

    before   the standard deviation of ln(step time), mean of the layouts
    after    the same once the two have run
    further  the next to run, each with what is left once it has run too
    """

    first: Path
    second: Path
    layouts: dict[Path, str]
    before: float
    after: float
    further: dict[Path, float]

    def document(self) -> dict[str, Any]:
        """As JSON.

        run           the two files to run first
        layouts       how many there are
        doubt_before  standard deviation of ln(step time), mean of the layouts
        doubt_after   the same once the two have run
        further       what to run next
        further[].run
                      its file
        further[].doubt_after
                      once it has run too
        """
        return {
            "run": [str(self.first), str(self.second)], "layouts": len(self.layouts),
            "doubt_before": self.before, "doubt_after": self.after,
            "further": [
                {"run": str(path), "doubt_after": left} for path, left in self.further.items()
            ],
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
    doubt = doubt_of(runs, slopes, covariance)
    order = most_telling(doubt, min(2 + FURTHER, len(runs) - 1))
    left = [float(np.mean(left_by(order[:number], doubt))) for number in range(len(order) + 1)]
    paths, layouts = list(cases), {path: case.layout.label for path, case in cases.items()}
    return Lesson(
        paths[order[0]], paths[order[1]], layouts, left[0], left[2],
        {paths[at]: after for at, after in zip(order[2:], left[3:], strict=True)},
    )  # fmt: skip


def most_telling(doubt: Vector, number: int = 2) -> list[int]:
    """The `number` layouts that leave least of `doubt`, the covariance of ln(step) of all: the best
    pair, in their order, then one more at a time.
    """
    chosen = [int(np.argmin(_sums_left(doubt)))] if number == 1 else _pair(doubt)
    left = doubt
    for at in chosen:
        left = _after(at, left)
    while len(chosen) < number:
        sums = _sums_left(left)
        sums[chosen] = math.inf
        chosen.append(int(np.argmin(sums)))
        left = _after(chosen[-1], left)
    return chosen


def _pair(doubt: Vector) -> list[int]:
    left = np.array([_sums_left(_after(first, doubt)) for first in range(len(doubt))])
    np.fill_diagonal(left, math.inf)
    one, other = np.unravel_index(np.argmin(left), left.shape)
    return sorted((int(one), int(other)))


def left_by(runs: Sequence[int], doubt: Vector) -> Vector:
    """d of each layout once those at `runs` have run."""
    for at in runs:
        doubt = _after(at, doubt)
    return _deviations(np.diag(doubt))


def _after(at: int, doubt: Vector) -> Vector:
    """What a run of one layout leaves of `doubt`."""
    seen = doubt[at]
    return np.asarray(doubt - np.outer(seen, seen) / (seen[at] + NOISE**2))


def _sums_left(doubt: Vector) -> Vector:
    """The sum of d after a run of each layout."""
    told = np.square(doubt) / (np.diag(doubt)[:, None] + NOISE**2)
    return np.asarray(np.sum(_deviations(np.diag(doubt) - told), axis=1))


def _deviations(variances: Vector) -> Vector:
    return np.asarray(np.sqrt(np.maximum(variances, 0.0)))


def doubt_of(runs: Sequence[Run], slopes: Vector, covariance: Vector) -> Vector:
    """The covariance of ln(step) of `runs`; `slopes`: J, of runs and constants."""
    facts = [facts_of_run(run) for run in runs]
    apart = np.array([[differing(one, other) for other in facts] for one in facts])
    shared = UNEXPLAINED**2 * np.exp(-apart / FEW_FACTS)
    return np.asarray(slopes @ covariance @ slopes.T + shared)
