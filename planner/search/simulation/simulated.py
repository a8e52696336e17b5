"""The best layout under the event simulation, with a proof over every layout and cut of the space.

    bound      `planner.bounds.simulated` gives every layout a lower bound of its simulated step
    cuts       a layout whose bound is below the best simulated step is opened: its cuts into
               stages, those of a list each with its own bound (`planner.cuts.simulated_cuts`);
               where any is legal, the likeliest one after the other (`planner.cuts.path_cuts`)
    simulated  those below the best are simulated, the smallest bound first; a cut that needs no
               recomputation, and any cut of one chunk per rank, is then settled. More recomputation
               than memory requires may hide a reduction: then mixes of it are searched too
    open       what the budget left, or what must recompute in several chunks: there the bound of
               the cut stays below what was found for it

The best simulated step is optimal when no open bound is below it by more than a millionth; else
the smallest one is the honest distance. What is done is charged to a budget
(`planner.cuts.budget`).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np

from meshplan.costmodels.layout import Layout
from meshplan.costmodels.layouts import Floats, Ints
from meshplan.planner.bounds.simulated import Passes
from meshplan.planner.cuts import budget as costs
from meshplan.planner.cuts.known_chains import CLOSER, Shape, actions_of, shape_of
from meshplan.planner.cuts.path_cuts import PathCuts, first_cut
from meshplan.planner.cuts.recompute_chains import MixAnswer
from meshplan.planner.cuts.simulated_cuts import Cut, cuts_below
from meshplan.planner.problem.stage_problem import StagePlan, StageProblem, evaluate, stage_problem
from meshplan.planner.search.closed_form.first_plans import Found
from meshplan.planner.search.found import SETTLED, Kind, kind_of, own_s
from meshplan.planner.search.open_kinds import OpenKinds
from meshplan.planner.search.rows.priced_space import Question
from meshplan.planner.search.rows.rows_below import NEARLY, Source
from meshplan.planner.search.simulation.cut_mixes import (
    AheadOfTurn,
    CutMixes,
    mixes_that_pay,
    paying_too,
)
from meshplan.planner.search.simulation.layer_moves import LayerMoves
from meshplan.planner.search.simulation.open_layouts import Open, OpenLayouts
from meshplan.planner.search.simulation.pace import ProofPace
from meshplan.planner.search.simulation.path_search import PathSearch
from meshplan.planner.search.simulation.simulated_plans import SimulatedPlans
from meshplan.planner.space.legal_layouts import Space, Variant

DEEP = 0.95  # times the best step: what is bounded below that is settled before its turn
AHEAD = 3  # cuts that are mixed before their turn where there is a second processor
MOST_PASSES = 40  # over the stages of a layout that may be cut anywhere, once nothing else is open


class Simulated(SimulatedPlans):
    """One search under the simulation: what is open, and the best simulated layout of each kind.

    The plans of `first` are simulated before any of `rows` is priced, for most of these are surely
    slower than the best of them and those nearly as fast: they are left out. Only what is faster
    than `limit_s` is looked for. `more` of the budget comes as long as the gap of the proof is
    wide.
    """

    def __init__(
        self,
        question: Question,
        space: Space,
        rows: Source,
        judged: Callable[[Layout], float],
        layout_of: Callable[[int, Variant, StagePlan], Layout],
        *,
        first: Iterable[Found] = (),
        limit_s: float = math.inf,
        budget: int = costs.BUDGET,
        more: int = 0,
        tell: Callable[["Simulated", Sequence[Open]], None] = lambda *_: None,
    ) -> None:
        self.question, self.tell, self._closer_work = question, tell, budget // costs.CLOSER
        self._runners_work = budget // costs.RUNNERS_UP
        tally = costs.Tally(left=budget - self._closer_work - self._runners_work)
        self._more = more
        self._early: float = tally.left - tally.left // costs.EARLY
        super().__init__(question.setting, space, judged, layout_of, limit_s, tally)
        self.offer(*first)
        self.keep(rows)
        self.open = OpenLayouts(self.space, self.least, self.passes, self.best_s)
        self.beyond: Callable[[list[Open], Callable[[int], float]], list[Open]] = lambda *_: []
        self.proved_s, self.open_kinds = math.inf, OpenKinds()
        self._settled, self._left = list[Open](), list[Open]()
        self.moves = LayerMoves(self, self.open)
        self._ahead_of_turn = AheadOfTurn(self._mixes)
        self._taught = set[Shape]()
        self._pace: ProofPace | None = None
        self._ahead = frozenset[tuple[Kind, Variant]]()

    def prove(self, deadline: float | None) -> float:
        """Simulate what may be faster than the best; the least bound that is left open, infinite if
        none is below the best.
        """
        self.tally.deadline = deadline
        self._pace = ProofPace()
        left = self.settle_below(lambda: self.best_s, lambda row: self.best_s)
        self._pace = None
        try:
            self._settle_exactly(left)
            self.moves.end(self.ranked(), beside=True)
            limit_s = min([self.best_s * SETTLED, *(each.bound_s for each in left)])
            # Where only the budget ended it, closer bounds are worth it.
            while (
                -self._closer_work < self.tally.left <= 0
                and not self.tally.late
                and self.open.least_s < limit_s
            ):
                if not self._closer(limit_s):
                    break
        except KeyboardInterrupt:
            self.tally.end()
        self.proved_s = bound_s = min([self.open.least_s, *(each.bound_s for each in left)])
        return bound_s if bound_s < self.best_s * SETTLED else math.inf

    def find_runners_up(self, k: int, deadline: float | None) -> None:
        """Simulate what may be faster than the best of its own kind, among the `k` best kinds, and
        is nearly as fast as the best of all. Where the proof stays open its bounds tell kinds apart
        no better: a part of the budget is enough for what they still find. `open_kinds` is what
        else may be faster than the best of its own kind.
        """
        self.open_kinds = OpenKinds(min(self.proved_s, self.best_s))
        self._more, self._early = 0, -math.inf  # layers were moved when the proof ended
        proved = self.proved_s >= self.best_s * SETTLED
        most = costs.RUNNERS if proved else costs.RUNNERS // costs.OPEN
        left = self._runners_work + max(0, self.tally.left + self._closer_work)
        self.tally.left, self.tally.deadline = min(most, left), deadline
        if self.tally.late:
            return

        most_s = partial(self.shown_below_s, k)

        def limit_s(row: int) -> float:
            own = self.best.get(kind_of(self.layouts, int(self.kept[row])))
            return min(most_s(), own.step_s) if own else most_s()

        own = partial(own_s, self.best, self.space.layouts)
        try:
            self.open.reopen(self._slower(), own)
            self.settle_below(most_s, limit_s)
            self.open_kinds = OpenKinds(self.best_s * NEARLY)
            self.open_kinds.add(self.best, self.space.layouts, *self.open_rows())
            self.moves.end(self.ranked()[1:k], beside=False)  # one may become the fastest
        except KeyboardInterrupt:  # the proof is there, and what was found until then
            pass

    def open_rows(self) -> tuple[Ints, Floats]:
        """What the budget left, and what was not looked for: rows, some with several bounds."""
        asked, left = self.open.asked(), self._left
        rows = np.array([each.row for each in left], np.int64)
        bounds = np.array([each.bound_s for each in left])
        return np.append(asked[0], rows), np.append(asked[1], bounds)

    def _slower(self) -> list[Open]:
        """What was settled: its cuts are no faster than the best, but for those still open."""
        open_s = dict[tuple[int, Variant], float]()
        for each in (*self._left, *self.open.cuts()):
            of = each.row, each.variant
            open_s[of] = min(each.bound_s, open_s.get(of, self.best_s))
        least = (open_s.get((each.row, each.variant), self.best_s) for each in self._settled)
        return [
            each._replace(bound_s=max(each.bound_s, bound_s))
            for each, bound_s in zip(self._settled, least, strict=True)
        ]

    def settle_below(
        self, most_s: Callable[[], float], limit_s: Callable[[int], float]
    ) -> list[Open]:
        """Settle the layouts whose bound is below the limit of their row, none of which is above
        the most; those of their cuts that stay open.
        """
        left, settled = list[Open](), list[Open]()
        try:
            while self._goes_on() and self.open.least_s < most_s() * SETTLED:
                if self._pace and self._pace.is_in_vain(self.open, self.best_s, self.tally.left):
                    self.tally.left = 0
                    break
                self.tell(self, left)
                if self.tally.left < self._early:
                    self._early = -math.inf
                    self.moves.look(self.ranked(), beside=True)
                    continue
                if not self._far_below(most_s()) and self._closer(most_s()):
                    continue
                entry = self.open.first
                if entry.bound_s < limit_s(entry.row) * SETTLED and entry.cut is None:
                    left += self._settle(entry, limit_s)
                    settled.append(entry)
                elif entry.bound_s < limit_s(entry.row) * SETTLED and entry.cut is not None:
                    left += self._recompute(entry, limit_s)
                self.open.pop()  # only now: what is interrupted stays open; what came sorts behind
        except KeyboardInterrupt:
            self.tally.end()
        left += self.beyond(settled, limit_s)
        self._settled, self._left = settled, left
        return left

    def _goes_on(self) -> bool:
        """Whether there is time, and budget: more of it as long as the gap is wide, before it ends
        amid a layout, which would stay open for that.
        """
        wide = self.open.least_s < self.best_s * costs.WIDE
        while self.tally.left <= costs.MORE // 2 and wide and self._more > 0:
            self.tally.left += costs.MORE
            self._more -= costs.MORE
        return not self.tally.ended

    def _far_below(self, limit_s: float) -> bool:
        """Whether the layout with the smallest bound of those bounded closely is settled at once,
        before its turn: far below the limit, so that what it finds saves bounds.
        """
        self._anew(limit_s)
        if math.isinf(self.open.first_s) or self.open.first_s > limit_s * DEEP:
            return False
        first = self.open.first
        like = kind_of(self.space.layouts, first.row), first.variant
        known, self._ahead = like in self._ahead, self._ahead | {like}
        return not known

    def _anew(self, limit_s: float) -> None:
        """Bound what is far below the limit by the chains known by now, which is charged."""
        before = self.open.work
        while math.isfinite(self.open.first_s) and self.open.first_s <= limit_s * DEEP:
            if not self.open.bounded_anew(limit_s):
                break
        self.tally.left -= self.open.work - before

    def _closer(self, limit_s: float) -> bool:
        """`OpenLayouts.closer`, which is charged."""
        before = self.open.work
        found = self.open.closer(limit_s)
        self.tally.left -= self.open.work - before
        return found

    def _settle(self, layout: Open, limit_s: Callable[[int], float]) -> list[Open]:
        """Simulate the cuts of one layout that may be below its limit; those that stay open."""
        self.tally.left -= costs.OPENED
        row, variant, left = layout.row, layout.variant, list[Open]()
        problem, passes = self.problem(row, variant)
        if problem.splits is None:
            return self._settle_paths(layout, problem, passes, limit_s)
        cuts = cuts_below(
            problem, passes, self.open.chains, lambda: limit_s(row) * SETTLED, self.tally
        )
        times_of = partial(self.times_of, row, variant)
        if problem.first:
            cuts = mixes_that_pay(cuts, problem, times_of, lambda: limit_s(row))
        for cut in cuts:
            least_s = max(layout.bound_s, cut.bound_s)
            if self.tally.late:  # no other cut's bound is smaller
                return [*left, layout._replace(bound_s=least_s, cut=cut)]
            if goes_on := self._goes_on():
                found_s, cut = self._settle_cut(row, variant, problem, cut, limit_s(row))
                least_s = max(layout.bound_s, found_s)
            if least_s >= limit_s(row) * SETTLED or self.no_mix_fits(row, variant, cut.least):
                continue
            if goes_on and cut.recomputes():
                self.open.push(self.open.cut_of(least_s, layout, cut))
            else:
                left.append(layout._replace(bound_s=least_s, cut=cut))
        return left

    def _settle_paths(
        self,
        layout: Open,
        problem: StageProblem,
        passes: Passes,
        limit_s: Callable[[int], float],
        most_passes: int = 1,
    ) -> list[Open]:
        """`_settle` where any cut is legal."""
        row, variant = layout.row, layout.variant
        times = self.times_of(row, variant, first_cut(problem))
        cuts = PathCuts(problem, passes, times, limit_s(row) * SETTLED)
        self.tally.left -= costs.WAYS + costs.STEP * cuts.steps
        search = PathSearch(
            cuts, self.open.shape(row, variant), self.open.chains, self.tally,
            lambda stages: self.judged_s(row, variant, evaluate(problem, stages)),
            partial(self.no_mix_fits, row, variant),
        )  # fmt: skip
        return search.settled(layout, lambda: limit_s(row) * SETTLED, most_passes)

    def _settle_cut(
        self, row: int, variant: Variant, problem: StageProblem, cut: Cut, limit_s: float
    ) -> tuple[float, Cut]:
        """A lower bound of a cut after it was simulated with nothing recomputed, infinite where it
        fits so and is settled; and the cut, with the ranks to which recomputing may pay.
        """
        self.tally.left -= costs.LOOKED_AT
        shape = shape_of(problem)
        times = self.times_of(row, variant, cut.least)
        after = times.least_after_s(cut.least, range(problem.pp), limit_s)
        bound_s = max(cut.bound_s, self.open.chains.bound_s(shape, times, cut.least, after))
        if bound_s >= limit_s * SETTLED:
            return bound_s, cut
        cut = paying_too(cut, problem, times, limit_s)
        if cut.recomputes() and shape in self._taught:
            return bound_s, cut
        self.tally.spend(shape)
        after = times.least_after_s(cut.least, cut.recomputes(), limit_s)
        step_s = times.step_s(cut.least, after)
        self.open.chains.learn(shape, times, cut.least, step_s / bound_s)
        if step_s < bound_s * CLOSER:
            self._taught.add(shape)
        bound_s = max(bound_s, step_s)
        if bound_s >= limit_s * SETTLED or cut.recomputes():
            return bound_s, cut
        found_s = self.judged_s(row, variant, evaluate(problem, cut.least))
        settled = found_s <= bound_s / SETTLED or len(variant.modes) == 1
        return math.inf if settled else bound_s, cut

    def _recompute(self, entry: Open, limit_s: Callable[[int], float]) -> list[Open]:
        """Simulate mixes of a cut that must recompute; itself if it stays open. A step whose chain
        would take too long to find is left. What a known mean says first may put others before it.
        """
        if self._too_long(entry):
            return [entry]
        answer = self._ahead_of_turn.by_chains(entry, limit_s, lambda: self._following(limit_s))
        actions = actions_of(self.open.shape(entry.row, entry.variant))
        own = costs.CHAINED * actions + costs.CHAINS
        self.tally.left -= own if answer.mean else costs.KNOWN_MEAN
        self.tally.left -= costs.KNAPSACKS * answer.knapsacks
        if answer.mean:
            shape, ratio = self.open.shape(entry.row, entry.variant), answer.bound_s / entry.bound_s
            self.open.chains.keep_mean(shape, answer.mean.chains, ratio)
        if answer.mean is None and answer.bound_s < limit_s(entry.row) * SETTLED:
            number = self._ahead_of_turn.number(self.open.shape(entry.row, entry.variant))
            self.open.push(entry._replace(bound_s=answer.bound_s, mean=number))
            return []
        return self._answered(entry, answer, limit_s(entry.row))

    def _following(self, limit_s: Callable[[int], float]) -> list[Open]:
        """The cuts whose turn is next, if no limit falls."""
        return [
            each for each in self.open.next_cuts(AHEAD)
            if each.bound_s < limit_s(each.row) * SETTLED and not self._too_long(each)
        ]  # fmt: skip

    def _too_long(self, entry: Open) -> bool:
        return actions_of(self.open.shape(entry.row, entry.variant)) > costs.MOST_CHAINED

    def _settle_exactly(self, left: list[Open]) -> None:
        """Settle what stays open where nothing else is as far below the best: the smallest bound
        first, in place. Where the budget ended the proof and the gap is not wide, it stays so.
        """
        while left and self.tally.left > -self._closer_work and not self.tally.late:
            entry = min(left, key=lambda each: each.bound_s)
            if entry.bound_s >= min(self.best_s * SETTLED, self.open.least_s):
                return
            ended = self.tally.left <= 0 and self.open.least_s < self.best_s * SETTLED
            if ended and entry.bound_s >= self.best_s * costs.WIDE:
                return
            left.remove(entry)
            still = self._settled_exactly(entry) if entry.cut else self._longer(entry)
            left += still
            if still:
                return

    def _settled_exactly(self, entry: Open) -> list[Open]:
        """The exact mixes of a cut that may be mixed freely; itself if it stays open."""
        if entry.variant.first or self._too_long(entry):
            return [entry]
        shape = self.open.shape(entry.row, entry.variant)
        most_s = (self.tally.left + self._closer_work) / costs.SOLVED
        answer = self._mixes(entry, self.best_s).exactly(self.open.chains.of(shape), most_s)
        self.tally.left -= costs.EXACT + round(costs.SOLVED * answer.solver_s)
        return self._answered(entry, answer, self.best_s)

    def _longer(self, entry: Open) -> list[Open]:
        """Where cuts are free, looked for longer, also by what is set apart for closer bounds."""
        problem, passes = self.problem(entry.row, entry.variant)
        if problem.splits is not None:
            return [entry]  # it is open beyond its priced memory
        self.tally.left += self._closer_work
        try:
            left = self._settle_paths(entry, problem, passes, lambda row: self.best_s, MOST_PASSES)
            return left + self.beyond([entry], lambda row: self.best_s)
        finally:
            self.tally.left -= self._closer_work

    def _mixes(self, entry: Open, limit_s: float) -> CutMixes:
        assert entry.cut is not None
        problem = stage_problem(self.space, self.prices, entry.row, entry.variant)
        times = self.times_of(entry.row, entry.variant, entry.cut.least)
        return CutMixes(problem, times, entry.cut, limit_s)

    def _answered(self, entry: Open, answer: MixAnswer, limit_s: float) -> list[Open]:
        """Keep the plan of an answer; the cut if it stays open."""
        bound_s, found_s = max(entry.bound_s, answer.bound_s), answer.step_s
        if answer.plan is not None and found_s < limit_s * SETTLED:
            found_s = self.judged_s(entry.row, entry.variant, answer.plan)
        settled = found_s <= bound_s / SETTLED or bound_s >= limit_s * SETTLED
        return [] if settled else [entry._replace(bound_s=bound_s)]
