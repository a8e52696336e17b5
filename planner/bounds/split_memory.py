"""Which splits of a list fit in some mix of recomputation at all (several chunks per rank).

A mix has a largest transient. Of the modes with no larger one, let every layer be in the mode that
keeps least: no mix with that transient holds less. So where, whichever transient is the largest, a
rank exceeds its memory under one of its in-flight vectors, the split fits in no mix. (Covers,
`planner.bounds.split`, look at means of vectors alone.)
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from meshplan.costmodels.layouts import Floats
from meshplan.planner.bounds.split import layers_of_kind
from meshplan.planner.problem.stage_problem import StageProblem


def some_mix_fits(problem: StageProblem) -> NDArray[np.bool_]:
    """[split] whether every rank of it may fit."""
    p, ends = problem, (problem.embedding, problem.head)
    layers = layers_of_kind(p.pattern, len(p.state_kib), p.splits or ())
    state = _by_chunk(p.state_kib, layers, [end.state_kib for end in ends])
    update = _by_chunk(p.update_kib, layers, [end.update_kib for end in ends])
    levels = sorted({p.transient_kib[mode] for mode in p.modes})
    kept = [_by_chunk(_least_kept(p, level), layers, [end.saved_kib for end in ends])
            for level in levels]  # fmt: skip
    fits = np.ones(layers.shape[1], bool)
    for rank, chunks in enumerate(p.chunks_of_rank):
        floor = max(
            end.transient_kib * (holder == rank)
            for end, (holder, _) in zip(ends, p.shape.ends, strict=True)
        )
        some = layers[:, :, list(chunks)].any(axis=(0, 2))
        held = [
            (each[:, list(chunks)] @ p.shape.matrices[rank].T).max(axis=1)
            + np.maximum(floor, level * some)
            for level, each in zip(levels, kept, strict=True)
        ]
        of_rank = [each[:, list(chunks)].sum(axis=1) for each in (state, update)]
        fits &= p.fixed_kib + of_rank[0] + np.maximum(np.min(held, axis=0), of_rank[1]) <= p.cap_kib
    return fits


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
