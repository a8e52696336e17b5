"""Seconds of passes, and of chains of them, with each split of a list (several chunks per rank).

Of each split the chains of `planner.bounds.simulated`, and those that are known
(`planner.cuts.known_chains`), under any passes. In arrays of more than two axes chunks, ranks and
chains come first: sums over a short last axis are slow.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

import numpy as np

from meshplan.costmodels.layouts import Floats, Ints
from meshplan.costmodels.schedule.orders import V_SHAPED
from meshplan.planner.bounds.late import BEYOND_ALL, BEYOND_ANY, SHOWN
from meshplan.planner.bounds.simulated import SAFETY, Passes
from meshplan.planner.bounds.split import layers_of_kind
from meshplan.planner.problem.same_pipeline import SamePipeline


class SplitTimes(NamedTuple):
    """[chunk, row, split] seconds of each pass with what it waits for, [line, rank, row, split]
    what a rank reduces after its last backward at least, and [row] the rest of a step.
    """

    forward: Floats
    input_grad: Floats
    weight_grad: Floats
    late: Floats
    hop: Floats
    once: Floats
    m: Ints

    @classmethod
    def of(cls, same: SamePipeline, passes: Passes) -> Self:
        """With nothing recomputed."""
        kinds = layers_of_kind(same.pattern, len(same.kind_counts), same.splits or ())
        # [pass, chunk, row, split]
        times = passes.layer.transpose(2, 0, 1)[:, None] @ kinds.transpose(2, 0, 1)
        times[:, 0] += passes.embedding.T[..., None]
        times[:, -1] += passes.head.T[..., None]
        times[:2] += passes.extra[:, None]
        late = _late(same, passes, _held(same, kinds))
        return cls(times[0], times[1], times[2], late, passes.hop, passes.once, same.m)

    def take(self, rows: Ints) -> "SplitTimes":
        """Some of the rows."""
        if len(rows) == len(self.m):
            return self
        return SplitTimes(
            self.forward[:, rows], self.input_grad[:, rows], self.weight_grad[:, rows],
            self.late[:, :, rows], self.hop[rows], self.once[rows], self.m[rows],
        )  # fmt: skip

    def of_pairs(self, row: Ints, split: Ints) -> "SplitTimes":
        """Pairs of a row and a split as rows of one split each."""
        at = row, split, None
        return SplitTimes(
            self.forward[:, *at], self.input_grad[:, *at], self.weight_grad[:, *at],
            self.late[:, :, *at], self.hop[row], self.once[row], self.m[row],
        )  # fmt: skip


def rows_below(same: SamePipeline, passes: Passes, limit_s: float) -> Ints:
    """The rows of which the chain of every rank with what it reduces may be shorter than the limit
    in some split, with nothing recomputed: of `split_chains` the ones that cost least to find.
    """
    kinds = layers_of_kind(same.pattern, len(same.kind_counts), same.splits or ())
    held = _held(same, kinds).transpose(2, 0, 1)  # [rank, kind, split]
    if not kinds.size:
        return np.arange(len(same))
    own = passes.layer.sum(axis=2) @ held  # [rank, row, split]
    for end, (rank, _) in zip((passes.embedding, passes.head), same.ends, strict=True):
        own[rank] += end.sum(axis=1)[:, None]
    own += 2 * same.vpp * passes.extra[:, None]
    own *= same.m[:, None]
    first = kinds[:, :, : same.pp - 1].transpose(2, 0, 1)  # the way down to the ranks
    each = passes.layer[:, :, 0] @ first + (passes.extra + passes.hop)[:, None]
    each[:1] += passes.embedding[:, :1]
    own[1:] += each.cumsum(axis=0)
    late = _late(same, passes, held.transpose(1, 2, 0), [SHOWN, BEYOND_ALL, BEYOND_ANY])
    longest = (own + late[:2].max(axis=0)).max(axis=0)
    if same.pp > 1 and same.schedule not in V_SHAPED:  # and up again
        up = passes.layer[:, :, 1:].sum(axis=2) @ first
        up += (passes.extra + passes.hop)[:, None]
        up[:1] += passes.embedding[:, 1:].sum(axis=1)[:, None]
        turned = (own[1:] + up.cumsum(axis=0)).max(axis=0)
        longest = np.maximum(longest, turned + late[[0, 2], 0].max(axis=0))
    longest += passes.once[:, None]
    found: Ints = np.flatnonzero((longest * SAFETY < limit_s).any(axis=1))
    return found


def _held(same: SamePipeline, kinds: Floats) -> Floats:
    """[kind, split, rank] layers."""
    held: Floats = kinds[:, :, same.chunks_of_rank].sum(axis=3)
    return held


def _late(
    same: SamePipeline, passes: Passes, held: Floats, lines: Sequence[int] = range(4)
) -> Floats:
    """[line, rank, row, split] what each rank that has `held` reduces after its last backward at
    least, by some of the lines.
    """
    of = passes.late
    late: Floats = of.layer[:, lines].swapaxes(0, 1)[:, None] @ held.transpose(2, 0, 1)
    for end, (rank, _) in enumerate(same.ends):
        late[:, rank] += of.ends[:, lines, end].T[..., None]
    late += of.fixed[:, lines].T[:, None, :, None]
    return late


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


Known = Callable[[SamePipeline, SplitTimes, Replays | None], Floats]
"""[row, split] seconds of the longest chain that is known, with nothing recomputed or with what
each rank must.
"""


def split_chains(same: SamePipeline, times: SplitTimes) -> Floats:
    """[chain, row, split] seconds under these passes: of each rank, of each with what it reduces by
    the first of `Lines` and by the second, and two of all ranks.
    """
    if not same.splits:
        return np.zeros((1, len(times.m), 0))
    forward, both, pp = times.forward, times.input_grad + times.weight_grad, same.pp
    every, hop, late = forward + both, times.hop[:, None], times.late
    v_shaped, rank = same.schedule in V_SHAPED, np.arange(pp)[:, None, None]
    first = late[[SHOWN, BEYOND_ANY], 0].max(axis=0)
    found = np.empty((3 * pp + 1 + (not v_shaped), *first.shape))
    own = every[np.array(same.chunks_of_rank).T].sum(axis=0) * times.m[:, None]
    own += rank * hop
    own[1:] += forward[: pp - 1].cumsum(axis=0)
    found[:pp] = own
    if not v_shaped:
        found[1:pp] += both[: pp - 1].cumsum(axis=0)
        found[1:pp] += rank[1:] * hop + first
    for at, line in enumerate((SHOWN, BEYOND_ALL), start=1):
        np.add(own, late[line], out=found[at * pp : (at + 1) * pp])
    turn = forward.sum(axis=0) + times.input_grad.sum(axis=0)
    turn += 2 * (same.chunks - same.vpp) * hop
    found[3 * pp] = turn + first
    if not v_shaped:
        found[-1] = _from_last_rank(same, times, both) + first
    found += times.once[:, None]
    found *= SAFETY
    return found


def _from_last_rank(same: SamePipeline, times: SplitTimes, both: Floats) -> Floats:
    """Interleaved: down to the last chunk, what its rank has left, and up through the first row.

    When its first backward begins, the last rank has begun one group of S micro-batches in each row
    but the last, and one micro-batch in that.
    """
    pp, vpp, m, forward = same.pp, same.vpp, times.m.astype(float), times.forward
    last = list(same.chunks_of_rank[-1])
    rows = np.where(np.arange(vpp) < vpp - 1, pp, 1)
    begun = np.minimum(m, rows[:, None])
    left = (forward[last] * (m - begun)[..., None]).sum(axis=0)
    chain = forward.sum(axis=0) + left + m[:, None] * both[last].sum(axis=0)
    chain += both[: pp - 1].sum(axis=0)
    found: Floats = chain + (pp * vpp - 1 + pp - 1) * times.hop[:, None]
    return found
