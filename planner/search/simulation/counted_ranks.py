"""The ways in which a pipeline rank fits when every moment is counted.

What a rank holds does not depend on what the others recompute. So of a rank whose chunks hold
certain layers all ways are found to recompute them that fit (`costmodels.step.mix_memory`) and take
no longer than a limit. A way is built chunk after chunk, and dropped once the chunks that are left
cannot fit beside it even if each holds as little as it can. A way is also dropped where another
takes no longer in any chunk, unless it may pay to take longer
(`planner.search.simulation.cut_mixes.ranks_it_pays`).
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple, Self

import numpy as np

from meshplan.costmodels.layout import Stage
from meshplan.costmodels.layouts import Bools, Floats, Ints
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.step.held_mixes import HeldMixes
from meshplan.costmodels.step.mix_memory import MixMemory, RankMixes, Span
from meshplan.costmodels.step.stages import StageModel
from meshplan.costmodels.weights.offload import host_share_bytes
from meshplan.planner.problem.coefficients import NS_PER_S
from meshplan.planner.problem.recompute_mixes import mixed, mixes, prefix
from meshplan.planner.problem.stage_problem import StageProblem

BYTES = 10  # bytes of ways for one unit of work
ENDLESS_KIB = 2**50
FOUND = 20_000  # bytes in moments of ways, of a rank that is looked at
MOST_BYTES, MOST_WAYS = 300_000, 256  # of the ways of a rank that are begun at once; that stay
MOST_COMPARED = 40  # mixes of a chunk, each with each
PRICED_MOMENTS, PRICES = 6, 12
MORE = 1.1  # times as long: often enough for the next cuts, too
_EVENLY = np.arange(PRICES)


def memory_is_a_bound(setting: Setting) -> bool:
    """Whether what is priced may be more than a rank needs: passes are counted, or what stages hold
    is of several kinds.
    """
    return setting.engine.kernels.counts_passes or setting.has_several_kinds


ROUNDING = 1e-12


class RankWays(NamedTuple):
    """Ways to run the chunks of a rank, the fastest first.

    added_s           [way, chunk] seconds of a micro-batch beyond nothing recomputed
    full, selective   [way, chunk] layers
    most_s            all that take no longer were looked at
    least_s           a lower bound of what any way takes; infinite where none takes no longer
    every             the ways are all there are; else they are too many, and none is here
    """

    added_s: Floats
    full: Ints
    selective: Ints
    most_s: float
    least_s: float
    every: bool = True

    @classmethod
    def none(cls, chunks: int, most_s: float, least_s: float = math.inf) -> Self:
        """Where no way takes no longer; or, with a bound, where too many may."""
        nothing = np.zeros((0, chunks))
        kept = nothing.astype(np.int64)
        return cls(nothing, kept, kept, most_s, least_s, math.isinf(least_s))


class CountedRanks:
    """The ranks of the cuts of one layout; `work` is how many bytes of mixes and ways in moments
    were looked at.
    """

    def __init__(self, problem: StageProblem, model: StageModel) -> None:
        counts = model.setting.engine.kernels.counts_passes
        self.problem, self.work = problem, 0
        self.memory: MixMemory | HeldMixes = MixMemory(model) if counts else HeldMixes(model)
        self.fillable_bytes = model.setting.cluster.fillable_bytes * (1 + ROUNDING)
        share = host_share_bytes(model.setting.cluster, float(model.layout.world_size))
        waits = model.layout.activation_offload > 0 and share is not None
        self._host_bytes = float(share or 0.0) if waits else math.inf
        self._ns = prefix(np.array(problem.layer_ns)[list(problem.pattern)])
        self._least = min(problem.modes)
        self._known: dict[object, RankWays] = {}
        self._fastest: dict[object, tuple[int, int] | None] = {}
        self._first: dict[object, Bools] = {}
        self.killer = 0  # the rank by which a cut was settled last

    def spans(self, rank: int, starts: Sequence[int]) -> list[Span]:
        """The chunks of a rank, of a cut whose stages begin with these layers."""
        held = self.problem.chunks_of_rank[rank]
        return [(chunk, starts[chunk], starts[chunk + 1]) for chunk in held]

    def ways(
        self, rank: int, spans: Sequence[Span], most_s: float, *, every: bool = False
    ) -> RankWays:
        """Those that take no more than `most_s` of each micro-batch beyond nothing recomputed;
        `every`: also those than which another takes nowhere longer.
        """
        key = self._like(rank, spans), every
        known = self._known.get(key)
        if known is None or known.most_s < most_s:
            self._known[key] = known = self._found(rank, spans, most_s * MORE, every=every)
        return known

    def held(
        self, rank: int, spans: Sequence[Span], mixes_of: Sequence[tuple[Ints, Ints]]
    ) -> RankMixes:
        """What a rank holds, to be compared with `fillable_bytes`: at each moment and, where layers
        wait on the host, there, by how much more or less it may take.
        """
        held = self.memory.rank(rank, spans, mixes_of)
        if math.isinf(self._host_bytes) or not isinstance(self.memory, HeldMixes):
            return held
        waits, always = self.memory.on_host(rank, spans[0], *mixes_of[0])
        beyond = self.fillable_bytes - self._host_bytes
        kept = np.column_stack([held.kept[0], waits])
        return RankMixes((kept,), np.append(held.always, always + beyond))

    def _like(self, rank: int, spans: Sequence[Span]) -> tuple[object, ...]:
        """Equal for ranks that need equally much under the same mixes."""
        p = self.problem
        kinds = tuple(p.pattern[first:end] for _, first, end in spans)
        ends = tuple((number == 0, number == p.chunks - 1) for number, _, _ in spans)
        return self.memory.like(rank), kinds, ends

    def fastest(self, rank: int, first: int, end: int) -> tuple[int, int] | None:
        """Of a rank with one chunk, of these layers, how many the fastest mix that fits recomputes
        in full and selectively; None where none fits.
        """
        full, selective, added_s = self._mixes(first, end)
        held = self.held(rank, [(rank, first, end)], [(full, selective)])
        self.work += FOUND + held.kept[0].size
        fits: Bools = np.all(held.kept[0] + held.always <= self.fillable_bytes, axis=1)
        best = int(np.where(fits, added_s, math.inf).argmin())
        return (int(full[best]), int(selective[best])) if fits[best] else None

    def fastest_of_cut(self, counts: Sequence[int]) -> tuple[Stage, ...] | None:
        """The fastest mix that fits of a cut that has one for each rank, or of one for each number
        of first layers that with the fewest; None where none fits.
        """
        if self.problem.first:
            return next(self.mixes_that_fit(counts), None)
        starts = [0, *accumulate(counts)]
        found = dict[int, tuple[int, int]]()
        for rank in self._killer_first():
            span = rank, starts[rank], starts[rank + 1]
            key = self._like(rank, [span])
            if key not in self._fastest:
                self._fastest[key] = self.fastest(*span)
            mix = self._fastest[key]
            if mix is None:
                self.killer = rank
                return None
            found[rank] = mix
        return tuple(Stage(n, found[rank][1], found[rank][0]) for rank, n in enumerate(counts))

    def _killer_first(self) -> Iterable[int]:
        """The ranks, of which the one that settled the cut before comes first."""
        return dict.fromkeys((self.killer, *range(self.problem.pp)))

    def mixes_that_fit(self, counts: Sequence[int]) -> Iterator[tuple[Stage, ...]]:
        """Every mix with which all ranks fit of those that recompute equally many first layers of
        all chunks in full, the fewest first (`planner.problem.first_layers`).
        """
        starts, numbers = [0, *accumulate(counts)], np.arange(max(counts) + 1)
        fits = np.ones(len(numbers), bool)
        for rank in self._killer_first():
            own = self._fits_first(rank, self.spans(rank, starts))
            fits &= own[np.minimum(numbers, len(own) - 1)]
            if not fits.any():
                self.killer = rank
                return
        for number in np.flatnonzero(fits).tolist():
            yield tuple(Stage(n, full_layers=min(number, n)) for n in counts)

    def _fits_first(self, rank: int, spans: Sequence[Span]) -> Bools:
        """[number] whether a rank fits with so many first layers of each of its chunks in full."""
        key = self._like(rank, spans)
        if key not in self._first:
            numbers = np.arange(max(end - first for _, first, end in spans) + 1)
            full = [np.minimum(numbers, end - first) for _, first, end in spans]
            held = self.held(rank, spans, [(each, 0 * each) for each in full])
            self.work += FOUND + sum(each.size for each in held.kept)
            self._first[key] = held.needed([numbers] * len(spans)) <= self.fillable_bytes
        return self._first[key]

    def needed_bytes(self, rank: int, starts: Sequence[int], stages: Sequence[Stage]) -> float:
        """What a rank needs of a cut whose stages begin with these layers."""
        own = [stages[chunk] for chunk in self.problem.chunks_of_rank[rank]]
        mixes_of = [
            (np.array([stage.full_layers]), np.array([stage.selective_layers])) for stage in own
        ]
        found = self.memory.rank(rank, self.spans(rank, starts), mixes_of)
        return float(found.needed([np.zeros(1, np.int64)] * len(own))[0])

    def _found(self, rank: int, spans: Sequence[Span], most_s: float, *, every: bool) -> RankWays:
        mixes_of = [self._mixes(first, end) for _, first, end in spans]
        held = self.held(rank, spans, [(full, selective) for full, selective, _ in mixes_of])
        added_s = [each for _, _, each in mixes_of]
        self.work += FOUND + sum(each.size for each in held.kept)
        room = self.fillable_bytes - held.always
        least_s = _least_priced_s(held.kept, added_s, room)
        if least_s > most_s:
            return RankWays.none(len(spans), most_s)
        ways = self._joined(held.kept, added_s, room, most_s)
        if ways is None:
            return RankWays.none(len(spans), most_s, least_s)
        full, selective, added = (
            np.stack([each[at][ways[:, chunk]] for chunk, each in enumerate(mixes_of)], axis=1)
            for at in range(3)
        )
        every_s = added.astype(float)
        order = np.argsort(every_s.sum(axis=1), kind="stable") if every else _undominated(every_s)
        if len(order) > MOST_WAYS:
            return RankWays.none(len(spans), most_s, least_s)
        found_s = every_s[order]
        return RankWays(
            found_s, full[order].astype(np.int64), selective[order].astype(np.int64), most_s,
            found_s.sum(axis=1).min(initial=math.inf),
        )  # fmt: skip

    def _mixes(self, first: int, end: int) -> tuple[Ints, Ints, Floats]:
        """Layers in full, selectively, and seconds beyond nothing recomputed."""
        p = self.problem
        full, selective, _ = mixes(end - first, p.modes, p.transient_kib)
        ns = mixed(self._ns, first, first + full, first + full + selective, end)
        least = self._ns[end, self._least] - self._ns[first, self._least]
        return full, selective, (ns - least) / NS_PER_S

    def _joined(
        self, kept: Sequence[Floats], added_s: Sequence[Floats], room: Floats, most_s: float
    ) -> Ints | None:
        """[way, chunk] the number of its mix, of all ways that fit; None where there are too many.

        What is left of a rank may hold as little as each of its chunks can in each moment.
        """
        least = [each.min(axis=0) for each in kept]
        room = room - sum(least)
        begun, used, taken = np.zeros((1, 0), np.int64), np.zeros((1, len(room))), np.zeros(1)
        for each, of_each, lowest in zip(kept, added_s, least, strict=True):
            alone = np.flatnonzero((each - lowest <= room).all(axis=1) & (of_each <= most_s))
            alone = alone[_useful(each[alone], of_each[alone])]
            work = len(taken) * len(alone) * len(room)
            if work > MOST_BYTES:
                return None
            self.work += work
            below = used[:, None] + (each[alone] - lowest)
            so_long = taken[:, None] + of_each[alone]
            way, mix = np.nonzero((below <= room).all(axis=2) & (so_long <= most_s))
            begun = np.concatenate([begun[way], alone[mix][:, None]], axis=1)
            used, taken = below[way, mix], so_long[way, mix]
        return begun


def _least_priced_s(kept: Sequence[Floats], added_s: Sequence[Floats], room: Floats) -> float:
    """A lower bound of the seconds of any way that fits: for any price of a byte in a moment

        added >= sum over the chunks of min over their mixes of (added + price kept) - price room

    of the fullest moments, at some prices at which mixes of a chunk cost equally much.
    """
    bare = sum(each[0] for each in kept)
    lacks = bare - room
    some = np.argsort(-lacks)[:PRICED_MOMENTS]
    some = some[lacks[some] > 0]
    if not len(some):
        return 0.0
    rates = list[Floats]()
    for each, added in zip(kept, added_s, strict=True):
        saved = each[0, some] - each[:, some]
        rates.append((added[:, None] / np.where(saved > 0, saved, np.inf))[saved > 0])
    every = np.sort(np.concatenate(rates))
    prices = every[_EVENLY * (len(every) - 1) // (PRICES - 1)] if len(every) else np.zeros(1)
    paid = sum(
        (added[:, None, None] + each[:, some, None] * prices).min(axis=0)
        for each, added in zip(kept, added_s, strict=True)
    )
    found: float = (paid - room[some, None] * prices).max(initial=0.0)
    return found * (1 - ROUNDING) if len(every) else math.inf


def _useful(kept: Floats, added_s: Floats) -> Ints:
    """The mixes of a chunk than which no other one takes no longer and holds nowhere more; of equal
    ones the first. Of many it costs more than it saves.
    """
    if not 2 < len(kept) <= MOST_COMPARED:
        return np.arange(len(kept))
    costs = np.column_stack([added_s, kept])
    below = (costs[:, None] <= costs[None]).all(axis=2)
    number = np.arange(len(costs))
    beaten = below & (~below.T | (number[:, None] < number))
    return np.flatnonzero(~beaten.any(axis=0))


def _undominated(added_s: Floats) -> Ints:
    """The ways than which no other one takes nowhere longer, the fastest first; of equal ones the
    first. Of too many some.
    """
    left, kept = np.argsort(added_s.sum(axis=1), kind="stable"), list[int]()
    while len(left) and len(kept) <= MOST_WAYS:
        kept.append(int(left[0]))
        left = left[(added_s[left] < added_s[left[0]]).any(axis=1)]
    return np.array(kept, np.int64)
