"""The fastest mix of recomputation of one cut that fits when every moment is counted.

What a rank holds does not depend on what the others recompute. So of each rank those mixes of its
chunks are found that fit by every moment (`costmodels.step.memory.needs_of_mixes`), the fastest
first, none of them slower in all chunks than another; only of those that fit by a memory that is
not above what they hold, and only where the fastest of these together are fast enough. Of those of
all ranks together each is simulated where they are few; else, from the fastest of each rank, one
rank is changed after the other as long as the step gets shorter.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import compress, product

import numpy as np

from meshplan.costmodels.layout import RecomputeModule, Stage
from meshplan.costmodels.layouts import Floats
from meshplan.costmodels.step.cut_times import CutTimes
from meshplan.costmodels.step.memory import needs_of_mixes
from meshplan.costmodels.step.step import StepModel
from meshplan.planner.problem.coefficients import KIB
from meshplan.planner.problem.recompute_mixes import mixes
from meshplan.planner.problem.split_peaks import SplitPeaks
from meshplan.planner.problem.stage_problem import StagePlan, StageProblem, evaluate, starts_of

COUNTED, PLAYED, WEIGHED = 5_000, 2_000, 100
"""Work, in played actions: of a mix of a rank whose moments are counted, a step, and any mix."""
DEEP = 4  # ranks, with each of which a rank has as many moments more
MOST_MIXES, MOST_OF_ONE = 512, 1024  # of one rank, of several chunks and of one
MOST_TOGETHER = 128  # mixes of all ranks of which each is simulated
ENDLESS_KIB = 2**50
Mix = tuple[Stage, ...]


class CountedMixes:
    """One cut, `bare`, of `problem`; `least` is the same with a memory that is not above what ranks
    hold. `work` of the budget was spent on it.
    """

    def __init__(
        self,
        problem: StageProblem,
        least: StageProblem,
        times: CutTimes,
        bare: tuple[Stage, ...],
        replayed: tuple[RecomputeModule, ...],
    ) -> None:
        self.problem, self.least, self.times, self.bare = problem, least, times, bare
        layout = replace(times.layout, stages=bare, selective_modules=replayed)
        self.model, self.work = StepModel(times.model.setting, layout), 0
        self.fillable_bytes = self.model.setting.cluster.fillable_bytes
        self.peaks = SplitPeaks(least, starts_of(bare))

    def fastest(self, limit_s: float, most_work: int) -> StagePlan | None:
        """The plan whose step is shortest of those below the limit, None if there is none or it
        would take too much work.
        """
        p = self.problem
        held = [[self.bare[chunk].layers for chunk in chunks] for chunks in p.chunks_of_rank]
        if not all(has_few_mixes(layers, p.modes) for layers in held):
            return None
        if WEIGHED * sum(mixes_of_rank(layers, p.modes) for layers in held) > most_work:
            return None
        likely = [self._likely(rank) for rank in range(p.pp)]
        if not all(likely) or self._step_s(tuple(each[0][1] for each in likely)) >= limit_s:
            return None
        fitting = list[list[Mix]]()
        for rank, mixes_of in enumerate(likely):
            fitting.append(self._fitting(rank, mixes_of, limit_s))
            if not fitting[-1] or self.work > most_work:
                return None
        many = math.prod(map(len, fitting)) > MOST_TOGETHER
        found = self._climbed(fitting) if many else product(*fitting)
        timed = ((self._step_s(each), each) for each in found)
        step_s, ranks = min(timed, key=lambda each: each[0])
        return self._plan(ranks) if step_s < limit_s else None

    def _likely(self, rank: int) -> list[tuple[Floats, Mix]]:
        """The mixes of a rank that may fit, the fastest first, with the seconds of each chunk."""
        chunks = list(self.problem.chunks_of_rank[rank])
        every = [_joined(ways) for ways in product(*map(self._ways, chunks))]
        full, selective = np.zeros((2, len(every), len(self.bare)), np.int64)
        full[:, chunks] = [[stage.full_layers for stage in mix] for _, mix in every]
        selective[:, chunks] = [[stage.selective_layers for stage in mix] for _, mix in every]
        fits = self.peaks.peaks_kib(full, selective)[:, rank] <= self.least.cap_kib
        self.work += WEIGHED * len(every)
        return sorted(compress(every, fits.tolist()), key=lambda each: each[0].sum())

    def _fitting(self, rank: int, likely: list[tuple[Floats, Mix]], limit_s: float) -> list[Mix]:
        """Those that fit whose micro-batches all together take less than the limit, none slower in
        all chunks than one before it.
        """
        needed = needs_of_mixes(self.model, rank)
        found, kept = list[Mix](), np.zeros((0, len(self.problem.chunks_of_rank[rank])))
        waits_s = 2 * self.problem.vpp * self.times.extra_s
        for added_s, mix in likely:
            if self.problem.m * (added_s.sum() + waits_s) >= limit_s:
                break
            if (kept <= added_s).all(axis=1).any():
                continue
            self.work += COUNTED * (1 + self.problem.pp // DEEP)
            if needed(mix) <= self.fillable_bytes:
                found.append(mix)
                kept = np.vstack([kept, added_s])
        return found

    def _ways(self, chunk: int) -> list[tuple[float, Stage]]:
        """The mixes of a chunk, with the seconds of a micro-batch."""
        p = self.problem
        layers, last = self.bare[chunk].layers, p.chunks - 1
        first = sum(stage.layers for stage in self.bare[:chunk])
        kinds, found = p.pattern[first : first + layers], list[tuple[float, Stage]]()
        full, selective, _ = mixes(layers, p.modes, p.transient_kib)
        for stage in map(Stage, [layers] * len(full), selective.tolist(), full.tolist()):
            key = kinds, stage.selective_layers, stage.full_layers, chunk == 0, chunk == last
            found.append((sum(self.times.load(key)[:3]), stage))
        return found

    def _climbed(self, fitting: list[list[Mix]]) -> Iterator[tuple[Mix, ...]]:
        """From the fastest mix of each rank, each of the others in the place of one, kept where it
        makes the step shorter.
        """
        now = tuple(each[0] for each in fitting)
        step_s = self._step_s(now)
        for rank, mixes_of_rank in enumerate(fitting):
            for mix in mixes_of_rank[1:]:
                tried = (*now[:rank], mix, *now[rank + 1 :])
                tried_s = self._step_s(tried)
                if tried_s < step_s:
                    now, step_s = tried, tried_s
        yield now

    def _step_s(self, ranks: tuple[Mix, ...]) -> float:
        self.work += PLAYED
        return self.times.step_s(self._stages(ranks))

    def _stages(self, ranks: tuple[Mix, ...]) -> tuple[Stage, ...]:
        """In model order."""
        stages = list(self.bare)
        for chunks, mix in zip(self.problem.chunks_of_rank, ranks, strict=True):
            for chunk, stage in zip(chunks, mix, strict=True):
                stages[chunk] = stage
        return tuple(stages)

    def _plan(self, ranks: tuple[Mix, ...]) -> StagePlan | None:
        """With what each rank needs instead of the bound."""
        p = self.problem
        endless = replace(p, prices=replace(p.prices, cap_kib=ENDLESS_KIB))
        priced = evaluate(endless, self._stages(ranks))
        peaks = tuple(
            math.ceil(needs_of_mixes(self.model, rank)(mix) / KIB) for rank, mix in enumerate(ranks)
        )
        return replace(priced, peak_kib=peaks) if priced else None


def mixes_of_rank(layers: Iterable[int], modes: tuple[int, ...]) -> int:
    """How many mixes a rank has whose chunks hold so many layers: of three modes the layers in the
    first and the second decide, of two those in one.
    """
    return math.prod(math.comb(n + len(modes) - 1, len(modes) - 1) for n in layers)


def has_few_mixes(layers: Sequence[int], modes: tuple[int, ...]) -> bool:
    """Whether all of them are looked at."""
    return mixes_of_rank(layers, modes) <= (MOST_OF_ONE if len(layers) == 1 else MOST_MIXES)


def _joined(ways: tuple[tuple[float, Stage], ...]) -> tuple[Floats, Mix]:
    """Of each chunk of a rank its seconds, and its stage."""
    return np.array([added_s for added_s, _ in ways]), tuple(stage for _, stage in ways)
