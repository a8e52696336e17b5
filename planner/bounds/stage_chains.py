"""Lower bounds of the simulated step by the layers that one stage holds (one chunk per rank).

Chains of `planner.bounds.simulated` through stage s, which holds layers a .. b-1,

    1f1b    E = sum c + 2 (S-1) h + (m-1) B_s + (m - min(m, S-s)) F_s
    1f1b    E = sum over layers before a of c + 2 s h + m c_s
    any     E = sum over layers before a of F + s h + m c_s + what the rank reduces then

with all other layers as fast as they can be, and its own in the least recomputation with which they
fit (`planner.bounds.stage_memory`).

`cut_bounds` of a layout: the least over its cuts of the largest E. Where any cut is legal and all
layers are of one kind, `simulated_bounds` counts layers, which says as much; a list of cuts leaves
out what that allows, and each of them may have a longer known chain. E grows with b and falls with
a. So where any cut is legal, one has all E below a limit if each stage can end somewhere below it
that begins at the last a before, by the layers that it must hold, at which the stage before can
end; the largest limit at which there is no such cut is found by halving.
"""

from collections.abc import Callable
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layouts import Bools, Floats, Ints
from meshplan.planner.bounds.late import BEYOND_ALL, SHOWN
from meshplan.planner.bounds.packing import CELLS
from meshplan.planner.bounds.simulated import SAFETY, Passes, rank_chains
from meshplan.planner.bounds.split_times import Known, SplitTimes
from meshplan.planner.bounds.stage_memory import LayoutStages
from meshplan.planner.problem.coefficients import NS_PER_S
from meshplan.planner.problem.same_pipeline import SamePipeline

HALVINGS = 4  # times that the interval from a known bound to the limit is halved


class StageChains:
    """The longest chain through a stage that holds some layers, in each of some layouts."""

    def __init__(self, same: SamePipeline, passes: Passes) -> None:
        self.same, self.passes = same, passes
        # passes come first: sums over a short last axis are slow
        self._chains = [(np.stack(chain[:3]), chain.rest_s) for chain in rank_chains(same, passes)]
        self._embedding, self._head = passes.embedding.T, passes.head.T
        kinds = np.array(same.pattern, np.int64)
        of_layers = passes.layer.transpose(2, 0, 1)[:, :, kinds].cumsum(axis=2)
        self._before = np.concatenate([np.zeros((3, len(same), 1)), of_layers], axis=2)
        lines, late = [SHOWN, BEYOND_ALL], passes.late
        reduced = late.layer[:, lines].swapaxes(0, 1)[:, :, kinds].cumsum(axis=2)
        self._late = np.concatenate([np.zeros((2, len(same), 1)), reduced], axis=2)
        self._late_ends = late.ends[:, lines].swapaxes(0, 1)
        self._late_fixed = late.fixed[:, lines].T

    def bounds_s(self, row: Ints, stage: Ints, first: Ints, end: Ints, added_s: Floats) -> Floats:
        """A step of layout `row` in which `stage` holds layers `first` .. `end` - 1 and takes
        `added_s` of each micro-batch beyond the least takes at least so long.
        """
        least = self._least(row, stage, first, end)
        return self._bounds_s((row, stage, first, end), least, added_s)

    def bounds_of_work_s(
        self, row: Ints, stage: Ints, first: Ints, end: Ints, work_ns: Ints
    ) -> Floats:
        """The same where the stage takes `work_ns` of each micro-batch, its transfer included."""
        least = self._least(row, stage, first, end)
        rounding, send_ns = end - first + 3, self.same.prices.send_ns[row]
        beyond_s = (work_ns - send_ns - rounding) / NS_PER_S - least.sum(axis=0)
        return self._bounds_s((row, stage, first, end), least, np.maximum(0.0, beyond_s))

    def _bounds_s(
        self, where: tuple[Ints, Ints, Ints, Ints], least: Floats, added_s: Floats
    ) -> Floats:
        (row, stage, first, end), passes = where, self.passes
        m, extra, hop = self.same.m[row], passes.extra[row], passes.hop[row]
        forward, input_grad, weight_grad = least
        forward, input_grad = forward + extra, input_grad + extra
        ways_up = self._ways_up_s(row, stage, end)
        chains = [(often[:, row, stage], rest[row]) for often, rest in self._chains]
        turned = np.maximum.reduce([
            rest + often[0] * forward + often[1] * input_grad + often[2] * weight_grad + up
            for (often, rest), up in zip(chains, ways_up, strict=True)
        ])  # fmt: skip
        more_s = m * added_s
        turned += more_s
        hops = stage * (extra + hop)
        before = self._before[:, row, first] + self._embedding[:, row] * (stage > 0)
        straight = m * (forward + input_grad + weight_grad) + more_s + hops + before[0]
        straight += passes.once[row]
        shown, beyond_all = self._reduced_s(row, stage, first, end)
        own = straight + np.maximum(shown, beyond_all - more_s)
        if self.same.schedule != "zb_h1":
            straight += before[1] + before[2] + hops
        bounds: Floats = np.maximum.reduce([turned, straight, own]) * SAFETY
        return bounds

    def computes_s(self, row: Ints, stage: Ints, first: Ints, end: Ints) -> Floats:
        """The same of what a stage computes alone, with nothing recomputed: the cheapest of all."""
        until, own = self._computed
        found: Floats = (until[row, end] - until[row, first] + own[row, stage]) * SAFETY
        return found

    @cached_property
    def _computed(self) -> tuple[Floats, Floats]:
        """[row, layers before] seconds of all micro-batches; and [row, stage] those of the ends,
        with what comes once.
        """
        passes, m = self.passes, self.same.m[:, None]
        own = np.tile(2 * passes.extra[:, None], self.same.pp)
        own[:, 0] += self._embedding.sum(axis=0)
        own[:, -1] += self._head.sum(axis=0)
        return m * self._before.sum(axis=0), m * own + passes.once[:, None]

    def most_layers(self, rows: Ints, limits: Floats) -> int:
        """How many layers a stage of some of these rows holds at most, in steps below the limits:
        of each row as many as its rank does not take longer for with nothing recomputed.
        """
        kinds = sorted(set(self.same.pattern))
        layer_s = self.passes.layer[rows][:, kinds].sum(axis=2).min(axis=1)
        most = limits / SAFETY**2 / (self.same.m[rows] * np.maximum(layer_s, 1e-30))
        return int(min(len(self.same.pattern), most.max(initial=0.0)))

    def _least(self, row: Ints, stage: Ints, first: Ints, end: Ints) -> Floats:
        """[pass, ...] of a stage with nothing recomputed."""
        least: Floats = self._before[:, row, end] - self._before[:, row, first]
        least += self._embedding[:, row] * (stage == 0)
        least += self._head[:, row] * (stage == self.same.pp - 1)
        return least

    def _ways_up_s(self, row: Ints, stage: Ints, end: Ints) -> list[Floats]:
        """Of each chain what it leaves out before the first backward of a stage that ends there."""
        nothing, last, passes = np.zeros(np.shape(end)), self.same.pp - 1, self.passes
        if self.same.schedule != "zb_h1":
            return [nothing]
        up = self._before[1, row, -1] - self._before[1, row, end]
        up = up + passes.head[row, 1] * (stage < last)
        return [up + (last - stage) * (passes.extra[row] + passes.hop[row]), nothing]

    def _reduced_s(self, row: Ints, stage: Ints, first: Ints, end: Ints) -> Floats:
        """[line, ...] by each of two lines, what a stage reduces after its last backward."""
        ends = self._late_ends[:, row, 0] * (stage == 0)
        ends += self._late_ends[:, row, 1] * (stage == self.same.pp - 1)
        of_layers = self._late[:, row, end] - self._late[:, row, first]
        reduced: Floats = of_layers + ends + self._late_fixed[:, row]
        return reduced


def cut_bounds(
    same: SamePipeline, passes: Passes, known_s: Floats, limit_s: float, known: Known | None = None
) -> Floats:
    """[row] a lower bound of each layout's simulated step, not below the `known_s`; `limit_s` where
    no cut is below that. `known` are bounds of each split of a list.
    """
    kinds = [kind for kind, count in enumerate(same.kind_counts) if count]
    bounds = np.minimum(known_s, limit_s)
    rows = np.flatnonzero(bounds < limit_s)
    if same.pp == 1 or not len(rows) or (same.splits is None and len(kinds) == 1):
        return bounds
    some, of_rows = same.take(rows), passes.take(rows)
    chains = StageChains(some, of_rows)
    if same.splits is None:
        bounds[rows] = _of_any_cut(chains, LayoutStages(some), bounds[rows], limit_s)
        return bounds
    pairs = _listed_below(chains, limit_s)
    if known and len(pairs.row):
        pairs = pairs.also(known(some, SplitTimes.of(some, of_rows), None)[pairs[:2]], limit_s)
    least = np.full(len(rows), limit_s)
    np.minimum.at(least, pairs.row, pairs.least_s)
    bounds[rows] = np.maximum(bounds[rows], least)
    return bounds


def _of_any_cut(
    chains: StageChains, memory: LayoutStages, known_s: Floats, limit_s: float
) -> Floats:
    """[row] the largest limit, in steps between a known bound and the limit, at which no cut is
    found: whether one is at the limit first, for most there is none.
    """
    rows = np.arange(len(known_s))
    rows = rows[_fills(chains, memory, rows, np.full(len(rows), limit_s))]
    bounds = np.full(len(known_s), limit_s)
    low, high = known_s[rows], bounds[rows]
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        fills = _fills(chains, memory, rows, middle)
        low, high = np.where(fills, low, middle), np.where(fills, middle, high)
    bounds[rows] = low
    return bounds


class _Pairs(NamedTuple):
    """A layout, one of the engine's splits, and the longest chain that is known of it, each."""

    row: Ints
    split: Ints
    least_s: Floats

    def also(self, least_s: Floats, limit_s: float) -> "_Pairs":
        """Those that are below the limit by another bound too."""
        longest = np.maximum(self.least_s, least_s)
        below = longest < limit_s
        return _Pairs(self.row[below], self.split[below], longest[below])


def _listed_below(chains: StageChains, limit_s: float) -> _Pairs:
    """The splits of a list that may be below the limit. Most are not by what one of their stages
    computes, or with nothing recomputed; what the others must recompute is asked of them alone.
    """
    stages, keeping_s = _ListedStages.of(chains.same), partial(chains.bounds_s, added_s=np.zeros(1))
    pairs = stages.below(chains.computes_s, limit_s)
    pairs = pairs.also(stages.longest_s(pairs, keeping_s), limit_s)
    if not len(pairs.row):
        return pairs
    asked, of = np.unique(pairs.row, return_inverse=True)
    memory = LayoutStages(chains.same.take(asked))
    of_row = np.zeros(len(chains.same), np.int64)
    of_row[pairs.row] = of

    def recomputing_s(row: Ints, stage: Ints, first: Ints, end: Ints) -> Floats:
        added_s = memory.beyond_s(of_row[row], stage, first, end)
        return chains.bounds_s(row, stage, first, end, added_s)

    return pairs.also(stages.longest_s(pairs, recomputing_s), limit_s)


class _ListedStages(NamedTuple):
    """The different stages of a list of splits, many of which have one in common: the number, the
    first layer and the end of each, and [split, stage] which of them they are; of so many layouts.
    """

    different: tuple[Ints, Ints, Ints]
    of_split: Ints
    layouts: int

    @classmethod
    def of(cls, same: SamePipeline) -> "_ListedStages":
        """Of the engine's splits."""
        counts = np.array(same.splits, np.int64).reshape(-1, same.pp)
        ends, layers = counts.cumsum(axis=1), len(same.pattern) + 1
        codes = (np.arange(same.pp) * layers + ends - counts) * layers + ends
        different, which = np.unique(codes, return_inverse=True)
        begun, end = np.divmod(different, layers)
        return cls((*np.divmod(begun, layers), end), which.reshape(counts.shape), len(same))

    def below(self, seconds: Callable[..., Floats], limit_s: float) -> _Pairs:
        """Every layout with each split of which no stage alone takes as long as the limit."""
        found, step = list[tuple[Ints, Ints]](), max(1, CELLS // (1 + self.of_split.size))
        for begin in range(0, self.layouts, step):
            rows = np.arange(begin, min(begin + step, self.layouts))
            short = seconds(rows[:, None], *self.different) < limit_s
            row, split = np.nonzero(short[:, self.of_split].all(axis=2))
            found.append((rows[row], split))
        row, split = map(np.concatenate, zip(*found, strict=True))
        return _Pairs(row, split, np.zeros(len(row)))

    def longest_s(self, pairs: _Pairs, seconds: Callable[..., Floats]) -> Floats:
        """[pair] what the stage takes that takes longest; each is asked once."""
        at = pairs.row[:, None], self.of_split[pairs.split]
        asked = np.zeros((self.layouts, len(self.different[0])), bool)
        asked[at] = True
        row, stage = np.nonzero(asked)
        found = np.zeros(asked.shape)
        found[row, stage] = seconds(row, *(each[stage] for each in self.different))
        longest: Floats = found[at].max(axis=1, initial=0.0)
        return longest


def _fills(chains: StageChains, memory: LayoutStages, some: Ints, limits: Floats) -> Bools:
    """Of each of some rows, whether some cut has all stages below its limit."""
    layers, pp = len(chains.same.pattern), chains.same.pp
    fewest = [chains.same.fewest_layers(stage) for stage in range(pp)]
    most, rows = chains.most_layers(some, limits), some[:, None]
    if pp * most < layers:
        return np.zeros(len(some), bool)
    reached: Bools = np.ones((len(some), 1), bool)
    least = 0  # the first end of which `reached` tells
    for stage in range(pp):
        lowest = max(sum(fewest[: stage + 1]), layers - (pp - 1 - stage) * most)
        highest = min(layers - sum(fewest[stage + 1 :]), (stage + 1) * most)
        ends = np.arange(lowest, highest + 1)
        begun = _last_before(reached, ends - fewest[stage] - least)
        can, first = begun >= 0, np.where(begun >= 0, least + begun, ends)
        reached, least = can, lowest
        reached &= chains.computes_s(rows, np.array(stage), first, ends) < limits[:, None]
        at, end = np.nonzero(reached)
        held = some[at], np.array(stage), first[at, end], ends[end]
        reached[at, end] = chains.bounds_s(*held, memory.beyond_s(*held)) < limits[at]
    return np.asarray(reached.any(axis=1))


def _last_before(reached: Bools, places: Ints) -> Ints:
    """[row, ...] of each of `places` the last one up to it that is reached, -1 where none is."""
    last = np.maximum.accumulate(np.where(reached, np.arange(reached.shape[1]), -1), axis=1)
    found: Ints = np.where(places < 0, -1, last[:, np.clip(places, 0, reached.shape[1] - 1)])
    return found
