"""Cuts off the list: layers moved between chunks, as long as the simulated step gets shorter.

Where an engine cuts anywhere, layouts of several chunks per rank are solved over a list of cuts
(`planner.space.stage_splits`). From the best one of the best few degrees, under each schedule and
number of chunks, the search climbs. Next to a cut are all that differ by one layer moved from chunk
to chunk, or by what one layer recomputes, and by two of these (`planner.cuts.layer_changes`). All
are weighed at once by the longest chains of actions that are known (`planner.cuts.cut_lengths`); of
those that fit the one whose longest chain is shortest is simulated, which makes its own longest
chain known. The first that is faster is the next cut. Where the climb ends no such cut is faster,
as far as chains say, or the budget is spent; nothing is proved of cuts that differ by more. Before,
cuts of few chunks move many layers at once (`planner.cuts.balanced_counts`).
"""

import math
from collections.abc import Iterator

import numpy as np

from meshplan.costmodels.layout import Stage
from meshplan.costmodels.layouts import Floats, Ints
from meshplan.costmodels.schedule.long_chain import longest_chain
from meshplan.costmodels.step.cut_times import CutTimes
from meshplan.planner.cuts.balanced_counts import BalancedCounts, least_recomputed
from meshplan.planner.cuts.cut_lengths import CutLengths, as_row, as_stages, fitting
from meshplan.planner.cuts.known_chains import actions_of
from meshplan.planner.cuts.layer_changes import (
    Pairs,
    all_pairs,
    applied,
    double,
    moves,
    pairs_at_once,
    single,
)
from meshplan.planner.problem.stage_problem import StageProblem, evaluate

BUDGET = 5_000_000  # units of some 20 ns
PLAYED, PLAY = 10, 2_000  # each action that is played; and each play
LEARN = 2  # plays in the time that it takes to find a longest chain
MOST_CHAINED = 200_000  # actions of the longest order whose chains are found: memory
DESCENT = 200_000  # a descent of `BalancedCounts`
MOST_BALANCED, MOST_MISSES = 16, 2  # chunks of the largest cut for it; descents in vain
WEIGHED = 4  # each chunk of a cut that is weighed
FITTED = 200  # cuts whose memory is looked at together
NEAR_GOAL = 1.05  # times the goal: what two layers may gain
FASTER = 1 - 1e-6


class MovedLayers:
    """The climb from one cut of `problem`; `spent` counts what it takes, and ends it at the budget.
    Only steps below `goal_s` are of worth.
    """

    def __init__(
        self,
        problem: StageProblem,
        times: CutTimes,
        budget: int = BUDGET,
        goal_s: float = math.inf,
    ) -> None:
        self.problem, self.times, self.budget, self.goal_s = problem, times, budget, goal_s
        self.actions = actions_of((problem.schedule, problem.pp, problem.vpp, problem.m))
        self.play = PLAYED * self.actions + PLAY
        self.spent = self.simulated = 0
        self.lengths = CutLengths(problem, times)
        self._fewest = np.array([problem.fewest_layers(at) for at in range(problem.chunks)])
        few = problem.chunks <= MOST_BALANCED
        self.balanced = BalancedCounts(problem, times) if few else None

    def best(self, stages: tuple[Stage, ...], step_s: float) -> tuple[tuple[Stage, ...], float]:
        """The cut where the climb from `stages`, which take `step_s`, ends, and its step."""
        if not can_move(self.problem) or LEARN * self.play > self.budget:
            return stages, step_s
        self._learn(stages)
        stages, step_s = self._balanced(stages, step_s)
        found, found_s = self._climbed(stages, step_s)
        if found_s < step_s:
            stages, step_s = self._balanced(found, found_s)
        return self._climbed(stages, step_s) if step_s < found_s else (found, found_s)

    def _climbed(self, stages: tuple[Stage, ...], step_s: float) -> tuple[tuple[Stage, ...], float]:
        """Where changes of one or two layers lead from a cut whose chain is known."""
        while (found := self._faster(stages, step_s)) is not None:
            stages, step_s = found
        return stages, step_s

    def _balanced(
        self, stages: tuple[Stage, ...], step_s: float
    ) -> tuple[tuple[Stage, ...], float]:
        """The fastest cut on the ways of `BalancedCounts` from `stages`, if nothing recomputes, as
        long as no known chain forbids cuts on these to be of worth.
        """
        balanced = self.balanced
        if balanced is None or not _is_bare(self.problem, stages):
            return stages, step_s
        misses = 0
        while misses < MOST_MISSES and self.spent < self.budget:
            self.spent += DESCENT
            counts = balanced.least([stage.layers for stage in stages])
            if balanced.longest_s(counts) >= min(step_s, self.goal_s) * FASTER:
                break
            moved, misses = least_recomputed(self.problem, counts), misses + 1
            moved_s = self._played_s(moved)
            self._learn(moved)
            if moved_s < step_s * FASTER and evaluate(self.problem, moved) is not None:
                stages, step_s, misses = moved, moved_s, 0
        return stages, step_s

    def _played_s(self, stages: tuple[Stage, ...]) -> float:
        self.spent, self.simulated = self.spent + self.play, self.simulated + 1
        return self.times.step_s(stages)

    def _faster(
        self, stages: tuple[Stage, ...], step_s: float
    ) -> tuple[tuple[Stage, ...], float] | None:
        """A cut next to this one that is faster and fits."""
        self.lengths.begin(stages)
        for cuts in self._beside(as_row(stages), near=step_s < self.goal_s * NEAR_GOAL):
            seconds = self.lengths.seconds(cuts)
            lengths = self.lengths.longest_s(seconds)
            while (at := self._shortest(cuts, lengths, step_s)) is not None:
                moved = as_stages(cuts[at])
                moved_s = self._played_s(moved)
                self._learn(moved)
                if moved_s < step_s * FASTER:
                    return moved, moved_s
                lengths = np.maximum(lengths, self.lengths.last_s(seconds))
                lengths[at] = math.inf
            if self.spent > self.budget:
                return None
        return None

    def _beside(self, cut: Ints, *, near: bool) -> Iterator[Ints]:
        """[cut, chunk, 3] what differs by one layer, some at a time, the first of these with all
        that recompute otherwise; after them what differs by two where the step is `near` the goal.
        """
        p = self.problem
        for place, pairs in enumerate(self._pairs(cut)):
            for changes in (moves,) if place else (single, double) if near else (single,):
                every = changes(p.chunks, p.modes, pairs)
                cuts = applied(cut, every, self._fewest, keeps=0 in p.modes)
                self.spent += WEIGHED * p.chunks * len(every)
                if len(cuts):
                    yield cuts

    def _pairs(self, cut: Ints) -> Iterator[Pairs]:
        """Chunks from and to which layers move: of many first those that shorten the longest known
        chain most.
        """
        every, most = all_pairs(len(cut)), pairs_at_once(len(cut), len(self.problem.modes))
        if len(every) > most:
            weight = self.lengths.weights(cut)
            gain = np.array([weight[to] - weight[at] for at, to in every])
            every = tuple(every[place] for place in np.argsort(gain, kind="stable").tolist())
        for first in range(0, len(every), most):
            yield every[first : first + most]

    def _shortest(self, cuts: Ints, lengths: Floats, step_s: float) -> int | None:
        """The place of the cut whose longest chain is shortest, of those that fit; None where all
        are too long, or the budget is spent. What does not fit gets infinitely long.
        """
        while self.spent <= self.budget:
            below = np.flatnonzero(lengths < step_s * FASTER)
            if not len(below):
                return None
            some = below[np.argsort(lengths[below], kind="stable")[:FITTED]]
            fits = fitting(self.problem, cuts[some])
            if len(fits):
                lengths[some[: fits[0]]] = math.inf
                return int(some[fits[0]])
            lengths[some] = math.inf
        return None

    def _learn(self, stages: tuple[Stage, ...]) -> None:
        """Know the longest chain of a cut."""
        after, p = self.times.after_s(stages), self.problem
        work = self.times.work(stages)
        chain = longest_chain(p.schedule, p.pp, p.vpp, p.m, work, after.reduce_s)
        self.lengths.learn(chain)
        self.spent += LEARN * self.play
        if self.balanced is not None and _is_bare(p, tuple(stages)):
            self.balanced.learn(chain, after.reduce_s[chain.rank] + after.rest_s)


def _is_bare(problem: StageProblem, stages: tuple[Stage, ...]) -> bool:
    return least_recomputed(problem, [stage.layers for stage in stages]) == stages


def can_move(problem: StageProblem) -> bool:
    """Whether the order of its actions is short enough for chains."""
    return 2 * problem.chunks * problem.m <= MOST_CHAINED
