"""Cuts near those that a search has found: its kinds from which single layers are moved, each once.

Where the moves of a kind begin, and what they find, says `planner.search.simulation.near_cuts`.
"""

import math
from collections.abc import Sequence

from meshplan.planner.cuts import moved_layers
from meshplan.planner.processes.second_core import done_of_each
from meshplan.planner.search.found import SETTLED, Kind, Timed
from meshplan.planner.search.rows.rows_below import NEARLY
from meshplan.planner.search.simulation.near_cuts import (
    Beginning,
    Looked,
    NearCuts,
    Start,
    rows_beside,
)
from meshplan.planner.search.simulation.open_layouts import OpenLayouts
from meshplan.planner.search.simulation.simulated_plans import SimulatedPlans

TIE = 1.03  # times the best step: measured runs seldom tell such kinds apart
TIED = 2_000_000  # units of moves (`moved_layers.BUDGET`) that go on from such a kind


class LayerMoves:
    """Moves of layers from `plans`, which get what they find; of `open` bounds and chains."""

    def __init__(self, plans: SimulatedPlans, open_layouts: OpenLayouts) -> None:
        self.plans, self.open = plans, open_layouts
        self._moved: dict[Kind, Timed] = {}
        self._ended: dict[Start, float] = {}
        self._beside = set[int]()

    def look(self, kinds: Sequence[Timed], *, beside: bool = False) -> None:
        """Look around cuts of several chunks, where the engine cuts anywhere, of kinds nearly as
        fast as the best whose bound of any cut leaves room, each once; `beside`: and of half and of
        twice the pipeline ranks of the first, each row once: its cuts had to beat a longer step
        then. Each has a budget, but what is looked at beside the first shares one.
        """
        plans = self.plans
        if plans.space.legality.uneven_stages != "free" or not kinds:
            return
        kinds = [each for each in kinds if each is not self._moved.get(plans.kind(each))]
        kinds = [each for each in kinds if each.step_s < plans.best_s * NEARLY]
        ended = dict[Start, float]()
        for looked in done_of_each(self._looked, self._parts(kinds, beside)):
            plans.tally.left -= looked.work
            plans.tally.simulated += looked.simulated
            ended |= looked.ended
            for plan in looked.faster:
                plans.judged_s(*plan)
        self._ended |= ended
        self._moved |= {(kind := plans.kind(each)): plans.best[kind] for each in kinds}

    def around(self, found: Timed) -> None:
        """Look around one kind, however far it is from the best, if its row is left."""
        plans = self.plans
        if plans.space.legality.uneven_stages == "free" and found.row in plans.kept:
            row = plans.row_of(found)
            beginning = Beginning(found, row, plans.space.variants(row), True)
            for plan in self._looked([beginning]).faster:
                plans.judged_s(*plan)

    def end(self, kinds: Sequence[Timed], *, beside: bool) -> None:
        """Look around the kinds; then on from the fastest plan, whose climb had a part of a budget
        and began in one schedule: from that of the kinds `beside` others, and from another one if
        it became the fastest.
        """
        plans = self.plans
        before_s = math.inf if beside else plans.best_s
        self.look(kinds, beside=beside)
        free = plans.space.legality.uneven_stages == "free"
        if free and plans.best_s < before_s and plans.best and not plans.tally.late:
            self._go_on(plans.ranked()[0])

    def go_on_near(self, kinds: Sequence[Timed]) -> None:
        """Go on from those of `kinds` that nearly tie with the fastest and whose climb came to no
        end, as from the fastest, each of a budget of its own.
        """
        plans = self.plans
        if plans.space.legality.uneven_stages != "free":
            return
        for each in kinds:
            near = each.step_s < plans.best_s * TIE and each.row in plans.kept
            if near and not plans.tally.late and not self._is_ended(each):
                self._go_on(each, TIED)

    def _is_ended(self, found: Timed) -> bool:
        """Whether no move of a layer from it is faster."""
        return (self.plans.row_of(found), found.variant, found.plan.stages) in self._ended

    def _go_on(self, best: Timed, budget: int = moved_layers.BUDGET) -> None:
        plans = self.plans
        row, chunks = plans.row_of(best), best.variant.virtual_stages
        if chunks == 1 or self.open.row_bounds[row] >= best.step_s:
            return
        near = NearCuts(plans.problem, plans.times_of, self.open.chains, dict(self._ended), budget)
        ways = best.variant.modes, best.variant.replayed
        alike = [
            each for each in plans.space.variants(row)
            if each.virtual_stages == chunks and (each.modes, each.replayed) == ways
        ]  # fmt: skip
        near.go_on(best, row, alike)
        plans.tally.simulated += near.simulated
        for plan in near.faster:
            plans.judged_s(*plan)

    def _parts(self, kinds: Sequence[Timed], beside: bool) -> list[list[Beginning]]:
        """Where moves begin, in parts of a budget each: from each kind; `beside`: from the fastest,
        and from all others.
        """
        plans, bounds, variants = self.plans, self.open.row_bounds, self.plans.space.variants
        near = [
            Beginning(each, row, variants(row), True) for each in kinds
            if bounds[row := plans.row_of(each)] < each.step_s
        ]  # fmt: skip
        if not beside:
            return [[each] for each in near]
        first = plans.ranked()[0]
        rows = rows_beside(plans.space, bounds, plans.row_of(first), plans.best_s * SETTLED)
        own = [each for each in near if each.found is first]
        new = [row for row in rows if row not in self._beside]
        others = [Beginning(first, row, variants(row), False) for row in new]
        self._beside.update(new)
        return [own, [*near[len(own) :], *others]]

    def _looked(self, beginnings: Sequence[Beginning]) -> Looked:
        ended = dict(self._ended)
        near = NearCuts(self.plans.problem, self.plans.times_of, self.open.chains, ended)
        return near.looked(beginnings, self.plans.tally)
