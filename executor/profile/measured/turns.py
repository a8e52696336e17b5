"""A collective of CPU processes as training meets it: in turns with computing.

Back to back the threads that send are awake and the ranks are in step. In training each collective
finds them asleep, the cores in use and the ranks a little apart, so that a small one takes several
times as long; how long, the scheduler of the system decides, by turns of a millisecond.

    seconds      of the call, the mean of all turns and of all ranks of the groups: the first rank
                 to come waits for the others, the last one for none, and the mean is what a turn
                 takes beyond its computing; less what they wait because they computed unequally
                 long. Of a send, whose sender does not wait, the receiver's
    processor_s  of all threads of a rank meanwhile, in the median turn: a stall adds none of them
    apart        computing of a group's slowest rank over its mean rank's, minus 1, the mean of all
                 turns: the expected maximum of as many noisy durations lies above their mean (order
                 statistics; of two by half of Gini's mean difference), and whoever computes between
                 two meetings waits for it at each

kernels follow each other on a stream whose host is ahead, so nobody sleeps: there collectives are
measured back to back.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from statistics import fmean, median

from meshplan.executor.profile.bench import Bench, Call
from meshplan.executor.profile.measured.matmul import Shape, product_call
from meshplan.executor.profile.statistics import Timing, summarise

COMPUTE_S = 1e-3
"""Of computing before each call: what a layer of a small model computes between two of them."""
SIDE = 256  # of the product that is repeated as often
MOST_TURNS = 24


@dataclass(slots=True)
class _Turns:
    """Seconds and processor seconds of every turn of this rank, and of the computing before."""

    computed_s: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    processor_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Part:
    """What a rank has to do with the call.

    group      the first rank of its group, None: its call does nothing, no group holds it
    one_waits  the call ends on one rank long before it ends on another: a send
    """

    group: int | None = 0
    one_waits: bool = False


@dataclass(frozen=True, slots=True)
class InTurns:
    """What was measured, as the module's docstring says."""

    timing: Timing
    processor_s: float
    apart: float


def in_turns(bench: Bench, call: Call, part: Part) -> InTurns:
    """`call` in turns with computing, of all ranks that have a part."""
    compute, warm, done = _computing(bench), _Turns(), _Turns()
    _turn(compute, call, warm)
    began = time.perf_counter()
    _turn(compute, call, warm)
    one_s = max(row[0] for row in bench.everywhere([time.perf_counter() - began]))
    turns = max(1, min(MOST_TURNS, int(bench.budget_s / one_s)))
    for _ in range(turns):
        _turn(compute, call, done)
    own = [-1.0 if part.group is None else part.group]
    rows = bench.everywhere([*own, *done.seconds, *done.processor_s, *done.computed_s])
    sharing = [row for row in rows if row[0] >= 0]
    waits = waits_s([(int(row[0]), row[1 + 2 * turns :]) for row in sharing])
    calls = [row[1 : 1 + turns] for row in sharing]
    timing = _timing(calls, [0.0] * turns, max) if part.one_waits else _timing(calls, waits, fmean)
    every = tuple(fmean(row[1 : 1 + turns]) for row in rows)
    return InTurns(
        timing=replace(timing, rank_seconds=every),
        processor_s=fmean(median(row[1 + turns : 1 + 2 * turns]) for row in sharing),
        apart=fmean(waits) / fmean(fmean(row[1 + 2 * turns :]) for row in sharing),
    )


def waits_s(computed_s: Sequence[tuple[int, Sequence[float]]]) -> list[float]:
    """What the mean rank waits in each turn for the slowest of its group, if they began together.
    Of each rank its group, and what it computed in every turn.
    """
    groups = [
        list(zip(*(row for of, row in computed_s if of == group), strict=True))
        for group in {group for group, _ in computed_s}
    ]
    each = ([max(turn) - fmean(turn) for turn in turns] for turns in groups)
    return [fmean(turn) for turn in zip(*each, strict=True)]


def _turn(compute: Call, call: Call, done: _Turns) -> None:
    """Compute, then call."""
    started = time.perf_counter()
    compute()
    done.computed_s.append(time.perf_counter() - started)
    began, used_s = time.perf_counter(), time.process_time()
    call()
    done.seconds.append(time.perf_counter() - began)
    done.processor_s.append(time.process_time() - used_s)


def _computing(bench: Bench) -> Call:
    """`COMPUTE_S` of products whose operands come from memory; as many on every rank."""
    multiply = product_call(Shape(SIDE, SIDE, SIDE), "fp32", "TN", bench.device)
    one_s = min(bench.samples(multiply, 1, 3))
    times = ceil(COMPUTE_S / median(row[0] for row in bench.everywhere([one_s])))

    def compute() -> None:
        for _ in range(times):
            multiply()

    return compute


def _timing(
    rows: Sequence[Sequence[float]], waits: Sequence[float],
    of_ranks: Callable[[Sequence[float]], float],
) -> Timing:  # fmt: skip
    """Of each rank's turns; all of them count, so nothing is a repeat of the machine alone. A turn
    takes what its last rank to come needs, at least: that one waits for nobody.
    """
    columns = zip(*rows, strict=True)
    turns = [
        max(min(column), of_ranks(column) - wait)
        for column, wait in zip(columns, waits, strict=True)
    ]
    summary = summarise(turns)
    return Timing(
        seconds=fmean(turns), spread=summary.spread, summary=summary,
        rank_seconds=tuple(map(fmean, rows)), shared=True, typical_s=fmean(turns),
    )  # fmt: skip
