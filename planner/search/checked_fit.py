"""Whether a step fits on some GPUs by what its ranks hold, where the priced memory may say more.

The priced memory is a bound where passes are counted (`native`), where stages hold layers of
several kinds, and where an engine keeps its layers' buffers and a stage may be without any. There,
and where V shapes have both ends of the model on one rank, what that refuses is asked here. So it
is where pins leave several chunks per rank alone, whose cuts are those of a list though the engine
may cut anywhere:

    may_fit   by the least that ranks need: what fails fits in no cut and no mix
    a plan    each cut in a mix that fits by every moment
              (`planner.search.simulation.counted_ranks`), to the byte what `check` says; of a list
              without such a cut, any cut that fits by its price

What neither refuses nor has a plan is not settled: a rank has too many mixes, a layout too many
cuts, or there are more rows than are asked.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, product
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layout import VIRTUAL_STAGES, Layout, Stage
from meshplan.costmodels.layouts import Bools, Ints
from meshplan.costmodels.prices.prices import host_may_take
from meshplan.costmodels.schedule.orders import V_SHAPED
from meshplan.costmodels.step.mix_memory import FULL, SELECTIVE, Span
from meshplan.costmodels.step.step import StepModel
from meshplan.planner.bounds.inner import row_fits
from meshplan.planner.bounds.split_memory import some_mix_fits
from meshplan.planner.case.host_memory import host_takes
from meshplan.planner.cuts.path_cuts import first_cut
from meshplan.planner.problem.coefficients import Coefficients, Priced
from meshplan.planner.problem.stage_problem import StagePlan, StageProblem, stage_problem
from meshplan.planner.search.held_memory.counted_paths import CountedIntervals
from meshplan.planner.search.held_memory.less_than_priced import counting_empty_stages
from meshplan.planner.search.row_layout import layout_of_row
from meshplan.planner.search.rows.least_held import LeastHeld, rows_may_fit
from meshplan.planner.search.rows.least_of_kinds import LeastOfKinds, rows_of_kinds_may_fit
from meshplan.planner.search.rows.priced_space import (
    Question,
    closed_form,
    may_hold,
    price_space,
    space_of,
    space_of_sizes,
)
from meshplan.planner.search.simulation.counted_ranks import (
    ENDLESS_KIB,
    CountedRanks,
    memory_is_a_bound,
)
from meshplan.planner.space.legal_layouts import Space, Variant
from meshplan.planner.space.stage_splits import lists_all
from meshplan.planner.stages.any_cut import any_cut
from meshplan.planner.stages.path import Intervals, fullest_stages

SIZES_TOGETHER, ROWS_TOGETHER = 8, 16_384  # at first, and about at most
MOST_LAYOUTS, MOST_CUTS = 24, 128  # of a size, whose ranks are asked
NEARER = (1.01, 1.03, 1.07, 1.15, 1.3, 1.6, 2.2, 4.0)
"""Times the capacity: rows that fit by their prices with less of it are asked first."""


MOST_OFF_LIST, OFF_LIST_S = 2, 0.25
"""Of a size, layouts of which a cut off their list is looked for; deterministic seconds of each."""
MOST_SIZES = 4  # that are asked, the largest first


class Checked(NamedTuple):
    """A layout that fits, None where none was found; `settled`: there is none, or that one."""

    layout: Layout | None
    settled: bool


class Sizes(NamedTuple):
    """The fewest GPUs of which a layout was found that fits, None: no number's; and the fewer, or
    other, that were not settled.
    """

    layout: Layout | None
    open: tuple[int, ...]


def may_need_less(question: Question) -> bool:
    """Whether more may fit than `fitting_layout` finds."""
    q, rules = counting_empty_stages(question), question.engine.legality
    bends = any(q.pins.allows("schedule", each) for each in V_SHAPED.intersection(rules.schedules))
    return memory_is_a_bound(q.setting) or (bends and q.gpus > 1) or _is_listed_alone(q)


def _is_listed_alone(q: Question) -> bool:
    """Whether pins leave pipelines of several chunks per rank alone, cut as a list says."""
    rules, pins = q.engine.legality, q.pins
    one_chunk = [name for name, chunks in VIRTUAL_STAGES.items() if chunks == 1]
    runs = any(name in rules.schedules and pins.allows("schedule", name) for name in one_chunk)
    return rules.uneven_stages == "free" and not (runs and pins.allows("virtual_stages", 1))


def checked_sizes(question: Question, sizes: Sequence[int]) -> Sizes:
    """The fewest of `sizes`, ascending, that hold a step of `question`."""
    found, open_ = None, list[int]()
    left = _that_may_fit(question, sizes)
    for gpus in reversed(left[-MOST_SIZES:]):
        each = checked_fit(question, gpus)
        if each.layout is not None:
            found, open_ = each.layout, []
        elif not each.settled:
            open_.append(gpus)
    return Sizes(found, (*left[:-MOST_SIZES], *reversed(open_)))


def _that_may_fit(question: Question, sizes: Sequence[int]) -> list[int]:
    """The sizes of which a row may fit, ascending: as many together as have `ROWS_TOGETHER` rows,
    since each glance at a space has a cost of its own.
    """
    q, found, first, together = _rounded_down(question), set[int](), 0, SIZES_TOGETHER
    while first < len(sizes):
        some = sizes[first : first + together]
        space, rows = space_of_sizes(q, some)
        if len(space.layouts):
            fit = np.flatnonzero(may_fit(q, space))
            found |= set(np.unique(space.layouts.take(fit).world_size).tolist())
        first += len(some)
        together = max(1, min(4 * together, len(some) * ROWS_TOGETHER // max(1, rows)))
    return sorted(found)


def held_bytes(question: Question, layout: Layout) -> tuple[float, tuple[float, ...]]:
    """What the fullest rank of a layout needs, and what the allocator reserves on each."""
    model = StepModel(question.setting, layout)
    ranks = model.memory()
    needs = (float(each.allocated + model.slack_bytes(each)) for each in ranks)
    return max(needs) + model.context_bytes, tuple(map(model.reserved_bytes, ranks))


def checked_fit(question: Question, gpus: int) -> Checked:
    """Whether `gpus` hold a step of `question`."""
    q = _rounded_down(replace(question, gpus=gpus))
    space = space_of(q)
    if not len(space.layouts):
        return Checked(None, settled=True)
    space = space.take(np.flatnonzero(may_fit(q, space)))
    if not len(space.layouts):
        return Checked(None, settled=True)
    prices = price_space(q, space, closed_form)
    ranks = _Ranks(q, space, prices)
    settled = True
    for row in _nearest_first(space, prices).tolist():
        found, every = ranks.layout(row)
        if found is not None:
            return Checked(found, settled=True)
        settled &= every
        if not ranks.layouts:
            return Checked(None, settled=False)
    return Checked(None, settled)


def _rounded_down(question: Question) -> Question:
    """The same by what each stage holds, which leaves nothing out that fits."""
    return replace(counting_empty_stages(question), rounds_up=False)


def may_fit(question: Question, space: Space) -> Bools:
    """Whether each row may fit in some cut and mix, by the least that its ranks need."""
    rows, setting = np.arange(len(space.layouts)), question.setting
    space = space.take(rows)  # not packed
    return _ranks_may_fit(question, space, rows) & host_may_take(space.layouts, setting)


def _ranks_may_fit(question: Question, space: Space, rows: Ints) -> Bools:
    """The same, of what is on the GPUs."""
    setting = question.setting
    if setting.engine.kernels.counts_passes:
        return rows_may_fit(space, setting)
    if setting.has_several_kinds:
        return rows_of_kinds_may_fit(space, setting)
    return np.isin(rows, may_hold(question, space, rows))


def _nearest_first(space: Space, prices: Coefficients) -> Ints:
    """Places of the rows, by how much more memory they would fit by their prices; of equal ones
    those with fewer pipeline ranks.
    """
    lacks = np.full(len(space.layouts), len(NEARER))
    for at, factor in reversed(list(enumerate(NEARER))):
        lacks[row_fits(space, replace(prices, cap_kib=int(prices.cap_kib * factor)))] = at
    return np.lexsort((space.layouts.pipeline_parallel, lacks))


class _Ranks:
    """The rows of a space, each asked for a plan whose ranks fit by every moment.

    layouts, cuts, off_list  that may still be asked
    may_fit                  [row] whether its priced memory allows some cut, listed or not
    """

    def __init__(self, question: Question, space: Space, prices: Coefficients) -> None:
        self.question, self.setting = question, question.setting
        self.space, self.prices = space, prices
        self.layouts, self.cuts, self.off_list = MOST_LAYOUTS, MOST_CUTS, MOST_OFF_LIST
        self.may_fit = row_fits(space, prices)
        every = np.arange(len(space.layouts))
        self.least: Priced = prices
        if self.setting.engine.kernels.counts_passes:
            self.least = LeastHeld(prices, space.layouts, self.setting, every)
        elif self.setting.has_several_kinds:
            self.least = LeastOfKinds(prices, space.layouts, self.setting, every)

    def layout(self, row: int) -> tuple[Layout | None, bool]:
        """One that fits, and whether all were looked at where there is none."""
        waits, every = self.space.layouts.activation_offload[row] > 0, True
        for variant in self.space.variants(row):
            if not self.layouts:
                return None, False
            if waits and variant.virtual_stages > 1:  # on the host: not known of several chunks
                every = False
                continue
            found, all_cuts = self._plan(row, variant)
            if found is None and not self._lists_all(row, variant):
                found, all_cuts = self._off_list(row, variant)
            if found is not None:
                plan = StagePlan(found, 0, ())
                layout = layout_of_row(self.space.layouts, row, variant, plan)
                if self._takes(layout):
                    return layout, True
            every &= all_cuts and found is None  # another cut may need less
        return None, every

    def _takes(self, layout: Layout) -> bool:
        """Whether it fits by its exact bytes, on the GPUs and on their hosts."""
        needed, _ = held_bytes(self.question, layout)
        return needed <= self.question.cluster.fillable_bytes and host_takes(self.setting, layout)

    def _lists_all(self, row: int, variant: Variant) -> bool:
        pp, chunks = int(self.space.layouts.pipeline_parallel[row]), variant.virtual_stages
        free = self.space.legality.uneven_stages == "free" and chunks > 1
        return not free or lists_all(self.space.model, self.space.legality, pp, chunks)

    def _off_list(self, row: int, variant: Variant) -> tuple[tuple[Stage, ...] | None, bool]:
        """A cut that no list has, by its priced memory."""
        if not self.off_list:
            return None, False
        self.off_list -= 1
        proves = not memory_is_a_bound(self.setting)
        if not self.may_fit[row]:
            return None, proves
        problem = stage_problem(self.space, self.prices, row, variant)
        plan, known = any_cut(problem, OFF_LIST_S)
        return plan.stages if plan else None, known and proves

    def _plan(self, row: int, variant: Variant) -> tuple[tuple[Stage, ...] | None, bool]:
        problem = stage_problem(self.space, self.prices, row, variant)
        problem = replace(problem, prices=replace(problem.prices, cap_kib=ENDLESS_KIB))
        least = stage_problem(self.space, self.least, row, variant)
        if problem.splits is None:
            if fullest_stages(Intervals(least)) is None:
                return None, True
            ranks = self._ranks(problem, row, variant, first_cut(problem))
            return fullest_stages(CountedIntervals(problem, ranks)), True
        if not problem.splits:
            return None, True
        splits = [problem.splits[at] for at in np.flatnonzero(some_mix_fits(least))]
        if not splits:
            return None, True
        ranks = self._ranks(problem, row, variant, tuple(map(Stage, splits[0])))
        return self._of_cuts(ranks, splits)

    def _ranks(
        self, problem: StageProblem, row: int, variant: Variant, cut: tuple[Stage, ...]
    ) -> CountedRanks:
        self.layouts -= 1
        layout = layout_of_row(self.space.layouts, row, variant, StagePlan(cut, 0, ()))
        layout = replace(layout, selective_modules=variant.replayed)
        return CountedRanks(problem, StepModel(self.setting, layout))

    def _of_cuts(
        self, ranks: CountedRanks, splits: Sequence[tuple[int, ...]]
    ) -> tuple[tuple[Stage, ...] | None, bool]:
        """The cuts of a list, those whose fullest rank has fewest layers first."""
        p, every = ranks.problem, len(splits) <= self.cuts

        def fullest(counts: tuple[int, ...]) -> int:
            return max(sum(counts[chunk] for chunk in own) for own in p.chunks_of_rank)

        for counts in sorted(splits, key=fullest)[: self.cuts]:
            self.cuts -= 1
            one_mix = p.vpp == 1 or p.first
            found, known = (
                (ranks.fastest_of_cut(counts), True) if one_mix else _some_mix(ranks, counts)
            )
            if found is not None:
                return found, True
            every &= known
        return None, every


def _some_mix(
    ranks: CountedRanks, counts: tuple[int, ...]
) -> tuple[tuple[Stage, ...] | None, bool]:
    """A mix of a cut of several chunks per rank with which all ranks fit; and whether there is none
    where none is found.
    """
    p, starts = ranks.problem, [0, *accumulate(counts)]
    stages = [Stage(n) for n in counts]
    for rank in range(p.pp):
        spans = ranks.spans(rank, starts)
        ways = ranks.ways(rank, spans, math.inf)
        mixes = list(zip(ways.full.tolist(), ways.selective.tolist(), strict=True))[:1]
        if not ways.every:
            mixes = _some_uniform(ranks, rank, spans)
        if not mixes:
            return None, ways.every
        for (chunk, _, _), full, selective in zip(spans, *mixes[0], strict=True):
            stages[chunk] = Stage(counts[chunk], selective, full)
    return tuple(stages), True


def _some_uniform(
    ranks: CountedRanks, rank: int, spans: Sequence[Span]
) -> list[tuple[list[int], list[int]]]:
    """One mix that fits of those in which all layers of a chunk are in one mode: the layers of each
    chunk in full, and selectively. Empty: none fits.
    """
    modes = np.array(ranks.problem.modes)
    layers = [end - first for _, first, end in spans]
    of_each = [(n * (modes == FULL), n * (modes == SELECTIVE)) for n in layers]
    held = ranks.held(rank, spans, of_each)
    ways = np.array(list(product(range(len(modes)), repeat=len(spans))))
    fits = np.flatnonzero(held.needed(list(ways.T)) <= ranks.fillable_bytes)
    if not len(fits):
        return []
    mixes = [(each[0][way], each[1][way]) for each, way in zip(of_each, ways[fits[0]], strict=True)]
    return [([int(full) for full, _ in mixes], [int(selective) for _, selective in mixes])]
