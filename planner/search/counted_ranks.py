"""The ways in which a pipeline rank fits when every moment is counted.

What a rank holds does not depend on what the others recompute. So of a rank whose chunks hold
certain layers all ways are found to recompute them that fit (`costmodels.step.mix_memory`) and take
no more than so long: chunk after chunk, what has begun is gone on with as long as the chunks that
are left may still fit beside it, each with as little held as it can. Of two ways one is left out
that takes longer in no chunk than the other.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layout import Stage
from meshplan.costmodels.layouts import Bools, Floats, Ints
from meshplan.costmodels.step.mix_memory import MixMemory, RankMixes, Span
from meshplan.costmodels.step.stages import StageModel
from meshplan.planner.problem.coefficients import NS_PER_S
from meshplan.planner.problem.recompute_mixes import mixed, mixes, prefix
from meshplan.planner.problem.stage_problem import StageProblem

FOUND = 500  # ways, of a rank that is looked at
MOST_WAYS = 50_000  # of a rank that are begun at once
MORE = 1.1  # times as long: often enough for the next cuts, too
ROUNDING = 1e-12


class RankWays(NamedTuple):
    """Ways to run the chunks of a rank, the fastest first.

    added_s           [way, chunk] seconds of a micro-batch beyond nothing recomputed
    full, selective   [way, chunk] layers
    most_s            all that take no longer were looked at
    """

    added_s: Floats
    full: Ints
    selective: Ints
    most_s: float


class CountedRanks:
    """The ranks of the cuts of one layout; `work` mixes and ways were looked at."""

    def __init__(self, problem: StageProblem, model: StageModel) -> None:
        self.problem, self.memory, self.work = problem, MixMemory(model), 0
        self.fillable_bytes = model.setting.cluster.fillable_bytes * (1 + ROUNDING)
        self._ns = prefix(np.array(problem.layer_ns)[list(problem.pattern)])
        self._least = min(problem.modes)
        self._known: dict[object, RankWays | None] = {}

    def spans(self, rank: int, starts: Sequence[int]) -> list[Span]:
        """The chunks of a rank, of a cut whose stages begin with these layers."""
        held = self.problem.chunks_of_rank[rank]
        return [(chunk, starts[chunk], starts[chunk + 1]) for chunk in held]

    def ways(self, rank: int, spans: Sequence[Span], most_s: float) -> RankWays | None:
        """Those that take no more than `most_s` of each micro-batch beyond nothing recomputed; None
        where there are too many.
        """
        p = self.problem
        kinds = tuple(p.pattern[first:end] for _, first, end in spans)
        ends = tuple(number in (0, p.chunks - 1) for number, _, _ in spans)
        key = self.memory.like(rank), kinds, ends
        known = self._known.get(key)
        if key not in self._known or (known is not None and known.most_s < most_s):
            self._known[key] = known = self._found(rank, spans, most_s * MORE)
        return known

    def needed_bytes(self, rank: int, starts: Sequence[int], stages: Sequence[Stage]) -> float:
        """What a rank needs of a cut whose stages begin with these layers."""
        own = [stages[chunk] for chunk in self.problem.chunks_of_rank[rank]]
        mixes_of = [
            (np.array([stage.full_layers]), np.array([stage.selective_layers])) for stage in own
        ]
        found = self.memory.rank(rank, self.spans(rank, starts), mixes_of)
        return float(found.needed([np.zeros(1, np.int64)] * len(own))[0])

    def _found(self, rank: int, spans: Sequence[Span], most_s: float) -> RankWays | None:
        every = [self._mixes(first, end) for _, first, end in spans]
        held = self.memory.rank(rank, spans, [(full, selective) for full, selective, _ in every])
        self.work += FOUND + sum(len(full) for full, _, _ in every)
        joined = self._joined(held, [added_s for _, _, added_s in every], most_s)
        if joined is None:
            return None
        ways = np.stack(joined, axis=1) if joined else np.zeros((1, 0), np.int64)
        columns = [
            np.stack([each[at][ways[:, chunk]] for chunk, each in enumerate(every)], axis=1)
            for at in (2, 0, 1)
        ]
        order = _undominated(columns[0])
        added_s, full, selective = (each[order] for each in columns)
        return RankWays(added_s, full, selective, most_s)

    def _mixes(self, first: int, end: int) -> tuple[Ints, Ints, Floats]:
        """Layers in full, selectively, and seconds beyond nothing recomputed."""
        p = self.problem
        full, selective, _ = mixes(end - first, p.modes, p.transient_kib)
        ns = mixed(self._ns, first, first + full, first + full + selective, end)
        least = self._ns[end, self._least] - self._ns[first, self._least]
        return full, selective, (ns - least) / NS_PER_S

    def _joined(
        self, held: RankMixes, added_s: Sequence[Floats], most_s: float
    ) -> list[Ints] | None:
        """Of each chunk the number of its mix, of all ways that fit; None where there are too many.

        What is left of a rank may hold as little as each of its chunks can in each moment.
        """
        least = [each.min(axis=0) for each in held.kept]
        room = self.fillable_bytes - held.always - sum(least)
        begun, used, taken = list[Ints](), np.zeros((1, len(room))), np.zeros(1)
        for every, of_every, lowest in zip(held.kept, added_s, least, strict=True):
            more = every - lowest
            alone = np.flatnonzero((more <= room).all(axis=1) & (of_every <= most_s))
            kept, added = more[alone], of_every[alone]
            if len(taken) * len(added) > MOST_WAYS:
                return None
            self.work += len(taken) * len(added)
            below = used[:, None] + kept
            so_long = taken[:, None] + added
            fits: Bools = (below <= room).all(axis=2) & (so_long <= most_s)
            way, mix = np.nonzero(fits)
            begun = [each[way] for each in begun] + [alone[mix]]
            used, taken = below[way, mix], so_long[way, mix]
        return begun


def _undominated(added_s: Floats) -> Ints:
    """The ways than which no other one takes nowhere longer, the fastest first; of equal ones the
    first.
    """
    left, kept = np.argsort(added_s.sum(axis=1), kind="stable"), list[int]()
    while len(left):
        kept.append(int(left[0]))
        left = left[(added_s[left] < added_s[left[0]]).any(axis=1)]
    return np.array(kept, np.int64)
