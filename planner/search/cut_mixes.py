"""Cuts of several chunks that must recompute: what the mixes of one take at least, and plans; and
of several, each in its turn.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property

from meshplan.costmodels.schedule.program import Chain
from meshplan.costmodels.step.cut_times import After, CutTimes
from meshplan.planner.cuts.exact_mixes import ExactMixes
from meshplan.planner.cuts.recompute_chains import MixAnswer, RecomputeChains
from meshplan.planner.cuts.simulated_cuts import Cut
from meshplan.planner.problem.stage_problem import StageProblem
from meshplan.planner.search.open_layouts import Open
from meshplan.planner.search.second_core import done_of_each, is_idle


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

    def by_chains(self) -> MixAnswer:
        """By means of chains."""
        chains = RecomputeChains(self.problem, self.times, self.bare, self.after)
        return chains.answer(self.limit_s)

    def exactly(self, known: Iterable[Chain]) -> MixAnswer:
        """By integers, from `known` chains on."""
        exact = ExactMixes(self.problem, self.times, self.bare, self.after, self.limit_s)
        return exact.answer(known)


class AheadOfTurn:
    """Means of chains of cuts in their turn. A second processor finds those of the next few
    meanwhile: they are told where their limit is then what it was, else they are found again.
    """

    def __init__(self, mixes_of: Callable[[Open, float], CutMixes]) -> None:
        self.mixes_of = mixes_of
        self._known: dict[tuple[int, ...], tuple[float, MixAnswer]] = {}

    def by_chains(
        self,
        entry: Open,
        limit_s: Callable[[int], float],
        following: Callable[[], Iterable[Open]],
    ) -> MixAnswer:
        """Of the cut of `entry`, whose row has a limit; `following`: those that are next."""
        own_s, (known_s, known) = limit_s(entry.row), self._known.pop(entry.order, (None, None))
        if known is not None and known_s == own_s:
            return known
        new = [each for each in following() if each.order not in self._known] if is_idle() else []
        asked = [(each, limit_s(each.row)) for each in (entry, *new)]
        first, *rest = done_of_each(lambda one: self.mixes_of(*one).by_chains(), asked)
        for (each, at_s), answer in zip(asked[1:], rest, strict=True):
            self._known[each.order] = at_s, answer
        return first
