"""Which ranks of one layout fit in some mix by what they hold, whatever the other ranks do."""

import math
from collections.abc import Sequence
from dataclasses import replace

from meshplan.costmodels.step.mix_memory import Span
from meshplan.costmodels.step.step import StepModel
from meshplan.planner.problem.stage_problem import least_recomputed
from meshplan.planner.search.simulation.counted_ranks import BYTES, ENDLESS_KIB, CountedRanks
from meshplan.planner.search.simulation.simulated import Simulated
from meshplan.planner.space.legal_layouts import Variant

RANK = 2_000  # units of work of a rank that is looked at, beside its mixes


class RanksThatFit:
    """Those of a row of `proof` that is run as `variant`, in steps below a limit."""

    def __init__(self, proof: Simulated, row: int, variant: Variant, limit_s: float) -> None:
        priced = proof.problem(row, variant)[0]
        problem = replace(priced, prices=replace(priced.prices, cap_kib=ENDLESS_KIB))
        each, more = divmod(len(problem.pattern), problem.chunks)
        counts = [each + (chunk < more) for chunk in range(problem.chunks)]
        times = proof.times_of(row, variant, least_recomputed(problem, counts))
        layout = replace(times.layout, selective_modules=variant.replayed)
        self.ranks = CountedRanks(problem, StepModel(times.model.setting, layout))
        self._most_s, self._asked = limit_s / problem.m, 0

    @property
    def work(self) -> int:
        """Units of work so far."""
        return RANK * self._asked + self.ranks.work // BYTES

    def fits(self, rank: int, spans: Sequence[Span]) -> bool:
        """Whether a rank with these layers on its chunks fits in some mix. One whose backwards
        replay longer than the limit has no step below it.
        """
        self._asked += 1
        return math.isfinite(self.ranks.ways(rank, spans, self._most_s).least_s)
