"""One cut with several chunks per rank, where every moment is counted: its fastest mix that fits.

Each rank has some ways that fit (`planner.search.simulation.counted_ranks`). A step lasts at least
as long as where each chunk is as fast as in the rank's fastest way for that chunk alone. From there
ranks are decided one after the other: each way of the next rank makes a case with a bound of its
own, the case with the smallest bound goes on, and one in which all ranks are decided is a plan.
"""

import heapq
import math
from collections.abc import Collection, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layout import Stage
from meshplan.costmodels.layouts import Floats
from meshplan.costmodels.schedule.actions import Work
from meshplan.costmodels.schedule.simulation import end_s
from meshplan.costmodels.step.cut_times import CutTimes
from meshplan.planner.bounds.simulated import SAFETY
from meshplan.planner.cuts.known_chains import Shape, actions_of, shape_of
from meshplan.planner.problem.stage_problem import StageProblem, starts_of
from meshplan.planner.search.simulation.counted_ranks import CountedRanks, RankWays
from meshplan.planner.search.simulation.cut_mixes import more_is_slower, ranks_it_pays

MOST_PLAYED = 64  # steps of a cut
FEWEST_ACTIONS = 500  # a shorter step takes no less time


class CutAnswer(NamedTuple):
    """A lower bound of a cut's step, infinite where it is not below the limit, and the mix that has
    a step below it, if one was found; so many steps were `played`.
    """

    bound_s: float
    stages: tuple[Stage, ...] | None
    played: int


class CountedCut:
    """The cut `bare`, with nothing recomputed."""

    def __init__(
        self,
        problem: StageProblem,
        times: CutTimes,
        ranks: CountedRanks,
        bare: tuple[Stage, ...],
        limit_s: float,
        most_played: int = MOST_PLAYED,
    ) -> None:
        self.problem, self.times, self.ranks = problem, times, ranks
        self.bare, self.limit_s, self.played, self.most_played = bare, limit_s, 0, most_played
        self.after = times.least_after_s(bare, range(problem.pp), limit_s)
        self.bare_work, self.bare_s = times.work(bare), 0.0
        self._pays = ranks_it_pays(bare, problem.modes, times, limit_s)
        self._unsure_s = math.inf  # of mixes than which one that recomputes more may be faster
        self._steps_s = dict[bytes, float]()

    @property
    def shape(self) -> Shape:
        """What decides the order of its actions."""
        return shape_of(self.problem)

    @property
    def work(self) -> int:
        """The actions that were played."""
        return self.played * max(FEWEST_ACTIONS, actions_of(self.shape))

    def play_bare(self) -> float:
        """A lower bound of its step in any mix: with nothing recomputed."""
        self.bare_s = self._played_s(np.zeros(self.problem.chunks))
        return self.bare_s

    def answer(self, by_rank_s: Floats) -> CutAnswer:
        """The fastest mix below the limit; `by_rank_s` is the longest known chain of each rank with
        nothing recomputed. `play_bare` before it may settle the cut.
        """
        if self.bare_s >= self.limit_s:
            return CutAnswer(math.inf, None, self.played)
        found = self._answer(by_rank_s, frozenset())
        least_s = min(found.bound_s, self._unsure_s)
        if math.isinf(self._unsure_s):
            return found
        more = self._answer(by_rank_s, self._pays)
        return CutAnswer(max(more.bound_s, least_s), more.stages or found.stages, self.played)

    def _answer(self, by_rank_s: Floats, pays: Collection[int]) -> CutAnswer:
        """The answer if some ranks may recompute more than others would in no chunk."""
        ways, bound_s = self._ways(by_rank_s, pays)
        if ways is None:
            return CutAnswer(max(self.bare_s, bound_s), None, self.played)
        return self._searched(ways)

    def _ways(
        self, by_rank_s: Floats, pays: Collection[int]
    ) -> tuple[list[RankWays] | None, float]:
        """Of each rank; none where the cut is settled, or a rank has too many ways: with a bound.
        First is asked the rank that settled another cut.
        """
        p, starts, found = self.problem, starts_of(self.bare), dict[int, RankWays]()
        each_s, bound_s = p.m * SAFETY, 0.0
        rest_s = (self.limit_s - by_rank_s) / each_s
        killer = self.ranks.killer
        for rank in (killer, *np.argsort(rest_s, kind="stable").tolist()):
            if rank not in found and rest_s[rank] >= 0:
                spans = self.ranks.spans(rank, starts)
                found[rank] = self.ranks.ways(rank, spans, float(rest_s[rank]), every=rank in pays)
                bound_s = max(bound_s, float(by_rank_s[rank] + each_s * found[rank].least_s))
            if rest_s[rank] < 0 or bound_s >= self.limit_s:
                self.ranks.killer = rank
                return None, math.inf
        if not all(ways.every for ways in found.values()):
            return None, bound_s
        return [found[rank] for rank in range(p.pp)], bound_s

    def _searched(self, ways: list[RankWays]) -> CutAnswer:
        """Best first; of those that take equally long at least, the one with most ranks decided."""
        best_s, best, left_s = self.limit_s, None, math.inf
        number, open_ = count(), list[tuple[float, int, int, tuple[int, ...]]]()
        fastest = self._by_chunk([each.added_s.min(axis=0) for each in ways])

        def push(decided: tuple[int, ...]) -> None:
            step_s = self._least_s(ways, decided, fastest)
            if step_s < self.limit_s:
                heapq.heappush(open_, (step_s, -len(decided), next(number), decided))

        push(())
        while open_:
            step_s, _, _, decided = heapq.heappop(open_)
            if step_s >= best_s:
                break
            if self.played > self.most_played:
                left_s = step_s
                break
            if len(decided) == len(ways):
                stages = self._stages(ways, decided)
                found_s = self.times.step_s(stages)
                if found_s < best_s:
                    best_s, best = found_s, stages
                if self._pays and not more_is_slower(self.problem, self.times, stages):
                    self._unsure_s = min(self._unsure_s, step_s)
                continue
            for way in range(len(ways[len(decided)].added_s)):
                push((*decided, way))
        return CutAnswer(left_s if left_s < best_s else math.inf, best, self.played)

    def _least_s(
        self, ways: Sequence[RankWays], decided: tuple[int, ...], fastest_s: Floats
    ) -> float:
        """The step with the first ranks in these ways, and each other chunk as fast as it can:
        known where the way of the last of them is the fastest for all of its chunks.
        """
        added_s = fastest_s.copy()
        for of_rank, way, held in zip(ways, decided, self.problem.chunks_of_rank, strict=False):
            added_s[list(held)] = of_rank.added_s[way]
        key = added_s.tobytes()
        if key not in self._steps_s:
            self._steps_s[key] = self._played_s(added_s)
        return self._steps_s[key]

    def _by_chunk(self, of_ranks: Sequence[Floats]) -> Floats:
        """[chunk] of what is said of the chunks of each rank."""
        found = np.zeros(self.problem.chunks)
        for each, held in zip(of_ranks, self.problem.chunks_of_rank, strict=True):
            found[list(held)] = each
        return found

    def _played_s(self, added_s: Floats) -> float:
        """A lower bound of the step whose chunks take at least so much more of a micro-batch."""
        self.played += 1
        work, la = self.bare_work, self.times.layout
        slower = Work(
            work.forward_s,
            tuple(a + b for a, b in zip(work.input_grad_s, added_s.tolist(), strict=True)),
            work.weight_grad_s, work.send_s,
        )  # fmt: skip
        m = self.problem.m
        ends = end_s(la.schedule, la.pipeline_parallel, la.virtual_stages, m, slower)
        last = max(end + after for end, after in zip(ends, self.after.reduce_s, strict=True))
        rounding_s = (m + 1) * len(self.problem.pattern) * 1e-9
        return (last + self.after.rest_s) * SAFETY - rounding_s

    def _stages(self, ways: Sequence[RankWays], decided: tuple[int, ...]) -> tuple[Stage, ...]:
        stages = list(self.bare)
        for of_rank, way, held in zip(ways, decided, self.problem.chunks_of_rank, strict=True):
            full, selective = of_rank.full[way].tolist(), of_rank.selective[way].tolist()
            for chunk, f, s in zip(held, full, selective, strict=True):
                stages[chunk] = Stage(stages[chunk].layers, s, f)
        return tuple(stages)
