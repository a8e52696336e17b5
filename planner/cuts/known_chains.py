"""The longest chains of what was simulated bound what is not yet simulated.

A chain (`Program.chain`) is made of actions alone, so it is a lower bound of every layout and cut
with the same schedule, ranks, chunks and micro-batches. Near what it was found for it is a close
one, and costs a sum where a simulation costs a pass over all actions.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from meshplan.costmodels.layout import Schedule, Stage
from meshplan.costmodels.layouts import Floats
from meshplan.costmodels.schedule.long_chain import longest_chain
from meshplan.costmodels.schedule.program import Chain
from meshplan.costmodels.step.cut_times import After, CutTimes
from meshplan.planner.bounds.late import BEYOND_ANY, SHOWN
from meshplan.planner.bounds.simulated import SAFETY
from meshplan.planner.bounds.split_times import Replays, SplitTimes
from meshplan.planner.problem.same_pipeline import SamePipeline
from meshplan.planner.problem.stage_problem import StageProblem

Shape = tuple[Schedule, int, int, int]
MOST_ACTIONS = 30_000  # actions of the longest step whose chain is looked for
PLAYED = 6  # times the ranks: about so many micro-batches of a long step are played
MOST_CHAINS, MOST_MEANS = 12, 4  # kept of a shape
CLOSER = 1.002  # a chain is kept if its step is so many times the known bound or more
FAR = 1e-9  # a step surely takes longer


def shape_of(problem: StageProblem) -> Shape:
    """What decides the order of its actions."""
    return problem.schedule, problem.pp, problem.vpp, problem.m


def actions_of(shape: Shape) -> int:
    """Forwards and backwards of a step, as far as it is played."""
    schedule, pp, vpp, m = shape
    return 2 * pp * vpp * (m if schedule == "gpipe" else min(m, PLAYED * pp))


class KnownChains:
    """By shape, chains as rows: how often each place of `Work.table`, hops, and a 1 for the rank
    where it ends; and means of chains, whose bound is the mean of theirs.
    """

    def __init__(self) -> None:
        self._known: dict[Shape, Floats] = {}
        self._means: dict[Shape, Floats] = {}

    def bound_s(
        self, shape: Shape, times: CutTimes, stages: Sequence[Stage], after: After
    ) -> float:
        """A lower bound of the step of `stages` with `after` behind it."""
        known = self._known.get(shape)
        if known is None:
            return FAR
        work = times.work(stages)
        row = np.array([*work.table, work.send_s, *after.reduce_s])
        return float((known @ row).max() + after.rest_s) * SAFETY

    def count(self, shape: Shape) -> int:
        """How many chains of a shape are known, and means of them."""
        return len(self._known.get(shape, ())) + len(self._means.get(shape, ()))

    def of(self, shape: Shape) -> list[Chain]:
        """The chains of a shape."""
        _, pp, vpp, _ = shape
        size = 4 * pp * vpp
        return [
            Chain(tuple(map(int, row[:size])), int(row[size]), int(row[size + 1 :].argmax()))
            for row in self._known.get(shape, ())
        ]

    def bounds_s(
        self, same: SamePipeline, times: SplitTimes, replays: Replays | None = None
    ) -> Floats:
        """[row, split] a lower bound of the step of each split of layouts that have equally many
        micro-batches, with what the rank reduces where a chain ends, and with `replays`.
        """
        shape = (same.schedule, same.pp, same.vpp, int(times.m[0]))
        rows = [each[shape] for each in (self._known, self._means) if shape in each]
        late = times.late[[SHOWN, BEYOND_ANY]].max(axis=0)
        if not rows:
            return np.full(late.shape[1:], FAR)
        known = np.concatenate(rows)
        hops = np.broadcast_to(times.hop[:, None], (1, *late.shape[1:]))
        forward, input_grad, weight_grad = times[:3]
        both = input_grad + weight_grad
        parts = np.concatenate([forward, both, input_grad, weight_grad, hops, late])
        chains = known @ parts.reshape(len(parts), -1)
        if replays is not None:
            ranks = np.array(same.chunks_of_rank)
            often = known[:, same.chunks : 3 * same.chunks].reshape(len(known), 2, -1).sum(axis=1)
            for chain, each in zip(chains, often[:, ranks], strict=True):
                chain += replays.least(ranks, each).sum(axis=0).ravel()
        longest = chains.max(axis=0).reshape(late.shape[1:])
        found: Floats = (longest + times.once[:, None]) * SAFETY
        return found

    def learn(self, shape: Shape, times: CutTimes, stages: Sequence[Stage], ratio: float) -> None:
        """Keep the longest chain of `stages`, which last `ratio` times as long as was known."""
        _, pp, vpp, _ = shape
        known = self._known.get(shape, np.zeros((0, 4 * pp * vpp + 1 + pp)))
        if ratio < CLOSER or len(known) >= MOST_CHAINS or actions_of(shape) > MOST_ACTIONS:
            return
        reduce_s = times.after_s(stages).reduce_s
        self.keep(shape, longest_chain(*shape, times.work(stages), reduce_s))

    def keep(self, shape: Shape, chain: Chain) -> None:
        """Keep a chain of a shape; of too many the last stay."""
        row = _row(shape, chain)
        known = self._known.get(shape, np.zeros((0, len(row))))
        self._known[shape] = np.vstack([known[1 - MOST_CHAINS :], row])

    def keep_mean(self, shape: Shape, shares: Iterable[tuple[float, Chain]], ratio: float) -> None:
        """Keep a mean of chains, each with its share, by which a step lasts `ratio` times as long
        as was known; the first few of a shape.
        """
        if ratio < CLOSER or len(self._means.get(shape, ())) >= MOST_MEANS:
            return
        row = np.sum([share * _row(shape, chain) for share, chain in shares], axis=0)
        self._means[shape] = np.vstack([self._means.get(shape, np.zeros((0, len(row)))), row])


def _row(shape: Shape, chain: Chain) -> Floats:
    """A chain as `KnownChains` holds it."""
    ends = [float(rank == chain.rank) for rank in range(shape[1])]
    return np.array([*chain.counts, chain.hops, *ends])
