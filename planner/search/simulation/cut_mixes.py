"""Cuts of several chunks that must recompute: what the mixes of one take at least, and plans; and
of several, each in its turn.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from meshplan.costmodels.layout import Stage
from meshplan.costmodels.schedule.long_chain import longest_chain
from meshplan.costmodels.schedule.program import Chain
from meshplan.costmodels.step.cut_times import After, CutTimes
from meshplan.planner.cuts.exact_mixes import MOST_S, ExactMixes
from meshplan.planner.cuts.known_chains import Shape, shape_of
from meshplan.planner.cuts.recompute_chains import MeanOfChains, MixAnswer, RecomputeChains
from meshplan.planner.cuts.simulated_cuts import Cut
from meshplan.planner.problem.first_layers import mixes_that_fit
from meshplan.planner.problem.stage_problem import StageProblem
from meshplan.planner.processes.second_core import done_of_each, is_idle
from meshplan.planner.search.found import SETTLED
from meshplan.planner.search.simulation.open_layouts import Open

RAISED = 1.0005  # a known mean that raises a cut's bound so far lets other cuts come first
ROUNDED = 1 - 1e-9  # quotients of sums in another order


def mixes_that_pay(
    cuts: Iterable[Cut],
    problem: StageProblem,
    times_of: Callable[[tuple[Stage, ...]], CutTimes],
    limit_s: Callable[[], float],
) -> Iterator[Cut]:
    """Cuts of `problem`, whose every stage recomputes equally many of its first layers: a rank
    cannot recompute more alone, so a cut comes in each such mix that fits if it may pay to any.
    """
    for cut in cuts:
        if ranks_it_pays(cut.least, problem.modes, times_of(cut.least), limit_s()):
            counts = tuple(stage.layers for stage in cut.least)
            yield from (cut._replace(least=mix) for mix in mixes_that_fit(problem, counts))
        else:
            yield cut


def paying_too(cut: Cut, problem: StageProblem, times: CutTimes, limit_s: float) -> Cut:
    """The cut, of which those ranks recompute too to which it may pay; none where all fit with
    nothing recomputed and no other mix is faster.
    """
    ranks = () if problem.first else ranks_it_pays(cut.least, problem.modes, times, limit_s)
    if not ranks:
        return cut
    if not cut.recomputes() and more_is_slower(problem, times, cut.least):
        return cut
    return cut._replace(recomputes=lambda: tuple(sorted({*ranks, *cut.recomputes()})))


def ranks_it_pays(
    bare: tuple[Stage, ...], modes: Sequence[int], times: CutTimes, limit_s: float
) -> frozenset[int]:
    """The ranks of a cut of several chunks to which it may pay to recompute more than memory asks
    for: a backward that gets longer hides more of a gradient reduction, in rounds beside chunks
    more than it takes; elsewhere the rank may wait after it for another chunk's last backward.
    """
    if len(modes) == 1 or times.layout.virtual_stages == 1:
        return frozenset()
    shown, least = (
        times.least_after_s(bare, ranks, limit_s).reduce_s
        for ranks in ((), range(times.layout.pipeline_parallel))
    )
    each = enumerate(zip(shown, least, strict=True))
    return frozenset(rank for rank, (most, a) in each if a < most * SETTLED)


def more_is_slower(problem: StageProblem, times: CutTimes, stages: tuple[Stage, ...]) -> bool:
    """Whether no mix is faster that recomputes more than `stages` in some chunks and less in none:
    their longest chain has each backward of its last rank as often as that hides traffic, so it
    gets longer by no less than is hidden.
    """
    reduce_s = times.after_s(stages).reduce_s
    chain = longest_chain(*shape_of(problem), times.work(stages), reduce_s)
    backwards = np.array(chain.counts).reshape(4, problem.chunks)[1:3].sum(axis=0)
    held = [chunk for chunk in problem.chunks_of_rank[chain.rank] if stages[chunk].layers]
    return bool((backwards[held] >= times.most_hidden(problem.modes) * ROUNDED).all())


class CutMixes:
    """The mixes of a cut of `problem` whose step has to be below `limit_s`."""

    def __init__(self, problem: StageProblem, times: CutTimes, cut: Cut, limit_s: float) -> None:
        counts = tuple(stage.layers for stage in cut.least)
        self.problem = replace(problem, splits=(counts,))
        self.times, self.cut, self.bare, self.limit_s = times, cut, cut.least, limit_s

    @cached_property
    def after(self) -> After:
        """What follows the pipeline at least."""
        return self.times.least_after_s(self.bare, self.cut.recomputes(), self.limit_s)

    @cached_property
    def _chains(self) -> RecomputeChains:
        return RecomputeChains(self.problem, self.times, self.bare, self.after)

    @property
    def shape(self) -> Shape:
        """What decides the order of its actions."""
        return shape_of(self.problem)

    def by_known(self, mean: MeanOfChains) -> MixAnswer:
        """The bound by a mean that was found for another cut."""
        return MixAnswer(self._chains.bound_s(mean), math.inf, None, knapsacks=1)

    def by_chains(self) -> MixAnswer:
        """The answer by means of this cut's own chains: a bound, and plans that it led to."""
        return self._chains.answer(self.limit_s)

    def exactly(self, known: Iterable[Chain], most_s: float) -> MixAnswer:
        """The answer in whole layers by CP-SAT, which begins with the `known` chains; in at most
        `most_s` deterministic seconds.
        """
        exact = ExactMixes(self.problem, self.times, self.bare, self.after, self.limit_s)
        return exact.answer(known, most_s=min(most_s, MOST_S))


class AheadOfTurn:
    """Finds the means of chains of cuts when it is their turn, unless the last mean found for their
    shape settles them. A second processor finds those of the next few cuts meanwhile; such an
    answer is used if the cut's limit has not changed when its turn comes, else it is found again.
    """

    def __init__(self, mixes_of: Callable[[Open, float], CutMixes]) -> None:
        self.mixes_of = mixes_of
        self._known: dict[tuple[int, ...], tuple[float, MixAnswer]] = {}
        self._means: dict[Shape, tuple[int, MeanOfChains | None]] = {}

    def by_chains(
        self,
        entry: Open,
        limit_s: Callable[[int], float],
        following: Callable[[], Iterable[Open]],
    ) -> MixAnswer:
        """The answer for the cut of `entry`; `limit_s` of its row, `following` the next cuts."""
        own_s = limit_s(entry.row)
        mixes = self.mixes_of(entry, own_s)
        known = self._by_known(entry, mixes)
        if known:
            return known
        found = self._in_full(entry, mixes, limit_s, following)
        if found.mean:
            number, _ = self._means.get(mixes.shape, (0, None))
            self._means[mixes.shape] = number + 1, found.mean
        return found

    def number(self, shape: Shape) -> int:
        """The number of the last mean that was found for a shape."""
        return self._means.get(shape, (0, None))[0]

    def _by_known(self, entry: Open, mixes: CutMixes) -> MixAnswer | None:
        """The answer by the last mean of the shape: None where the cut was bounded by that mean
        before, or where it neither settles the cut nor raises its bound enough for others to come
        first.
        """
        number, mean = self._means.get(mixes.shape, (0, None))
        if mean is None or entry.mean == number:
            return None
        found = mixes.by_known(mean)
        least_s = min(mixes.limit_s * SETTLED, entry.bound_s * RAISED)
        return found if found.bound_s >= least_s else None

    def _in_full(
        self,
        entry: Open,
        mixes: CutMixes,
        limit_s: Callable[[int], float],
        following: Callable[[], Iterable[Open]],
    ) -> MixAnswer:
        known_s, known = self._known.pop(entry.order, (None, None))
        if known is not None and known_s == mixes.limit_s:
            return known
        new = [each for each in following() if each.order not in self._known] if is_idle() else []
        asked = [(each, limit_s(each.row)) for each in new]
        pieces = [(entry, mixes), *((each, self.mixes_of(each, at_s)) for each, at_s in asked)]

        def done(piece: tuple[Open, CutMixes]) -> MixAnswer | None:
            known = piece[0] is not entry and self._by_known(*piece)
            return None if known else piece[1].by_chains()

        first, *rest = done_of_each(done, pieces)
        for (each, at_s), answer in zip(asked, rest, strict=True):
            if answer is not None:  # else it will be settled in its turn
                self._known[each.order] = at_s, answer
        assert first is not None
        return first
