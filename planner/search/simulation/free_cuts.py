"""A bound of every cut of the layouts whose cuts a list limits, once the proof has ended.

Where an engine cuts anywhere, layouts of several chunks per rank are solved over a list of cuts
(`planner.space.stage_splits`). What is faster however they are cut is bounded here, the smallest
bound first, each by what costs little before what costs much:

    row       of all cuts, by the mean rank (`planner.search.rows.rows_below.bounds_of_rows`), in
              the modes of one way to run it; not those whose ranks cannot hold all layers, nor rows
              that others beat in everything (`planner.search.rows.dominated`)
    begun     a program of the chains that every step has (`planner.cuts.free_cut_program`); its
              multipliers are asked of all with the same schedule and ranks, whatever their chunks
              and micro-batches (`planner.bounds.asked_prices`)
    packed    by the whole layers that ranks can hold (`PackedCuts.packing_bounds_s`)
    solved    the program with all chains that it learns, and with what follows from the order of
              kinds and of what chunks recompute, whose multipliers are asked of all with the same
              order of actions; then by whole layers of chunks (`planner.cuts.folded_bound`,
              `planner.cuts.ordered_bound`; of V shapes like it many at once, by
              `planner.bounds.folded.reach` first); then below which limit the whole layers of
              ranks leave the program no answer, by halving

The best plan's layout comes before all others: what is bounded above it needs no look. What leaves
the gap wide is bounded apart, no further than until it is not (`_close`): at the end, with more of
the budget, or first of all where there are more layouts than the budget can prove. What is open
then is gone on with as long as the pace says that all can be settled (`_go_on`).
"""

import math
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layouts import Floats, Ints
from meshplan.costmodels.schedule.orders import V_SHAPED
from meshplan.planner.bounds.first_chains import Line, first_lines
from meshplan.planner.cuts.folded_bound import folded_bound_s
from meshplan.planner.cuts.free_cut_program import CELL, PROGRAM, FreeCutProgram
from meshplan.planner.cuts.known_chains import Shape
from meshplan.planner.cuts.ordered_bound import ordered_bound_s
from meshplan.planner.cuts.whole_cuts import WholeLayers
from meshplan.planner.problem.stage_problem import StagePlan
from meshplan.planner.processes.second_core import done_beside
from meshplan.planner.search.found import SETTLED
from meshplan.planner.search.rows.dominated import dominated
from meshplan.planner.search.simulation.alike_layouts import Alike, Asked, know
from meshplan.planner.search.simulation.asked_layouts import GROUP, ask, ask_others
from meshplan.planner.search.simulation.counted_ranks import memory_is_a_bound
from meshplan.planner.search.simulation.cuts_elsewhere import MetCut, cuts_elsewhere
from meshplan.planner.search.simulation.cuts_off_list import cuts_off_list
from meshplan.planner.search.simulation.folded_layouts import fold
from meshplan.planner.search.simulation.listed_layouts import ListedLayouts, looked_at, plan_of
from meshplan.planner.search.simulation.pace import WorkPace
from meshplan.planner.search.simulation.ranks_that_fit import RanksThatFit
from meshplan.planner.search.simulation.shaken_cuts import NearCut, near_the_fastest
from meshplan.planner.search.simulation.simulated import Simulated
from meshplan.planner.space.legal_layouts import Variant

BUDGET = 2_000_000  # units of work, as those of `planner.cuts.budget`: some 0.2 seconds
WIDE, STEP, MORE = 0.9702, 500_000, 19_000_000
"""While what is open is so far below, so much more at a time, in all so much."""
SOLVED = 1_500_000  # of that for a layout's own program at least
WINDOW = 4_000_000  # whose pace says whether more is in vain: some groups of layouts, in turn
FIRST = 2_000_000  # that say nothing of a pace: what is begun raises the least bound late
LAST, EACH = 6_000_000, (50_000, 1_000)
"""To settle all, if it can be; of which a group of layouts, and a layout, take so much at least."""
ENOUGH = 0.93  # of the limit: what can be proved at most is not worth more where it is less
PACKED = 100  # each rank of a layout that is packed
BEST = 4  # one part in so many of the budget is for the best plan's layout
USUAL = 4  # chunks of a rank: what is found for them says most of other numbers
NEAR = 1e-4  # of a bound: so near its limits are told apart
MANY = 5_000  # layouts: first those that leave the gap wide


class EveryCut(NamedTuple):
    """A lower bound of every cut that a list leaves out, infinite where none can be faster; and
    plans that were found to be faster on the way, of rows of the proof.
    """

    bound_s: float
    faster: tuple[tuple[int, Variant, StagePlan], ...] = ()


class FreeCutBounds:
    """The layouts of `proof` that may be faster if they are cut as no list says.

    limit_s   what is not below it is of no interest: the best step, or that of a faster plan that
              was found on the way
    found_s   the least of it and of the bounds that are final
    aim_s     what bounds are wanted up to: that, or less where only a gap that is wide is closed
    _kept     what of the budget is left to what comes after
    _loose_s  the least bound of what was solved with nothing left to prove more of it
    """

    def __init__(self, proof: Simulated) -> None:
        self.proof, self.limit_s = proof, proof.best_s * SETTLED
        self.found_s = self.aim_s = self.limit_s
        self._some = np.ones(len(proof.kept), bool)
        self._rest_s, self._wide_s = self.limit_s, self.limit_s * WIDE
        self._left, self._kept = BUDGET, 0
        self._least, self._every = (WorkPace(window=WINDOW, first=FIRST) for _ in range(2))
        self._last: WorkPace | None = None
        self._more, self._loose, self._loose_s = MORE, set[str](), math.inf
        self._lines = dict[Shape, list[Line]]()
        self._faster = list[tuple[int, Variant, StagePlan]]()
        self._alike, self._asked, self._met = list[Alike](), list[Asked](), list[MetCut]()

    def settled(self) -> EveryCut:
        """The bound, and what was found."""
        return EveryCut(self.bound_s(), tuple(self._faster))

    def bound_s(self) -> float:
        """A lower bound of every such layout; infinite where none can be faster."""
        bounds, space = self.proof.open.row_bounds, self.proof.space
        rows = space.listed(np.flatnonzero(self._some & (bounds < self.limit_s)))
        rows = rows[~dominated(space, self.proof.passes, self.proof.open.prices, rows)]
        taken = looked_at(self.proof, rows)
        rest = np.sort(rows)
        left = bounds[np.delete(rest, np.searchsorted(rest, taken))].min(initial=math.inf)
        self.found_s = self.aim_s = self._rest_s = min(self.limit_s, float(left))
        if len(taken):
            self._layouts = ListedLayouts(self.proof, taken)
            self._alike = list(self._layouts.groups(self.found_s))
            with suppress(KeyboardInterrupt):  # bounds only rise
                self._settle()
        least_s = self._least_s
        return least_s if least_s < self.limit_s else math.inf

    @property
    def _least_s(self) -> float:
        return min([self.found_s, *(float(each.bounds.min()) for each in self._alike)])

    def _settle(self) -> None:
        """The best layout first, for a part of the budget, then what has the smallest bound; at the
        end what leaves the gap wide. Where there are many layouts that comes first.
        """
        many = sum(len(each.rows) for each in self._alike) > MANY
        if many:
            self._alike = list(self._layouts.below(self._alike, self.found_s))
            self._close()
            if self._least_s < self._wide_s or self._left < BUDGET // BEST:
                self._go_on()
                return
            self._again(self._wide_s, math.inf)
        self.aim_s = self.found_s
        self._prove()
        if not many:
            self._close()
        self._go_on()

    def _go_on(self) -> None:
        """Settle all, as long as the pace says that this can be done."""
        can_be = min(self._loose_s, self._rest_s) >= self.limit_s
        many = [int((each.bounds < self.limit_s).sum()) for each in self._alike]
        enough = np.count_nonzero(many) * EACH[0] + sum(many) * EACH[1] <= LAST
        if can_be and enough and self._wide_s <= self._least_s < self.limit_s:
            self._again(min(self.found_s, self.aim_s), math.inf)
            self.found_s = self.aim_s = self.limit_s
            self._left, self._last = LAST, WorkPace((LAST, self._lack_s))
            self._raise()

    def _close(self) -> None:
        """Bound what leaves the gap wide, as far as is needed and with all that may be spent."""
        if self._wide_s <= self._rest_s and self._least_s < self._wide_s:
            self.found_s, self.aim_s = self._rest_s, self._wide_s
            self._again(0.0, self._wide_s)
            self._more -= self._layouts.let_go(self._alike, self.aim_s)
            self._raise()
            if self._least_s < self._wide_s and self._shake():
                self.found_s, self.aim_s = min(self._rest_s, self.limit_s), self._wide_s
                self._again(0.0, self._wide_s)
                self._raise()

    def _shake(self) -> bool:
        """Look for faster cuts; whether one was found. Nothing of `_left` is for this."""
        before_s = self.limit_s
        for each in cuts_elsewhere(self.proof, self._alike, self._met, self.limit_s):
            self._offer(*each)
        off_list, near = done_beside(  # both begin at the same plan
            lambda: list(cuts_off_list(self.proof, self._alike, self._wide_s)),
            lambda: near_the_fastest(self.proof),
        )
        for each in [*off_list, *near]:
            self._offer(*each)
        return self.limit_s < before_s

    def _again(self, least_s: float, below_s: float) -> None:
        """Look anew at what is bounded between two limits."""
        for each in self._alike:
            each.again(least_s, below_s)

    def _prove(self) -> None:
        """The best layout for a part of the budget, then all. Though that may bound the answer, no
        other layout is let go by it, since what closes a wide gap may raise it again.
        """
        self._kept = BUDGET - BUDGET // BEST
        best = self._layouts.of_the_best(self._alike)
        if best:
            self._pack(best, np.arange(1))
            self._solve(best, 0)
        self._alike = list(self._layouts.below(self._alike, self._rest_s))
        self._kept = 0
        if best:
            know(self._alike, best)
        self._raise()

    def _raise(self) -> None:
        """What has the smallest bound is begun, packed, and solved."""
        self._ask_all()
        while self._goes_on():
            alike = min(self._alike, key=lambda each: (each.open_s, abs(each.shape[2] - USUAL)))
            at = int(np.where(alike.solved, np.inf, alike.bounds).argmin())
            if not alike.begun[at]:
                self._begin(alike, at)
            elif not alike.packed[at]:
                self._pack(alike)
            elif alike.shape[0] in self._loose and not alike.folded[at]:
                self._left -= fold(self._layouts, alike, self.aim_s)
            else:
                self._solve(alike, at)
                self._ask_all()

    def _begin(self, first: Alike, at: int) -> None:
        """A program of every step's chains; its multipliers of all with its schedule and ranks."""
        cuts = self._layouts.cuts(first.variant, first.rows[[at]])
        program = FreeCutProgram(cuts, self.aim_s, first_lines(*first.shape), in_order=False)
        answer = program.answer()
        self._left -= PROGRAM + CELL * program.size
        first.bounds[at] = np.clip(answer.bound_s, first.bounds[at], self.aim_s)
        first.begun[at] = True
        first.changed()
        if answer.by:
            like = [each for each in self._alike if each.shape[:2] == first.shape[:2]]
            every = [each for each in like if each.open_s < self.aim_s]
            cap_kib = cuts.same.prices.cap_kib
            self._left -= ask_others(self._layouts, every, answer.by, cap_kib, self.aim_s)

    @property
    def _open_s(self) -> float:
        """The least bound of what is not solved."""
        return min((each.open_s for each in self._alike), default=math.inf)

    def _goes_on(self) -> bool:
        """Whether something is open below what is found, and there is time, and budget."""
        open_s = self._open_s
        if self._left <= 0 and open_s < self.aim_s <= self._wide_s and self._has_hope(open_s):
            self._draw(STEP)
        return open_s < self.aim_s and not self._ended and self._can_be_settled()

    def _draw(self, enough: int) -> None:
        """So much is left, if there is more."""
        more = max(0, min(self._more, enough - self._left))
        self._left, self._more = self._left + more, self._more - more

    def _has_hope(self, open_s: float) -> bool:
        """Whether the gap would no longer be wide with all that is left, at the pace of the least
        bound or at that of all bounds: the least one stays while others rise.
        """
        least = self._least.is_enough(self._more, self.aim_s - open_s)
        lacks_s = sum(float(np.maximum(0.0, self.aim_s - x.bounds).sum()) for x in self._alike)
        every = self._every.is_enough(self._more, lacks_s)
        return (least or every) and self.aim_s >= self.limit_s * ENOUGH

    def _can_be_settled(self) -> bool:
        """Whether all can be, with what is left; true where that is not what is tried."""
        if self._last is None:
            return True
        return self._loose_s >= self.limit_s and self._last.is_enough(self._left, self._lack_s)

    @property
    def _lack_s(self) -> float:
        """What bounds of groups lack of what they are wanted up to."""
        return sum(max(0.0, self.aim_s - each.open_s) for each in self._alike)

    @property
    def _ended(self) -> bool:
        return self._left <= self._kept or self.proof.tally.late

    def _pack(self, alike: Alike, some: Ints | None = None) -> None:
        """Bound what is below what is found by whole layers of ranks."""
        if some is None:
            some = np.flatnonzero(~alike.packed & (alike.bounds < self.aim_s))
        cuts = self._layouts.cuts(alike.variant, alike.rows[some])
        alike.bounds[some] = cuts.packing_bounds_s(alike.bounds[some], self.aim_s)
        alike.most[some] = cuts.most_layers(np.full(len(some), self.aim_s))
        alike.packed[some] = True
        self._left -= GROUP * (1 + cuts.same.pp // 2) + PACKED * cuts.same.pp * len(some)
        alike.changed()

    def _solve(self, alike: Alike, at: int) -> None:
        """Bound one layout by its own program, as far as it is below what is found."""
        schedule, pp, vpp, m = alike.shape
        known = self._lines.setdefault(alike.shape, list(first_lines(schedule, pp, vpp, m)))
        low_s, high_s, halved = float(alike.bounds[at]), self.aim_s, False
        folded, wide = schedule in V_SHAPED, self.aim_s <= self._wide_s
        if wide and not folded:
            self._draw(SOLVED)  # what ends half-way is begun anew
        if low_s < high_s:
            cuts = self._layouts.cuts(alike.variant, alike.rows[[at]])
            program = FreeCutProgram(cuts, self.aim_s, known)
            self._left -= PROGRAM
            low_s = max(low_s, self._proved_s(program, high_s, alike.shape))
            if wide and folded:
                self._draw(2 * STEP)  # lists of V shapes say more than their programs
            if low_s < high_s and not self.proof.tally.late:
                whole_s, halved = self._whole_s(program, high_s, alike, at)
                low_s, high_s = max(low_s, whole_s), min(high_s, self.aim_s)
            self._lines[alike.shape] = program.lines
        if low_s < high_s and not halved:
            low_s = self._halved_s(program, low_s, high_s)
        alike.bounds[at] = min(low_s, self.aim_s)
        alike.packed[at] = alike.folded[at] = True
        enough_s = self.aim_s if self._last else min(self._wide_s, self.aim_s)
        again, alike.looked[at] = low_s <= alike.looked[at], low_s
        alike.solved[at] = low_s >= enough_s or not self._ended or again
        alike.changed()
        if not self._ended and low_s < self.aim_s:
            self._loose_s = min(self._loose_s, low_s)
        if alike.solved[at] and low_s < self.aim_s:
            self.found_s = self.aim_s = low_s

    def _halved_s(self, program: FreeCutProgram, low_s: float, high_s: float) -> float:
        """What the whole layers of ranks prove of steps between two limits."""
        while high_s - low_s > NEAR * high_s and not self._ended:
            middle_s = (low_s + high_s) / 2
            if program.overfull(middle_s) or self._proved_s(program, middle_s) >= middle_s:
                low_s = middle_s
            else:
                high_s = middle_s
        return low_s

    def _whole_s(
        self, program: FreeCutProgram, below_s: float, alike: Alike, at: int
    ) -> tuple[float, bool]:
        """What the whole layers of chunks prove of steps below some limit, and whether they halved
        it.
        """
        folded = alike.shape[0] in V_SHAPED
        if folded:
            self._loose.add(alike.shape[0])
        ranks = None
        if memory_is_a_bound(self.proof.setting):
            ranks = RanksThatFit(self.proof, int(alike.rows[at]), alike.variant, below_s)
        whole = WholeLayers(
            program, below_s, lambda work: self._left - work <= self._kept or self.proof.tally.late,
            is_wide=self.aim_s <= self._wide_s, fits=ranks.fits if ranks else None,
        )  # fmt: skip
        found_s = folded_bound_s(whole) if folded else ordered_bound_s(whole)
        self._left -= whole.work + (ranks.work if ranks else 0)
        for step_s, layers in sorted(whole.cuts, key=lambda each: each[0]):
            near = NearCut(int(alike.rows[at]), alike.variant, layers)
            if folded:
                self._met.append(MetCut(step_s, alike.shape, near))
            if step_s < self.limit_s:
                self._offer(*near)
        return found_s, whole.halved

    def _offer(self, row: int, variant: Variant, layers: Floats | Ints) -> None:
        """A cut, [chunk, mode] layers, that may be faster, where it fits; then bounds are wanted
        up to its step alone.
        """
        problem, _ = self.proof.problem(row, variant)
        plan = plan_of(problem, layers)
        step_s = self.proof.judged_s(row, variant, plan) * SETTLED
        if plan and step_s < self.limit_s:
            self._faster.append((row, variant, plan))
            self._wide_s = step_s * WIDE
            wide = self.aim_s < self.found_s
            self.limit_s, self.found_s = step_s, min(self.found_s, step_s)
            self.aim_s = min(self.aim_s, self._wide_s if wide else step_s)

    def _proved_s(
        self, program: FreeCutProgram, below_s: float, shape: Shape | None = None
    ) -> float:
        """What a program proves of steps below some limit; its last multipliers are to be asked of
        all of a shape, if said.
        """
        found_s, by = 0.0, None
        for answer in program.answers(below_s):
            self._left -= program.round_work
            by, found_s = answer.by or by, max(found_s, answer.bound_s)
            if found_s >= below_s or self._ended:
                break
        if shape and by:
            self._asked.append(Asked(program.lines[: len(by.lines)], by, shape, self.aim_s))
        return found_s

    def _ask_all(self) -> None:
        while self._asked:
            asked = self._asked.pop(0)
            self._left -= ask(self._layouts, self._alike, asked, self.aim_s)
