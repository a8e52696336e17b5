"""One split with several chunks per rank, exactly: the mixes of recomputation under which its
simulated step is shortest.

    x[v, w]   chunk v runs in way w, one of each chunk. Minimise t, in `GRAIN`s of the limit
    memory    of each rank, under each in-flight vector: what its chunks keep, and the largest
              transient of their ways, fit
    chains    the longest chain of each answer:  t >= its seconds under x + after(s) where s ends
              it; until an answer takes no longer than its bound (cutting planes)
    after     what s reduces less what its last backwards hide under x, by each line of that
              (`CutTimes.reduced_lines_s`); the update

All are linear in x and rounded down, so that the least t is a bound; what has it is a plan. Means
of chains (`planner.cuts.recompute_chains`) cost less, but look at one cover of a rank at a time,
and stay below what whole layers can do.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from meshplan.costmodels.layout import Stage
from meshplan.costmodels.layouts import Floats, Ints
from meshplan.costmodels.schedule.long_chain import longest_chain
from meshplan.costmodels.schedule.program import Chain
from meshplan.costmodels.step.cut_times import After, CutTimes
from meshplan.planner.cuts.known_chains import shape_of
from meshplan.planner.cuts.recompute_chains import MixAnswer
from meshplan.planner.problem.recompute_mixes import mixes
from meshplan.planner.problem.split_peaks import SplitPeaks
from meshplan.planner.problem.stage_problem import StageProblem, evaluate, starts_of
from meshplan.planner.stages.cpsat import Solved, new_model, solve_model, weighted_sum

GRAIN = 1e-9  # the unit of time in the model, as a fraction of the limit
ROUNDING = 1e-6  # of a grain: by which sums in another order may differ
ROUNDS, MOST_S = 12, 0.5  # rounds of cutting planes; deterministic seconds of CP-SAT at most
PASSES, ROOM = slice(3), 4  # fields of a `CutTimes.load`
ENOUGH = 1 - 1e-7  # times a step: a bound that near is taken for it


class Ways(NamedTuple):
    """The ways to recompute in a chunk, [way], without those that another way dominates.

    kept_kib   of a micro-batch       load_s   [way, ..] `CutTimes.load`
    """

    full: Ints
    selective: Ints
    transient_kib: Ints
    kept_kib: Ints
    load_s: Floats

    @classmethod
    def of(cls, problem: StageProblem, times: CutTimes, peaks: SplitPeaks, chunk: int) -> "Ways":
        """Those of one chunk of a split."""
        first, end = int(peaks.first[chunk]), int(peaks.end[chunk])
        full, selective, transient = mixes(end - first, problem.modes, problem.transient_kib)
        kept = peaks.kept_kib(np.full(len(full), chunk), full, selective)
        kinds, last = problem.pattern[first:end], problem.chunks - 1
        load = np.array([
            times.load((kinds, some, all_, chunk == 0, chunk == last))
            for some, all_ in zip(selective.tolist(), full.tolist(), strict=True)
        ])  # fmt: skip
        costs = np.column_stack([load[:, PASSES], -load[:, ROOM], kept, transient])
        best = _undominated(costs)
        return cls(full[best], selective[best], transient[best], kept[best], load[best])


def _undominated(costs: Floats) -> Ints:
    """The rows of which no other one is nowhere higher; of equal ones the first."""
    below = (costs[:, None] <= costs[None]).all(axis=2)
    number = np.arange(len(costs))
    beaten = below & (~below.T | (number[:, None] < number))
    found: Ints = np.flatnonzero(~beaten.any(axis=0))
    return found


class ExactMixes:
    """The model of one split, whose step has to be below `limit_s`."""

    def __init__(
        self,
        problem: StageProblem,
        times: CutTimes,
        bare: tuple[Stage, ...],
        after: After,
        limit_s: float,
    ) -> None:
        self.problem, self.times, self.bare = problem, times, bare
        self.limit_s, self.grain_s = limit_s, limit_s * GRAIN
        self.peaks = SplitPeaks(problem, starts_of(bare))
        self.ways = [Ways.of(problem, times, self.peaks, v) for v in range(problem.chunks)]
        self.reduced_s, self.rest_s = times.reduced_lines_s(bare), after.rest_s
        self.shape = shape_of(problem)
        self.model = new_model()
        self.chosen = [[self.model.new_bool_var("") for _ in each.full] for each in self.ways]
        for chunk in self.chosen:
            self.model.add_exactly_one(chunk)
        self.step = self.model.new_int_var(0, round(1 / GRAIN) - 1, "")
        self.model.minimize(self.step)
        for rank in range(problem.pp):
            self._fits(rank)

    def answer(self, known: Iterable[Chain], most_s: float = MOST_S) -> MixAnswer:
        """The least step, as far as it is below the limit: `known` chains are a beginning. It takes
        `most_s` deterministic seconds.
        """
        for chain in known:
            self._follow(chain)
        bound_s, step_s, plan, left_s = 0.0, math.inf, None, most_s
        for _ in range(ROUNDS):
            solved = solve_model(self.model, left_s)
            left_s -= solved.seconds
            if solved.status == "INFEASIBLE":
                bound_s = min(step_s, self.limit_s)
                break
            bound_s = max(bound_s, solved.bound * self.grain_s)
            if not solved.found:
                break
            stages = self._stages(solved)
            found_s = self.times.step_s(stages)
            if found_s < step_s:
                step_s, plan = found_s, evaluate(self.problem, stages)
            if bound_s >= step_s * ENOUGH or left_s <= 0:
                break
            after_s = self.times.after_s(stages).reduce_s
            self._follow(longest_chain(*self.shape, self.times.work(stages), after_s))
        return MixAnswer(min(bound_s, step_s), step_s, plan, most_s - left_s)

    def _fits(self, rank: int) -> None:
        """What the rank holds in each vector, and its largest transient, fit."""
        peaks, chunks = self.peaks, list(self.problem.chunks_of_rank[rank])
        room = self.problem.cap_kib - int(peaks.static_kib[rank])
        if peaks.update_kib[rank] > room:
            self.model.add_bool_or([])
        levels = sorted({
            max(int(peaks.ends_transient_kib[chunks].max()), kib)
            for chunk in chunks for kib in self.ways[chunk].transient_kib.tolist()
        })  # fmt: skip
        reached = [self.model.new_bool_var("") for _ in levels[1:]]
        for chunk in chunks:
            for way, kib in zip(self.chosen[chunk], self.ways[chunk].transient_kib, strict=True):
                for there in reached[: bisect_right(levels, kib, 1) - 1]:
                    self.model.add_implication(way, there)
        flat, steps = self._flat(chunks), np.diff(levels).tolist()
        for vector in self.problem.shape.matrices[rank]:
            kept = [n * self.ways[chunk].kept_kib for n, chunk in zip(vector, chunks, strict=True)]
            held = np.concatenate(kept).tolist() + steps
            self.model.add(weighted_sum(flat + reached, held) <= room - levels[0])

    def _follow(self, chain: Chain) -> None:
        """The step lasts as long as a chain, and what its last rank reduces then."""
        often = np.array(chain.counts, float).reshape(4, -1)
        chunks, held = range(self.problem.chunks), self.problem.chunks_of_rank[chain.rank]
        for reduced_s, passes in self.reduced_s[chain.rank]:
            taken = [
                each
                for v in chunks
                for each in self._grains_taken(v, often[:, v], passes * (v in held))
            ]
            fixed = self._grains(chain.hops * self.times.hop_s + reduced_s + self.rest_s)
            self.model.add(self.step >= fixed + weighted_sum(self._flat(chunks), taken))

    def _grains_taken(self, chunk: int, often: Floats, hides: float) -> list[int]:
        """[way] grains of so many F, B, I and W of a chunk, less what so many backwards hide."""
        forward, both, input_grad, weight_grad = often.tolist()
        rates = np.array([forward, both + input_grad, both + weight_grad])
        load_s = self.ways[chunk].load_s
        seconds = load_s[:, PASSES] @ rates - hides * load_s[:, ROOM]
        return [self._grains(each) for each in seconds + rates[:2].sum() * self.times.extra_s]

    def _grains(self, seconds: float) -> int:
        return math.floor(seconds / self.grain_s - ROUNDING)

    def _flat(self, chunks: Iterable[int]) -> list[Any]:
        return [way for chunk in chunks for way in self.chosen[chunk]]

    def _stages(self, solved: Solved) -> tuple[Stage, ...]:
        """The split with the ways that were chosen."""
        stages = []
        for stage, ways, chosen in zip(self.bare, self.ways, self.chosen, strict=True):
            way = [solved.value(each) for each in chosen].index(1)
            stages.append(Stage(stage.layers, int(ways.selective[way]), int(ways.full[way])))
        return tuple(stages)
