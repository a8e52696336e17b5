"""Several chunks per rank: how long a step takes at least with each split of a list.

Of each split the chains of `planner.bounds.simulated`; with what each rank must recompute, first by
prices of memory for all splits of many layouts at once, then, of one layout, by a knapsack for each
rank (`planner.bounds.split`).
"""

from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layouts import Floats, Ints
from meshplan.costmodels.schedule.orders import V_SHAPED
from meshplan.planner.bounds.late import BEYOND_ALL, BEYOND_ANY, SHOWN
from meshplan.planner.bounds.memory_prices import least_work_ns
from meshplan.planner.bounds.simulated import SAFETY, Passes
from meshplan.planner.bounds.split import Pairs, layers_of_kind
from meshplan.planner.problem.coefficients import NS_PER_S
from meshplan.planner.problem.same_pipeline import SamePipeline

BLOCK = 64  # rows at a time, so that arrays stay small


class Replays(NamedTuple):
    """[rank, row, split] seconds of each micro-batch that a rank recomputes at least, and [chunk,
    row, split] that a chunk can take longer at most.
    """

    rank_s: Floats
    most_s: Floats

    def least(self, chunks_of_rank: Ints, often: Ints) -> Floats:
        """[rank, row, split] of a chain that has the backwards of each rank's chunks so `often`,
        [rank, chunk] or [chunk]: what is recomputed is where that costs the chain least.
        """
        often = np.broadcast_to(often, chunks_of_rank.shape)
        found: Floats = np.zeros_like(self.rank_s)
        left = self.rank_s.copy()
        order = np.argsort(often, axis=1, kind="stable")
        for at in order.T:
            chunks = np.take_along_axis(chunks_of_rank, at[:, None], axis=1)[:, 0]
            here = np.minimum(left, self.most_s[chunks])
            found += np.take_along_axis(often, at[:, None], axis=1)[..., None] * here
            left -= here
        return found


Known = Callable[[SamePipeline, Passes, Replays | None], Floats]
"""[row, split] seconds of the longest chain that is known, with nothing recomputed or with what
each rank must. In arrays of more than two axes chunks, ranks and chains come first: sums over a
short last axis are slow.
"""


def bounds_of_splits(
    same: SamePipeline, passes: Passes, limit_s: float, known: Known | None = None
) -> Floats:
    """[row] the least over the list of splits of the longest chain; `limit_s` where none is below
    that.
    """
    bounds = np.full(len(same), limit_s)
    for first in range(0, len(same), BLOCK):
        rows = slice(first, first + BLOCK)
        some, of_some = same.take(rows), passes.take(rows)
        _, layout, least, _ = rough_split_bounds_s(some, of_some, limit_s, known)
        np.minimum.at(bounds, first + layout, least)
    return bounds


def split_bounds_s(
    same: SamePipeline, passes: Passes, limit_s: float
) -> tuple[Ints, Ints, Floats, Floats]:
    """The splits that may be below the limit by `rough_split_bounds_s`, the layout of each, and the
    longest chain with the least recomputation that fits; and [.., rank] the chains of the ranks
    with nothing recomputed.
    """
    split, layout, least, by_rank = rough_split_bounds_s(same, passes, limit_s)
    if not len(layout):
        return split, layout, least, by_rank
    pairs = Pairs.of(same, layout, split)
    for worst, which in product((True, False), range(same.covers.shape[1])):
        work_s = pairs.least_work_ns(which, worst) / NS_PER_S
        beyond = by_rank + (same.m[pairs.layout] * SAFETY)[:, None] * work_s
        least = np.maximum(least, np.where(work_s > 0, beyond, 0.0).max(axis=1))
        kept = least < limit_s
        if not kept.all():
            pairs, by_rank, least = pairs.take(kept), by_rank[kept], least[kept]
    return pairs.split, pairs.layout, least, by_rank


def rough_split_bounds_s(
    same: SamePipeline, passes: Passes, limit_s: float, known: Known | None = None
) -> tuple[Ints, Ints, Floats, Floats]:
    """The splits whose chains may be shorter than the limit, the layout of each, and the longest
    chain with what memory asks for by one price of each layout (`planner.bounds.memory_prices`);
    and [.., rank] the chains of the ranks with nothing recomputed.
    """
    chains = split_chains(same, passes)
    longest = chains.max(axis=0, initial=0.0)
    if known and longest.size:
        longest = np.maximum(longest, known(same, passes, None))
    rows = np.flatnonzero((longest < limit_s).any(axis=1))
    some, longest = same.take(rows), longest[rows]
    rounding = some.m * len(same.pattern) / NS_PER_S
    by_rank = np.maximum(chains[: same.pp, rows], chains[same.pp : 2 * same.pp, rows])
    by_rank -= rounding[:, None]
    if len(rows):
        work_s = least_work_ns(some, longest.argmin(axis=1)) / NS_PER_S
        beyond = by_rank + (some.m * SAFETY)[:, None] * work_s
        beyond[work_s <= 0] = 0.0
        longest = np.maximum(longest, beyond.max(axis=0))
        ways = _with_replays(some, passes.take(rows), chains[:, rows], work_s, known)
        longest = np.maximum(longest, ways)
    row, split = np.nonzero(longest < limit_s)
    return split, rows[row], longest[row, split], by_rank[:, row, split].T


def _with_replays(
    same: SamePipeline, passes: Passes, chains: Floats, work_s: Floats, known: Known | None
) -> Floats:
    """[row, split] of chains through several ranks, with what each of them recomputes: down to the
    last chunk and up again; down to a rank, its work and up again; and the known ones.
    """
    each = np.where(np.isfinite(work_s), work_s, 0.0) * passes.replays[:, None] * SAFETY
    if not each.any():
        return np.zeros(each.shape[1:])
    replays = Replays(each, _most_replays(same))
    found: Floats = chains[3 * same.pp] + each.sum(axis=0)
    if same.schedule not in V_SHAPED:
        above = replays.least(np.array(same.chunks_of_rank), np.arange(same.vpp) == 0)
        above = above.cumsum(axis=0) - above
        ways = chains[: same.pp] + same.m[:, None] * each + above
        found = np.maximum(found, ways.max(axis=0))
    if known:
        found = np.maximum(found, known(same, passes, replays))
    found -= (same.m * len(same.pattern) / NS_PER_S)[:, None]
    return found


def _most_replays(same: SamePipeline) -> Floats:
    """[chunk, row, split] seconds by which the slowest modes are longer than the fastest."""
    kinds = layers_of_kind(same.pattern, len(same.kind_counts), same.splits or ())
    ns = same.prices.layer_ns[:, :, list(same.modes)]
    longer = (ns.max(axis=2) - ns.min(axis=2) + 1) / NS_PER_S
    found: Floats = longer @ kinds.transpose(2, 0, 1)
    return found


def split_passes(same: SamePipeline, passes: Passes) -> tuple[Floats, Floats, Floats]:
    """[chunk, row, split] seconds of forward, input gradient and weight gradient with nothing
    recomputed, and what each pass waits for.
    """
    kinds = layers_of_kind(same.pattern, len(same.kind_counts), same.splits or ())
    # [pass, chunk, row, split]
    times = passes.layer.transpose(2, 0, 1)[:, None] @ kinds.transpose(2, 0, 1)
    times[:, 0] += passes.embedding.T[..., None]
    times[:, -1] += passes.head.T[..., None]
    times[:2] += passes.extra[:, None]
    return times[0], times[1], times[2]


def split_chains(same: SamePipeline, passes: Passes) -> Floats:
    """[chain, row, split] seconds with nothing recomputed: of each rank, of each with what it
    reduces by the first of `Lines` and by the second, and two of all ranks.
    """
    if not same.splits:
        return np.zeros((1, len(same), 0))
    forward, input_grad, weight_grad = split_passes(same, passes)
    both, pp = input_grad + weight_grad, same.pp
    every, hop = forward + both, passes.hop[:, None]
    v_shaped, rank = same.schedule in V_SHAPED, np.arange(pp)[:, None, None]
    late = late_of_ranks(same, passes)
    first = late[[SHOWN, BEYOND_ANY], 0].max(axis=0)
    found = np.empty((3 * pp + 1 + (not v_shaped), *first.shape))
    own = every[np.array(same.chunks_of_rank).T].sum(axis=0) * same.m[:, None]
    own += rank * hop
    own[1:] += forward[: pp - 1].cumsum(axis=0)
    found[:pp] = own
    if not v_shaped:
        found[1:pp] += both[: pp - 1].cumsum(axis=0)
        found[1:pp] += rank[1:] * hop + first
    for at, line in enumerate((SHOWN, BEYOND_ALL), start=1):
        np.add(own, late[line], out=found[at * pp : (at + 1) * pp])
    turn = forward.sum(axis=0) + input_grad.sum(axis=0) + 2 * (same.chunks - same.vpp) * hop
    found[3 * pp] = turn + first
    if not v_shaped:
        found[-1] = _from_last_rank(same, forward, both, hop) + first
    found += passes.once[:, None]
    found *= SAFETY
    return found


def late_of_ranks(same: SamePipeline, passes: Passes) -> Floats:
    """[line, rank, row, split] what each rank reduces after its last backward at least."""
    kinds = layers_of_kind(same.pattern, len(same.kind_counts), same.splits or ())
    held = kinds[:, :, same.chunks_of_rank].sum(axis=3)  # [kind, split, rank]
    late: Floats = passes.late.layer.swapaxes(0, 1)[:, None] @ held.transpose(2, 0, 1)
    for end, (rank, _) in enumerate(same.ends):
        late[:, rank] += passes.late.ends[:, :, end].T[..., None]
    late += passes.late.fixed.T[:, None, :, None]
    return late


def _from_last_rank(same: SamePipeline, forward: Floats, both: Floats, hop: Floats) -> Floats:
    """Interleaved: down to the last chunk, what its rank has left, and up through the first row.

    When its first backward begins, the last rank has begun one group of S micro-batches in each row
    but the last, and one micro-batch in that.
    """
    pp, vpp, m = same.pp, same.vpp, same.m.astype(float)
    last = list(same.chunks_of_rank[-1])
    rows = np.where(np.arange(vpp) < vpp - 1, pp, 1)
    begun = np.minimum(m, rows[:, None])
    left = (forward[last] * (m - begun)[..., None]).sum(axis=0)
    chain = forward.sum(axis=0) + left + m[:, None] * both[last].sum(axis=0)
    chain += both[: pp - 1].sum(axis=0)
    found: Floats = chain + (pp * vpp - 1 + pp - 1) * hop
    return found
