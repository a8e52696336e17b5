"""Lower bounds of the simulated step: paths of actions that wait for each other, whatever the cut.

A step lasts at least as long as any chain of actions in which each waits for the one before. Of
`costmodels.schedule.orders` these chains hold, with F, I, W the passes of a rank's stage,
B = I + W, c = F + B, and h the hop to the next rank:

    1f1b       sum c + 2 (S-1) h + (m-1) B_s + (m - min(m, S-s)) F_s: down to the last rank and back
               to s, which has begun min(m, S-s) forwards by then; all it has left; and up again
    gpipe      sum c + 2 (S-1) h + (m-1) c_s
    zb_h1      sum F + (S-1) h + m B_s + (m - min(m, S-s)) F_s; and the way up to s before that
    zb_h1      sum (F + I) + 2 (S-1) h + (m-1) I_s + (m - min(m, S-s)) F_s + (m-1-s) W_s: rank s
               leaves s micro-batches' W for later; of rank 0 all m
    chunks     sum over j < s of F_j + h, all the work of rank s, and for interleaved 1F1B the
               sum over j < s of B_j + h; and down to the last chunk, the work that the last rank
               has left by then, and up again

One chunk per rank: with n layers on rank s such a chain lasts E(s, n), recomputation in the least
proportion that fits; a step faster than the L-th smallest E(s, n) holds fewer than L layers
(`planner.bounds.packing`). Several chunks: the least over the list of splits, nothing recomputed.

To each comes the mean rank's weight update and what is once per step. What a rank reduces after
its last backward (`planner.bounds.late`) comes to chains that end with it: of the first rank to
those that go up again, as much as it reduces at least with so few layers that it can be below the
limit; and besides

    any        all its work, after the way down to it and, for 1f1b, no sooner than the last rank
               has sent back its first micro-batch
    1f1b       the mean of these over the ranks, whatever kinds of layers they hold
"""

from dataclasses import fields, replace
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.elementwise import least_along
from meshplan.costmodels.layouts import Floats, Ints
from meshplan.costmodels.prices.passes import PassSeconds
from meshplan.costmodels.seconds.chunk_traffic import beside_chunks
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.planner.bounds.late import (
    BEYOND_ALL,
    SHOWN,
    Lines,
    mean_update_s,
    reduce_lines,
)
from meshplan.planner.bounds.packing import layer_overheads, stacks
from meshplan.planner.bounds.split import Pairs
from meshplan.planner.problem.coefficients import NS_PER_S
from meshplan.planner.problem.same_pipeline import SamePipeline

SAFETY = 1 - 1e-9  # factor on a lower bound in seconds: sums in floating point may round up
"""Sums in another order than the simulation's differ in the last digits."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Passes:
    """`PassSeconds` of the rows of a `SamePipeline`; [row, ...] seconds, least of the legal modes.

    layer      [row, kind, 3]
    longer     [row, kind, 3] by how much a layer's passes are longer in the last of its modes
    embedding, head   [row, 3]
    extra      added to each forward and each backward of a stage
    hop        of a message to the next rank
    update     of the mean rank
    once       the same, and the costs that come once per step
    late       what a rank reduces after its last backward
    replays    1 where all that recomputation takes is part of the input gradient, else 0
    """

    layer: Floats
    longer: Floats
    embedding: Floats
    head: Floats
    extra: Floats
    hop: Floats
    update: Floats
    once: Floats
    late: Lines
    replays: Floats

    @classmethod
    def of(cls, found: PassSeconds, rows: Ints | slice, same: SamePipeline) -> "Passes":
        """Those of `rows` of `found`, or of all, run as `same`."""
        modes = [same.columns[mode] for mode in same.modes]
        each = found.layer_s[rows][:, :, modes]
        layer = least_along(each, 2)
        update, late = _once_per_step(found, rows, same, layer)
        return cls(
            layer=layer,
            longer=each[:, :, -1] - layer,
            embedding=found.embedding_s[rows],
            head=found.head_s[rows],
            extra=_extra_s(found, rows, same.each_vpp),
            hop=found.hop_s[rows],
            update=update,
            once=update + found.step_s[rows],
            late=late,
            replays=(each == each[:, :, :1])[..., [0, 2]].all(axis=(1, 2, 3)).astype(float),
        )

    def in_chunks(self, found: PassSeconds, same: SamePipeline) -> "Passes":
        """Those of all rows of `found`, of which these are, run as `same`, whose schedule and
        chunks may differ.
        """
        every = slice(None)
        extra = _extra_s(found, every, same.vpp)
        if not found.beside_chunks:
            return replace(self, extra=extra)
        update, late = _once_per_step(found, every, same, self.layer)
        return replace(self, extra=extra, update=update, once=update + found.step_s, late=late)

    def take(self, rows: Ints | slice) -> "Passes":
        """Some of the rows."""
        names = [field.name for field in fields(self) if field.name != "late"]
        return Passes(
            **{name: getattr(self, name)[rows] for name in names}, late=self.late.take(rows)
        )


def passes_beside(found: PassSeconds, same: SamePipeline) -> Floats:
    """[row] `Beside.passes` of layouts run as `same`."""
    beside = beside_chunks(
        found.beside_chunks, same.schedule, same.pp, same.each_vpp, same.m.astype(float)
    )
    return np.broadcast_to(np.asarray(beside.passes, float), len(same))


def _once_per_step(
    found: PassSeconds, rows: Ints | slice, same: SamePipeline, layer: Floats
) -> tuple[Floats, Lines]:
    """The mean rank's update, and what a rank reduces; `layer`: the least passes of a layer."""
    modes, beside = [same.columns[mode] for mode in same.modes], passes_beside(found, same)
    counts, pp = np.array(same.kind_counts), np.full(len(same), same.pp)
    update = mean_update_s(found, rows, counts, pp, beside)
    return update, reduce_lines(found, rows, modes, (layer.sum(axis=2), same.m), beside)


def _extra_s(found: PassSeconds, rows: Ints | slice, vpp: Floats | int) -> Floats:
    extra: Floats = found.blocking_s[rows] + found.micro_batch_s / 2 / vpp
    return extra


class Chains(NamedTuple):
    """[row, rank] how often a rank's chain has its passes beyond the rest, [row] seconds."""

    forward: Floats
    input_grad: Floats
    weight_grad: Floats
    rest_s: Floats


def simulated_bounds(same: SamePipeline, passes: Passes, limit_s: float) -> Floats:
    """One chunk per rank: a lower bound of each layout's simulated step, `limit_s` where it is not
    below that. The layers of the most frequent kind alone leave few for those of all kinds.
    """
    bounds = mean_rank_bounds(same, passes)
    if same.pp == 1:
        bounds = np.maximum(bounds, _of_one_rank(same, passes))
    for kinds in reversed(stacks(same.kind_counts)):
        below = np.flatnonzero(bounds < limit_s)
        if len(below):
            some = _of_ranks(same.take(below), passes.take(below), kinds, limit_s)
            bounds[below] = np.maximum(bounds[below], some)
    return np.minimum(bounds, limit_s)


def mean_rank_bounds(same: SamePipeline, passes: Passes) -> Floats:
    """[row] one chunk per rank: the mean over the ranks of chains, linear in what they hold."""
    counts, m = np.array(same.kind_counts, float), same.m.astype(float)
    total = np.einsum("rkp,k->rp", passes.layer, counts) + passes.embedding + passes.head
    extra = same.pp * passes.extra
    f, b = total[:, 0] + extra, total[:, 1:].sum(axis=1) + extra
    turned = np.zeros(len(same))
    for chain in rank_chains(same, passes):
        often = [each.min(axis=1) for each in chain[:3]]
        mean = (often[0] * f + often[1] * (total[:, 1] + extra) + often[2] * total[:, 2]) / same.pp
        turned = np.maximum(turned, chain.rest_s + mean)
    late = passes.late.mean_s(counts, same.pp)
    down = (f + (same.pp - 1) * passes.hop) * (same.schedule != "gpipe")
    begun = np.minimum(m, same.pp) * (same.schedule != "gpipe")
    own = down + ((m - begun) * f + m * b) / same.pp + late + passes.once
    found: Floats = np.maximum(turned, own) * SAFETY
    if same.schedule == "zb_h1":
        found = np.maximum(found, _of_weighed_ranks(same, passes) * SAFETY)
    return found


def _of_weighed_ranks(same: SamePipeline, passes: Passes) -> Floats:
    """zb_h1: a mean over the ranks of chains down to the last rank, up to s and all that is left

        sum F + (S-1) h + sum over j > s of (I_j + h) + m B_s + (m - min(m, S-s)) F_s

    so weighed that a mean layer adds as much to it on any rank; of each kind the least counts.
    """
    pp, rank, m = same.pp, np.arange(same.pp), same.m[:, None].astype(float)
    counts, later = np.array(same.kind_counts, float), same.m[:, None] - np.minimum(m, pp - rank)

    def own(times: Floats) -> Floats:
        """[row, ..., rank] what a rank has left of a part with such [row, ..., pass] seconds."""
        shape = (len(m), *[1] * (times.ndim - 2), pp)
        back = times[..., 1:].sum(axis=-1)[..., None] * m.reshape(len(m), *[1] * (times.ndim - 1))
        left: Floats = back + times[..., :1] * later.reshape(shape)
        return left

    mean = np.einsum("rkp,k->rp", passes.layer, counts) / counts.sum()
    each, share = np.maximum(own(mean), 1e-30), np.zeros((len(same), pp))
    for s in range(pp):
        share[:, s] = np.maximum(0.0, 1 - mean[:, 1] * share.sum(axis=1)) / each[:, s]
    weight = share / share.sum(axis=1)[:, None]
    before = weight.cumsum(axis=1) - weight
    of_kind = before[:, None] * passes.layer[:, :, 1, None] + weight[:, None] * own(passes.layer)
    ends = (weight * own(passes.embedding))[:, 0] + (weight * own(passes.head))[:, -1]
    ends += before[:, -1] * passes.head[:, 1] + passes.embedding[:, 0] + passes.head[:, 0]
    forward = passes.layer[:, :, 0] @ counts + pp * passes.extra + (pp - 1) * passes.hop
    up = (weight * (pp - 1 - rank)).sum(axis=1) * (passes.extra + passes.hop)
    waits = (weight * (m + later)).sum(axis=1) * passes.extra
    found: Floats = of_kind.min(axis=2) @ counts + ends + forward + up + waits + passes.once
    return found


def _of_one_rank(same: SamePipeline, passes: Passes) -> Floats:
    """All work of one rank, with the least recomputation that fits."""
    counts, m = np.array(same.kind_counts, float), same.m.astype(float)
    whole, every = replace(same, splits=((len(same.pattern),),)), np.arange(len(same))
    pairs = Pairs.of(whole, every, np.zeros_like(every))
    covers = range(same.covers.shape[1])
    added = np.max([pairs.least_work_ns(which)[:, 0] for which in covers], axis=0) / NS_PER_S
    layers = passes.layer.sum(axis=2) @ counts
    work = layers + passes.embedding.sum(axis=1) + passes.head.sum(axis=1) + 2 * passes.extra
    late = passes.late.layer[:, SHOWN] @ counts + passes.late.ends[:, SHOWN].sum(axis=1)
    rounding = len(same.pattern) / NS_PER_S
    step = m * (work + np.maximum(added - rounding, 0.0)) + late + passes.late.fixed[:, SHOWN]
    found: Floats = (step + passes.once) * SAFETY
    return found


def _of_ranks(same: SamePipeline, passes: Passes, kinds: list[int], limit_s: float) -> Floats:
    """By the layers of `kinds` alone, on ranks of one chunk."""
    lines = [_chain_line(passes, kinds, chain) for chain in rank_chains(same, passes)]
    fixed, layer = lines[0]
    count = sum(same.kind_counts[kind] for kind in kinds)
    room = np.maximum(limit_s - fixed, 0.0) / np.maximum(layer, 1e-30)
    most = np.minimum(np.ceil(room).max(axis=1), count).astype(np.int64)
    n = np.arange(int(most.max(initial=0)) + 1)
    overhead = once = layer_overheads(same, kinds, most, n) / NS_PER_S
    rounding = same.m * count / NS_PER_S
    overhead = overhead * same.m[:, None, None]
    lines.append(_own_chains(same, passes, kinds, SHOWN))
    tables = [fixed[:, :, None] + layer[:, :, None] * n + overhead for fixed, layer in lines]
    fixed, layer = _own_chains(same, passes, kinds, BEYOND_ALL)
    table = np.max([*tables, fixed[:, :, None] + layer[:, :, None] * n], axis=0)
    alone = len(kinds) == len(same.kind_counts)
    first = (table[:, 0] < limit_s).sum(axis=1) if alone else np.full(len(same), len(same.pattern))
    late = passes.late.fewest_s(first, 0 if same.empty_ends else 1, same.pp)
    # `late` has rank 0 replay once
    counted = np.where(np.isfinite(once) & (np.arange(same.pp) == 0)[:, None], once, 0.0)
    table = np.maximum(table, tables[-2] + (late[:, None, None] - counted))
    table = np.minimum.accumulate(table[:, :, ::-1], axis=2)[:, :, ::-1]
    table = np.minimum(table - rounding[:, None, None], limit_s / SAFETY) * SAFETY
    entries = table[:, :, 1:].reshape(len(same), -1)
    if entries.shape[1] < count:
        return np.full(len(same), limit_s)
    last = np.partition(entries, count - 1, axis=1)[:, count - 1]
    bounds: Floats = np.maximum(last, table[:, :, 0].max(axis=1))
    return bounds


class _Line(NamedTuple):
    """[row, rank] seconds of a chain through a rank, as a line in its layers."""

    fixed: Floats
    layer: Floats


def _chain_line(passes: Passes, kinds: list[int], chain: Chains) -> _Line:
    """A chain through each rank that holds layers of `kinds`."""
    often = np.stack(chain[:3], axis=2)  # [row, rank, pass]
    layer = np.einsum("rkp,rsp->rks", passes.layer[:, kinds], often).min(axis=1)
    waits = passes.extra[:, None] * (chain.forward + chain.input_grad)
    fixed = chain.rest_s[:, None] + waits
    for end, rank in ((passes.embedding, 0), (passes.head, -1)):
        fixed[:, rank] += (end * often[:, rank]).sum(axis=1)
    return _Line(fixed, layer)


def _own_chains(same: SamePipeline, passes: Passes, kinds: list[int], line: int) -> _Line:
    """One chunk per rank: down to it, its work, its reduction by one of `Lines`."""
    ranks, m, late = np.arange(same.pp), same.m.astype(float)[:, None], passes.late
    work = passes.layer.sum(axis=2) * m
    fixed = ranks * (passes.extra + passes.hop)[:, None] + 2 * m * passes.extra[:, None]
    fixed = fixed + (late.fixed[:, line] + passes.once)[:, None]
    for end, rank in ((0, 0), (1, -1)):
        of_end = passes.head if end else passes.embedding
        fixed[:, rank] += m[:, 0] * of_end.sum(axis=1) + late.ends[:, line, end]
    layer = (work + late.layer[:, line])[:, kinds].min(axis=1)
    return _Line(fixed, np.repeat(layer[:, None], same.pp, axis=1))


def rank_chains(same: SamePipeline, passes: Passes) -> list[Chains]:
    """Chains through each rank, of one chunk per rank."""
    pp, m, rank = same.pp, same.m[:, None].astype(float), np.arange(same.pp)[None, :]
    begun = np.minimum(m, pp - rank)
    counts = np.array(same.kind_counts, float)
    total = np.einsum("rkp,k->rp", passes.layer, counts) + passes.embedding + passes.head
    hops, extra = (pp - 1) * passes.hop, pp * passes.extra
    down, each = total[:, 0] + extra + hops + passes.once, 0.0 * begun
    if same.schedule == "zb_h1":
        up = down + total[:, 1] + extra + hops
        left = np.maximum(m - 1 - rank, 0) + (rank == 0)
        return [
            Chains(m - begun, m + each, m + each, down),
            Chains(m - begun, m - 1 + each, left + each, up),
        ]
    rest = down + total[:, 1:].sum(axis=1) + extra + hops
    ahead = 1 if same.schedule == "gpipe" else begun
    return [Chains(m - ahead + each, m - 1 + each, m - 1 + each, rest)]
