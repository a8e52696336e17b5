"""Chains that every step of a V shape has, by rank, as they pass through all chunks around it.

Rank s of S has chunk s and chunk 2 S - 1 - s. A chain comes to a rank at one of four actions: the
first forward of one of its chunks, down all chunks before it, or the first backward of one, down
all chunks and up again to it. There it stays for all that the rank does from that action to another
one, as its order says. It ends with the rank, or leaves

    up    after the last backward of one of its chunks, through all chunks before it
    down  after the last forward of one, through all chunks behind it, and up through all of them

and ends with the weight gradient of the first chunk. What a chain has of the chunks before, between
and behind those of the rank is the same of each. A backward that others wait for takes at least its
input gradient.

What comes before an action of the first micro-batches and after one of the last ones is the same
for any number of micro-batches beyond `enough` of them: they repeat in between (PyTorch's
ScheduleZBVZeroBubble and ScheduleDualPipeV).
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.layouts import Floats, Ints
from meshplan.costmodels.schedule.v_shaped import B, F, I, W, v_shaped_order
from meshplan.planner.bounds.first_chains import Line
from meshplan.planner.bounds.late import SHOWN

SHAPES_KEPT = 256
PASSES = {F: (0,), B: (1, 2), I: (1,), W: (2,)}


def enough(pp: int, m: int) -> int:
    """So many micro-batches that the first and the last ones are as with any more."""
    return min(m, 4 * pp)


@lru_cache(maxsize=SHAPES_KEPT)
def folded_lines(schedule: Schedule, pp: int, m: int) -> tuple[tuple[Line, ...], ...]:
    """Those of each rank."""
    return tuple(tuple(_of_rank(schedule, pp, m, rank)) for rank in range(pp))


class _End(NamedTuple):
    """Where a chain comes to a rank or leaves it: [chunk, pass] what it has of other chunks, and of
    the rank's own ones beside what it does there; [chunk, pass] what the rank does before it comes,
    or after it leaves; hops; and the place in the rank's order.
    """

    around: Floats
    left_out: Floats
    hops: int
    place: int


def _of_rank(schedule: Schedule, pp: int, m: int, rank: int) -> Iterator[Line]:
    few, chunks = enough(pp, m), 2 * pp
    kind, stage, _ = v_shaped_order(schedule, pp, few, rank)
    done = np.zeros((len(kind) + 1, chunks, 3))  # before each place
    for what, passes in PASSES.items():
        for each in passes:
            at = np.flatnonzero(kind == what)
            done[at + 1, stage[at], each] += 1
    done = done.cumsum(axis=0)
    own = np.zeros((chunks, 3))
    own[[rank, chunks - 1 - rank]] = m
    for comes in _comes(kind, stage, done, rank):
        for leaves, place_from_end in _leaves(kind, stage, done, rank):
            shift = 0 if m == few else len(kind)  # with more between, none comes after it leaves
            if comes.place <= leaves.place + shift:
                often = own - comes.left_out - leaves.left_out + comes.around + leaves.around
                end = rank if place_from_end else 0
                yield Line(often, comes.hops + leaves.hops, end, SHOWN)


def _comes(kind: Ints, stage: Ints, done: Floats, rank: int) -> Iterator[_End]:
    chunks = done.shape[1]
    for chunk in (rank, chunks - 1 - rank):
        place = int(np.flatnonzero((kind == F) & (stage == chunk))[0])
        down = np.zeros(done.shape[1:])
        down[:chunk, 0] = 1
        yield _End(down, done[place], _hops(0, chunk, chunks), place)
        place = int(np.flatnonzero(((kind == B) | (kind == I)) & (stage == chunk))[0])
        down = np.zeros(done.shape[1:])
        down[:, 0] = 1
        down[chunk + 1 :, 1] = 1
        hops = _hops(0, chunks - 1, chunks) + _hops(chunk, chunks - 1, chunks)
        yield _End(down, done[place], hops, place)


def _leaves(kind: Ints, stage: Ints, done: Floats, rank: int) -> Iterator[tuple[_End, bool]]:
    chunks, none = done.shape[1], np.zeros(done.shape[1:])
    yield _End(none, none, 0, len(kind)), True
    for chunk in (rank, chunks - 1 - rank):
        place = int(np.flatnonzero(((kind == B) | (kind == I)) & (stage == chunk))[-1])
        up = np.zeros(done.shape[1:])
        up[:chunk, 1] = 1
        up[0, 2] = chunk > 0
        yield _End(up, done[-1] - done[place + 1], _hops(0, chunk, chunks), place), False
        place = int(np.flatnonzero((kind == F) & (stage == chunk))[-1])
        down = np.zeros(done.shape[1:])
        down[chunk + 1 :, 0] = 1
        down[:, 1] = 1
        down[0, 2] = 1
        hops = _hops(chunk, chunks - 1, chunks) + _hops(0, chunks - 1, chunks)
        yield _End(down, done[-1] - done[place + 1], hops, place), False


def _hops(first: int, last: int, chunks: int) -> int:
    """From one chunk to a later one; the two in the middle are on one rank."""
    return last - first - (first < chunks // 2 <= last)
