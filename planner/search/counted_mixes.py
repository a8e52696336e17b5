"""The fastest mix of recomputation of one cut that fits when every moment is counted.

What a rank holds does not depend on what the others recompute. So of each rank those mixes of its
chunks are found that fit by every moment (`costmodels.step.memory.needs_of_mixes`), the fastest
first, none of them slower in all chunks than another. Of those of all ranks together each is
simulated where they are few; else, from the fastest of each rank, one rank is changed after the
other as long as the step gets shorter.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from meshplan.costmodels.layout import RecomputeModule, Stage
from meshplan.costmodels.layouts import Floats
from meshplan.costmodels.step.cut_times import CutTimes
from meshplan.costmodels.step.memory import needs_of_mixes
from meshplan.costmodels.step.step import StepModel
from meshplan.planner.problem.coefficients import KIB
from meshplan.planner.problem.recompute_mixes import mixes
from meshplan.planner.problem.stage_problem import StagePlan, StageProblem, evaluate

COUNTED, PLAYED = 3_000, 1_500  # work of a rank's mix, and of a step, in played actions
MOST_MIXES = 1_024  # of one rank
MOST_TOGETHER = 128  # mixes of all ranks of which each is simulated
ENDLESS_KIB = 2**50
Mix = tuple[Stage, ...]


class CountedMixes:
    """One cut, `bare`, of `problem`; `work` of the budget was spent on it."""

    def __init__(
        self,
        problem: StageProblem,
        times: CutTimes,
        bare: tuple[Stage, ...],
        replayed: tuple[RecomputeModule, ...],
    ) -> None:
        self.problem, self.times, self.bare, self.work = problem, times, bare, 0
        layout = replace(times.layout, stages=bare, selective_modules=replayed)
        self.model = StepModel(times.model.setting, layout)
        self.fillable_bytes = self.model.setting.cluster.fillable_bytes

    def fastest(self, limit_s: float) -> StagePlan | None:
        """The plan whose step is shortest of those below the limit, None if there is none."""
        fitting = [self._fitting(rank) for rank in range(self.problem.pp)]
        if not all(fitting):
            return None
        many = math.prod(map(len, fitting)) > MOST_TOGETHER
        found = self._climbed(fitting) if many else product(*fitting)
        step_s, ranks = min(
            ((self._step_s(each), each) for each in found), key=lambda timed: timed[0]
        )
        return self._plan(ranks) if step_s < limit_s else None

    def _fitting(self, rank: int) -> list[Mix]:
        """The mixes of a rank that fit, the fastest first; none slower in all chunks than one
        before it. Nothing where there are too many to look at.
        """
        chunks = self.problem.chunks_of_rank[rank]
        ways = [self._ways(chunk) for chunk in chunks]
        if math.prod(map(len, ways)) > MOST_MIXES:
            return []
        needed = needs_of_mixes(self.model, rank)
        found, kept = list[Mix](), np.zeros((0, len(chunks)))
        for added_s, mix in sorted(map(_joined, product(*ways)), key=lambda each: sum(each[0])):
            if (kept <= np.array(added_s)).all(axis=1).any():
                continue
            self.work += COUNTED
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


def _joined(ways: tuple[tuple[float, Stage], ...]) -> tuple[Floats, Mix]:
    """Of each chunk of a rank its seconds, and its stage."""
    return np.array([added_s for added_s, _ in ways]), tuple(stage for _, stage in ways)
