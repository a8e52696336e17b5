"""A bound and plans of a split that must recompute, by means of chains (several chunks per rank).

A chain of actions that wait for each other (`Program.chain`) holds the backward of chunk v of rank
s a number of times, k[s, v]. A mean of chains is a bound as well as each of them, and under it

    step >= the mean's length with nothing recomputed
            + sum over s of the least sum over v of k[s, v] x[s, v]

where x[s, v] is what the mix of chunk v takes more of each micro-batch, and rank s fits by that of
its `PipelineShape.covers` which asks most of it. Ranks do not share memory, so each is a knapsack
of its own, in whole layers; savings are rounded up to a `GRAINS`-th of what the rank lacks. The
mixes that answer one mean are simulated, and the longest chain of that joins it: each mean is
against what the one before would have done. What fits by a cover need not fit: then the rank is
asked to save as much more as it lacks, a few times, and what fits in the end is a plan. The mean of
one split is a bound of all of its shape, each under its own times and knapsacks: often enough of
splits like it.
"""

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layout import Stage
from meshplan.costmodels.layouts import Floats, Ints
from meshplan.costmodels.schedule.actions import Work
from meshplan.costmodels.schedule.long_chain import longest_chain
from meshplan.costmodels.schedule.program import Chain
from meshplan.costmodels.step.cut_times import After, CutTimes
from meshplan.planner.bounds.knapsacks import Knapsack, Knapsacks
from meshplan.planner.bounds.recompute import Counts, choices_of
from meshplan.planner.bounds.simulated import SAFETY
from meshplan.planner.bounds.split import Pairs
from meshplan.planner.cuts.known_chains import shape_of
from meshplan.planner.problem.coefficients import NS_PER_S
from meshplan.planner.problem.split_peaks import SplitPeaks
from meshplan.planner.problem.stage_problem import StagePlan, StageProblem, evaluate, starts_of

ROUNDS, FEW = 24, 4
REPAIRS = 3  # times that the ranks of a mix which do not fit are asked to save more
ALL_COVERS = 4  # each so many rounds all covers count; between, the one that asked most of a rank
MOST_KNOWN = 8  # lists of knapsacks that are kept
MOST_CHUNKS = 40  # of the largest split of which all covers of a rank count
EMPTY = np.zeros((4, 0, 0), np.int64)
GAIN, HOPELESS = 2e-4, 0.99  # below so much of the limit a round that gains less is the last


class MixAnswer(NamedTuple):
    """A lower bound of the split's step, and the fastest of the plans met on the way, with its
    step; infinite where none fits.

    solver_s   deterministic seconds of CP-SAT
    knapsacks  how often those of the ranks were solved
    mean       of the best bound
    """

    bound_s: float
    step_s: float
    plan: StagePlan | None
    solver_s: float = 0.0
    knapsacks: int = 0
    mean: "MeanOfChains | None" = None


class MeanOfChains(NamedTuple):
    """Chains of a shape, each with its share of their mean, and of each rank the cover that asked
    most of it.
    """

    chains: tuple[tuple[float, Chain], ...]
    covers: tuple[int, ...]


class _Mixes(NamedTuple):
    """What each chunk takes more, in seconds, and its layers recomputed in full and selectively."""

    added_s: Floats
    full: Ints
    selective: Ints

    def copied(self) -> "_Mixes":
        """To be changed."""
        return _Mixes(self.added_s.copy(), self.full.copy(), self.selective.copy())


class _Asked(NamedTuple):
    """That a rank fits by a cover, and saves so much more."""

    rank: int
    which: int
    more_kib: float


class RecomputeChains:
    """One split of a problem whose list of splits holds it alone."""

    def __init__(
        self, problem: StageProblem, times: CutTimes, bare: tuple[Stage, ...], after: After
    ) -> None:
        self.problem, self.times, self.bare = problem, times, bare
        self.pairs = Pairs.of(problem.alone, np.zeros(1, np.int64), np.zeros(1, np.int64))
        self.reduce_s, self.rest_s = after
        self.work = times.work(bare)
        self.rounding_s = (problem.m + 1) * len(problem.pattern) / NS_PER_S
        self.shape = shape_of(problem)
        self._starts = starts_of(bare)
        self.peaks = SplitPeaks(problem, self._starts)
        self._choices_of: dict[tuple[Counts, Counts], Ints] = {}
        self._ways: dict[tuple[int, Counts], Ints] = {}
        self._known: dict[tuple[_Asked, ...], tuple[list[int], Knapsacks]] = {}
        self._unrepaired: dict[_Asked, list[Knapsack]] = {}
        self._solved, self._round = 0, 0
        self._last = [0] * problem.pp

    def answer(self, enough_s: float) -> MixAnswer:
        """The best bound of a few rounds, or the first above `enough_s`."""
        mean, length, best = np.zeros(self.problem.chunks), 0.0, 0.0
        shares, best_mean = list[tuple[float, Chain]](), None
        self._solved, self._round = 0, 0
        self._last = [covers[0] for covers in self._covers]
        _, mixes = self._cheapest(np.ones(self.problem.chunks))
        step_s, stages = math.inf, tuple[Stage, ...]()
        for number in range(ROUNDS):
            self._round = number
            if not math.isfinite(mixes.added_s.sum()):
                return MixAnswer(math.inf, math.inf, None, knapsacks=self._solved)
            found_s, found = self._tried(mixes, mean if number else np.ones(len(mean)))
            if found_s < step_s:
                step_s, stages = found_s, found
            chain = self._longest(mixes)
            weights, bare_s = self._weighed(chain, mixes)
            share = 1.0 if number == 0 else 2.0 / (number + 2)
            shares = [*((each * (1 - share), one) for each, one in shares), (share, chain)]
            mean = (1 - share) * mean + share * weights
            length = (1 - share) * length + share * bare_s
            paid, mixes = self._cheapest(mean)
            now = (length + paid + self.rest_s) * SAFETY - self.rounding_s
            stuck = number > FEW and now < best * (1 + GAIN)
            if now > best:
                best, best_mean = now, MeanOfChains(tuple(shares), tuple(self._last))
            if best >= min(enough_s, step_s) or (stuck and best < enough_s * HOPELESS):
                break
        plan = evaluate(self.problem, stages) if stages else None
        return MixAnswer(best, step_s, plan, knapsacks=self._solved, mean=best_mean)

    def bound_s(self, known: MeanOfChains) -> float:
        """The bound by a mean of chains that another split of the same shape has."""
        mean, length = np.zeros(self.problem.chunks), 0.0
        none = _Mixes(mean, EMPTY[0], EMPTY[0])
        for share, chain in known.chains:
            weights, bare_s = self._weighed(chain, none)
            mean, length = mean + share * weights, length + share * bare_s
        self._round, self._last = 1, list(known.covers)
        paid, mixes = self._cheapest(mean)
        if not math.isfinite(mixes.added_s.sum()):
            return math.inf
        return (length + paid + self.rest_s) * SAFETY - self.rounding_s

    def _tried(self, mixes: _Mixes, weights: Floats) -> tuple[float, tuple[Stage, ...]]:
        """The simulated step of `mixes`, or of such that save more on the ranks that do not fit."""
        mixes, more_kib = mixes.copied(), dict[int, float]()
        for _ in range(REPAIRS):
            lacks = self.peaks.peaks_kib(mixes.full, mixes.selective) - self.problem.cap_kib
            lacking = np.flatnonzero(lacks > 0).tolist()
            if not lacking:
                stages = self._stages(mixes)
                return self.times.step_s(stages), stages
            for rank in lacking:
                more_kib[rank] = more_kib.get(rank, 0.0) + float(lacks[rank])
            asked = [_Asked(rank, self._last[rank], more_kib[rank]) for rank in lacking]
            self._written(asked, weights, mixes)
            if not math.isfinite(mixes.added_s.sum()):
                break
        return math.inf, ()

    def _stages(self, mixes: _Mixes) -> tuple[Stage, ...]:
        columns = zip(self.bare, mixes.full.tolist(), mixes.selective.tolist(), strict=True)
        return tuple(Stage(stage.layers, selective, full) for stage, full, selective in columns)

    def _longest(self, mixes: _Mixes) -> Chain:
        """The longest chain under `mixes`."""
        work = self.work
        slower = Work(
            work.forward_s,
            tuple(a + b for a, b in zip(work.input_grad_s, mixes.added_s.tolist(), strict=True)),
            work.weight_grad_s, work.send_s,
        )  # fmt: skip
        reduce_s = self.times.after_s(self._stages(mixes)).reduce_s
        return longest_chain(*self.shape, slower, reduce_s)

    def _weighed(self, chain: Chain, mixes: _Mixes) -> tuple[Floats, float]:
        """How often a chain has each chunk's backward, and its length without what is added; with
        what its last rank reduces, each as `_reduced` weighs it.
        """
        counts = np.array(chain.counts, float).reshape(4, self.problem.chunks)
        weights, reduced_s = self._reduced(chain.rank, counts[1] + counts[2], mixes)
        return weights, chain.length_s(self.work) + reduced_s

    def _reduced(self, rank: int, weights: Floats, mixes: _Mixes) -> tuple[Floats, float]:
        """A lower bound of what a chain's last rank reduces, linear in what its chunks recompute.

        Either what it reduces at least, or what it reduces with nothing recomputed, less what its
        last backwards hide more as they get longer.
        """
        at_least_s, (share, beyond_s) = self.reduce_s[rank], self._hidden_more
        chunks = list(self.problem.chunks_of_rank[rank])
        reduced_s = self.times.reduced_s(self.bare, rank, beyond_s[rank])
        if reduced_s - share * float(mixes.added_s[chunks].sum()) <= at_least_s:
            return weights, at_least_s
        less = weights.copy()
        less[chunks] -= share
        return less, reduced_s

    @cached_property
    def _hidden_more(self) -> tuple[float, list[float]]:
        """`CutTimes.hidden_more` of each rank."""
        p = self.problem
        share, of_kind = self.times.hidden_more(p.modes)
        of_chunk = self._of_chunks(np.array(of_kind))
        return share, of_chunk[np.array(p.chunks_of_rank)].sum(axis=1).tolist()

    @cached_property
    def _most_s(self) -> Floats:
        """[chunk] what its layers take more at most, each in its slowest mode."""
        times = np.array(self.problem.layer_ns)[:, list(self.problem.modes)]
        return self._of_chunks((times.max(axis=1) - times.min(axis=1)) / NS_PER_S)

    def _of_chunks(self, of_kind: Floats) -> Floats:
        """[chunk] the sum over its layers, of which it may have none, of [kind] values."""
        until = np.concatenate([[0.0], of_kind[list(self.problem.pattern)].cumsum()])
        found: Floats = np.diff(until[np.array(self._starts)])
        return found

    def _cheapest(self, weights: Floats) -> tuple[float, _Mixes]:
        """The least weighed recomputation with which every rank fits, in seconds; and which.

        A chunk whose weight is negative recomputes all that it can.
        """
        chunks = self.problem.chunks
        least = min(self.problem.modes)
        layers = np.array([stage.layers for stage in self.bare])
        mixes = _Mixes(np.zeros(chunks), layers * (least == 2), layers * (least == 1))
        asked = [
            _Asked(rank, which, 0.0)
            for rank in range(self.problem.pp)
            for which in ([self._last[rank]] if self._round % ALL_COVERS else self._covers[rank])
        ]
        paid = sum(self._written(asked, np.maximum(weights, 0.0), mixes))
        for chunk in np.flatnonzero(weights < 0).tolist():
            ns, _, mixes.full[chunk], mixes.selective[chunk] = self._choices(
                chunk, self.problem.modes
            )[:, -1]
            mixes.added_s[chunk] = ns / NS_PER_S
        return paid + float(np.minimum(weights, 0.0) @ self._most_s), mixes

    def _written(self, asked: Sequence[_Asked], weights: Floats, mixes: _Mixes) -> list[float]:
        """Of each rank the least weighed seconds by what asks most of it, whose answer is written
        into `mixes`.
        """
        self._solved += 1
        numbers, knapsacks = self._knapsacks(tuple(asked))
        held = [list(self.problem.chunks_of_rank[each.rank]) for each in asked]
        at = [held[number] for number in numbers]
        solved = knapsacks.least(weights[np.array(at, np.int64).reshape(-1, self.problem.vpp)])
        best: dict[int, tuple[float, int]] = {}  # of what is asked: by how large a transient
        for number, (of, ns) in enumerate(zip(numbers, solved.least_ns.tolist(), strict=True)):
            if ns < best.get(of, (math.inf, -1))[0]:
                best[of] = ns, number
        hardest: dict[int, int] = {}  # of a rank: by which cover
        for of, each in enumerate(asked):
            known = hardest.get(each.rank)
            least_ns = best.get(of, (math.inf, -1))[0]
            if known is None or least_ns > best.get(known, (math.inf, -1))[0]:
                hardest[each.rank], self._last[each.rank] = of, each.which
        found = []
        for of in hardest.values():
            ns, number = best.get(of, (math.inf, -1))
            if number < 0:
                mixes.added_s[held[of]] = math.inf
            else:
                ways = solved.chosen(number)
                mixes.added_s[held[of]] = ways[0] / NS_PER_S
                mixes.full[held[of]], mixes.selective[held[of]] = ways[2], ways[3]
            found.append(ns / NS_PER_S)
        return found

    def _knapsacks(self, asked: tuple[_Asked, ...]) -> tuple[list[int], Knapsacks]:
        """Of all that is asked, by each transient that a rank's largest may be; and what each is
        of. Those of the last few are kept.
        """
        if asked not in self._known:
            while len(self._known) >= MOST_KNOWN:
                self._known.pop(next(iter(self._known)))
            pairs = [
                (of, one) for of, each in enumerate(asked) for one in self._knapsacks_kept(each)
            ]
            self._known[asked] = [of for of, _ in pairs], Knapsacks([one for _, one in pairs])
        return self._known[asked]

    def _knapsacks_kept(self, asked: _Asked) -> Sequence[Knapsack]:
        """`_knapsacks_of`; without repairs they are asked again and again, and kept."""
        if asked.more_kib:
            return list(self._knapsacks_of(asked))
        if asked not in self._unrepaired:
            self._unrepaired[asked] = list(self._knapsacks_of(asked))
        return self._unrepaired[asked]

    def _knapsacks_of(self, asked: _Asked) -> Iterator[Knapsack]:
        """The smallest transient first."""
        p, (rank, which, more_kib) = self.problem, asked
        lack = float(self.pairs.lacks_kib(rank, which)[0]) + more_kib
        transients = self._transients[p.chunks - 1 in p.chunks_of_rank[rank]]
        for transient, allowed in transients:
            ways = self._ways_of(rank, allowed)
            if ways.size:
                more = transient - transients[0][0]
                yield Knapsack.of(ways, p.shape.covers[which, rank], lack + more)

    @cached_property
    def _transients(self) -> list[list[tuple[int, Counts]]]:
        """The transients that may be the largest of a rank, ascending, and the modes that have no
        larger one; of a rank without the head, and of that with it.
        """
        p, found = self.problem, list[list[tuple[int, Counts]]]()
        for floor in (0, p.head.transient_kib):
            sizes = sorted({max(floor, p.transient_kib[mode]) for mode in p.modes})
            found.append(
                [
                    (size, tuple(mode for mode in p.modes if p.transient_kib[mode] <= size))
                    for size in sizes
                ]
            )
        return found

    def _ways_of(self, rank: int, allowed: Counts) -> Ints:
        """[.., chunk, way] the `choices_of` each chunk, the last one again where it has fewer;
        empty where a chunk has none. The same of ranks that hold the same.
        """
        held = self._kinds_of_rank[rank]
        if (held, allowed) not in self._ways:
            found = [self._choices(chunk, allowed) for chunk in self.problem.chunks_of_rank[rank]]
            number = np.array([each.shape[1] for each in found])
            at = np.minimum(np.arange(number.max()), number[:, None] - 1)
            rows = [each[:, some] for each, some in zip(found, at, strict=True) if each.size]
            self._ways[held, allowed] = np.stack(rows, axis=1) if number.all() else EMPTY
        return self._ways[held, allowed]

    @cached_property
    def _kinds_of_rank(self) -> list[int]:
        """Of each rank a number, the same where the kinds of its chunks' layers are."""
        known, numbers = dict[tuple[Counts, ...], int](), list[int]()
        for chunks in self.problem.chunks_of_rank:
            kinds = tuple(map(self._kinds_of, chunks))
            numbers.append(known.setdefault(kinds, len(known)))
        return numbers

    def _kinds_of(self, chunk: int) -> Counts:
        return self.problem.pattern[self._starts[chunk] : self._starts[chunk + 1]]

    def _choices(self, chunk: int, allowed: Counts) -> Ints:
        kinds = self._kinds_of(chunk)
        if (kinds, allowed) not in self._choices_of:
            self._choices_of[kinds, allowed] = choices_of(self.problem, kinds, allowed)
        return self._choices_of[kinds, allowed]

    @cached_property
    def _covers(self) -> list[list[int]]:
        """Of each rank the covers by which it lacks anything, or that by which it lacks most."""
        p, pairs = self.problem, self.pairs
        covers, few = range(len(p.shape.covers)), p.chunks <= MOST_CHUNKS
        lacks = [
            [float(pairs.lacks_kib(rank, which)[0]) for which in covers] for rank in range(p.pp)
        ]
        return [
            [which for which in covers if few and of_rank[which] > 0] or [int(np.argmax(of_rank))]
            for of_rank in lacks
        ]
