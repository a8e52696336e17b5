"""Fits the constants of one cluster and framework to its own runs."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

import numpy as np

from meshplan.costmodels.units import counted
from meshplan.hardware_profiles.learned import Learned, LearnedConstant, LearnedRun
from meshplan.hardware_profiles.tunings import Tuning, load_fit
from meshplan.planner.case.resolve import Case
from meshplan.planner.learn.cases import LoggedRun, UnusableRun, facts_of_run
from meshplan.planner.learn.shrink import (
    Shrinkage,
    Shrunk,
    predicted_s,
    shipped,
    shrunk,
    telling,
)
from meshplan.planner.runs.runs import Run, measured_step_s

FEWEST_TO_LEAVE_OUT, MOST_LEFT_OUT = 3, 20
BORROWED = 8
"""Of 2 to 16 the widths of the least interval score are those of 4 and 8, for strangers, engines
that are known and stated habits: `python -m benchmarks.accuracy.learn --numbers` counts how many
left-out runs they hold.
"""
SAID = "meshplan learn"
Progress = Callable[[str], None]


def learn(found: Sequence[LoggedRun], date: str, progress: Progress) -> Learned:
    """The constants fitted to the runs; raises `UnusableRun` if they differ in engine or GPU."""
    check_alike({each.log: each.case for each in found})
    first, runs = found[0], [each.run for each in found]
    names = first.case.engine.name, first.case.cluster.gpu.name
    fit, by = load_fit(*names), shipped(*names)
    progress(f"learning from {len(runs)} runs")
    learnt = shrunk(runs, fit.tuning, by)
    left_out = _left_out(runs, fit.tuning, by, progress)
    after = [predicted_s(run, learnt.tuning) for run in runs]
    seen = [math.log(measured_step_s(run) / s) for run, s in zip(runs, after, strict=True)]
    return Learned(
        engine=first.case.engine.name, gpu=first.case.cluster.gpu.name,
        cluster=first.case.cluster.name, date=date, source=SAID,
        prior=f"{fit.source}, {fit.rows} rows of {fit.date}" if fit.rows else fit.source,
        residual=median(abs(math.expm1(-each)) for each in seen),
        left_out_error=median(abs(math.expm1(-each)) for each in left_out) if left_out else None,
        factor=factor_of(left_out, by.factor(learnt.errors)),
        apart=by.apart, constants=_constants(runs, fit.tuning, learnt),
        runs=tuple(
            _row(each, predicted_s(each.run, fit.tuning), now, told=bool(told))
            for each, now, told in zip(found, after, learnt.believed, strict=True)
        ),
    )  # fmt: skip


def check_alike(cases: Mapping[Path, Case]) -> None:
    """Raises `UnusableRun` where cases, by file, differ in engine or GPU."""
    engines = {case.engine.name: path for path, case in cases.items()}
    gpus = {case.cluster.gpu.name: path for path, case in cases.items()}
    for what, names in (("engine", engines), ("GPU", gpus)):
        if len(names) > 1:
            said = " and ".join(f"{name} ({path})" for name, path in names.items())
            raise UnusableRun(f"runs of one {what} are learnt from at a time, not of {said}")


def _left_out(runs: Sequence[Run], prior: Tuning, by: Shrinkage, progress: Progress) -> list[float]:
    """ln(measured / predicted) of runs predicted by what the others teach, of at most
    `MOST_LEFT_OUT`; empty below `FEWEST_TO_LEAVE_OUT` runs.
    """
    if len(runs) < FEWEST_TO_LEAVE_OUT:
        return []
    found = []
    for at, run in enumerate(runs[:MOST_LEFT_OUT]):
        progress(f"leaving out run {at + 1} of {len(runs)}")
        others = [*runs[:at], *runs[at + 1 :]]
        found.append(
            math.log(measured_step_s(run) / predicted_s(run, shrunk(others, prior, by).tuning))
        )
    return found


def factor_of(own: Sequence[float], of_others: float) -> float:
    """As a factor the 80th percentile of |ln(measured / predicted)|: of `own` runs, each left out,
    and of other sources' (`of_others`), which weigh as much as `BORROWED` runs.
    """
    if not own:
        return round(of_others, 3)
    of_own, others = float(np.percentile(np.abs(own), 80)), math.log(of_others)
    share = len(own) / (len(own) + BORROWED)
    return round(math.exp(share * of_own + (1 - share) * others), 3)


def _constants(runs: Sequence[Run], prior: Tuning, learnt: Shrunk) -> tuple[LearnedConstant, ...]:
    return tuple(
        LearnedConstant(
            name=each.name, before=getattr(prior, each.name),
            after=getattr(learnt.tuning, each.name), deviation=learnt.deviation[each.name],
            kept=learnt.kept[each.name],
        )
        for each in telling(runs, prior)
    )  # fmt: skip


def _row(each: LoggedRun, before_s: float, after_s: float, *, told: bool) -> LearnedRun:
    run = each.run
    return LearnedRun(
        log=str(each.log), config=str(each.config), layout=run.layout.label,
        gpus=run.layout.world_size, precision=run.training.precision, model=run.model.kind,
        measured_s=measured_step_s(run), before_s=before_s, after_s=after_s,
        believed=told, facts=facts_of_run(run),
    )  # fmt: skip


def interval_width(learned: Learned) -> str:
    """The range that 8 of 10 further runs should fall into, as text: of plans that are nearest to
    these runs, and of those that are farthest.
    """
    if not learned.apart:
        return _range(learned.factor)
    near, far = min(learned.apart), max(learned.apart)
    return (
        f"{_range(learned.factor_at(near))} where up to {counted(near, 'fact')} of a plan "
        f"differs from the nearest run's, {_range(learned.factor_at(far))} from {far} on"
    )


def _range(factor: float) -> str:
    return f"{1 / factor - 1:+.0%} to {factor - 1:+.0%}"
