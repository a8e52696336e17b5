"""Cuts off the list: single layers moved between chunks, as long as the step gets shorter.

Where an engine cuts anywhere, layouts of several chunks per rank are solved over a list of cuts
(`planner.space.stage_splits`). From the best one of the best few degrees, under each schedule and
number of chunks, the search climbs: of all moves of a layer from chunk a to chunk b, and of all
layers that need no longer recompute, those are simulated that no longest chain known so far
forbids, the one that shortens the present chain most first; the first that is faster and fits is
the next cut. A layer that is moved recomputes only where it does not fit otherwise. A chain is
learnt from each simulation, so that few are needed. Where it ends no such move is faster, or the
budget is spent; nothing is proved of cuts that differ by more. Before, cuts of few chunks move many
layers at once (`planner.cuts.balanced_counts`).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from meshplan.costmodels.layout import Stage
from meshplan.costmodels.layouts import Floats
from meshplan.costmodels.schedule.long_chain import longest_chain
from meshplan.costmodels.step.cut_times import After, CutTimes
from meshplan.planner.cuts.balanced_counts import BalancedCounts, least_recomputed
from meshplan.planner.problem.stage_problem import StageProblem, evaluate

BUDGET = 5_000_000  # played actions, some 20 ns each
MOST_CHAINED = 4_000_000  # actions of the longest order whose chains are found: memory
CHAINED = 20  # to find a longest chain takes as long as so many passes over the actions
DESCENT = 200_000  # actions in the time of a descent of `BalancedCounts`
MOST_BALANCED, MOST_MISSES = 16, 2  # chunks of the largest cut for it; descents in vain
MOST_NEAR, MOST_MISSES_NEAR = 8, 4  # the same where all cuts near one are weighed
WEIGHED = 5_000  # actions in the time that weighing a move takes
FASTER = 1 - 1e-6
Propose = Callable[[Sequence[int]], Sequence[int]]
FIELDS = ("layers", "selective_layers", "full_layers")


class MovedLayers:
    """The climb from one cut of `problem`; `spent` counts actions of the simulation, and ends it at
    the budget. Only steps below `goal_s` are of worth.
    """

    def __init__(
        self,
        problem: StageProblem,
        times: CutTimes,
        budget: int = BUDGET,
        goal_s: float = math.inf,
    ) -> None:
        self.problem, self.times, self.budget, self.goal_s = problem, times, budget, goal_s
        self.actions = 2 * problem.chunks * problem.m
        self.spent = self.simulated = 0
        self._chains = np.zeros((0, 4 * problem.chunks + 1 + problem.pp))
        few = problem.chunks <= MOST_BALANCED
        self.balanced = BalancedCounts(problem, times) if few else None

    def best(self, stages: tuple[Stage, ...], step_s: float) -> tuple[tuple[Stage, ...], float]:
        """The cut where the climb from `stages`, which take `step_s`, ends, and its step."""
        if not can_move(self.problem) or CHAINED * self.actions > self.budget:
            return stages, step_s
        self._learn(stages)
        stages, step_s = self._balanced(stages, step_s)
        found, found_s = self._climbed(stages, step_s)
        if found_s < step_s:
            stages, step_s = self._balanced(found, found_s)
        return self._climbed(stages, step_s) if step_s < found_s else (found, found_s)

    def _climbed(self, stages: tuple[Stage, ...], step_s: float) -> tuple[tuple[Stage, ...], float]:
        """Where single moves lead from a cut whose chain is known."""
        while (found := self._faster(stages, step_s)) is not None:
            stages, step_s = found
            self._learn(stages)
        return stages, step_s

    def _balanced(
        self, stages: tuple[Stage, ...], step_s: float
    ) -> tuple[tuple[Stage, ...], float]:
        """The fastest cut on the ways of `BalancedCounts` from `stages`, if nothing recomputes."""
        balanced = self.balanced
        if balanced is None or not _is_bare(self.problem, stages):
            return stages, step_s
        found = self._proposed(balanced.least, MOST_MISSES, stages, step_s)
        if len(stages) <= MOST_NEAR:
            found = self._proposed(balanced.least_near, MOST_MISSES_NEAR, *found)
        return found

    def _proposed(
        self, propose: Propose, most_misses: int, stages: tuple[Stage, ...], step_s: float
    ) -> tuple[tuple[Stage, ...], float]:
        """The fastest cut of those that are proposed beside the one before it, as long as no known
        chain forbids them to be of worth.
        """
        balanced, misses = self.balanced, 0
        while balanced and misses < most_misses and self.spent < self.budget:
            self.spent += DESCENT
            counts = propose([stage.layers for stage in stages])
            if balanced.longest_s(counts) >= min(step_s, self.goal_s) * FASTER:
                break
            moved, misses = least_recomputed(self.problem, counts), misses + 1
            moved_s = self._played_s(moved)
            self._learn(moved)
            if moved_s < step_s * FASTER and evaluate(self.problem, moved) is not None:
                stages, step_s, misses = moved, moved_s, 0
        return stages, step_s

    def _played_s(self, stages: tuple[Stage, ...]) -> float:
        self.spent, self.simulated = self.spent + self.actions, self.simulated + 1
        return self.times.step_s(stages)

    def _faster(
        self, stages: tuple[Stage, ...], step_s: float
    ) -> tuple[tuple[Stage, ...], float] | None:
        """The first neighbour that is faster and fits."""
        for ways in self._neighbours(stages):
            for moved in ways:
                if self.spent > self.budget:
                    return None
                self.spent += WEIGHED
                if self._bound_s(moved) >= step_s * FASTER:
                    break  # nor is one that recomputes more
                moved_s = self._played_s(moved)
                if moved_s >= step_s * FASTER:
                    self._learn(moved)
                    break
                if evaluate(self.problem, moved) is not None:
                    return moved, moved_s
        return None

    def _neighbours(self, stages: tuple[Stage, ...]) -> Iterator[list[tuple[Stage, ...]]]:
        """Layers that recompute no more; then moves, what shortens the longest chain most first,
        each in all modes of the layer, the one that recomputes least first.
        """
        for at, stage in enumerate(stages):
            for less in _with_one_kept(stage) if 0 in self.problem.modes else ():
                yield [(*stages[:at], less, *stages[at + 1 :])]
        replayed = any(stage.selective_layers or stage.full_layers for stage in stages)
        alike, weight = self.problem.uniform and not replayed, self._weights(stages)
        by_gain = weight[None, :] - weight[:, None]  # [from, to]
        for pair in np.argsort(by_gain, axis=None, kind="stable").tolist():
            at, to = divmod(pair, len(stages))
            if alike and by_gain[at, to] >= 0:
                return  # no move behind shortens that chain
            if at == to or stages[at].layers <= self.problem.fewest_layers(at):
                continue
            for less in _without_one(stages[at]):
                ways = []
                for more in _with_one(stages[to], self.problem.modes):
                    moved = list(stages)
                    moved[at], moved[to] = less, more
                    ways.append(tuple(moved))
                yield ways

    def _weights(self, stages: tuple[Stage, ...]) -> Floats:
        """[chunk] seconds that a layer more takes of the longest known chain."""
        rows = self._chains @ self._row(stages, self.times.after_s(stages))
        counts = self._chains[int(rows.argmax()), : 4 * len(stages)].reshape(4, -1)
        found: Floats = self._layer_s @ counts
        return found

    @property
    def _layer_s(self) -> Floats:
        """What the mean layer adds to each kind of action, in the order of `Work.table`."""
        of_kind = self.times.passes.layer_s[self.times.row, :, 0]
        forward, input_grad, weight_grad = of_kind[list(self.problem.pattern)].mean(axis=0)
        return np.array([forward, input_grad + weight_grad, input_grad, weight_grad])

    def _bound_s(self, stages: Sequence[Stage]) -> float:
        after = self.times.after_s(stages)
        return float((self._chains @ self._row(stages, after)).max()) + after.rest_s

    def _row(self, stages: Sequence[Stage], after: After) -> Floats:
        work = self.times.work(stages)
        return np.array([*work.table, work.send_s, *after.reduce_s])

    def _learn(self, stages: Sequence[Stage]) -> None:
        """Know the longest chain of a cut."""
        after, p = self.times.after_s(stages), self.problem
        work = self.times.work(stages)
        chain = longest_chain(p.schedule, p.pp, p.vpp, p.m, work, after.reduce_s)
        ends = [float(rank == chain.rank) for rank in range(p.pp)]
        self._chains = np.vstack([self._chains, [*chain.counts, chain.hops, *ends]])
        self.spent += CHAINED * self.actions
        if self.balanced is not None and _is_bare(p, tuple(stages)):
            self.balanced.learn(chain, after.reduce_s[chain.rank] + after.rest_s)


def _is_bare(problem: StageProblem, stages: tuple[Stage, ...]) -> bool:
    return least_recomputed(problem, [stage.layers for stage in stages]) == stages


def can_move(problem: StageProblem) -> bool:
    """Whether the order of its actions is short enough for chains."""
    return CHAINED * 2 * problem.chunks * problem.m <= MOST_CHAINED


def _with_one_kept(stage: Stage) -> Iterator[Stage]:
    """With one layer that keeps everything more."""
    for name in FIELDS[1:]:
        if getattr(stage, name):
            yield replace(stage, **{name: getattr(stage, name) - 1})


def _without_one(stage: Stage) -> Iterator[Stage]:
    """With one layer less, of each kind of recomputation that it has."""
    plain = stage.layers - stage.selective_layers - stage.full_layers
    if plain:
        yield replace(stage, layers=stage.layers - 1)
    for name in FIELDS[1:]:
        if getattr(stage, name):
            less = {"layers": stage.layers - 1, name: getattr(stage, name) - 1}
            yield replace(stage, **less)


def _with_one(stage: Stage, modes: tuple[int, ...]) -> Iterator[Stage]:
    """With one layer more, in each allowed mode."""
    for mode in sorted(modes):
        more = {"layers": stage.layers + 1}
        if mode:
            more[FIELDS[mode]] = getattr(stage, FIELDS[mode]) + 1
        yield replace(stage, **more)
