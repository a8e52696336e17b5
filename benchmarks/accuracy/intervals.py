"""How far predictions are off on runs that the constants have not seen: the intervals of plans.

    python -m benchmarks.accuracy.intervals                 writes fits/intervals.csv
    python -m benchmarks.accuracy.intervals --never-fitted  those rows that need no learning
    python -m benchmarks.accuracy.intervals --of ENGINE     those and the rows of an engine's pools

Runs of an engine are left out in turn and predicted by constants learnt from the rest: a third of
the layouts at a time, then, where they come from several sources, one whole source at a time. An
engine without constants of its own is predicted by those of all engines, learnt without it; to
these come the runs that no constant was ever fitted to: elsewhere.csv, internlm.csv, lora.csv,
aleph.csv, and models with a state. A change that moves no price of the others needs these alone
made again, and a change in how one engine learns its own (`generic`: that of all). The first
prediction of a run to which nothing was fitted is added to fits/first_predictions.csv, and never
changed: make it before its sources are looked at.
`hardware_profiles.errors.intervals` makes intervals of these ratios.
"""

import datetime
import math
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from benchmarks.accuracy.rows import ELSEWHERE, csv_of, runs_of
from benchmarks.usage import check_usage
from meshplan.hardware_profiles.errors.asked import asked_like
from meshplan.hardware_profiles.errors.intervals import STATE, step_time_interval
from meshplan.hardware_profiles.errors.left_out_runs import FILE, FIRST_FILE, First, Ratio, firsts
from meshplan.hardware_profiles.errors.left_out_runs import ratios as all_ratios
from meshplan.hardware_profiles.tunings import Fit, Tuning, fits_of, load_fit
from meshplan.planner.runs.fit import (
    WIDE,
    Pool,
    learn_memory,
    pools,
    problem_of,
    rivals_of,
    sample,
    splits,
    with_memory_of,
)
from meshplan.planner.runs.learning import Indices
from meshplan.planner.runs.runs import BUILT_IN, Run
from meshplan.planner.runs.validate import memory_gib, step_model
from meshplan.planner.text_files import write_text


def main() -> None:
    """Write every ratio, or those that the options name beside the others that ship, and print how
    many there are of each pool.
    """
    runs = list(runs_of(BUILT_IN))
    engines = {pool.engine for pool in pools(runs)}
    shipped = {engine: fits for engine in engines if (fits := fits_of(engine))}
    kept = [pool for pool in pools(runs) if pool.family in shipped.get(pool.engine, {})]
    again = [pool for pool in kept if _is_asked(pool.engine, sys.argv[1:])]
    ratios = [*_others(again, runs)] if sys.argv[1:] else []
    for pool in sorted(again, key=lambda pool: (pool.engine, pool.family)):
        found = [
            ratio for ratio in _left_out(pool, kept, shipped) if _loaded_from(pool, ratio, kept)
        ]
        print(f"{pool.engine} on {pool.family}: {len(found)} ratios", flush=True)
        ratios += found
    elsewhere = [run for path in ELSEWHERE for run in runs_of(path)]
    never_fitted = [*_never_fitted(elsewhere), *_of_states()]
    known = {ratio.run for ratio in never_fitted} | {run.id for run in elsewhere}
    _write([*(ratio for ratio in ratios if ratio.run not in known), *never_fitted])


def _is_asked(engine: str, options: Sequence[str]) -> bool:
    if options in ([], ["--never-fitted"]):
        return not options
    if options[0] != "--of" or len(options) != 2 or not fits_of(options[1]):
        raise SystemExit(f"{' '.join(options)}: nothing, --never-fitted, or --of ENGINE with a fit")
    return engine == options[1]


def _others(again: Sequence[Pool], runs: Sequence[Run]) -> Iterator[Ratio]:
    """The ratios that ship of other pools than those that are made again; where their experts
    exchange tokens is read in their rows.
    """
    away = {run.id for run in runs if run.asked.between_nodes}
    made = {
        (run.id, kind) for pool in again for run in pool.runs
        for kind in (("framework",) if pool.engine == WIDE else ("layout", "source"))
    }  # fmt: skip
    kept = (ratio for ratio in all_ratios() if (ratio.run, ratio.left_out) not in made)
    return (replace(ratio, between_nodes=ratio.run in away) for ratio in kept)


def _never_fitted(runs: Iterable[Run]) -> Iterator[Ratio]:
    for run in filter(_timed, runs):
        yield _ratio(left_out_with(run), run, _loaded(run))


def _of_states() -> Iterator[Ratio]:
    """Runs of models with a state, by the constants that load: none was learnt from them. Of any
    grade, since the published ones seldom state their whole layout.
    """
    for run in runs_of(BUILT_IN):
        if run.asked.model == STATE and run.measured.step_time_s and not run.measured.oom:
            yield _ratio("framework", run, _loaded(run))


def _write(ratios: Sequence[Ratio]) -> None:
    now = datetime.datetime.now().isoformat(timespec="minutes")
    kept = with_new(firsts(), ratios, {ratio.run for ratio in all_ratios()}, now)
    write_text(FIRST_FILE, csv_of(First, kept))
    write_text(FILE, csv_of(Ratio, ratios))
    print(f"{FILE}: {len(ratios)} ratios, {now}")


def with_new(
    known: Iterable[First], ratios: Sequence[Ratio], before: Collection[str], now: str
) -> list[First]:
    """The first predictions that are `known`, and those of runs of which there was none `before`,
    neither first nor later, with the range that ships; a run that a constant was learnt from has
    none.
    """
    found = {first.run: first for first in known}
    fitted = {ratio.run for ratio in ratios if ratio.left_out == "layout"}
    for ratio in ratios:
        if ratio.run not in fitted and ratio.run not in before:
            found.setdefault(ratio.run, _first(ratio, now))
    return sorted(found.values(), key=lambda first: first.run)


def _first(ratio: Ratio, now: str) -> First:
    around = step_time_interval(asked_like(ratio))
    return First(ratio.run, ratio.step_time, now, round(around.low, 4), round(around.high, 4))


def left_out_with(run: Run) -> str:
    """A new source of an engine that has constants of its own, or a new framework."""
    return "source" if fits_of(run.engine.fitted_as or run.engine.name) else "framework"


def _timed(run: Run) -> bool:
    measured = run.measured
    return run.grade in ("A", "B") and bool(measured.step_time_s) and not measured.oom


def _loaded(run: Run) -> Tuning:
    return load_fit(run.engine.name, run.cluster.gpu.name).tuning


def _left_out(
    pool: Pool, kept: Sequence[Pool], shipped: dict[str, dict[str, Fit]]
) -> Iterator[Ratio]:
    """Measured over predicted, of each run when it was left out, of the wider pool too."""
    chosen, rivals = sample(pool), rivals_of(shipped, pool, kept)
    problem_from = cache(lambda start: problem_of(pool, chosen, start))
    kinds = {"framework": splits(pool, chosen)} if pool.engine == WIDE else {
        "layout": splits(pool, chosen), "source": _by_source(chosen)
    }  # fmt: skip
    for kind, parts in kinds.items():
        for train, rest in parts:
            start = rivals.start(frozenset(chosen[row].id for row in rest))
            learnt = with_memory_of(problem_from(start).solve(train), start)
            tuning = learn_memory(pool, [chosen[row] for row in train], learnt)
            for row in rest:
                yield _ratio(kind, chosen[row], tuning)


def _loaded_from(pool: Pool, ratio: Ratio, kept: Sequence[Pool]) -> bool:
    """Whether a plan like the run would load this pool's constants. Those of a GPU family, if they
    ship; of a family whose only source is left out nothing would be, so the engine's are.
    """
    families = [other for other in kept if (other.engine, other.family) == (pool.engine, ratio.gpu)]
    if pool.family != "any" or not families:
        return True
    return ratio.left_out == "source" and not _by_source(sample(families[0]))


def _by_source(runs: Sequence[Run]) -> list[tuple[Indices, Indices]]:
    suites = np.array([run.suite for run in runs])
    names = sorted(set(suites))
    if len(names) == 1:
        return []
    return [(np.flatnonzero(suites != name), np.flatnonzero(suites == name)) for name in names]


def _ratio(kind: str, run: Run, tuning: Tuning) -> Ratio:
    model, measured = step_model(run, tuning), run.measured
    assert measured.step_time_s is not None
    reserved = measured.reserved_gib and measured.reserved_gib / memory_gib(run, model)[1]
    return Ratio(
        run=run.id, engine=run.asked.engine, gpu=run.asked.gpu, suite=run.suite, left_out=kind,
        gpus=run.asked.gpus, precision=run.asked.precision, model=run.asked.model,
        between_nodes=run.asked.between_nodes,
        step_time=_rounded(measured.step_time_s / model.time().step_time_s),
        reserved=_rounded(reserved) if reserved else None,
    )  # fmt: skip


def _rounded(ratio: float) -> float:
    return round(ratio, 4) if math.isfinite(ratio) else ratio


if __name__ == "__main__":
    check_usage(str(__doc__), "--never-fitted", "--of")
    main()
