"""The best layout under the event simulation, with a proof over every layout and cut of the space.

    bound      `planner.bounds.simulated` gives every layout a lower bound of its simulated step
    cuts       a layout whose bound is below the best simulated step is opened: its cuts into
               stages, each with its own bound (`planner.search.simulated_cuts`)
    simulated  those below the best are simulated, the smallest bound first; a cut that needs no
               recomputation, and any cut of one chunk per rank, is then settled: nobody recomputes
               more than fits at least, and more never makes a step shorter
    open       what the budget left, or what must recompute in several chunks: there the bound of
               the cut stays below what was found for it

The best simulated step is optimal when no open bound is below it by more than a millionth; else
the smallest one is the honest distance. The budget counts work, not seconds: equal questions give
equal answers.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layout import Layout, Stage
from meshplan.costmodels.schedule.in_flight import V_SHAPED
from meshplan.costmodels.step.cut_times import CutTimes
from meshplan.costmodels.step.price_passes import PassSeconds, pass_seconds
from meshplan.costmodels.step.setting import Setting
from meshplan.planner.bounds.simulated import Passes
from meshplan.planner.problem.coefficients import ABSENT, NS_PER_S, Coefficients
from meshplan.planner.problem.stage_problem import StagePlan, StageProblem, evaluate, stage_problem
from meshplan.planner.search.branch_and_bound import Found, Kind
from meshplan.planner.search.known_chains import Shape
from meshplan.planner.search.open_layouts import Open, OpenLayouts
from meshplan.planner.search.priced_space import Question
from meshplan.planner.search.recompute_chains import RecomputeChains
from meshplan.planner.search.simulated_cuts import Cut, cuts_below
from meshplan.planner.space.legal_layouts import Space, Variant

BUDGET = 15_000_000  # in the time of one played action, some 60 ns: below a second
OPENED, LOOKED_AT = 60_000, 5_000  # a layout is priced for the simulation; one of its cuts
BOUNDED = 1_000  # a layout is bounded again by chains that were learnt
NEW_SHAPE, NEW_V_SHAPE = 30, 120  # an action whose order is written out first costs so many
CHAINED, CHAINS = 20, 200_000  # a bound by chains: passes over the actions, and all else
MOST_CHAINED = 60_000  # actions of a step that is bounded so
NEARLY = 1.05  # times the best step: runners-up up to here are found surely
SETTLED = 1 - 1e-6  # prices in whole nanoseconds, rounded down for bounds, are known no better


class Timed(NamedTuple):
    """A simulated layout."""

    step_s: float
    row: int
    variant: Variant
    plan: StagePlan


@dataclass
class Tally:
    """What was done: layouts opened, cuts simulated, and what is left of the budget."""

    opened: int = 0
    simulated: int = 0
    left: int = BUDGET
    shapes: set[Shape] = field(default_factory=set)

    def spend(self, shape: Shape) -> None:
        """Count one simulation."""
        schedule, pp, vpp, m = shape
        actions = 2 * pp * vpp * min(m, 6 * pp)
        self.simulated += 1
        new = NEW_V_SHAPE if schedule in V_SHAPED else NEW_SHAPE
        self.left -= actions * (1 if shape in self.shapes else new)
        self.shapes.add(shape)


class Simulated:
    """One search under the simulation: what is open, and the best simulated layout of each kind.

    `judged` says what the whole simulation of a layout takes, infinite where it does not fit after
    all; `layout_of` makes the layout of a row, a variant and a plan.
    """

    def __init__(
        self,
        question: Question,
        space: Space,
        coefficients: Coefficients,
        judged: Callable[[Layout], float],
        layout_of: Callable[[int, Variant, StagePlan], Layout],
    ) -> None:
        q = question
        self.space, self.judged, self.layout_of = space, judged, layout_of
        self.setting = Setting.fitted(q.model, q.training, q.cluster, q.engine)
        self.passes = pass_seconds(space.layouts, self.setting)
        self.prices = as_simulated(coefficients, self.passes)
        self.best: dict[Kind, Timed] = {}
        self.tally = Tally()
        self._kinds: dict[int, Kind] = {}
        self._times: dict[tuple[int, Variant], CutTimes] = {}
        self.open = OpenLayouts(space, self.prices, self.passes)
        self._settled: list[Open] = []

    @property
    def best_s(self) -> float:
        """The fastest simulated step."""
        return min((found.step_s for found in self.best.values()), default=math.inf)

    def ranked(self) -> list[Timed]:
        """The best of each kind, the fastest first."""
        return sorted(self.best.values(), key=lambda found: found[:2])

    def offer(self, found: Found) -> None:
        """A plan of the search under the closed form."""
        self.tally.simulated += 1
        self._judge(found.row, found.variant, found.plan)

    def nearest(self, count: int) -> Iterator[tuple[int, Variant, StageProblem]]:
        """`count` layouts of the rows with the smallest bounds, with their inner problems."""
        every = (
            (row, each) for row in self.open.rows.tolist() for each in self.space.variants(row)
        )
        for row, variant in islice(every, count):
            yield row, variant, stage_problem(self.space, self.prices, row, variant)

    def prove(self, deadline: float | None) -> float:
        """Simulate what may be faster than the best; the least bound that is left open, infinite if
        none is below the best.
        """
        left = self._settle_below(lambda: self.best_s, lambda row: self.best_s, deadline)
        limit_s = min([self.best_s * SETTLED, *left])
        try:  # where only the budget ended it, closer bounds are worth it
            while self.tally.left <= 0 and not self._late(deadline) and self.open.least_s < limit_s:
                if not self.open.closer(limit_s):
                    break
        except KeyboardInterrupt:
            pass
        bound_s = min([self.open.least_s, *left])
        return bound_s if bound_s < self.best_s * SETTLED else math.inf

    def find_runners_up(self, k: int, deadline: float | None) -> None:
        """Simulate what may be faster than the best of its own kind, among the `k` best kinds, and
        is nearly as fast as the best of all.
        """
        self.tally.left = BUDGET // 2

        def most_s() -> float:
            ranked, nearly_s = self.ranked(), self.best_s * NEARLY
            return min(nearly_s, ranked[k - 1].step_s) if len(ranked) >= k else nearly_s

        def limit_s(row: int) -> float:
            own = self.best.get(self._kind(row))
            return min(most_s(), own.step_s) if own else most_s()

        # Of what was settled the cuts slower than the best were not looked at.
        self.open.reopen(self._settled)
        self._settle_below(most_s, limit_s, deadline)

    def _settle_below(
        self,
        most_s: Callable[[], float],
        limit_s: Callable[[int], float],
        deadline: float | None,
    ) -> list[float]:
        """Settle the layouts whose bound is below the limit of their row, none of which is above
        the most; the bounds of their cuts that stay open.
        """
        left, settled = list[float](), list[Open]()
        try:
            while not self._ended(deadline) and self.open.least_s < most_s() * SETTLED:
                again = self.open.bounded_again
                if self.open.closer(most_s()):
                    self.tally.left -= BOUNDED * (self.open.bounded_again - again)
                    continue
                entry = self.open.first
                if entry.bound_s < limit_s(entry.row) * SETTLED and entry.cut is None:
                    left += self._settle(entry, limit_s)
                    settled.append(entry)
                elif entry.bound_s < limit_s(entry.row) * SETTLED and entry.cut is not None:
                    left += self._recompute(entry, entry.cut, limit_s(entry.row))
                # Only now, so that what is interrupted stays open; what came sorts behind it.
                self.open.pop()
        except KeyboardInterrupt:
            pass
        self._settled = settled
        return left

    def _ended(self, deadline: float | None) -> bool:
        return self._late(deadline) or self.tally.left <= 0

    def _late(self, deadline: float | None) -> bool:
        return deadline is not None and time.perf_counter() >= deadline

    def _settle(self, layout: Open, limit_s: Callable[[int], float]) -> list[float]:
        """Simulate the cuts of one layout that may be below its limit; the bounds of those that
        stay open.
        """
        self.tally.opened += 1
        self.tally.left -= OPENED
        row, variant, left = layout.row, layout.variant, []
        problem = stage_problem(self.space, self.prices, row, variant)
        passes = Passes.of(self.passes, np.array([row]), problem.alone)
        for cut in cuts_below(problem, passes, self.open.chains, lambda: limit_s(row) * SETTLED):
            least_s = max(layout.bound_s, cut.bound_s)
            if cut.least is not None and self.tally.left > 0:
                found_s = self._settle_cut(row, variant, problem, cut, limit_s(row))
                least_s = max(layout.bound_s, found_s)
                if least_s < limit_s(row) * SETTLED and cut.recomputes():
                    self.open.push_cut(least_s, layout, cut)
                    continue
            if least_s < limit_s(row) * SETTLED:
                left.append(least_s)
        return left

    def _settle_cut(
        self, row: int, variant: Variant, problem: StageProblem, cut: Cut, limit_s: float
    ) -> float:
        """A lower bound of a cut after it was simulated with nothing recomputed, infinite where it
        fits so and is settled.
        """
        assert cut.least is not None
        self.tally.left -= LOOKED_AT
        shape = (variant.schedule, problem.pp, problem.vpp, problem.m)
        times = self._times_of(row, variant, cut.least)
        after = times.least_after_s(cut.least, range(problem.pp), limit_s)
        bound_s = max(cut.bound_s, self.open.chains.bound_s(shape, times, cut.least, after))
        if bound_s >= limit_s * SETTLED:
            return bound_s
        self.tally.spend(shape)
        after = times.least_after_s(cut.least, cut.recomputes(), limit_s)
        step_s = times.step_s(cut.least, after)
        self.open.chains.learn(shape, times, cut.least, step_s / bound_s)
        bound_s = max(bound_s, step_s)
        if bound_s >= limit_s * SETTLED or cut.recomputes():
            return bound_s
        found_s = self._judge(row, variant, evaluate(problem, cut.least))
        settled = found_s <= bound_s / SETTLED or len(variant.modes) == 1
        return math.inf if settled else bound_s

    def _recompute(self, entry: Open, cut: Cut, limit_s: float) -> list[float]:
        """Simulate mixes of a cut that must recompute; its bound if it stays open. A step whose
        chain would take too long to find is left.
        """
        row, variant, bound_s = entry.row, entry.variant, entry.bound_s
        assert cut.least is not None
        problem = stage_problem(self.space, self.prices, row, variant)
        actions = 2 * problem.chunks * problem.m
        if actions > MOST_CHAINED:
            return [bound_s]
        self.tally.left -= CHAINED * actions + CHAINS
        times = self._times_of(row, variant, cut.least)
        after = times.least_after_s(cut.least, cut.recomputes(), limit_s)
        alone = replace(problem, splits=(tuple(stage.layers for stage in cut.least),))
        answer = RecomputeChains(alone, times, cut.least, after).answer(limit_s)
        bound_s, found_s = max(bound_s, answer.bound_s), answer.step_s
        if answer.plan is not None and found_s < limit_s * SETTLED:
            found_s = self._judge(row, variant, answer.plan)
        settled = found_s <= bound_s / SETTLED or bound_s >= limit_s * SETTLED
        return [] if settled else [bound_s]

    def _times_of(self, row: int, variant: Variant, stages: tuple[Stage, ...]) -> CutTimes:
        if (row, variant) not in self._times:
            layout = self.layout_of(row, variant, StagePlan(stages, 0, ()))
            self._times[row, variant] = CutTimes(self.setting, layout, self.passes, row)
        return self._times[row, variant]

    def _judge(self, row: int, variant: Variant, plan: StagePlan | None) -> float:
        """The whole simulation of a plan, which is kept if it is the best of its kind; infinite
        where nothing fits.
        """
        if plan is None:
            return math.inf
        step_s, kind = self.judged(self.layout_of(row, variant, plan)), self._kind(row)
        known = self.best.get(kind)
        if math.isfinite(step_s) and (known is None or step_s < known.step_s):
            self.best[kind] = Timed(step_s, row, variant, plan)
        return step_s

    def _kind(self, row: int) -> Kind:
        if row not in self._kinds:
            layouts = self.space.layouts
            self._kinds[row] = (
                int(layouts.tensor_parallel[row]), int(layouts.context_parallel[row]),
                int(layouts.pipeline_parallel[row]), int(layouts.expert_parallel[row]),
            )  # fmt: skip
        return self._kinds[row]


def as_simulated(coefficients: Coefficients, passes: PassSeconds) -> Coefficients:
    """The prices with the times of passes that the simulation sums."""
    columns = (
        passes.layer_s.sum(axis=3),
        passes.embedding_s.sum(axis=1),
        passes.head_s.sum(axis=1),
    )
    layer, embedding, head = (
        np.where(np.isfinite(each), np.rint(each * NS_PER_S), ABSENT).astype(np.int64)
        for each in columns
    )
    return replace(coefficients, layer_ns=layer, embedding_ns=embedding, head_ns=head)
