"""The constants that measured runs teach, by least absolute error.

    minimise  sum of  w |r| / b  +  sum of  ((ln c - ln c0) / s)^2 / 2

    r    ln(predicted / measured) of a run's step time; of its memory for the allocator's constants
    w    1 / sqrt(rows of the same layout): repeats say little more than one of them
    b    0.2: how far two runs may differ for reasons that no constant explains, the more so as
         runs of one suite are wrong together
    c0   the constant where learning starts: a wider pool's
    s    what one standard deviation of a constant is, 0.2 of a scale, a factor e of seconds

So few runs change little, and many go where they say; a constant whose standard deviation they
leave above `TOLD` of what it was stays where it started. Of one engine's runs w has
1 / sqrt(rows of the same source) beside, as a share of its mean, for runs of one source are wrong
together. By Gauss-Newton: reweighted least squares for |r|. b, `TOLD` and the root were chosen by
left-out sources (docs/accuracy_history.md).
"""

import math
from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from meshplan.costmodels.layouts import Bools
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.tunings import Tuning
from meshplan.planner.runs.runs import Run
from meshplan.planner.runs.validate import memory_gib, step_model

Vector = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Constant:
    """A field of `Tuning` that is learnt: where it starts if the wider pool has none, its bounds,
    and its standard deviation in natural logarithms; `others`: fields that are the same number.
    """

    name: str
    start: float
    lowest: float
    highest: float
    deviation: float
    others: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Every field that it is."""
        return (self.name, *self.others)


TIME = (
    Constant("matmul_scale", 1.0, 0.5, 2.0, 0.2),
    Constant("attention_scale", 1.0, 0.5, 2.5, 0.2),
    Constant("pointwise_scale", 1.0, 0.5, 2.0, 0.2),
    Constant("collective_scale", 1.0, 0.5, 2.0, 0.2),
    Constant("expert_scale", 1.0, 0.5, 2.0, 0.2),
    Constant("launch_s", 3e-5, 1e-6, 2e-4, 1.0),
    Constant("routing_s", 5e-4, 1e-5, 1e-2, 1.0),
    Constant("micro_batch_s", 1e-3, 1e-5, 2e-2, 1.0),
    Constant("step_s", 2e-2, 1e-4, 0.3, 1.0),
    Constant("boundary_s", 5e-2, 1e-4, 1.0, 1.0),
    Constant("pipelined_rank_s", 1e-4, 1e-6, 1e-3, 1.0),
    Constant("pressed_s", 1.08, 1e-2, 5.0, 0.2),
)
KERNELS = Constant("matmul_scale", 1.0, 0.5, 2.0, 0.2, ("attention_scale", "pointwise_scale"))
"""One number for all kernels of a device, of all engines together: what a step takes longer than
microbenchmarks of its kernels (clocks under a long load, the slowest of many GPUs) is no one
kernel's, and each engine's own runs tell them apart.
"""

NANOTRON_QUEUE = 26.0
"""Pairs, of its jobs after its point-to-point fix; those before it that ran tell none, but of those
that ran out of memory 18 instead of 36 are said to fit with it.
"""

MEMORY = (
    Constant("memory_bytes", 2.7e8, 1e6, 4e9, 1.0),
    Constant("state_slack_fraction", 0.05, 1e-3, 0.3, 0.7),
    Constant("activation_slack_fraction", 0.05, 1e-3, 0.6, 0.7),
    Constant("held_gathers", 1.0, 1e-2, 60.0, 1.5),
    Constant("held_gathers_pipelined", 1.0, 1e-2, 60.0, 1.5),
    Constant("queued_gathers", NANOTRON_QUEUE, 1e-2, 100.0, 1.5),
)
NOISE = 0.2
TOLD = 0.95
SMALLEST_RESIDUAL = 0.02
ITERATIONS, LARGEST_MOVE, SMALLEST_GAIN = 10, 0.7, 1e-3
DIFFERENCE = 0.03


def _step_residual(run: Run, tuning: Tuning) -> float:
    assert run.measured.step_time_s is not None
    return math.log(step_model(run, tuning).time().step_time_s / run.measured.step_time_s)


def _memory_residual(run: Run, tuning: Tuning) -> float:
    allocated, reserved = memory_gib(run, step_model(run, tuning))
    if run.measured.reserved_gib:
        return math.log(reserved / run.measured.reserved_gib)
    assert run.measured.allocated_gib is not None
    return math.log(allocated / run.measured.allocated_gib)


class Problem:
    """The loss of some constants over some runs, and its Jacobian at the prior's constants.

    own    the runs are of one engine
    heard  which runs count; all, if nothing is said
    """

    def __init__(
        self,
        runs: Sequence[Run],
        constants: Sequence[Constant],
        prior: Tuning,
        *,
        own: bool = False,
        heard: Sequence[bool] | None = None,
    ) -> None:
        self.runs, self.prior, self.own = list(runs), prior, own
        self.free = list(constants)
        self.residual = _memory_residual if self.free[0] in MEMORY else _step_residual
        self.deviation = np.array([c.deviation for c in constants])
        self.low = np.log([c.lowest for c in constants])
        self.high = np.log([c.highest for c in constants])
        known = [getattr(prior, c.name) or c.start for c in constants]
        self.centre = np.clip(np.log(known), self.low, self.high)
        self.weights = _less_for_repeats([layout_of(run) for run in runs])
        if own:
            by_source = _less_for_repeats([run.suite for run in runs])
            self.weights = self.weights * by_source * np.mean(1 / by_source)
        if heard is not None:
            self.weights = self.weights * np.array(heard)
        every = np.arange(len(runs))
        self.start = self.residuals(self.centre, every)
        self.jacobian = self._differences(self.centre, self.start, every)

    def residuals(self, x: Vector, rows: Indices) -> Vector:
        """ln(predicted / measured) of `rows` with the constants at exp(`x`)."""
        tuning = self.tuning(x)
        return np.array([self.residual(self.runs[row], tuning) for row in rows])

    def tuning(self, x: Vector) -> Tuning:
        """The prior with the constants at exp(`x`), to three digits."""
        values = zip(self.free, x, strict=True)
        return self.prior.model_copy(
            update={
                name: float(f"{math.exp(value):.3g}") for c, value in values for name in c.names
            }
        )

    def doubt(self, rows: Indices) -> Vector:
        """Of each constant, the standard deviation of its logarithm after `rows` over before: of
        the least squares that weigh as the absolute errors do where the loss is least, were they
        linear.
        """
        r, jacobian = self.start[rows], self.jacobian[rows]
        left = r + jacobian @ self._move(self.centre, r, jacobian, rows)
        normal = self._normal(left, jacobian, rows)
        after = np.sqrt(np.diag(np.linalg.inv(normal)))
        return np.asarray(after / self.deviation)

    def told(self, rows: Indices) -> Bools:
        """Which constants `rows` move: those that they tell."""
        return np.array(self.doubt(rows) <= TOLD)

    def solve(self, rows: Indices) -> Tuning:
        """The tuning of least loss over `rows`, in the constants that they tell. The Jacobian
        follows the steps (Broyden's update) and is taken anew where a step does not help.
        """
        told = self.told(rows)
        x, r, jacobian, fresh = self.centre, self.start[rows], self.jacobian[rows] * told, True
        for _ in range(ITERATIONS):
            step, found = self._step(x, r, jacobian, rows)
            if step is not None:
                error = found - r - jacobian @ step
                jacobian = jacobian + np.outer(error, step) / (step @ step)
                x, r, fresh = x + step, found, False
            elif fresh:
                break
            else:
                jacobian, fresh = self._differences(x, r, rows) * told, True
        return self.tuning(x)

    def _step(
        self, x: Vector, r: Vector, jacobian: Vector, rows: Indices
    ) -> tuple[Vector | None, Vector]:
        """The step that lowers the loss, None if neither the whole one nor a part does."""
        whole = np.clip(self._move(x, r, jacobian, rows), -LARGEST_MOVE, LARGEST_MOVE)
        for part in (1.0, 0.4, 0.15):
            step = np.clip(x + part * whole, self.low, self.high) - x
            found = self.residuals(x + step, rows)
            if self._loss(x + step, found, rows) < self._loss(x, r, rows) - SMALLEST_GAIN:
                return step, found
        return None, r

    def _loss(self, x: Vector, r: Vector, rows: Indices) -> float:
        pull = np.sum(((x - self.centre) / self.deviation) ** 2) / 2
        return float(self.weights[rows] @ np.abs(r) / NOISE + pull)

    def _move(self, x: Vector, r: Vector, jacobian: Vector, rows: Indices) -> Vector:
        """Where the loss would be least if `r` were linear: least squares, reweighted."""
        move, pull = np.zeros(len(x)), (x - self.centre) / self.deviation**2
        for _ in range(20):
            left = r + jacobian @ move
            w = self._least_squares(left, rows)
            move = np.linalg.solve(
                self._normal(left, jacobian, rows), -(jacobian.T @ (w * r) + pull)
            )
        return move

    def _normal(self, left: Vector, jacobian: Vector, rows: Indices) -> Vector:
        """The matrix of the normal equations where residuals of `left` are left."""
        w = self._least_squares(left, rows)
        return jacobian.T @ (w[:, None] * jacobian) + np.diag(self.deviation**-2.0)

    def _least_squares(self, left: Vector, rows: Indices) -> Vector:
        """Weights with which squares of `left` cost what the loss costs."""
        return self.weights[rows] / np.maximum(np.abs(left), SMALLEST_RESIDUAL) / NOISE

    def _differences(self, x: Vector, r: Vector, rows: Indices) -> Vector:
        steps = DIFFERENCE * np.eye(len(x))
        return np.stack([(self.residuals(x + s, rows) - r) / DIFFERENCE for s in steps], axis=1)


def _less_for_repeats(groups: Sequence[Hashable]) -> Vector:
    """Weights of rows of the same group: the root of one over how many there are."""
    count = Counter(groups)
    return np.array([count[group] ** -0.5 for group in groups])


def layout_of(run: Run) -> Hashable:
    """What repeats of one measurement share."""
    la = run.layout
    return run.suite, run.model.name, run.cluster.gpu.name, la.world_size, la.label
