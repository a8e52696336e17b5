"""Chains of actions that any step of a schedule has, as arrays that are linear in its passes.

Every action waits for the one before it on its rank, and for its input. So a chain may go down the
chunks with one micro-batch, stay on a rank for all that the rank has left then, and go up again.
What a rank has left is read off the order in which it works:

    own      down to the rank's first chunk, all its work, and up again
    later    down to a later chunk of the rank: what came before is taken off. Of the first group
             of S micro-batches a rank has done the forwards of the chunks before (Narayanan et al.
             2021, the interleaved schedule works in groups of S); in a V shape at most
             2 (S - rank) - 1 forwards of its first chunk (PyTorch's ScheduleZBVZeroBubble and
             ScheduleDualPipeV). Up again alike, where weight gradients do not wait
    through  down all chunks, and up all of them again

A later chunk keeps a cut from hiding its way through the pipeline in chunks that are far down.
Bounds that price memory let layers recompute, and count those seconds in the chain. So a reduction
after it is bounded by the most that any mode hides (`BEYOND_ANY`), even where the chain has all
backwards of the rank.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.layouts import Floats, Ints
from meshplan.costmodels.schedule.orders import V_SHAPED
from meshplan.costmodels.schedule.program import Chain
from meshplan.planner.bounds.late import BEYOND_ANY, SHOWN
from meshplan.planner.problem.pipeline_shape import places

SHAPES_KEPT = 256


class Line(NamedTuple):
    """A chain, and one of the two bounds of what follows it.

    often   [chunk, pass] how often it has each pass      hops   to the next rank
    rank    where it ends, which reduces by `late` of `planner.bounds.late.Lines`
    """

    often: Floats
    hops: float
    rank: int
    late: int


def lines_of(chain: Chain, chunks: int) -> list[Line]:
    """The lines of a chain of actions."""
    forward, both, input_grad, weight_grad = np.array(chain.counts, float).reshape(4, chunks)
    often = np.stack([forward, both + input_grad, both + weight_grad], axis=1)
    return [Line(often, chain.hops, chain.rank, late) for late in (SHOWN, BEYOND_ANY)]


class Lines(NamedTuple):
    """Several lines: [line, chunk, pass], [line], [line], [line]."""

    often: Floats
    hops: Floats
    ranks: Ints
    late: Ints

    @classmethod
    def of(cls, lines: Sequence[Line]) -> "Lines":
        """Those of a list."""
        often, hops, ranks, late = zip(*lines, strict=True)
        return cls(np.array(often), np.array(hops, float), np.array(ranks), np.array(late))


@lru_cache(maxsize=SHAPES_KEPT)
def first_lines(schedule: Schedule, pp: int, vpp: int, m: int) -> tuple[Line, ...]:
    """The lines of these chains: of any number of chunks and micro-batches equally many, in the
    same order.
    """
    which = places(schedule, pp, vpp).chunks_of_rank
    of_shape = _v_shaped if schedule in V_SHAPED else _in_rows
    return tuple(of_shape(which, m))


def linear_from(schedule: Schedule, pp: int) -> int:
    """So many micro-batches from which on each of the first lines has as many more passes for each
    one more.
    """
    return 2 * pp if schedule in V_SHAPED else pp


def _v_shaped(which: Sequence[Sequence[int]], m: int) -> list[Line]:
    found, pp = list[Line](), len(which)
    for rank, (first, later) in enumerate(which):
        own = _own(which[rank], 2 * pp, m)
        found += _with(_down(own, first), rank, rank, SHOWN, BEYOND_ANY)
        own[first, 0] -= min(m, 2 * (pp - rank) - 1)
        found += _with(_down(own, later), later - 1, rank, SHOWN)
    through = np.zeros((2 * pp, 3))
    through[:, :2] = 1
    through[-1, :2] = m
    through[0, 2] = 1
    return found + _with(through, 2 * (2 * pp - 2), 0, SHOWN)


def _in_rows(which: Sequence[Sequence[int]], m: int) -> list[Line]:
    found, pp, vpp = list[Line](), len(which), len(which[0])
    group, chunks = min(m, pp), pp * vpp
    for rank, held in enumerate(which):
        own = _own(held, chunks, m)
        found += _with(_down(own, rank), rank, rank, SHOWN, BEYOND_ANY)
        if rank:
            found += _with(_up(_down(own, rank), rank), 2 * rank, 0, SHOWN, BEYOND_ANY)
        for row in (1, vpp - 1):
            left, chunk = own.copy(), held[row]
            left[list(held[:row]), 0] -= group
            found += _with(_down(left, chunk), chunk, rank, SHOWN)
            left[list(held[:row]), 1:] -= group
            found += _with(_up(_down(left, chunk), chunk), 2 * chunk, 0, SHOWN)
    through = np.ones((chunks, 3))
    through[0, 0] = m
    found += _with(through, 2 * (chunks - 1), 0, SHOWN)
    turn = np.zeros((chunks, 3))
    turn[:, 0] = turn[: pp - 1, 1:] = 1
    begun = np.where(np.arange(vpp) < vpp - 1, pp, 1)
    turn[list(which[-1]), 0] += m - np.minimum(m, begun)
    turn[list(which[-1]), 1:] += m
    return found + _with(turn, chunks - 1 + pp - 1, 0, SHOWN, BEYOND_ANY)


def _with(often: Floats, hops: int, rank: int, *late: int) -> list[Line]:
    return [Line(often, hops, rank, each) for each in late]


def _own(held: Sequence[int], chunks: int, m: int) -> Floats:
    """[chunk, pass] all work of a rank."""
    own = np.zeros((chunks, 3))
    own[list(held)] = m
    return own


def _down(own: Floats, chunk: int) -> Floats:
    """With one forward of each chunk before one."""
    down = own.copy()
    down[:chunk, 0] += 1
    return down


def _up(own: Floats, chunk: int) -> Floats:
    """With one backward of each chunk before one."""
    up = own.copy()
    up[:chunk, 1:] += 1
    return up
