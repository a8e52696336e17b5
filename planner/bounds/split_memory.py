"""Which splits of a list fit in some mix of recomputation at all.

A mix has a largest transient. Of the modes with no larger one, let every layer be in the mode that
keeps least: no mix with that transient holds less. So where, whichever transient is the largest, a
rank exceeds its memory under one of its in-flight vectors, the split fits in no mix. (Covers,
`planner.bounds.split`, look at means of vectors alone.)
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from meshplan.costmodels.layouts import Floats, Ints
from meshplan.costmodels.schedule.in_flight import Vector
from meshplan.planner.bounds.split import layers_of_kind
from meshplan.planner.problem.stage_problem import StageProblem


def some_mix_fits(problem: StageProblem) -> NDArray[np.bool_]:
    """[split] whether every rank of it may fit."""
    fits: NDArray[np.bool_] = least_kib(problem) <= problem.cap_kib
    return fits


def least_kib(problem: StageProblem) -> Floats:
    """[split] what the rank that needs most needs at least, whatever the capacity is."""
    p, ends = problem, (problem.embedding, problem.head)
    layers = layers_of_kind(p.pattern, len(p.state_kib), p.splits or ())
    state = _by_chunk(p.state_kib, layers, [end.state_kib for end in ends])
    update = _by_chunk(p.update_kib, layers, [end.update_kib for end in ends])
    levels = sorted({p.transient_kib[mode] for mode in p.modes})
    kept = [_by_chunk(_least_kept(p, level), layers, [end.saved_kib for end in ends])
            for level in levels]  # fmt: skip
    needed = np.zeros(layers.shape[1])
    for ranks, chunks, vectors in _ranks_alike(p.shape.in_flight, p.chunks_of_rank):
        floor = np.zeros(len(ranks), np.int64)
        for end, (holder, _) in zip(ends, p.shape.ends, strict=True):
            floor = np.maximum(floor, end.transient_kib * (ranks == holder))
        some = layers[:, :, chunks].any(axis=(0, 3))  # [split, rank], as all below
        held = [
            np.einsum("rtv,srv->srt", vectors, each[:, chunks]).max(axis=2)
            + np.maximum(floor, level * some)
            for level, each in zip(levels, kept, strict=True)
        ]
        of_rank = [each[:, chunks].sum(axis=2) for each in (state, update)]
        running = np.maximum(np.min(held, axis=0), of_rank[1])
        needed = np.maximum(needed, (p.fixed_kib + of_rank[0] + running).max(axis=1))
    return needed


@cache
def _ranks_alike(
    in_flight: tuple[tuple[Vector, ...], ...], chunks_of_rank: tuple[tuple[int, ...], ...]
) -> list[tuple[Ints, Ints, Ints]]:
    """Ranks with equally many in-flight vectors: their numbers, their chunks, [rank, place], and
    the vectors, [rank, vector, place].
    """
    counts = [len(vectors) for vectors in in_flight]
    alike = [[rank for rank, n in enumerate(counts) if n == each] for each in sorted(set(counts))]
    return [
        (np.array(ranks), np.array([chunks_of_rank[rank] for rank in ranks]),
         np.array([in_flight[rank] for rank in ranks]))
        for ranks in alike
    ]  # fmt: skip


def _least_kept(problem: StageProblem, level: int) -> Floats:
    """[kind] KiB of a layer in whichever mode of no larger transient keeps least."""
    modes = [mode for mode in problem.modes if problem.transient_kib[mode] <= level]
    least: Floats = np.array(problem.saved_kib, float)[:, modes].min(axis=1)
    return least


def _by_chunk(of_kind: Sequence[float] | Floats, layers: Floats, ends: Sequence[int]) -> Floats:
    """[split, chunk] what its layers, and the ends at its ends, add up to."""
    found: Floats = np.tensordot(np.array(of_kind, float), layers, 1)
    found[:, 0] += ends[0]
    found[:, -1] += ends[1]
    return found
