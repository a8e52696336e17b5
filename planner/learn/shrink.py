"""Fits a few constants to a few runs, shrunk towards the prior by the strength of the evidence.

    e_i = ln(measured / predicted) of run i at the prior,  J_ik = d ln(predicted_i) / d ln(c_k)

    e = J u + noise,   u_k ~ N(0, s_k^2),   noise ~ Student t(nu) x sigma

u is the logarithm of what a constant is multiplied by. Its most likely value is found by least
squares, reweighted: a run that contradicts the others, or the prior, by many sigma counts
less (Lange, Little and Taylor, JASA 84, 1989), so one odd run moves little. No run is left
farther off than it was, or than most of the others were, and one that nothing like it explains is
not learnt from (`planner.learn.odd_runs`). The runs are predicted anew at the constants found,
`PASSES` times, and a move that makes constants and runs together less likely, or a run farther off
than that, is shortened or not made: where something is hidden behind something else a step is not
linear in the constants.

s, sigma and nu say how much a source of runs differs from the constants of others. They are not
known of a new cluster: `python -m benchmarks.accuracy.learn --choose` takes those which predict the
left-out layouts of published sources best from two of their runs, and writes them into `FILE`.
A stranger, of whose framework neither constants nor habits are known, is farther off than a source
of an engine whose habits are stated.

How far off the other layouts are then goes with how far off the prior was: 8 of 10 lie within

    |ln(measured / predicted)| <= w sqrt(sigma^2 + (D m)^2),   m^2 = mean of e_i^2

w by the number of runs from left-out layouts (split conformal prediction), D [chosen there too].
"""

import math
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from meshplan import hardware_profiles
from meshplan.costmodels.layouts import Bools
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.errors.intervals import WIDE
from meshplan.hardware_profiles.frozen import Frozen
from meshplan.hardware_profiles.tunings import Tuning, load_fit
from meshplan.planner.learn.odd_runs import allowed, believed
from meshplan.planner.runs.learning import DIFFERENCE, TIME, Constant
from meshplan.planner.runs.runs import Run, measured_step_s
from meshplan.planner.runs.validate import step_model

Vector = NDArray[np.float64]
FILE = Path(hardware_profiles.__file__).parent / "learning.toml"
MATMUL = "matmul_scale"
COMMUNICATION = ("collective_scale", "expert_scale")
HOST = ("launch_s", "routing_s", "micro_batch_s", "step_s")
LEARNT = (MATMUL, "attention_scale", "pointwise_scale", *COMMUNICATION, *HOST)
"""Those that every engine has."""

PASSES, REWEIGHTINGS = 8, 15
FARTHEST = 3.0
"""Standard deviations by which a constant moves at most. Bounds of the fits (`TIME`) are for
engines whose kernels are known: a stranger's attention may take a third of the generic engine's.
"""

STEPS, SMALLEST_GAIN = (1.0, 0.5, 0.25), 0.01
SLACK, HELD = 0.01, 1e-3
"""Of a limit on ln(measured / predicted): constants are kept to three digits; and the noise of a
run that is held there.
"""

Kind = Literal["stranger", "known"]


class Shrinkage(Frozen):
    """How far constants of one source are from those of others, as standard deviations of ln.

    matmul_deviation         of the scale of matrix products, which most frameworks leave to one
                             library
    scale_deviation          of the scales of other kernels
    communication_deviation  of the scales of collectives and experts
    host_deviation           of the host's seconds
    noise, freedom           of a run: sigma and nu
    distance                 D of the module's docstring
    widths                   w, by number of runs learnt from
    apart                    what the range's logarithm is multiplied by, by how many facts of a
                             layout differ from the nearest run's
    """

    matmul_deviation: float
    scale_deviation: float
    communication_deviation: float
    host_deviation: float
    noise: float
    freedom: float
    distance: float
    widths: dict[int, float]
    apart: dict[int, float]
    date: str
    rows: int
    sources: int
    command: str

    def deviation(self, name: str) -> float:
        """The standard deviation of one constant's logarithm."""
        if name in HOST:
            return self.host_deviation
        if name == MATMUL:
            return self.matmul_deviation
        return self.communication_deviation if name in COMMUNICATION else self.scale_deviation

    def covariance(self, names: Sequence[str]) -> Vector:
        """Of the logarithms of constants, between sources."""
        return np.diag([self.deviation(name) ** 2 for name in names])

    def factor(self, errors: Vector) -> float:
        """On a prediction, between which 8 of 10 further runs lie; `errors`: ln(measured /
        predicted) at the prior of the runs learnt from.
        """
        width = self.widths[max(number for number in self.widths if number <= len(errors))]
        off = self.distance * math.sqrt(float(np.mean(np.square(errors))))
        return math.exp(width * math.hypot(self.noise, off))


@cache
def shipped(engine: str, gpu: str) -> Shrinkage:
    """The `Shrinkage` that ships with meshplan, for runs of `engine` on `gpu`."""
    own, wide = load_engine(engine), load_engine(WIDE)
    told = [(each.state, each.overlap, each.kernels) for each in (own, wide)]
    stranger = load_fit(engine, gpu) == load_fit(WIDE, gpu) and told[0] == told[1]
    return read_shrinkage("stranger" if stranger else "known")


def read_shrinkage(kind: Kind) -> Shrinkage:
    """That of strangers, or of sources of engines whose habits are stated."""
    return Shrinkage.model_validate(tomllib.loads(FILE.read_text(encoding="utf-8"))[kind])


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The fitted constants.

    tuning     the prior with the fitted constants in it
    deviation  by constant: the standard deviation of its logarithm after the fit
    kept       by constant: that over the one before
    errors     ln(measured / predicted) of the runs at the prior
    believed   whether each run is learnt from
    """

    tuning: Tuning
    deviation: dict[str, float]
    kept: dict[str, float]
    errors: Vector
    believed: Bools


def shrunk(runs: Sequence[Run], prior: Tuning, by: Shrinkage) -> Shrunk:
    """The most likely constants, given `runs` with step times."""
    free = telling(runs, prior)
    names = [each.name for each in free]
    centre = np.log([getattr(prior, name) for name in names])
    first = errors_at(runs, prior)
    told = believed(first)
    some = [run for run, counts in zip(runs, told, strict=True) if counts]
    covariance = by.covariance(names)
    x, doubt = likeliest(_Priced(some, prior, free), centre, first[told], covariance, by)
    kept = doubt / np.sqrt(np.diag(covariance))
    return Shrunk(
        tuning_at(prior, free, x), dict(zip(names, map(float, doubt), strict=True)),
        dict(zip(names, map(float, kept), strict=True)), first, told,
    )  # fmt: skip


class Predictions(Protocol):
    """Runs as they are predicted where the logarithms of constants are x."""

    def errors(self, x: Vector) -> Vector:
        """ln(measured / predicted) of each run."""

    def slopes(self, x: Vector) -> Vector:
        """d ln(predicted) / d x, of runs and constants."""


@dataclass(frozen=True, slots=True)
class _Priced:
    """Runs as the cost model prices them, with the constants `free` at exp(x)."""

    runs: Sequence[Run]
    prior: Tuning
    free: Sequence[Constant]

    def errors(self, x: Vector) -> Vector:
        return errors_at(self.runs, tuning_at(self.prior, self.free, x))

    def slopes(self, x: Vector) -> Vector:
        return linearised(self.runs, tuning_at(self.prior, self.free, x), self.free)[1]


def likeliest(
    runs: Predictions, centre: Vector, first: Vector, covariance: Vector, by: Shrinkage
) -> tuple[Vector, Vector]:
    """The likeliest x of runs that are believed, from the prior's, the `centre`, where they are
    `first` off; and the doubt left.
    """
    return Posterior(runs, centre, covariance, by, allowed(first)).found(first)


@dataclass(frozen=True, slots=True)
class Posterior:
    """Of x, `centre` by the prior; `allowed`: how far off each run may be."""

    runs: Predictions
    centre: Vector
    covariance: Vector
    by: Shrinkage
    allowed: Vector

    def found(self, first: Vector) -> tuple[Vector, Vector]:
        """The likeliest x, from the prior's, where runs are `first` off; and the doubt left."""
        x, errors, centre = self.centre, first, self.centre
        farthest = FARTHEST * np.sqrt(np.diag(self.covariance))
        for _ in range(PASSES):
            jacobian = self.runs.slopes(x)
            seen = errors + jacobian @ (x - centre)  # as if predicted at the centre
            move, doubt = most_likely(seen, jacobian, self.covariance, self.by, self.allowed)
            nearer = self.nearer(x, errors, centre + np.clip(move, -farthest, farthest))
            if nearer is None:
                break
            x, errors = nearer
        return x, doubt

    def nearer(self, x: Vector, errors: Vector, target: Vector) -> tuple[Vector, Vector] | None:
        """The farthest of `STEPS` from x, where runs are `errors` off, to `target` that is likelier
        than x and leaves no run farther off than allowed, and the errors there.
        A step's time is not linear in the constants: all the way may be less likely.
        """
        worst = self._loss(x, errors)
        for step in STEPS:
            found = x + step * (target - x)
            there = self.runs.errors(found)
            within = bool(np.all(np.abs(there) <= self.allowed + SLACK))
            if within and self._loss(found, there) < worst - SMALLEST_GAIN:
                return found, there
        return None

    def _loss(self, x: Vector, errors: Vector) -> float:
        """-ln of the density of x and the runs, but for what does not depend on x."""
        moved = x - self.centre
        far = float(moved @ np.linalg.solve(self.covariance, moved)) / 2
        nu, odd = self.by.freedom, np.square(errors / self.by.noise)
        return far + (nu + 1) / 2 * float(np.sum(np.log1p(odd / nu)))


def telling(runs: Sequence[Run], prior: Tuning) -> list[Constant]:
    """The constants that affect these runs; one that is 0 in the prior stays 0."""
    experts = any(run.model.is_moe for run in runs)
    several = any(run.layout.world_size > 1 for run in runs)
    told = {"expert_scale": experts, "routing_s": experts, "collective_scale": several}
    return [
        each for each in TIME
        if each.name in LEARNT and told.get(each.name, True) and getattr(prior, each.name)
    ]  # fmt: skip


def tuning_at(prior: Tuning, free: Sequence[Constant], x: Vector) -> Tuning:
    """The prior with the constants at exp(`x`), to three digits."""
    pairs = zip(free, x, strict=True)
    return prior.model_copy(update={c.name: float(f"{math.exp(at):.3g}") for c, at in pairs})


def errors_at(runs: Sequence[Run], tuning: Tuning) -> Vector:
    """ln(measured / predicted) of each run under `tuning`."""
    return np.array([math.log(measured_step_s(run) / predicted_s(run, tuning)) for run in runs])


def predicted_s(run: Run, tuning: Tuning) -> float:
    """The step time of a run under `tuning`."""
    return step_model(run, tuning).time().step_time_s


def linearised(
    runs: Sequence[Run], tuning: Tuning, free: Sequence[Constant]
) -> tuple[Vector, Vector]:
    """e and J of the module's docstring: ln(measured / predicted), d ln(predicted) / d ln(c)."""
    x = np.log([getattr(tuning, each.name) for each in free])
    shifted = [tuning_at(tuning, free, x)]
    for at in range(len(free)):
        values = {free[at].name: math.exp(x[at] + DIFFERENCE)}
        shifted.append(tuning.model_copy(update=values))
    times = [predicted_s(run, each) for run in runs for each in shifted]
    logs = np.log(times).reshape(len(runs), len(shifted))
    measured = np.log([run.measured.step_time_s or math.nan for run in runs])
    return measured - logs[:, 0], (logs[:, 1:] - logs[:, :1]) / DIFFERENCE


def most_likely(
    errors: Vector,
    jacobian: Vector,
    covariance: Vector,
    by: Shrinkage,
    limits: Vector | None = None,
) -> tuple[Vector, Vector]:
    """u, and the standard deviations of its posterior; `covariance` is that of its prior. A run
    that would be left farther off than `limits` is held at its limit.
    """
    noise, aims = np.full(len(errors), by.noise), errors
    gain, weights = _gain(aims, jacobian, covariance, noise, by.freedom)
    doubt = _doubt(jacobian, covariance, noise / np.sqrt(weights))
    while limits is not None:
        left = errors - jacobian @ gain @ aims
        beyond = (np.abs(left) > limits + HELD) & (noise > HELD)
        if not beyond.any():
            break
        aims = np.where(beyond, errors - np.sign(left) * limits, aims)
        noise = np.where(beyond, HELD, noise)
        gain, _ = _gain(aims, jacobian, covariance, noise, by.freedom)
    return gain @ aims, doubt


def _gain(
    errors: Vector, jacobian: Vector, covariance: Vector, noise: Vector, freedom: float
) -> tuple[Vector, Vector]:
    """G of u = G e, by least squares, reweighted; and the weights."""
    weights, shared = np.ones(len(errors)), jacobian @ covariance
    for _ in range(REWEIGHTINGS):
        gain = np.linalg.solve(shared @ jacobian.T + np.diag(noise**2 / weights), shared).T
        left = (errors - jacobian @ gain @ errors) / noise
        weights = np.asarray((freedom + 1) / (freedom + left**2))
    return np.asarray(gain), weights


def _doubt(jacobian: Vector, covariance: Vector, noise: Vector) -> Vector:
    """The standard deviations that runs of such `noise` leave."""
    shared = jacobian @ covariance
    gain = np.linalg.solve(shared @ jacobian.T + np.diag(noise**2), shared).T
    left = np.diag(covariance) - np.sum(gain * shared.T, axis=1)
    return np.asarray(np.sqrt(np.maximum(left, 0.0)))
