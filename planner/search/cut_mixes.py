"""A cut of several chunks that must recompute, alone: what its mixes take at least, and plans."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property

from meshplan.costmodels.schedule.program import Chain
from meshplan.costmodels.step.cut_times import After, CutTimes
from meshplan.planner.problem.stage_problem import StageProblem
from meshplan.planner.search.exact_mixes import ExactMixes
from meshplan.planner.search.recompute_chains import MixAnswer, RecomputeChains
from meshplan.planner.search.simulated_cuts import Cut


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
