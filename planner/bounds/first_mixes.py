"""A lower bound of the simulated step where every chunk recomputes equally many of its first layers
in full (`Pipelines.first`): a split then has one mix that counts, the fewest that fit.

    k         the fewest first layers with which every rank fits (`planner.problem.first_layers`):
              one number for all chunks, so the rank that lacks most says it
    passes    chunk j takes what its layers take, and what its first min(k, layers of j) take longer
              in full
    bound     the chains of `planner.bounds.split_chains` with these passes; what hides a reduction
              is what hides most in any mode

All pairs of a layout and a split at once, every k as one array.
"""

import numpy as np

from meshplan.costmodels.layouts import Ints, each_once
from meshplan.planner.bounds.late import BEYOND_ANY, SHOWN
from meshplan.planner.bounds.simulated import Passes
from meshplan.planner.bounds.split_times import SplitTimes
from meshplan.planner.problem.pipeline_shape import pipeline_shape
from meshplan.planner.problem.same_pipeline import SamePipeline

CELLS = 2**15  # chunks in all ways of some pairs: arrays stay small
NEVER = -1  # no number of layers is enough
FULL, NONE = 2, 0


def first_mixes(same: SamePipeline, layout: Ints, split: Ints) -> Ints:
    """[pair] the fewest first layers of each chunk with which it fits, `NEVER` if none do."""
    fewest = np.full(len(layout), NEVER)
    most = 1 + max(map(max, same.splits or ((0,),)))
    step = max(1, CELLS // (most * same.chunks * len(same.kind_counts)))
    for m in each_once(same.m[layout]).tolist():
        alike = np.flatnonzero(same.m[layout] == m)
        for first in range(0, len(alike), step):
            some = alike[first : first + step]
            fewest[some] = _fewest(same, m, layout[some], split[some])
    return fewest


def mix_times(
    same: SamePipeline, passes: Passes, pairs: tuple[Ints, Ints], fewest: Ints
) -> SplitTimes:
    """[.., pair, 1] what the passes of `pairs`, a layout and a split each, take with so many."""
    times = SplitTimes.of(same, passes).of_pairs(*pairs)
    before, start, end = _layers(same, pairs[1])
    full = np.minimum(fewest[:, None], end - start)
    kinds = before[:, start + full] - before[:, start]  # [kind, pair, chunk]
    # [pass, chunk, pair, 1]
    more = np.einsum("pkn,kpc->ncp", passes.longer[pairs[0]], kinds)[..., None]
    late = times.late[[SHOWN, BEYOND_ANY]].max(axis=0)
    return times._replace(
        forward=times.forward + more[0], input_grad=times.input_grad + more[1],
        weight_grad=times.weight_grad + more[2],
        late=np.broadcast_to(late, (len(times.late), *late.shape)),
    )  # fmt: skip


def _fewest(same: SamePipeline, m: int, layout: Ints, split: Ints) -> Ints:
    """[pair] of layouts of equally many micro-batches."""
    before, start, end = _layers(same, split)
    most = int((end - start).max(initial=0))
    full = np.minimum(np.arange(most + 1)[:, None], (end - start)[:, None])  # [pair, k, chunk]
    kinds = before[:, start[:, None] + full] - before[:, start][:, :, None]
    every, c = before[:, end] - before[:, start], same.prices
    kept = _kept(same, layout, every, kinds)
    transient = np.maximum(
        (full > 0) * c.transient_kib[layout, FULL][:, None, None],
        (full < (end - start)[:, None]) * c.transient_kib[layout, NONE][:, None, None],
    )
    head = c.head_transient_kib[layout, None]
    transient[:, :, -1] = np.maximum(transient[:, :, -1], head)
    shape, chunks = pipeline_shape(same.schedule, same.pp, same.vpp, m), same.chunks_of_rank
    held = np.stack([
        (kept[:, :, list(of_rank)] @ vectors.T).max(axis=2)
        + transient[:, :, list(of_rank)].max(axis=2)
        for of_rank, vectors in zip(chunks, shape.matrices, strict=True)
    ], axis=2)  # fmt: skip
    static, update = _states(same, layout, every)
    fits = static[:, None] + np.maximum(held, update[:, None]) <= c.cap_kib
    of_all = fits.all(axis=2)
    return np.where(of_all.any(axis=1), of_all.argmax(axis=1), NEVER)


def _kept(same: SamePipeline, layout: Ints, every: Ints, full: Ints) -> Ints:
    """[pair, k, chunk] KiB of a micro-batch: of `every` layer, [kind, pair, chunk], those that are
    recomputed in full, [kind, pair, k, chunk], keep what they do then.
    """
    c = same.prices
    saved = c.layer_saved_kib[layout]  # [pair, kind, mode]
    kept: Ints = np.einsum("pk,kpc->pc", saved[:, :, NONE], every)[:, None]
    kept = kept - np.einsum("pk,kpnc->pnc", saved[:, :, NONE] - saved[:, :, FULL], full)
    for chunk, each in ((0, c.embedding_saved_kib), (-1, c.head_saved_kib)):
        kept[:, :, chunk] += each[layout, None]
    return kept


def _states(same: SamePipeline, layout: Ints, every: Ints) -> tuple[Ints, Ints]:
    """[pair, rank] KiB held always, and in the optimizer step besides."""
    c, found = same.prices, list[Ints]()
    for layer, embedding, head in (
        (c.layer_state_kib, c.embedding_state_kib, c.head_state_kib),
        (c.layer_update_kib, c.embedding_update_kib, c.head_update_kib),
    ):
        of_chunk = np.einsum("pk,kpc->pc", layer[layout], every)
        of_chunk[:, 0] += embedding[layout]
        of_chunk[:, -1] += head[layout]
        found.append(of_chunk[:, same.chunks_of_rank].sum(axis=2))
    return found[0] + c.fixed_kib[layout, None], found[1]


def _layers(same: SamePipeline, split: Ints) -> tuple[Ints, Ints, Ints]:
    """[kind, place] layers of each kind before a place of the stack, and [pair, chunk] the places
    where chunks begin and end.
    """
    of_kind = np.array(same.pattern) == np.arange(len(same.kind_counts))[:, None]
    before = np.concatenate([np.zeros((len(of_kind), 1), int), of_kind.cumsum(axis=1)], axis=1)
    counts = np.array(same.splits, np.int64)[split]
    end = counts.cumsum(axis=1)
    return before, end - counts, end
