"""What moves of layers try next to a cut, as arrays: each change of [chunk, 3] layers, and of those
that recompute selectively and in full.

    single   a layer moved from one chunk to another, out of any mode and into any; or the mode of
             one layer changed
    double   such a move and a changed mode, or two of these, between the modes that recompute least
             and most: where ranks are full a layer that is moved, or kept, asks for another one to
             recompute
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from meshplan.costmodels.layouts import Ints
from meshplan.planner.cuts.cut_lengths import FULL, LAYERS, SELECTIVE

SINGLE, DOUBLE = 60_000, 200_000  # chunks of all cuts that are weighed together at most
KEPT = 16  # arrays of changes, of a MiB at most
Changes = NDArray[np.int8]
Pairs = tuple[tuple[int, int], ...]


@lru_cache(KEPT)
def moves(chunks: int, modes: Sequence[int], pairs: Pairs) -> Changes:
    """[change, chunk, 3] one layer, out of each mode and into each."""
    out, into = (each.ravel() for each in np.meshgrid(modes, modes, indexing="ij"))
    found = np.zeros((len(pairs), out.size, chunks, 3), np.int8)
    at, to = np.array(pairs).reshape(-1, 2, 1).swapaxes(0, 1)
    every, ways = np.arange(len(pairs))[:, None], np.arange(out.size)
    found[every, ways, at, LAYERS], found[every, ways, to, LAYERS] = -1, 1
    for mode in (SELECTIVE, FULL):
        found[every, ways[out == mode], at, mode] = -1
        found[every, ways[into == mode], to, mode] = 1
    return found.reshape(-1, chunks, 3)


@lru_cache(KEPT)
def single(chunks: int, modes: Sequence[int], pairs: Pairs) -> Changes:
    """[change, chunk, 3] with moves between `pairs` (from, to) of chunks alone."""
    return np.concatenate([moves(chunks, modes, pairs), _changed(chunks, modes)])


@lru_cache(KEPT)
def double(chunks: int, modes: Sequence[int], pairs: Pairs) -> Changes:
    """[change, chunk, 3]; none where there are too many."""
    some = tuple(sorted({min(modes), max(modes)}))
    moved, changed = moves(chunks, some, pairs), _changed(chunks, some)
    if chunks * len(changed) * (len(moved) + len(changed)) > DOUBLE:
        return moved[:0]
    first, second = np.triu_indices(len(changed), 1)
    both = moved[:, None] + changed
    return np.concatenate([both.reshape(-1, chunks, 3), changed[first] + changed[second]])


def pairs_at_once(chunks: int, modes: int) -> int:
    """Pairs of chunks between which layers move in one array."""
    return max(1, SINGLE // (chunks * modes**2))


def all_pairs(chunks: int) -> Pairs:
    """Of chunks."""
    return tuple((at, to) for at in range(chunks) for to in range(chunks) if at != to)


def applied(cut: Ints, changes: Changes, fewest: Ints, *, keeps: bool) -> Ints:
    """[cut, chunk, 3] what is left of a cut with each change that it allows: `keeps` where a layer
    may recompute nothing.
    """
    cuts = cut.astype(np.int16) + changes
    layers, replayed = cuts[..., LAYERS], cuts[..., SELECTIVE] + cuts[..., FULL]
    can = (cuts[..., SELECTIVE] >= 0) & (cuts[..., FULL] >= 0) & (layers >= fewest)
    can &= replayed <= layers if keeps else replayed == layers
    found: Ints = cuts[can.all(axis=1)].astype(np.int64)
    return found


def _changed(chunks: int, modes: Sequence[int]) -> Changes:
    """The mode of one layer."""
    ways = [(old, new) for old in modes for new in modes if old != new]
    found = np.zeros((chunks, len(ways), chunks, 3), np.int8)
    for chunk in range(chunks):
        for way, (old, new) in enumerate(ways):
            found[chunk, way, chunk, old] -= old > 0
            found[chunk, way, chunk, new] += new > 0
    return found.reshape(-1, chunks, 3)
