"""Learning the few fitted constants of an engine on a GPU family from measured runs.

    minimise  sum of  w |r| / b  +  sum of  ((ln c - ln c0) / s)^2 / 2

    r    ln(predicted / measured) of a run's step time; of its memory for the allocator's constants
    w    1 / sqrt(rows of the same layout): repeats say little more than one of them
    b    0.3: how far two runs may differ for reasons that no constant explains, the more so as
         runs of one suite are wrong together
    c0   the constant of the wider pool: the engine on all GPUs, all engines on this family, all
         engines on all GPUs
    s    what one standard deviation of a constant is, 0.2 of a scale, a factor e of seconds

So a pool with few runs stays near its wider pool, and one with many goes where they say. The wider
pools price every run with the habits of the `generic` engine, as a framework that nobody measured
would be. By Gauss-Newton: reweighted least squares for |r|.

A third of the groups is left out at a time and predicted by a fit on the others: whole frameworks
in the wider pools, whole models of one suite in an engine's own. That error is what the file
states, and a pool whose fit does not beat there what would be loaded without it is not kept: the
engine's constants on all GPUs, or those of all engines on each run's own family.
"""

import math
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

import numpy as np
from numpy.typing import NDArray

from hardware_profiles.engines import load_engine
from hardware_profiles.tunings import Fit, Tuning, gpu_family
from planner.runs import Run
from planner.validate import memory_gib, step_model

Vector = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Constant:
    """A field of `Tuning` that is learnt: where it starts if the wider pool has none, its bounds,
    and its standard deviation in natural logarithms.
    """

    name: str
    start: float
    lowest: float
    highest: float
    deviation: float


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
    Constant("pressed_slowdown", 0.8, 1e-2, 5.0, 1.0),
)
MEMORY = (
    Constant("memory_bytes", 2.7e8, 1e6, 4e9, 1.0),
    Constant("state_slack_fraction", 0.05, 1e-3, 0.3, 0.7),
    Constant("activation_slack_fraction", 0.05, 1e-3, 0.6, 0.7),
    Constant("held_gathers", 1.0, 1e-2, 60.0, 1.5),
    Constant("held_gathers_pipelined", 1.0, 1e-2, 60.0, 1.5),
)
NOISE = 0.3
SMALLEST_RESIDUAL = 0.02
FOLDS, FEW, LARGEST_SAMPLE = 3, 6, 240
ITERATIONS, LARGEST_MOVE, SMALLEST_GAIN = 10, 0.7, 1e-3
DIFFERENCE = 0.03
SLOW_SCHEDULES = ("zb_h1", "zb_v", "dualpipe_v")
WIDE = "generic"


@dataclass(frozen=True, slots=True)
class Pool:
    """The runs of one engine on one GPU family, and how the left-out groups are formed."""

    engine: str
    family: str
    runs: tuple[Run, ...]

    def group(self, run: Run) -> Hashable:
        """What is left out together: a framework, or one layout of one model on so many GPUs."""
        return run.engine.name if self.engine == WIDE else _layout_of(run)

    def priced(self, run: Run) -> Run:
        """The run as this pool prices it."""
        return replace(run, engine=load_engine(WIDE)) if self.engine == WIDE else run


def fit_all(
    runs: Iterable[Run],
    source: str,
    date: str,
    progress: Callable[[str], None],
    known: Callable[[str, str], Tuning] | None = None,
) -> dict[str, dict[str, Fit]]:
    """A fit for each engine and GPU family whose runs carry over, the wider pools first.

    known  the tuning of an engine on a GPU that is known already: the constants start there
           instead of at those of the wider pool
    """
    fits: dict[str, dict[str, Fit]] = defaultdict(dict)
    order = sorted(_pools(runs), key=lambda p: (p.engine != WIDE, p.family != "any", p.engine))
    for pool in order:
        gpu = pool.runs[0].cluster.gpu.name
        prior = known(pool.engine, gpu) if known else wider(fits, pool, pool.family)
        without = (lambda _, prior=prior: prior) if known else partial(wider, fits, pool)
        found = fit_pool(pool, prior, without, source, date)
        if found is not None:
            fits[pool.engine][pool.family] = found
        error = f"{found.error_fraction:.1%}" if found else "not kept"
        progress(f"{pool.engine} on {pool.family}: {len(pool.runs)} rows, held out {error}")
    return fits


def _pools(runs: Iterable[Run]) -> list[Pool]:
    """Each engine on all GPUs, and on each family if there are several.

    Zero-bubble runs are left out: their 1F1B neighbours know the same constants, sooner.
    """
    members: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        measured = run.measured.step_time_s and not run.measured.oom
        if measured and run.layout.schedule not in SLOW_SCHEDULES and run.grade in ("", "A", "B"):
            for engine in (run.engine.fitted_as or run.engine.name, WIDE):
                for family in {gpu_family(run.cluster.gpu.name), "any"}:
                    members[engine, family].append(run)
    return [
        Pool(engine, family, tuple(found)) for (engine, family), found in members.items()
        if len(found) >= FEW and (family == "any" or len(found) < len(members[engine, "any"]))
    ]  # fmt: skip


def wider(fits: Mapping[str, Mapping[str, Fit]], pool: Pool, family: str) -> Tuning:
    """The constants of the next wider pool, as a GPU of `family` would have them."""
    wide: Mapping[str, Fit] = fits.get(WIDE, {})
    if pool.engine == WIDE:
        found = wide.get("any") if pool.family != "any" else None
    else:
        own = fits.get(pool.engine, {}).get("any")
        found = own or wide.get(family) or wide.get("any")
    return found.tuning if found else Tuning()


def fit_pool(
    pool: Pool, prior: Tuning, without: Callable[[str], Tuning], source: str, date: str
) -> Fit | None:
    """The fit of one pool, None if it does not predict left-out groups better than the constants
    that a GPU family would have `without` it.
    """
    runs = _sample(pool)
    instead = [without(gpu_family(run.cluster.gpu.name)) for run in runs]
    problem = _Problem(pool, runs, _telling(pool, runs), _with_memory(pool, prior))
    held_out: list[float] = []
    without_it: list[float] = []
    for train, rest in _splits(pool, runs):
        learnt = problem.solve(train)
        held_out += [abs(problem.residual(problem.runs[row], learnt)) for row in rest]
        without_it += [abs(problem.residual(problem.runs[row], instead[row])) for row in rest]
    widest = (pool.engine, pool.family) == (WIDE, "any")
    if not held_out or (median(held_out) >= median(without_it) and not widest):
        return None
    return Fit(
        tuning=problem.solve(np.arange(len(runs))), date=date, rows=len(pool.runs),
        groups=len({pool.group(run) for run in pool.runs}),
        error_fraction=round(math.expm1(median(held_out)), 4), source=source,
    )  # fmt: skip


def _splits(pool: Pool, runs: Sequence[Run]) -> list[tuple[Indices, Indices]]:
    """Rows to learn from and rows to predict, in turn."""
    keys = [pool.group(run) for run in runs]
    ordered = sorted(set(keys), key=lambda key: zlib.crc32(repr(key).encode()))
    fold = np.array([ordered.index(key) % FOLDS for key in keys])
    parts = [(np.flatnonzero(fold != f), np.flatnonzero(fold == f)) for f in range(FOLDS)]
    return [(train, rest) for train, rest in parts if len(train) and len(rest)]


def _sample(pool: Pool) -> list[Run]:
    """At most `LARGEST_SAMPLE` runs, as many of each group as there are."""
    turn: Counter[Hashable] = Counter()
    queue: list[tuple[int, int, Run]] = []
    for run in sorted(pool.runs, key=lambda run: zlib.crc32(run.id.encode())):
        turn[pool.group(run)] += 1
        queue.append((turn[pool.group(run)], len(queue), run))
    return [run for *_, run in sorted(queue, key=lambda entry: entry[:2])[:LARGEST_SAMPLE]]


def _telling(pool: Pool, runs: Sequence[Run]) -> list[Constant]:
    """The constants of time that these runs can tell."""
    nanotron = {run.engine.name for run in runs} <= {"nanotron", "nanotron-2024"}
    told = {
        "expert_scale": any(run.model.is_moe for run in runs),
        "routing_s": any(run.model.is_moe for run in runs),
        "boundary_s": any(pool.priced(run).engine.overlap.waits_at_boundaries for run in runs),
        "pipelined_rank_s": nanotron,
        "pressed_slowdown": nanotron,
    }
    return [constant for constant in TIME if told.get(constant.name, True)]


def _with_memory(pool: Pool, tuning: Tuning) -> Tuning:
    """The allocator's constants, from the runs that state their memory."""
    runs = [run for run in pool.runs if run.measured.reserved_gib or run.measured.allocated_gib]
    if pool.engine == WIDE or len(runs) < FEW:
        return tuning
    nanotron = pool.engine.startswith("nanotron")
    free = [c for c in MEMORY if nanotron or not c.name.startswith("held")]
    sample = _sample(replace(pool, runs=tuple(runs)))
    return _Problem(pool, sample, free, tuning).solve(np.arange(len(sample)))


def _step_residual(run: Run, tuning: Tuning) -> float:
    assert run.measured.step_time_s is not None
    return math.log(step_model(run, tuning).time().step_time_s / run.measured.step_time_s)


def _memory_residual(run: Run, tuning: Tuning) -> float:
    allocated, reserved = memory_gib(run, step_model(run, tuning))
    if run.measured.reserved_gib:
        return math.log(reserved / run.measured.reserved_gib)
    assert run.measured.allocated_gib is not None
    return math.log(allocated / run.measured.allocated_gib)


class _Problem:
    """The loss of some constants over some runs, and its Jacobian at the wider pool's constants."""

    def __init__(
        self, pool: Pool, runs: Sequence[Run], constants: Sequence[Constant], prior: Tuning
    ) -> None:
        self.runs, self.prior = [pool.priced(run) for run in runs], prior
        self.free = list(constants)
        self.residual = _step_residual if self.free[0] in TIME else _memory_residual
        self.deviation = np.array([c.deviation for c in constants])
        self.low = np.log([c.lowest for c in constants])
        self.high = np.log([c.highest for c in constants])
        known = [getattr(prior, c.name) or c.start for c in constants]
        self.centre = np.clip(np.log(known), self.low, self.high)
        count = Counter(map(_layout_of, runs))
        self.weights = np.array([count[_layout_of(run)] ** -0.5 for run in runs])
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
            update={c.name: float(f"{math.exp(value):.3g}") for c, value in values}
        )

    def solve(self, rows: Indices) -> Tuning:
        """The tuning of least loss over `rows`. The Jacobian follows the steps (Broyden's update)
        and is taken anew where a step does not help.
        """
        x, r, jacobian, fresh = self.centre, self.start[rows], self.jacobian[rows], True
        for _ in range(ITERATIONS):
            step, found = self._step(x, r, jacobian, rows)
            if step is not None:
                error = found - r - jacobian @ step
                jacobian = jacobian + np.outer(error, step) / (step @ step)
                x, r, fresh = x + step, found, False
            elif fresh:
                break
            else:
                jacobian, fresh = self._differences(x, r, rows), True
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
            left = np.maximum(np.abs(r + jacobian @ move), SMALLEST_RESIDUAL)
            w = self.weights[rows] / left / NOISE
            normal = jacobian.T @ (w[:, None] * jacobian) + np.diag(self.deviation**-2.0)
            move = np.linalg.solve(normal, -(jacobian.T @ (w * r) + pull))
        return move

    def _differences(self, x: Vector, r: Vector, rows: Indices) -> Vector:
        steps = DIFFERENCE * np.eye(len(x))
        return np.stack([(self.residuals(x + s, rows) - r) / DIFFERENCE for s in steps], axis=1)


def _layout_of(run: Run) -> Hashable:
    la = run.layout
    return run.suite, run.model.name, run.cluster.gpu.name, la.world_size, la.label
