"""Learning the few fitted constants of an engine on a GPU family from measured runs.

    minimise  mean over rows of  w min(|ln(predicted / measured)|, 0.35)  +  0.02 sum of (ln
              scale)^2

    w    1 / sqrt(rows of its group): repeats of one layout say little more than one of them
    ln   symmetric in too fast and too slow; capped, so that a broken row pulls no more than another
    the second term keeps a scale at 1 unless the data insists

by a pattern search: one constant at a time, up or down by its step, which halves when neither
helps. Groups (suite, model, GPU, GPUs, layout) are cut into folds; each fold is predicted by a fit
on the others, and that error is what the file states. A family's constants are kept only if they
predict the left-out folds better than no correction does.
"""

import math
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from costmodels.step import Setting, StepModel
from hardware_profiles.tunings import Fit, Tuning, gpu_family
from planner.runs import Run

SCALES = ("matmul_scale", "attention_scale", "pointwise_scale", "collective_scale", "expert_scale")
SECONDS = {
    "launch_s": (1e-6, 1.5e-4), "routing_s": (5e-5, 5e-3), "micro_batch_s": (1e-4, 2e-2),
    "step_s": (1e-3, 0.2), "boundary_s": (1e-3, 0.6), "pipelined_rank_s": (2e-5, 5e-4),
}  # fmt: skip
"""Constants in seconds, and the smallest and largest values that are tried."""

CAP = 0.35
COARSE = 6
FOLDS = 3
FEW = 12
MANY = 24
ROUNDS = 6
LARGEST_SAMPLE = 100
SLOW_SCHEDULES = ("zb_h1", "zb_v", "dualpipe_v")


@dataclass(frozen=True, slots=True)
class Sample:
    """A measured run and its weight."""

    run: Run
    weight: float

    def error(self, tuning: Tuning) -> float:
        """ln(predicted / measured) of the step time."""
        run = self.run
        assert run.measured.step_time_s is not None
        setting = Setting(run.model, run.training, run.cluster, run.engine, tuning)
        return math.log(
            StepModel(setting, run.layout).time().step_time_s / run.measured.step_time_s
        )


def fit_all(
    runs: Iterable[Run], source: str, date: str, progress: Callable[[str], None]
) -> dict[str, dict[str, Fit]]:
    """A fit for each engine and GPU family that has enough runs, and `generic` from all of them."""
    pools: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        if run.measured.step_time_s:
            family = gpu_family(run.cluster.gpu.name)
            pools[run.engine.name, family].append(run)
            pools[run.engine.name, "any"].append(run)
            pools["generic", family].append(run)
            pools["generic", "any"].append(run)
    fits: dict[str, dict[str, Fit]] = defaultdict(dict)
    for (engine, family), pool in sorted(pools.items()):
        progress(f"{engine} on {family}: {len(pool)} rows")
        found = fit_pool(pool, source, date)
        if found is not None:
            fits[engine][family] = found
    return fits


def fit_pool(pool: Sequence[Run], source: str, date: str) -> Fit | None:
    """The fit of one pool, None if it does not carry over to held-out groups."""
    samples = _samples(pool)
    if len(samples) < FEW or len({_group(sample.run) for sample in samples}) < FOLDS:
        return None
    names = _constants(samples)
    held_out, unfitted = [], []
    for fold in range(FOLDS):
        train = [sample for sample in samples if _fold(sample.run) != fold]
        rest = [sample for sample in samples if _fold(sample.run) == fold]
        if train and rest:
            tuning = _search(train, names)
            held_out += [abs(math.expm1(sample.error(tuning))) for sample in rest]
            unfitted += [abs(math.expm1(sample.error(Tuning()))) for sample in rest]
    if not held_out or median(held_out) >= median(unfitted):
        return None
    return Fit(
        tuning=_search(samples, names), date=date, rows=len(pool),
        groups=len({_group(sample.run) for sample in samples}),
        error_fraction=round(median(held_out), 4), source=source,
    )  # fmt: skip


def _group(run: Run) -> tuple[object, ...]:
    return (*run.group, run.layout.label)


def _fold(run: Run) -> int:
    """Stable between runs of the program, unlike `hash`."""
    return zlib.crc32(repr(_group(run)).encode()) % FOLDS


def _samples(pool: Sequence[Run]) -> list[Sample]:
    """At most `LARGEST_SAMPLE` runs. Zero-bubble runs are left out: playing their schedule takes
    longest, and their 1F1B neighbours know the same constants.
    """
    played = [run for run in pool if run.layout.schedule not in SLOW_SCHEDULES]
    count = Counter(_group(run) for run in played)
    ordered = sorted(played, key=lambda run: zlib.crc32(run.id.encode()))
    return [Sample(run, 1 / math.sqrt(count[_group(run)])) for run in ordered[:LARGEST_SAMPLE]]


def _constants(samples: Sequence[Sample]) -> tuple[str, ...]:
    """Those that the pool's runs can tell: few runs tell only the rates of kernels and of the
    host.
    """
    runs = [sample.run for sample in samples]
    moe = any(run.model.is_moe for run in runs)
    pipelined = any(run.layout.pipeline_parallel > 1 for run in runs)
    nanotron = any(run.engine.name.startswith("nanotron") for run in runs)
    left_out = set() if moe else {"expert_scale", "routing_s"}
    if not (nanotron and pipelined):
        left_out |= {"boundary_s", "pipelined_rank_s"}
    if len(runs) < MANY:
        left_out |= {"pointwise_scale", "collective_scale", "micro_batch_s", "step_s"}
    return tuple(name for name in (*SCALES, *SECONDS) if name not in left_out)


def _search(samples: Sequence[Sample], names: Sequence[str]) -> Tuning:
    tuning = Tuning()
    for name in [name for name in names if name in SECONDS] * 2:
        trials = np.geomspace(*SECONDS[name], COARSE)
        known = [tuning, *(tuning.model_copy(update={name: float(value)}) for value in trials)]
        tuning = min(known, key=lambda trial: _loss(samples, trial))
    best, step = _loss(samples, tuning), {n: 0.25 if n in SCALES else 0.7 for n in names}
    for _ in range(ROUNDS):
        for name in names:
            for sign in (1, -1):
                value = getattr(tuning, name) * math.exp(sign * step[name])
                if name in SECONDS and value > SECONDS[name][1]:
                    continue
                trial = tuning.model_copy(update={name: value})
                loss = _loss(samples, trial)
                if loss < best - 1e-5:
                    tuning, best = trial, loss
                    break
            else:
                step[name] /= 2
    return tuning


def _loss(samples: Sequence[Sample], tuning: Tuning) -> float:
    total = sum(sample.weight * min(abs(sample.error(tuning)), CAP) for sample in samples)
    kept = 0.02 * sum(math.log(getattr(tuning, name)) ** 2 for name in SCALES)
    return total / sum(sample.weight for sample in samples) + kept
