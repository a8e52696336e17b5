"""One chunk per rank and any cut: the fastest way through the layers (`LeastLongest`).

A stage is a step of the way, from its first layer to the one after its last, in the mix that takes
least time of those that fit. What it adds to a chain of actions is what the chain has of its
passes; where the chain ends, what it reduces too, and on the rank that updates last its update. So
a cut's own longest chain is as long as its simulated step, to rounding.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from meshplan.costmodels.layout import Stage
from meshplan.costmodels.layouts import Floats
from meshplan.costmodels.schedule.long_chain import longest_chain
from meshplan.costmodels.schedule.program import Chain
from meshplan.costmodels.step.cut_times import CutTimes
from meshplan.planner.bounds.simulated import SAFETY, Passes
from meshplan.planner.cuts import budget as costs
from meshplan.planner.cuts.intervals import ProblemChains, intervals_below
from meshplan.planner.cuts.least_longest import LeastLongest, Steps
from meshplan.planner.problem.stage_problem import StageProblem
from meshplan.planner.stages.path import Intervals, stages_of


class PathCuts:
    """The cuts of one layout whose stages are all below `limit_s` on their own; `intervals` say in
    which mix each is, if not the fastest of those that fit by the priced memory.
    """

    def __init__(
        self,
        problem: StageProblem,
        passes: Passes,
        times: CutTimes,
        limit_s: float,
        intervals: Intervals | None = None,
    ) -> None:
        self.problem, self.times, self.once_s = problem, times, float(passes.once[0])
        self.intervals = intervals or Intervals(problem)
        found = _through(
            intervals_below(self.intervals, ProblemChains(problem, passes), limit_s),
            len(problem.pattern),
        )
        self._steps = [[(first, end) for first, end, _ in stage] for stage in found]
        stages = []
        for steps, stage in zip(self._steps, found, strict=True):
            first, end = np.array(steps, np.int64).reshape(-1, 2).T
            stages.append(Steps(first, end, np.array([least_s for _, _, least_s in stage])))
        self._loads = [list(self._loads_of(stage)) for stage in range(problem.pp)]
        self._passes = [
            np.array([load[:3] for load in each]).reshape(-1, 3) for each in self._loads
        ]
        self.ways = LeastLongest(stages, len(problem.pattern))

    @property
    def steps(self) -> int:
        """The intervals of all stages that are below the limit on their own."""
        return sum(map(len, self._steps))

    def least(
        self, limit_s: float, most_passes: int, budget: int
    ) -> tuple[float, tuple[Stage, ...] | None, int]:
        """A lower bound of all cuts below the limit, the one that has it by what is known, and what
        of the budget it took in some passes through the stages at most.
        """
        found = self.ways.least(limit_s / SAFETY, most_passes, budget / costs.LABEL)
        stages = None if found.way is None else self._stages(found.way)
        work = costs.WAY * found.passes + costs.LABEL * found.labels
        return found.bound_s * SAFETY, stages, work

    def learn(self, stages: tuple[Stage, ...]) -> Chain:
        """Add the longest chain of a cut, which is the answer."""
        work, after = self.times.work(stages), self.times.after_s(stages)
        p = self.problem
        chain = longest_chain(p.schedule, p.pp, 1, p.m, work, after.reduce_s)
        self._add(chain, updates=int(np.argmax(self.times.update_s(stages))))
        return chain

    def know(self, chain: Chain) -> None:
        """Add a chain of another layout of the same shape."""
        self._add(chain, updates=None)

    def forbid(self, stages: tuple[Stage, ...]) -> None:
        """Leave a cut out: it does not fit after all."""
        ends = np.cumsum([stage.layers for stage in stages]).tolist()
        bounds = enumerate(pairwise((0, *ends)))
        self.ways.forbidden.add(tuple(self._steps[stage].index(each) for stage, each in bounds))

    def _add(self, chain: Chain, updates: int | None) -> None:
        pp, times = self.problem.pp, self.times
        often = np.array(chain.counts, float).reshape(4, pp)
        fixed_s = chain.hops * times.hop_s
        fixed_s += self.once_s if updates is None else float(times.passes.step_s[times.row])
        costs = []
        for stage, passes in enumerate(self._passes):
            forward, both, input_grad, weight_grad = often[:, stage]
            rates = np.array([forward, both + input_grad, both + weight_grad])
            cost: Floats = passes @ rates
            cost += (forward + both + input_grad) * times.extra_s
            if stage == chain.rank:
                cost += [times.reduce_s_of(load) for load in self._loads[stage]]
            if stage == updates:
                cost += [times.update_s_of(load) for load in self._loads[stage]]
            costs.append(cost)
        self.ways.add(costs, fixed_s)

    def _loads_of(self, stage: int) -> Iterator[tuple[float, ...]]:
        pattern, last = self.problem.pattern, self.problem.pp - 1
        for first, end in self._steps[stage]:
            price = self.intervals.price(stage, first, end)
            assert price is not None, "a stage below the limit fits"
            key = pattern[first:end], price.selective, price.full, stage == 0, stage == last
            yield self.times.load(key)

    def _stages(self, way: tuple[int, ...]) -> tuple[Stage, ...]:
        steps = [self._steps[stage][step] for stage, step in enumerate(way)]
        prices = [self.intervals.price(stage, *step) for stage, step in enumerate(steps)]
        return stages_of([price for price in prices if price], [end for _, end in steps])


def _through(
    found: list[dict[int, list[tuple[int, float]]]], layers: int
) -> list[list[tuple[int, int, float]]]:
    """First layer, end and bound of each interval from which the last stage can be reached."""
    kept, reached = list[list[tuple[int, int, float]]](), {layers}
    for stage in reversed(found):
        kept.append([
            (first, end, bound) for first in sorted(stage)
            for end, bound in stage[first] if end in reached
        ])  # fmt: skip
        reached = {first for first, _, _ in kept[-1]}
    return kept[::-1]


def first_cut(problem: StageProblem) -> tuple[Stage, ...]:
    """Any cut: the second stage holds all that no other must."""
    counts = [problem.fewest_layers(stage) for stage in range(problem.pp)]
    counts[min(1, problem.pp - 1)] += len(problem.pattern) - sum(counts)
    return tuple(map(Stage, counts))
