"""Learning the few fitted constants of an engine on a GPU family from measured runs.

    minimise  sum of  w |r| / b  +  sum of  ((ln c - ln c0) / s)^2 / 2

    r    ln(predicted / measured) of a run's step time; of its memory for the allocator's constants
    w    1 / sqrt(rows of the same layout): repeats say little more than one of them
    b    0.3: how far two runs may differ for reasons that no constant explains, the more so as
         runs of one suite are wrong together
    c0   the constant of the wider pool: all engines on this family, all engines on all
    s    what one standard deviation of a constant is, 0.2 of a scale, a factor e of seconds

So a pool with few runs stays near its wider pool, and one with many goes where they say. The wider
pools price every run with the habits of the `generic` engine, as a framework that nobody measured
would be. By Gauss-Newton: differences for the Jacobian, reweighted least squares for |r|.

A third of the groups is left out at a time and predicted by a fit on the others: whole frameworks
in the wider pools, whole models of one suite in an engine's own. That error is what the file
states, and a pool whose fit does not beat its wider pool there is not kept.
"""

import math
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
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
FOLDS, FEW, LARGEST_SAMPLE = 3, 6, 120
ITERATIONS, LARGEST_MOVE = 5, 0.7
DIFFERENCE = 0.03
SLOW_SCHEDULES = ("zb_h1", "zb_v", "dualpipe_v")
WIDE = "generic"

Residual = Callable[[Run, Tuning], float]


@dataclass(frozen=True, slots=True)
class Pool:
    """The runs of one engine on one GPU family, and how the left-out groups are formed."""

    engine: str
    family: str
    runs: tuple[Run, ...]

    def group(self, run: Run) -> Hashable:
        """What is left out together: a framework, or one model in one suite."""
        return run.engine.name if self.engine == WIDE else (run.suite, run.model.name)

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
        prior = known(pool.engine, gpu) if known else _prior(fits, pool)
        found = fit_pool(pool, prior, source, date)
        if found is not None:
            fits[pool.engine][pool.family] = found
        error = f"{found.error_fraction:.1%}" if found else "not kept"
        progress(f"{pool.engine} on {pool.family}: {len(pool.runs)} rows, held out {error}")
    return fits


def _pools(runs: Iterable[Run]) -> list[Pool]:
    """Zero-bubble runs are left out: their 1F1B neighbours know the same constants, sooner."""
    members: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        measured = run.measured.step_time_s and not run.measured.oom
        if measured and run.layout.schedule not in SLOW_SCHEDULES and run.grade in ("", "A", "B"):
            for engine in (run.engine.name, WIDE):
                for family in {gpu_family(run.cluster.gpu.name), "any"}:
                    members[engine, family].append(run)
    return [Pool(*key, tuple(found)) for key, found in members.items() if len(found) >= FEW]


def _prior(fits: dict[str, dict[str, Fit]], pool: Pool) -> Tuning:
    """The constants of the next wider pool."""
    wide = fits.get(WIDE, {})
    if pool.engine == WIDE:
        found = wide.get("any") if pool.family != "any" else None
    else:
        found = wide.get(pool.family) or wide.get("any")
    return found.tuning if found else Tuning()


def fit_pool(pool: Pool, prior: Tuning, source: str, date: str) -> Fit | None:
    """The fit of one pool, None if it does not predict left-out groups better than `prior`."""
    runs = _sample(pool)
    names = _telling(runs)
    held_out, wider = [], []
    for train, rest in _splits(pool, runs):
        learnt = _minimise(pool, train, TIME, names, prior)
        held_out += [abs(math.expm1(_step_residual(pool.priced(run), learnt))) for run in rest]
        wider += [abs(math.expm1(_step_residual(pool.priced(run), prior))) for run in rest]
    widest = (pool.engine, pool.family) == (WIDE, "any")
    if not held_out or (median(held_out) >= median(wider) and not widest):
        return None
    tuning = _with_memory(pool, _minimise(pool, runs, TIME, names, prior))
    return Fit(
        tuning=_rounded(tuning), date=date, rows=len(pool.runs),
        groups=len({pool.group(run) for run in pool.runs}),
        error_fraction=round(median(held_out), 4), source=source,
    )  # fmt: skip


def _splits(pool: Pool, runs: Sequence[Run]) -> list[tuple[list[Run], list[Run]]]:
    """Runs to learn from and runs to predict, in turn; by layout where there are few groups."""
    groups = {pool.group(run) for run in runs}
    key = pool.group if len(groups) >= FOLDS else (lambda run: (*run.group, run.layout.label))
    ordered = sorted({key(run) for run in runs}, key=lambda k: zlib.crc32(repr(k).encode()))
    fold = {name: index % FOLDS for index, name in enumerate(ordered)}
    parts = [
        ([r for r in runs if fold[key(r)] != f], [r for r in runs if fold[key(r)] == f])
        for f in range(FOLDS)
    ]
    return [(train, rest) for train, rest in parts if train and rest]


def _sample(pool: Pool) -> list[Run]:
    """At most `LARGEST_SAMPLE` runs, as many of each group as there are."""
    turn: Counter[Hashable] = Counter()
    queue = []
    for run in sorted(pool.runs, key=lambda run: zlib.crc32(run.id.encode())):
        turn[pool.group(run)] += 1
        queue.append((turn[pool.group(run)], len(queue), run))
    return [run for *_, run in sorted(queue, key=lambda entry: entry[:2])[:LARGEST_SAMPLE]]


def _telling(runs: Sequence[Run]) -> frozenset[str]:
    """The constants that these runs can tell."""
    names = {constant.name for constant in TIME}
    if not any(run.model.is_moe for run in runs):
        names -= {"expert_scale", "routing_s"}
    waits = any(run.engine.name.startswith("nanotron") and run.layout.pipeline_parallel > 1
                for run in runs)  # fmt: skip
    one_engine = len({run.engine.name for run in runs}) == 1
    return frozenset(names if waits and one_engine else names - {"boundary_s", "pipelined_rank_s"})


def _with_memory(pool: Pool, tuning: Tuning) -> Tuning:
    """The allocator's constants, from the runs that state their memory."""
    runs = [run for run in pool.runs if run.measured.reserved_gib or run.measured.allocated_gib]
    if pool.engine == WIDE or len(runs) < FEW:
        return tuning
    names = {"memory_bytes", "state_slack_fraction", "activation_slack_fraction"}
    if pool.engine.startswith("nanotron"):
        names |= {"held_gathers", "held_gathers_pipelined"}
    sample = _sample(replace(pool, runs=tuple(runs)))
    return _minimise(pool, sample, MEMORY, frozenset(names), tuning)


def _step_residual(run: Run, tuning: Tuning) -> float:
    assert run.measured.step_time_s is not None
    return math.log(step_model(run, tuning).time().step_time_s / run.measured.step_time_s)


def _memory_residual(run: Run, tuning: Tuning) -> float:
    allocated, reserved = memory_gib(run, step_model(run, tuning))
    if run.measured.reserved_gib:
        return math.log(reserved / run.measured.reserved_gib)
    assert run.measured.allocated_gib is not None
    return math.log(allocated / run.measured.allocated_gib)


def _minimise(
    pool: Pool, runs: Sequence[Run], constants: Sequence[Constant], names: frozenset[str],
    prior: Tuning,
) -> Tuning:  # fmt: skip
    """The tuning of least loss over `runs`, from `prior`."""
    free = [constant for constant in constants if constant.name in names]
    residual = _step_residual if constants is TIME else _memory_residual
    count = Counter((*run.group, run.layout.label) for run in runs)
    weights = np.array([count[(*run.group, run.layout.label)] ** -0.5 for run in runs])
    at = partial(_residuals, [pool.priced(run) for run in runs], free, prior, residual)
    centre = np.log([getattr(prior, c.name) or c.start for c in free])
    deviation = np.array([c.deviation for c in free])
    low, high = (np.log([getattr(c, side) for c in free]) for side in ("lowest", "highest"))

    def loss(x: Vector, r: Vector) -> float:
        return float(
            weights @ np.abs(r) / NOISE + np.sum(((x - centre) / deviation) ** 2) / 2
        )

    x = np.clip(centre, low, high)
    r = at(x)
    for _ in range(ITERATIONS):
        jacobian = np.stack([(at(x + step) - r) / DIFFERENCE
                             for step in DIFFERENCE * np.eye(len(x))], axis=1)  # fmt: skip
        move = _move(r, jacobian, weights, (x - centre) / deviation**2, deviation)
        for shrink in (1.0, 0.5, 0.25, 0.1):
            tried = np.clip(x + shrink * np.clip(move, -LARGEST_MOVE, LARGEST_MOVE), low, high)
            found = at(tried)
            if loss(tried, found) < loss(x, r) - 1e-3:
                x, r = tried, found
                break
        else:
            break
    return _tuning(free, prior, x)


def _move(r: Vector, jacobian: Vector, weights: Vector, pull: Vector, deviation: Vector) -> Vector:
    """The step that minimises the loss if `r` were linear: least squares, reweighted until
    still.
    """
    move = np.zeros(jacobian.shape[1])
    for _ in range(20):
        left = np.abs(r + jacobian @ move)
        w = weights / np.maximum(left, SMALLEST_RESIDUAL) / NOISE
        normal = jacobian.T @ (w[:, None] * jacobian) + np.diag(deviation**-2.0)
        move = np.linalg.solve(normal, -(jacobian.T @ (w * r) + pull))
    return move


def _residuals(
    runs: Sequence[Run], free: Sequence[Constant], prior: Tuning, residual: Residual, x: Vector
) -> Vector:
    tuning = _tuning(free, prior, x)
    return np.array([residual(run, tuning) for run in runs])


def _tuning(free: Sequence[Constant], prior: Tuning, x: Vector) -> Tuning:
    values = {c.name: math.exp(value) for c, value in zip(free, x, strict=True)}
    return prior.model_copy(update=values)


def _rounded(tuning: Tuning) -> Tuning:
    return Tuning(**{name: float(f"{value:.3g}") for name, value in tuning.model_dump().items()})
