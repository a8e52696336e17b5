"""The constants of all engines together, learnt without one engine and one suite, to first order.

Each run is priced once around the constants that ship for all engines on its GPU family, with its
own engine's habits:

    predicted / predicted there = 1 + sum of  J_k (c_k / c_k there - 1)

    J_k   d ln(predicted) / d ln(c_k), the share of the step that constant k scales

Learning (`planner.runs.fit`) then costs no further price. A step adds up what constants scale, so
this is exact but for what is hidden behind something else, and changes places with it.
"""

from collections.abc import Sequence

import numpy as np
from rich.progress import track

from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.errors.intervals import STATE
from meshplan.hardware_profiles.tunings import Tuning, gpu_family, load_fit
from meshplan.planner.learn.shrink import LEARNT, Vector, linearised
from meshplan.planner.runs.fit import FEW, WIDE, Pool, constants_told, sample
from meshplan.planner.runs.learning import TIME, Indices, Problem
from meshplan.planner.runs.runs import Run

LEAST = 0.05
"""No constants make a step shorter than that share of it."""

FREE = [each for each in TIME if each.name in LEARNT]


@dataclass(frozen=True, slots=True)
class PricedRun:
    """A run by its engine's habits, with the constants `at`, in the order of `FREE`.

    error   ln(predicted / measured)
    shares  J of the module's docstring
    """

    run: Run
    error: float
    shares: Vector
    at: Vector


class Linear(Problem):
    """A `Problem` whose runs are priced already."""

    def __init__(self, pool: Pool, every: Sequence[PricedRun], prior: Tuning) -> None:
        runs = [each.run for each in every]
        self.errors = np.array([each.error for each in every])
        self.shares = np.array([each.shares for each in every])
        self.at = np.array([each.at for each in every])
        heard = [pool.hears(run) for run in runs]
        super().__init__(runs, constants_told(pool, runs), prior, heard=heard)

    def residuals(self, x: Vector, rows: Indices) -> Vector:
        """ln(predicted / measured) of `rows`, to first order."""
        times = values(self.tuning(x)) / self.at[rows]
        return np.asarray(self.errors[rows] + moved(self.shares[rows], times))


def moved(shares: Vector, times: Vector) -> Vector:
    """ln of what predictions are multiplied by where their constants are multiplied by `times`."""
    by = 1 + np.sum(shares * (times - 1), axis=-1)
    return np.asarray(np.log(np.maximum(by, LEAST)))


def values(tuning: Tuning) -> Vector:
    """The constants, in the order of `FREE`."""
    return np.array([getattr(tuning, each.name) for each in FREE])


def priced(runs: Sequence[Run]) -> list[PricedRun]:
    """Those of GPUs, each around what ships for all engines."""
    gpus = [run for run in runs if run.cluster.gpu.vendor != "cpu" and run.model.kind != STATE]
    return [_priced_run(run) for run in track(gpus, "pricing runs by their own engines' habits")]


def _priced_run(run: Run) -> PricedRun:
    at = load_fit(WIDE, run.cluster.gpu.name).tuning
    errors, slopes = linearised([run], at, FREE)
    return PricedRun(run, -float(errors[0]), slopes[0], values(at))


class Priors:
    """Constants learnt from runs that are `priced` already."""

    def __init__(self, every: Sequence[PricedRun]) -> None:
        self.every = every
        self._known: dict[tuple[str, str, str], Tuning] = {}

    def without(self, engine: str, suite: str, family: str) -> Tuning:
        """The generic constants of a GPU family, learnt without an engine and a suite."""
        key = engine, suite, family
        if key not in self._known:
            self._known[key] = self._learnt(*key)
        return self._known[key]

    def _learnt(self, engine: str, suite: str, family: str) -> Tuning:
        start = Tuning() if family == "any" else self.without(engine, suite, "any")
        near = {
            each.run.id: each for each in self.every
            if engine_of(each.run) != engine and each.run.suite != suite
            and family in ("any", gpu_family(each.run.cluster.gpu.name))
        }  # fmt: skip
        engines = {engine_of(each.run) for each in near.values()}
        if len(near) < FEW or len(engines) < 2:
            return start
        pool = Pool(WIDE, family, tuple(each.run for each in near.values()))
        some = [near[run.id] for run in sample(pool)]
        return Linear(pool, some, start).solve(np.arange(len(some)))


def engine_of(run: Run) -> str:
    """The engine whose constants price the run."""
    return run.engine.fitted_as or run.engine.name
