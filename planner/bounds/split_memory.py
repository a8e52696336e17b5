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
    levels = np.array(sorted({p.transient_kib[mode] for mode in p.modes}))
    each = _by_chunk(p, levels.tolist(), layers)
    needed = np.zeros(layers.shape[1])
    for ranks, chunks, vectors in _ranks_alike(p.shape.in_flight, p.chunks_of_rank):
        floor = np.zeros(len(ranks), np.int64)
        for end, (holder, _) in zip(ends, p.shape.ends, strict=True):
            floor = np.maximum(floor, end.transient_kib * (ranks == holder))
        some = layers[:, :, chunks].any(axis=(0, 3))  # [split, rank], as all below
        of_rank = each[:, :, chunks]
        state, update = of_rank[:2].sum(axis=3)
        held = np.einsum("rtv,lsrv->lsrt", vectors, of_rank[2:]).max(axis=3)
        held += np.maximum(floor, levels[:, None, None] * some)
        running = np.maximum(held.min(axis=0), update)
        needed = np.maximum(needed, (p.fixed_kib + state + running).max(axis=1))
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


def _by_chunk(problem: StageProblem, levels: Sequence[int], layers: Floats) -> Floats:
    """[which, split, chunk] what its layers, and the ends at its ends, add up to: states, what the
    optimizer step holds besides, and what a micro-batch keeps at each level.
    """
    p = problem
    kept = [_least_kept(p, level) for level in levels]
    found: Floats = np.tensordot(np.array([p.state_kib, p.update_kib, *kept], float), layers, 1)
    for chunk, end in ((0, p.embedding), (-1, p.head)):
        of_end = [end.state_kib, end.update_kib, *[end.saved_kib] * len(levels)]
        found[:, :, chunk] += np.array(of_end)[:, None]
    return found
