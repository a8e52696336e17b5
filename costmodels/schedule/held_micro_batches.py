"""Every distinct moment of a schedule: what a pipeline rank holds when each of its actions begins.

`in_flight` gives only the fullest vectors of micro-batches. A moment also has the action that runs
then, and counts micro-batches whose weight gradient is deferred apart from those that await their
backward.

    held      micro-batches per local chunk whose forward is done and whose backward has not begun
    deferred  those whose input gradient is done and whose weight gradient is not
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.layouts import Ints
from meshplan.costmodels.schedule.actions import Action, Kind
from meshplan.costmodels.schedule.in_flight import Vector, rank_of_chunk
from meshplan.costmodels.schedule.orders import order


class Moment(NamedTuple):
    """What runs on which local chunk, and what the rank holds beside it.

    last   its micro-batch is the last that the chunk sees in this step: gradients are whole after
           it
    fresh  no weight gradient has been completed on the rank yet
    """

    kind: Kind
    chunk: int
    last: bool
    fresh: bool
    held: Vector
    deferred: Vector


class Moments(NamedTuple):
    """Moments of a rank, and what they hold in arrays [moment, chunk].

    waits  whether gradients that the chunk's backwards began wait for its W beside the action
    """

    each: tuple[Moment, ...]
    held: Ints
    deferred: Ints
    waits: NDArray[np.bool_]

    @classmethod
    def of(cls, each: tuple[Moment, ...]) -> "Moments":
        """The arrays of `each`."""
        held = np.array([moment.held for moment in each])
        deferred = np.array([moment.deferred for moment in each])
        forward = np.array([moment.kind == "F" for moment in each])
        chunk = np.array([moment.chunk for moment in each])
        other = chunk[:, None] != np.arange(held.shape[1])
        return cls(each, held, deferred, (deferred > 0) & (forward[:, None] | other))


def moments(schedule: Schedule, pp: int, vpp: int, m: int) -> tuple[frozenset[Moment], ...]:
    """The distinct moments of each pipeline rank. Schedules repeat, so long steps are cut short."""
    return _moments(schedule, pp, vpp, _enough(schedule, pp, m))


def _enough(schedule: Schedule, pp: int, m: int) -> int:
    """So many micro-batches that a longer run has no other moment: an order that is warm repeats
    every micro-batch, an interleaved one every S.
    """
    if schedule == "gpipe":
        return m
    if schedule == "interleaved_1f1b":
        return m if m <= 4 * pp else 4 * pp + m % pp
    return min(m, 2 * pp + 2)


@cache
def fullest_moments(schedule: Schedule, pp: int, vpp: int, m: int) -> tuple[Moments, ...]:
    """Of each rank those `moments` beside which no other of the same action holds as much or more
    in every chunk: nothing else can be the fullest, whatever a micro-batch takes.
    """
    return tuple(Moments.of(tuple(_fullest(rank))) for rank in moments(schedule, pp, vpp, m))


def _fullest(found: frozenset[Moment]) -> Iterator[Moment]:
    alike: dict[tuple[Kind, int, bool, bool], list[Moment]] = {}
    for moment in sorted(found):
        alike.setdefault(moment[:4], []).append(moment)
    for same in alike.values():
        held = np.array([(*moment.held, *moment.deferred) for moment in same])
        as_much = np.logical_and.reduce([of_chunk >= of_chunk[:, None] for of_chunk in held.T])
        reached = as_much.sum(axis=1)
        yield from (moment for moment, by in zip(same, reached, strict=True) if by == 1)


@cache
def _moments(schedule: Schedule, pp: int, vpp: int, m: int) -> tuple[frozenset[Moment], ...]:
    return tuple(
        _of_rank(
            [i for i in range(pp * vpp) if rank_of_chunk(schedule, pp, i) == rank],
            order(schedule, pp, vpp, m, rank),
            m,
        )
        for rank in range(pp)
    )


def _of_rank(stages: list[int], actions: Sequence[Action], m: int) -> frozenset[Moment]:
    held, deferred = [0] * len(stages), [0] * len(stages)
    found, fresh = set(), True
    for stage, kind, micro_batch in actions:
        chunk = stages.index(stage)
        if kind == "W":
            deferred[chunk] -= 1
        elif kind != "F":
            held[chunk] -= 1
        last = micro_batch == m - 1
        found.add(Moment(kind, chunk, last, fresh, tuple(held), tuple(deferred)))
        fresh = fresh and kind not in "BW"
        if kind == "F":
            held[chunk] += 1
        elif kind == "I":
            deferred[chunk] += 1
    return frozenset(found)
