"""Plans that fit when every moment is counted, and not by the bound of their memory.

Where an engine's passes are counted (`native`) the priced memory is a bound: a rank pays its
largest transient at its fullest moment, and zero-bubble micro-batches count with the larger of what
they hold before and after their backward. The proof is over what fits by it. What else may be
faster is looked for here, of layouts and cuts whose bound is below the best step under a memory
that is not above what they hold:

    least    without transients; what waits for its weight gradient with the smaller of both
    bare     of each cut the one that recomputes least, if it fits by every moment
    mixes    then those of each cut that do (`planner.search.counted_mixes`), where a rank has few:
             first of the two modes that recompute least, then of all
    cuts     those of the list; with one chunk per rank all, where they are few

Each is looked at in order of bounds, as far as its budget goes, those of one chunk per rank first:
they have the fewest mixes. Nothing is proved of what is left.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np

from meshplan.costmodels.layout import MODES, Schedule, Stage
from meshplan.costmodels.layouts import Floats, Ints
from meshplan.costmodels.schedule.in_flight import ZERO_BUBBLE
from meshplan.costmodels.step.cut_times import CutTimes
from meshplan.planner.bounds.any_split import bounds_of_any_split
from meshplan.planner.bounds.inner import row_fits
from meshplan.planner.bounds.simulated import Passes
from meshplan.planner.bounds.split_chains import bounds_of_splits, rough_split_bounds_s
from meshplan.planner.bounds.split_memory import some_mix_fits
from meshplan.planner.problem.coefficients import Coefficients, Priced
from meshplan.planner.problem.same_pipeline import SamePipeline, run_as
from meshplan.planner.problem.stage_problem import (
    StagePlan,
    StageProblem,
    evaluate,
    stage_problem,
)
from meshplan.planner.search.branch_and_bound import Found
from meshplan.planner.search.counted_mixes import CountedMixes, has_few_mixes
from meshplan.planner.search.found import SETTLED
from meshplan.planner.search.second_core import done_of_each
from meshplan.planner.search.simulated import Simulated
from meshplan.planner.space.legal_layouts import Space, Variant
from meshplan.planner.space.stage_splits import every_cut, lists_all

PASSES = ((1, 300_000), (2, 1_200_000), (3, 1_200_000))
"""Modes that a cut may mix, those that recompute least; and the budget of what is looked at so, in
the time of one played action, some 60 ns. What one pass leaves the next one has.
"""
CUT, LAYOUT = 5_000, 30_000  # one that is begun
MOST_ROWS = 2_048
MOST_REFUSED = 4_096  # rows that are looked at where nothing fits by the bound
MOMENTARY = (
    "layer_deferred_kib", "layer_waiting_kib", "put_off_kib", "transient_kib",
    "head_transient_kib", "layer_update_kib", "embedding_update_kib", "head_update_kib",
)  # fmt: skip
"""Columns of what is held beside what was saved, at some moment or not at all."""


class LeastHeld:
    """Prices whose memory is not above what ranks hold under a schedule."""

    def __init__(self, prices: Priced, schedule: Schedule) -> None:
        self.prices, self.waits = prices, schedule in ZERO_BUBBLE

    def take(self, rows: Ints) -> Coefficients:
        """The prices of some of the rows."""
        c = self.prices.take(rows)
        saved = c.layer_saved_kib
        if self.waits:
            saved = np.minimum(saved, c.layer_deferred_kib[:, :, None])
        none = {name: np.zeros_like(getattr(c, name)) for name in MOMENTARY}
        return replace(c, layer_saved_kib=saved, **none)


def rows_that_may_fit(space: Space, prices: Priced) -> Ints:
    """The rows of a small space that may fit when every moment is counted; none of a large one."""
    rows = np.arange(len(space.layouts))
    if len(rows) > MOST_REFUSED:
        return rows[:0]
    return np.flatnonzero(row_fits(space, LeastHeld(prices, "zb_v").take(rows)))


Pipeline = TypeVar("Pipeline", SamePipeline, StageProblem)


def _listed(pipeline: Pipeline) -> Pipeline:
    """With all cuts of one chunk per rank, which are few, where any is legal."""
    if pipeline.splits is not None:
        return pipeline
    layers, fewest = len(pipeline.pattern), pipeline.fewest_layers(0)
    ways = every_cut(layers, pipeline.pp, fewest) if pipeline.pp > 1 else ((layers,),)
    return replace(pipeline, splits=ways)


class _Candidate(NamedTuple):
    """A layout that may be faster, and has cuts that may fit."""

    bound_s: float
    row: int
    variant: Variant


class CountedMemory:
    """What `proof` left out by the bound of its memory."""

    def __init__(self, proof: Simulated) -> None:
        self.proof, self.left = proof, 0

    def look(self) -> None:
        """Offer the proof what is faster than its best."""
        try:
            for most, budget in PASSES:
                self.left = max(0, self.left) + budget
                found = sorted(self._candidates(most), key=lambda each: each.bound_s)
                self._look([each for each in found if each.variant.virtual_stages == 1])
                self._look([each for each in found if each.variant.virtual_stages > 1])
        except KeyboardInterrupt:
            return

    def _look(self, candidates: Sequence[_Candidate]) -> None:
        for candidate in candidates:
            if self._ended or candidate.bound_s >= self.proof.best_s * SETTLED:
                return
            self._look_at(candidate)

    @property
    def _ended(self) -> bool:
        return self.left <= 0 or self.proof.tally.late

    def _candidates(self, most: int) -> Iterator[_Candidate]:
        proof, limit_s = self.proof, self.proof.best_s * SETTLED
        rows = proof.open.rows
        rows = rows[proof.open.row_bounds[rows] < limit_s][:MOST_ROWS]
        groups = [
            (variant, same)
            for every, same in proof.space.by_variant(rows)
            if (variant := self._counted(every, int(same[0]), most)) is not None
        ]
        bounds = done_of_each(lambda group: self._bounds(*group, limit_s), groups)
        for (variant, same), of_each in zip(groups, bounds, strict=True):
            for row, bound_s in zip(same.tolist(), of_each.tolist(), strict=True):
                if bound_s < limit_s:
                    yield _Candidate(bound_s, row, variant)

    def _bounds(self, variant: Variant, rows: Ints, limit_s: float) -> Floats:
        """Of `rows` run as `variant`; the limit where that is no more."""
        proof, found = self.proof, np.full(len(rows), limit_s)
        least = LeastHeld(proof.prices, variant.schedule)
        same = _listed(run_as(proof.space, least, rows, variant))
        passes, below = Passes.of(proof.passes, rows, same), np.arange(len(rows))
        if variant.virtual_stages > 1:
            below = np.flatnonzero(bounds_of_any_split(same, passes, limit_s) < limit_s)
        if len(below):
            found[below], _ = bounds_of_splits(same.take(below), passes.take(below), limit_s)
        return found

    def _counted(self, variant: Variant, row: int, most: int) -> Variant | None:
        """With the `most` modes that recompute least; None where it has fewer, or where the mean
        rank has many mixes of several. One chunk per rank is run once, where its cuts are few: with
        the most modes, two at least, of which there are few mixes.
        """
        vpp, pp = variant.virtual_stages, int(self.proof.space.layouts.pipeline_parallel[row])
        layers = [-(-len(self.proof.space.stack) // (pp * vpp))] * vpp
        modes = tuple(sorted(variant.modes)[:most])
        few = most == 1 or has_few_mixes(layers, modes)
        if vpp == 1:
            more = tuple(sorted(variant.modes)[: most + 1])
            at_once = most == len(MODES) or not has_few_mixes(layers, more)
            few &= most > 1 and at_once and self._lists_all(pp)
        elif len(modes) < most:
            return None
        return replace(variant, modes=modes) if few else None

    def _lists_all(self, pp: int) -> bool:
        """Whether so many ranks of one chunk have few cuts, or a list of them."""
        space = self.proof.space
        return pp == 1 or lists_all(space.model, space.legality, pp, 1)

    def _look_at(self, candidate: _Candidate) -> None:
        proof, (_, row, variant) = self.proof, candidate
        self.left -= LAYOUT
        held = LeastHeld(proof.prices, variant.schedule)
        least = _listed(stage_problem(proof.space, held, row, variant))
        bound, times = stage_problem(proof.space, proof.prices, row, variant), None
        for bare in self._cuts(least, row):
            limit_s = proof.best_s * SETTLED
            if self._ended:
                return
            if evaluate(bound, bare) is not None:
                continue  # settled by the proof
            self.left -= CUT
            times = times or self._times(row, variant, bare)
            after = times.least_after_s(bare, range(least.pp), limit_s)
            if times.step_s(bare, after) < limit_s:
                cut = CountedMixes(bound, least, times, bare, variant.replayed)
                plan = cut.fastest(limit_s, self.left)
                self.left -= cut.work
                if plan is not None:
                    proof.offer(Found(plan.objective, int(proof.kept[row]), variant, plan))

    def _cuts(self, least: StageProblem, row: int) -> Iterator[tuple[Stage, ...]]:
        """Of the list those below the best step, which may fall meanwhile, that may fit, with as
        little recomputed as can be; the smallest bound first.
        """
        proof, fits, mode = self.proof, some_mix_fits(least), min(least.modes)
        passes = Passes.of(proof.passes, np.array([row]), least.alone)
        limit_s, known = proof.best_s * SETTLED, proof.open.chains.bounds_s
        splits, _, bounds, _ = rough_split_bounds_s(least.alone, passes, limit_s, known)
        for at in np.argsort(bounds, kind="stable").tolist():
            if bounds[at] >= proof.best_s * SETTLED:
                return
            if fits[splits[at]]:
                counts = (least.splits or ())[splits[at]]
                yield tuple(Stage(n, n * (mode == 1), n * (mode == 2)) for n in counts)

    def _times(self, row: int, variant: Variant, stages: tuple[Stage, ...]) -> CutTimes:
        proof = self.proof
        layout = proof.layout_of(int(proof.kept[row]), variant, StagePlan(stages, 0, ()))
        return CutTimes(proof.setting, layout, proof.passes, row, variant.columns)
