"""What follows from a schedule, its ranks, chunks and micro-batches alone: who holds which chunk,
and how many micro-batches each rank holds in it at once. Found once per shape, not once per layout.
"""

from functools import cache
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.layouts import Floats, Ints
from meshplan.costmodels.schedule.in_flight import Vector, enough, in_flight, rank_of_chunk, waiting
from meshplan.costmodels.schedule.orders import V_SHAPED
from meshplan.hardware_profiles.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineShape:
    """The ranks of a pipeline.

    in_flight        micro-batches held, by rank, as vectors over the rank's chunks; and as matrices
    chunks_of_rank   the virtual stages of each rank, in model order
    fullest          of each rank the vector with the largest sum, one row per rank
    covers           `fullest`, and means of vectors that spread over more chunks: what fits by each
                     vector fits by their means, [which, rank, chunk]
    waits            groups of chunks, or of ranks' chunks together (V shapes), of which all wait
                     for the slowest (`planner.problem.closed_form`)
    ends             for the embedding and the head: the rank that holds it, and the place of its
                     chunk among that rank's
    """

    in_flight: tuple[tuple[Vector, ...], ...]
    matrices: tuple[Ints, ...]
    chunks_of_rank: tuple[tuple[int, ...], ...]
    fullest: Ints
    covers: Floats
    waits: tuple[tuple[tuple[int, ...], ...], ...]
    ends: tuple[tuple[int, int], tuple[int, int]]


class Places(NamedTuple):
    """`PipelineShape.chunks_of_rank` and `ends`, which are the same for any micro-batches."""

    chunks_of_rank: tuple[tuple[int, ...], ...]
    ends: tuple[tuple[int, int], tuple[int, int]]


@cache
def places(schedule: Schedule, pp: int, vpp: int) -> Places:
    """Where `pp` ranks with `vpp` chunks each hold them."""
    chunks = pp * vpp
    holder = [rank_of_chunk(schedule, pp, chunk) for chunk in range(chunks)]
    chunks_of_rank = tuple(
        tuple(chunk for chunk, rank in enumerate(holder) if rank == s) for s in range(pp)
    )
    first, last = ((holder[j], chunks_of_rank[holder[j]].index(j)) for j in (0, chunks - 1))
    return Places(chunks_of_rank, (first, last))


@cache
def pipeline_shape(schedule: Schedule, pp: int, vpp: int, m: int) -> PipelineShape:
    """The shape of `pp` ranks with `vpp` chunks each that run `m` micro-batches."""
    return _shape_of(schedule, pp, vpp, in_flight(schedule, pp, vpp, m))


class Apart(NamedTuple):
    """Covers of V shapes in which micro-batches that await their weight gradient count apart: those
    of `PipelineShape`, of which none does, and some moments when many do; [which, rank, chunk].
    """

    held: Floats
    late: Floats


LATE = ((0, 1), (1, 1), (1, 2))
"""Weights of micro-batches held and late: a rank's moment with the largest sum is a cover."""


def apart(schedule: Schedule, pp: int, vpp: int, m: int) -> Apart:
    """Of the shape with these ranks, chunks and micro-batches."""
    return _apart(schedule, pp, vpp, enough(schedule, pp, m))


@cache
def _apart(schedule: Schedule, pp: int, vpp: int, m: int) -> Apart:
    none = pipeline_shape(schedule, pp, vpp, m).covers
    each = [waiting(schedule, pp, vpp, m, rank) for rank in range(pp)]
    sums = [(held.sum(axis=1), late.sum(axis=1)) for held, late in each]
    held, late = (
        np.array([
            [of_rank[which][(a * h + b * w + w / m).argmax()]
             for of_rank, (h, w) in zip(each, sums, strict=True)]
            for a, b in LATE
        ], float)
        for which in (0, 1)
    )  # fmt: skip
    return Apart(np.concatenate([none, held]), np.concatenate([0 * none, late]))


@cache
def _shape_of(
    schedule: Schedule, pp: int, vpp: int, held: tuple[tuple[Vector, ...], ...]
) -> PipelineShape:
    """Many micro-batches hold what a few more than the ranks do."""
    chunks_of_rank, ends = places(schedule, pp, vpp)
    return PipelineShape(
        in_flight=held,
        matrices=tuple(np.array(vectors, np.int64) for vectors in held),
        chunks_of_rank=chunks_of_rank,
        fullest=np.array([max(rank, key=sum) for rank in held], np.int64),
        covers=np.array([_covers(vectors) for vectors in held], float).swapaxes(0, 1),
        waits=(chunks_of_rank,)
        if schedule in V_SHAPED
        else tuple(tuple((j,) for j in range(row * pp, (row + 1) * pp)) for row in range(vpp)),
        ends=ends,
    )


def _covers(vectors: tuple[Vector, ...]) -> list[Floats]:
    """The fullest vector, and means that no choice of a few chunks can serve."""
    held = np.array(vectors, float)
    if len(held[0]) == 1:
        return [held.max(axis=0)]
    first, middle, last = held[0], held[len(held) // 2], held[-1]
    means = [held.mean(axis=0), last, (first + last) / 2, middle, (first + middle + last) / 3]
    return [held[held.sum(axis=1).argmax()], *means]
