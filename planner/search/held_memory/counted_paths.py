"""One chunk per rank, where every moment is counted: each stage in its fastest mix that fits."""

from meshplan.planner.problem.stage_problem import StageProblem
from meshplan.planner.search.simulation.counted_ranks import CountedRanks
from meshplan.planner.stages.path import Interval, Intervals, Price


class CountedIntervals(Intervals):
    """`Intervals` by the moments of `ranks` instead of the priced memory."""

    def __init__(self, problem: StageProblem, ranks: CountedRanks) -> None:
        super().__init__(problem)
        self.ranks = ranks

    def _like(self, stage: int) -> tuple[int, bool, bool]:
        """Equal for stages that hold equally much in each moment, and have equal ends."""
        return self.ranks.memory.like(stage), stage == 0, stage == self.problem.pp - 1

    def _cheapest(self, key: Interval) -> Price | None:
        """The fastest of the mixes that fit."""
        found = self.ranks.fastest(*key)
        if found is None:
            return None
        full, selective = found
        return Price(self.ns(key, full, selective), selective, full)
