"""Learning the few fitted constants of an engine on a GPU family from measured runs.

A pool is an engine's runs on one GPU family or on all; what is learnt of it (`learning`) stays near
the constants of the next wider pool: the engine on all GPUs, all engines on this family, all
engines on all GPUs. So a pool with few runs changes little, and a constant of time that its runs do
not tell stays there. Every run is priced with its own engine's habits, in the wider pools
too: what a framework is slower for would otherwise be put on all kernels. All kernels have one
scale there (`KERNELS`). The wider pools learn nothing from runs that stand still for a reason which
the `generic` engine does not have (`stands_still`): the stalls would be put on its kernels.

A third of the groups is left out at a time and predicted by a fit on the others: whole frameworks
in the wider pools, a model's layouts one by one in an engine's own. That error is what the file
states, and a pool whose fit does not beat there what would be loaded without it is not kept: the
engine's constants on all GPUs, learnt without the left-out runs too, or those of all engines on
each run's own family.
"""

import math
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from statistics import median

import numpy as np

from meshplan.costmodels.ranks.rank import Rank
from meshplan.costmodels.setting import Setting
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.errors.intervals import STATE
from meshplan.hardware_profiles.tunings import Fit, Tuning, gpu_family, load_fit
from meshplan.planner.runs.learning import (
    KERNELS,
    MEMORY,
    TIME,
    Constant,
    Indices,
    Problem,
    layout_of,
)
from meshplan.planner.runs.runs import Run

Ids = frozenset[str]
FOLDS, FEW, LARGEST_SAMPLE = 3, 6, 240
SLOW_SCHEDULES = ("zb_h1", "zb_v", "dualpipe_v")
WIDE = "generic"
NOBODY: Ids = frozenset()
STALLS = ("boundary_s", "pipelined_rank_s", "pressed_s")
"""Of engines of their own: all engines together have none."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The runs of one engine on one GPU family, and how the left-out groups are formed."""

    engine: str
    family: str
    runs: tuple[Run, ...]

    def group(self, run: Run) -> Hashable:
        """What is left out together: a framework, or one layout of one model on so many GPUs."""
        return run.engine.name if self.engine == WIDE else layout_of(run)

    def hears(self, run: Run) -> bool:
        """Whether the pool learns from the run."""
        return self.engine != WIDE or not stands_still(run)


def stands_still(run: Run) -> bool:
    """Whether the run's pipeline leaves a node under an engine that waits there, as the constants
    that ship for it say: at each boundary, or in collectives of tensor parallel.
    """
    rank = Rank(Setting(run.model, run.training, run.cluster, run.engine, Tuning()), run.layout)
    if not rank.hops.crosses_nodes:
        return False
    waits = load_fit(run.engine.name, run.cluster.gpu.name).tuning
    at_boundaries = waits.boundary_s > 0 and run.engine.overlap.waits_at_boundaries
    return at_boundaries or (waits.pipelined_rank_s > 0 and run.layout.tensor_parallel > 1)


@dataclass(frozen=True, slots=True)
class Rivals:
    """What a pool's fit starts from, and what would be loaded without it.

    Both as they would be had some runs not been seen, where they are the engine's own; the wider
    pools' have seen all.
    """

    start: Callable[[Ids], Tuning]
    without: Callable[[str, Ids], Tuning]


def fit_all(
    runs: Iterable[Run],
    source: str,
    date: str,
    progress: Callable[[str], None],
    known: Callable[[str, str], Tuning] | None,
) -> dict[str, dict[str, Fit]]:
    """A fit for each engine and GPU family whose runs carry over, the wider pools first.

    known  the tuning of an engine on a GPU that is known already: the constants start there
           instead of at those of the wider pool
    """
    fits: dict[str, dict[str, Fit]] = defaultdict(dict)
    order = sorted(pools(runs), key=lambda p: (p.engine != WIDE, p.family != "any", p.engine))
    for pool in order:
        if known:
            rivals = _always(known(pool.engine, pool.runs[0].cluster.gpu.name))
        else:
            rivals = rivals_of(fits, pool, order)
        found = fit_pool(pool, rivals, source, date)
        if found is not None:
            fits[pool.engine][pool.family] = found
        error = f"{found.error_fraction:.1%}" if found else "not kept"
        progress(f"{pool.engine} on {pool.family}: {len(pool.runs)} rows, held out {error}")
    return fits


def _always(tuning: Tuning) -> Rivals:
    return Rivals(lambda _: tuning, lambda _, __: tuning)


def rivals_of(fits: Mapping[str, Mapping[str, Fit]], pool: Pool, pools: Sequence[Pool]) -> Rivals:
    """Those of the fits so far. What the engine has itself has seen the runs: its constants on all
    GPUs start at all engines', and are learnt again for each set of runs that they must not have
    seen.
    """
    others = {name: found for name, found in fits.items() if name != pool.engine}
    if pool.family == "any" or "any" not in fits.get(pool.engine, {}):
        start = wider(others, pool, pool.family)
        return Rivals(lambda _: start, lambda family, _: wider(others, pool, family))
    wide = next(p for p in pools if (p.engine, p.family) == (pool.engine, "any"))
    start = wider(others, wide, "any")
    seen = fits[pool.engine]["any"].tuning

    @cache
    def learnt(left_out: Ids) -> Tuning:
        if not left_out:
            return seen
        rows = [run for run in sample(wide) if run.id not in left_out]
        return problem_of(wide, rows, start).solve(np.arange(len(rows)))

    return Rivals(learnt, lambda _, left_out: learnt(left_out))


def pools(runs: Iterable[Run]) -> list[Pool]:
    """Each engine on all GPUs, and on each family if there are several.

    Zero-bubble runs are left out: their 1F1B neighbours know the same constants, sooner. So are
    models with a state, whose error is another's (docs/accuracy_tables.md).
    """
    members: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        measured = run.measured.step_time_s and not run.measured.oom
        plain = run.layout.schedule not in SLOW_SCHEDULES and run.model.kind != STATE
        if measured and plain and run.grade in ("", "A", "B"):
            engines = (run.engine.fitted_as or run.engine.name, WIDE)
            families = dict.fromkeys(("any", gpu_family(run.cluster.gpu.name)))
            for pool in product(engines, families):
                members[pool].append(run)
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


def fit_pool(pool: Pool, rivals: Rivals, source: str, date: str) -> Fit | None:
    """The fit of one pool, None if it does not predict left-out groups better than the constants
    that would be loaded without it.
    """
    runs = sample(pool)
    problem_from = cache(lambda start: problem_of(pool, runs, start))
    held_out: list[float] = []
    without_it: list[float] = []
    for train, rest in splits(pool, runs):
        left_out = frozenset(runs[row].id for row in rest)
        problem = problem_from(rivals.start(left_out))
        learnt = problem.solve(train)
        for row in rest:
            run = problem.runs[row]
            instead = rivals.without(gpu_family(run.cluster.gpu.name), left_out)
            held_out.append(abs(problem.residual(run, learnt)))
            without_it.append(abs(problem.residual(run, instead)))
    widest = (pool.engine, pool.family) == (WIDE, "any")
    if not held_out or (median(held_out) >= median(without_it) and not widest):
        return None
    start, every = rivals.start(NOBODY), np.arange(len(runs))
    problem = problem_from(start)
    learnt, told = problem.solve(every), problem.told(every)
    own = with_memory_of(learnt, start)
    tuning = learn_memory(pool, pool.runs, own)  # again: a host's time says what is held
    moved = {name for c, known in zip(problem.free, told, strict=True) if known for name in c.names}
    return Fit(
        tuning=tuning, date=date,
        prior=tuple(c.name for c in TIME if c.name not in moved and _differs(tuning, c.name)),
        rows=len(pool.runs), groups=len({pool.group(run) for run in pool.runs}),
        error_fraction=round(math.expm1(median(held_out)), 4), source=source,
    )  # fmt: skip


def _differs(tuning: Tuning, name: str) -> bool:
    """From what a table that leaves it out says."""
    return bool(getattr(tuning, name) != getattr(Tuning(), name))


def problem_of(pool: Pool, runs: Sequence[Run], prior: Tuning) -> Problem:
    """What `runs` of the pool say."""
    start = learn_memory(pool, pool.runs, prior)
    heard = [pool.hears(run) for run in runs]
    return Problem(runs, constants_told(pool, runs), start, own=pool.engine != WIDE, heard=heard)


def splits(pool: Pool, runs: Sequence[Run]) -> list[tuple[Indices, Indices]]:
    """Rows to learn from and rows to predict, in turn."""
    keys = [pool.group(run) for run in runs]
    ordered = sorted(set(keys), key=lambda key: zlib.crc32(repr(key).encode()))
    fold = np.array([ordered.index(key) % FOLDS for key in keys])
    parts = [(np.flatnonzero(fold != f), np.flatnonzero(fold == f)) for f in range(FOLDS)]
    return [(train, rest) for train, rest in parts if len(train) and len(rest)]


def sample(pool: Pool) -> list[Run]:
    """At most `LARGEST_SAMPLE` runs, as many of each group as there are."""
    turn: Counter[Hashable] = Counter()
    queue: list[tuple[int, int, Run]] = []
    for run in sorted(pool.runs, key=lambda run: zlib.crc32(run.id.encode())):
        turn[pool.group(run)] += 1
        queue.append((turn[pool.group(run)], len(queue), run))
    return [run for *_, run in sorted(queue, key=lambda entry: entry[:2])[:LARGEST_SAMPLE]]


def constants_told(pool: Pool, runs: Sequence[Run]) -> list[Constant]:
    """The constants of time that these runs can tell."""
    nanotron = {run.engine.name for run in runs} <= {"nanotron", "nanotron-2024"}
    told = {
        "expert_scale": any(run.model.is_moe for run in runs),
        "routing_s": any(run.model.is_moe for run in runs),
        "boundary_s": any(run.engine.overlap.waits_at_boundaries for run in runs),
        "pipelined_rank_s": nanotron,
        "pressed_s": nanotron,
    }
    free = [constant for constant in TIME if told.get(constant.name, True)]
    if pool.engine != WIDE:
        return free
    others = {*KERNELS.names, *STALLS}
    return [KERNELS, *(constant for constant in free if constant.name not in others)]


def learn_memory(pool: Pool, runs: Sequence[Run], tuning: Tuning) -> Tuning:
    """`tuning` with the allocator's constants, from those of `runs` that state their memory."""
    stated = [run for run in runs if run.measured.reserved_gib or run.measured.allocated_gib]
    if pool.engine == WIDE or len(stated) < FEW:
        return tuning
    nanotron = pool.engine.startswith("nanotron")
    free = [c for c in MEMORY if nanotron or not c.name.endswith(("gathers", "pipelined"))]
    some = sample(replace(pool, runs=tuple(stated)))
    return Problem(some, free, tuning, own=True).solve(np.arange(len(some)))


def with_memory_of(tuning: Tuning, other: Tuning) -> Tuning:
    """`tuning` with the allocator's constants of `other`, from which to learn them."""
    return tuning.model_copy(update={c.name: getattr(other, c.name) for c in MEMORY})
