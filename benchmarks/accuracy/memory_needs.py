"""What measured runs needed of their GPUs beside what is predicted: the probability that one fits.

    python -m benchmarks.accuracy.memory_needs          writes fits/memory_needs.csv
    python -m benchmarks.accuracy.memory_needs --check  counts how often the probabilities hold

and the tables of docs/choice.md.

Runs of any grade that ran out of memory, ran, or state their memory, where the source publishes
what did not run as well or the run states its memory. Where the allocator's constants were learnt
from a run, a third of the layouts at a time is left out and predicted by constants learnt from the
rest; other runs are predicted by the constants that load, which have seen nobody's memory.
"""

import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from statistics import fmean
from typing import Any

from benchmarks.accuracy.rows import ELSEWHERE, csv_of, runs_of
from benchmarks.engine.one_gpu import PUBLISHED, prediction
from benchmarks.engine.one_gpu import runs as runs_of_one_gpu
from benchmarks.pages import ROOT, show
from benchmarks.usage import check_usage
from meshplan.costmodels.step.step import StepModel
from meshplan.costmodels.units import GIB
from meshplan.hardware_profiles.engines import engine_names
from meshplan.hardware_profiles.errors.memory_needs import FILE, FITS, Chances, Need, chances, needs
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.tunings import Tuning, gpu_family, load_fit
from meshplan.planner.runs.fit import FEW, WIDE, learn_memory, pools, splits, with_memory_of
from meshplan.planner.runs.memory import recomputing
from meshplan.planner.runs.runs import BUILT_IN, Run
from meshplan.planner.runs.validate import step_model
from meshplan.planner.text_files import write_text

NEAR = 0.9, 1.4
BANDS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.01)


def main() -> None:
    """Write the runs, and how often what was said to fit did."""
    if "--check" not in sys.argv[1:]:
        found = list(_found())
        write_text(FILE, as_csv(found))
        needs.cache_clear()
        print(f"{FILE}: {len(found)} runs")
    text = "\n".join((*outcomes(needs()), "", *headrooms(needs())))
    show(ROOT / "docs/choice.md", "memory needs", text)


def as_csv(found: Sequence[Need]) -> str:
    """The file's text."""
    return csv_of(Need, found)


def _found() -> Iterator[Need]:
    runs = [run for path in (BUILT_IN, *ELSEWHERE) for run in runs_of(path)]
    publishes = {run.suite for run in runs if run.measured.oom}
    tunings = dict(_left_out(runs))
    for run in runs:
        usual = load_fit(run.engine.name, run.cluster.gpu.name).tuning
        measured, both = run.measured, run.measured.allocated_gib and run.measured.reserved_gib
        if run.suite in publishes and (measured.oom or measured.ran):
            yield _need(run, tunings.get(run.id, usual), True)
        elif both and run.suite not in publishes:
            yield _need(run, tunings.get(run.id, usual), False)
    yield from map(_of_one_gpu, runs_of_one_gpu())


def _left_out(runs: Sequence[Run]) -> Iterator[tuple[str, Tuning]]:
    """The constants of each run that the allocator's were learnt from, or that ran out of memory
    beside them, learnt without its layout.
    """
    for pool in pools(runs):
        stated = [run for run in pool.runs if _learnt(run)]
        if pool.engine == WIDE or pool.family == "any" or len(stated) < FEW:
            continue
        suites = {run.suite for run in stated}
        beside = [
            run for run in runs if run.suite in suites and run.engine.name == pool.engine
            and gpu_family(run.cluster.gpu.name) == pool.family
        ]  # fmt: skip
        for train, rest in splits(pool, beside):
            told = [beside[row] for row in train if _learnt(beside[row])]
            start = _without_memory(beside[0])
            tuning = learn_memory(replace(pool, runs=tuple(told)), told, start)
            yield from ((beside[row].id, tuning) for row in rest)


def _without_memory(run: Run) -> Tuning:
    """Its engine's constants of time, and the allocator's of an engine that nobody measured."""
    gpu = run.cluster.gpu.name
    return with_memory_of(load_fit(run.engine.name, gpu).tuning, load_fit(WIDE, gpu).tuning)


def _learnt(run: Run) -> bool:
    measured = run.measured
    return not measured.oom and bool(measured.reserved_gib or measured.allocated_gib)


def _need(run: Run, tuning: Tuning, publishes: bool) -> Need:
    """What the run says; `publishes`: its source tells what ran out of memory too."""
    model, measured = step_model(run, tuning), run.measured
    if measured.oom and "recompute" in run.assumed:
        model = StepModel(model.setting, recomputing(run.layout))
    context_gib = model.context_bytes / GIB
    ranks_gib = [
        (float(rank.allocated) + model.slack_bytes(rank)) / GIB + context_gib
        for rank in model.memory()
    ]
    room = run.cluster.gpu.memory_bytes / GIB / max(ranks_gib)
    if publishes:
        low, high = (room, math.inf) if measured.oom else (0.0, room)
        return _interval(run, low, high, room)
    alone = 0 if measured.rank_0 else -1 if measured.last_rank else None
    read_gib = max(ranks_gib) if alone is None else ranks_gib[alone]
    assert measured.allocated_gib
    assert measured.reserved_gib
    low, high = (
        (gib + context_gib) / read_gib for gib in (measured.allocated_gib, measured.reserved_gib)
    )
    return _interval(run, low, high, 0.0)


def _interval(run: Run, low: float, high: float, room: float) -> Need:
    return Need(
        engine=run.engine.name, gpu=gpu_family(run.cluster.gpu.name), suite=run.suite,
        low=round(low, 3), high=round(high, 3), room=round(room, 3),
    )  # fmt: skip


def _of_one_gpu(run: dict[str, Any]) -> Need:
    """A run of the native engine on one GPU of ours."""
    found = prediction(run, load_cluster(PUBLISHED[run["gpu"]]))
    rank = found.memory[0]
    needed = rank.allocated + rank.slack + rank.context
    low, high = (
        (run[name] + rank.context) / needed for name in ("allocated_bytes", "reserved_bytes")
    )
    return Need(
        engine="native", gpu=gpu_family(run["gpu"]), suite="one GPU", low=round(low, 3),
        high=round(high, 3), room=0.0,
    )  # fmt: skip


def outcomes(known: Sequence[Need]) -> Iterator[str]:
    """How many of the runs ran that were said to fit with a probability: by half of the runs for
    the other half, and by other sources; and how sharp both are.
    """
    yield "| said to fit with | runs | of these ran | by other sources alone: runs | of these ran |"
    yield "|---|---|---|---|---|"
    ways = zip(outcomes_of(known), outcomes_of(known, by_others=True), strict=True)
    for (low, high, runs, ran), (*_, others, ran_of_others) in ways:
        cells = (f"{runs:,}", _share(ran, runs), f"{others:,}", _share(ran_of_others, others))
        yield f"| {low:.0%} to {min(high, 1):.0%} | {' | '.join(cells)} |"
    yield ""
    yield from by_engine(known)
    yield ""
    yield from sharpness(known)


def by_engine(known: Sequence[Need]) -> Iterator[str]:
    """How often runs ran beside how often they were said to, by source and GPU family: those with
    about as much room as plans leave, and those that a plan would be offered for. Versions of an
    engine are told together: what ran was run again by a later one, what did not was not.
    """
    yield (
        f"| engine, GPUs, source | runs near the limit | said to run | by other sources | ran "
        f"| said {FITS:.0%} and more by other sources | ran |"
    )
    yield "|---|---|---|---|---|---|---|"
    told: dict[tuple[str, str], list[tuple[Need, float, float]]] = defaultdict(list)
    for each in _told(known):
        for key in (("", ""), (each[0].suite, each[0].gpu)):
            told[key].append(each)
    for (suite, gpu), runs in told.items():
        engines = "/".join(sorted({each[0].engine for each in runs}))
        name = f"{engines}, {gpu}, {suite}" if suite else "all"
        near = [each for each in runs if NEAR[0] <= each[0].room <= NEAR[1]]
        if not near:
            continue
        sure = [each[0].ran for each in runs if each[2] >= FITS]
        said, others = (fmean(chances) for chances in list(zip(*near, strict=True))[1:])
        ran = fmean(each[0].ran for each in near)
        cells = f"{len(near)} | {said:.0%} | {others:.0%} | {ran:.0%}"
        yield f"| {name} | {cells} | {len(sure)} | {_share(sum(sure), len(sure))} |"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else ""


def sharpness(known: Sequence[Need]) -> Iterator[str]:
    """Mean log loss beside that of one probability for all: of all runs, then of those with about
    as much room as plans leave.
    """
    yield "| of runs with | runs | log loss by half | by other sources | one probability for all |"
    yield "|---|---|---|---|---|"
    told = list(_told(known))
    for name, low, high in (("any room", 0.0, math.inf), ("0.9 to 1.4 times the need", *NEAR)):
        some = [each for each in told if low <= each[0].room <= high]
        ran = [each[0].ran for each in some]
        ways = ([each[1] for each in some], [each[2] for each in some], [fmean(ran)] * len(ran))
        losses = " | ".join(f"{_log_loss(said, ran):.3f}" for said in ways)
        yield f"| {name} | {len(some):,} | {losses} |"


def _log_loss(said: Sequence[float], ran: Sequence[bool]) -> float:
    """Mean of -ln of the probability of what happened, no probability nearer to 0 or 1 than 0.5 %
    (infinite where one was sure and wrong).
    """
    kept = [min(max(each, 0.005), 0.995) for each in said]
    return -fmean(math.log(p if yes else 1 - p) for p, yes in zip(kept, ran, strict=True))


def outcomes_of(
    known: Sequence[Need], *, by_others: bool = False
) -> Iterator[tuple[float, float, int, int]]:
    """Of each band of probabilities its ends, the runs that were given one, and those that ran."""
    told = [(need, others if by_others else half) for need, half, others in _told(known)]
    for low, high in pairwise(BANDS):
        band = [need for need, probable in told if low <= probable < high]
        yield low, high, len(band), sum(need.ran for need in band)


def _told(known: Sequence[Need]) -> Iterator[tuple[Need, float, float]]:
    """Each run whose source publishes what did not run, with the probabilities that the other half
    of all runs and the other sources give it.
    """
    halves = [known[::2], known[1::2]]

    @cache
    def by_half(which: int, engine: str, gpu: str) -> Chances:
        return chances(halves[which], engine, gpu)

    @cache
    def by_others(suite: str, engine: str, gpu: str) -> Chances:
        return chances([need for need in known if need.suite != suite], engine, gpu)

    for index, need in enumerate(known):
        if need.room:
            half = by_half(1 - index % 2, need.engine, need.gpu)
            others = by_others(need.suite, need.engine, need.gpu)
            yield need, half.probability(need.room), others.probability(need.room)


def headrooms(known: Sequence[Need]) -> Iterator[str]:
    """What an engine's plans leave free of a GPU to fit with a probability; last, those of an
    engine that has no runs.
    """
    shares = (0.5, 0.7, 0.8, 0.85, 0.9, 0.95)
    yield f"| left free | runs | {' | '.join(f'to fit with {share:.0%}' for share in shares)} |"
    yield f"|---|---|{'---|' * len(shares)}"
    families = sorted({need.gpu for need in known})
    own = [(e, f) for e in engine_names() for f in families if chances(known, e, f).runs]
    for engine, family in (*own, ("", "hopper")):
        found = chances(known, engine, family)
        name = f"{engine}, {family}" if engine else "engines without such runs"
        free = (max(0.0, 1 - 1 / found.room(share)) for share in shares)
        yield f"| {name} | {found.runs:,} | {' | '.join(f'{each:.0%}' for each in free)} |"


if __name__ == "__main__":
    check_usage(str(__doc__), "--check")
    main()
