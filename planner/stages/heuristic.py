"""Several chunks per rank, by rule of thumb: a first plan.

counts      even chunks, the ends shorter by what the embedding and the head weigh; or the
            engine's most even splits; where these do not fit, its most even one that does
recompute   rank by rank the fewest layers, the longest held chunks first, in the one mode that
            costs least time; or equally many of each chunk, where that is the rule
"""

from functools import cached_property

import numpy as np

from meshplan.costmodels.layout import Stage
from meshplan.costmodels.layouts import Bools, Ints
from meshplan.planner.bounds.split_memory import some_mix_fits
from meshplan.planner.problem.first_layers import fewest_first
from meshplan.planner.problem.recompute_mixes import prefix
from meshplan.planner.problem.stage_problem import (
    StagePlan,
    StageProblem,
    chunk_times_ns,
    evaluate,
    least_recomputed,
    modes_of,
    objective_of,
)

ENGINE_SPLITS = 2  # of the engine's own splits so many are tried, the most even ones


def first_counts(problem: StageProblem) -> StagePlan | None:
    """The best plan of the rule, None where it finds none that fits."""
    recompute, best = None if problem.first else _Recompute(problem), None
    for floor, counts in sorted(_priced_without(problem)):
        if best is not None and floor >= best.objective:
            break
        plan = _plan_of(problem, recompute, counts)
        if plan is not None and (best is None or plan.objective < best.objective):
            best = plan
    return best or _less_even(problem, recompute)


def _plan_of(
    problem: StageProblem, recompute: "_Recompute | None", counts: tuple[int, ...]
) -> StagePlan | None:
    stages = recompute.everywhere(counts) if recompute else fewest_first(problem, counts)
    return evaluate(problem, stages) if stages else None


def _less_even(problem: StageProblem, recompute: "_Recompute | None") -> StagePlan | None:
    """The plan of the most even split that fits, of those that were not tried."""
    splits = problem.splits or ()
    if len(splits) <= ENGINE_SPLITS:
        return None
    fitting = [each for each, fits in zip(splits, some_mix_fits(problem), strict=True) if fits]
    plans = (_plan_of(problem, recompute, counts) for counts in sorted(fitting, key=_unevenness))
    return next(filter(None, plans), None)


def _unevenness(counts: tuple[int, ...]) -> tuple[int, int]:
    return max(counts[1:-1]), max(counts)


def _priced_without(problem: StageProblem) -> list[tuple[int, tuple[int, ...]]]:
    """Each choice of counts, with its objective if nothing were recomputed or saved."""
    found = []
    for counts in _even_counts(problem):
        bare = least_recomputed(problem, counts)
        times = chunk_times_ns(problem, bare, [modes_of(stage) for stage in bare])
        found.append((objective_of(problem, times, 0), counts))
    return found


def _even_counts(problem: StageProblem) -> list[tuple[int, ...]]:
    layers, chunks = len(problem.pattern), problem.chunks
    if problem.splits is not None:
        return sorted(problem.splits, key=_unevenness)[:ENGINE_SPLITS]
    mean_ns = max(1, sum(
        count * times[problem.modes[0]]
        for count, times in zip(problem.kind_counts, problem.layer_ns, strict=True)
    ) // layers)  # fmt: skip
    found = []
    for size in range(max(1, layers // chunks), layers // chunks + 3):
        counts = [size] * chunks
        for j, end in ((0, problem.embedding), (chunks - 1, problem.head)):
            counts[j] = max(problem.fewest_layers(j), size - -(-end.ns // mean_ns))
        surplus, j = sum(counts) - layers, 0
        while surplus > 0 and j < chunks:
            less = min(surplus, max(0, counts[j] - max(problem.fewest_layers(j), size - 1)))
            counts[j], surplus, j = counts[j] - less, surplus - less, j + 1
        if surplus == 0:
            found.append(tuple(counts))
    return found


class _Recompute:
    """How many layers each rank of one problem must recompute.

    Arrays are [rank, number of recomputed layers, chunk], the chunks of a rank in the order in
    which they recompute: the one that is held for most micro-batches first.
    """

    def __init__(self, problem: StageProblem) -> None:
        self.problem = problem
        kinds = np.array(problem.pattern, np.int64)
        self._saved = prefix(np.array(problem.saved_kib)[kinds])
        self._states = prefix(np.array(problem.state_kib)[kinds])
        self._updates = prefix(np.array(problem.update_kib)[kinds])
        self._chunks = np.array(problem.chunks_of_rank)
        order = np.argsort(-problem.shape.fullest[:, ::-1], axis=1, kind="stable")
        self._order = problem.vpp - 1 - order  # of two held alike the later one first
        self._chunks = np.take_along_axis(self._chunks, self._order, 1)

    @cached_property
    def cost_ns(self) -> tuple[int, ...]:
        """What all layers would take in each mode beyond the fastest."""
        totals = [
            sum(n * times[mode] for n, times in zip(
                self.problem.kind_counts, self.problem.layer_ns, strict=True
            ))
            for mode in range(3)
        ]  # fmt: skip
        return tuple(total - min(totals[mode] for mode in self.problem.modes) for total in totals)

    def everywhere(self, counts: tuple[int, ...]) -> tuple[Stage, ...]:
        """`counts` with as little recomputation as fits; () if that does not fit."""
        starts = prefix(np.array(counts))
        costs = np.full((3, self.problem.pp), np.inf)
        fewest = np.zeros((3, self.problem.pp), np.int64)
        for mode in self.problem.modes:
            fits, fewest[mode] = self._fewest(mode, starts)
            costs[mode, fits] = fewest[mode, fits] * self.cost_ns[mode]
            if mode == 0 and fits.all():
                break
        if not np.isfinite(costs.min(0)).all():
            return ()
        return self._stages(counts, costs.argmin(0), fewest)

    def _stages(self, counts: tuple[int, ...], modes: Ints, fewest: Ints) -> tuple[Stage, ...]:
        stages: dict[int, Stage] = {}
        for rank, (chunks, mode) in enumerate(zip(self._chunks.tolist(), modes, strict=True)):
            left = int(fewest[mode, rank])
            for j in chunks:
                now = min(left, counts[j])
                stages[j] = Stage(counts[j], now if mode == 1 else 0, now if mode == 2 else 0)
                left -= now
        return tuple(stages[j] for j in range(len(counts)))

    def _fewest(self, mode: int, starts: Ints) -> tuple[Bools, Ints]:
        """By rank: whether it fits with layers in `mode` (the rest keep all), and how few do."""
        totals = (starts[self._chunks + 1] - starts[self._chunks]).sum(1)[:, None]
        n = np.arange(1 if mode == 0 else int(totals.max()) + 1)
        fits: Bools = self._peaks(mode, starts, n) <= self.problem.cap_kib
        if mode != 0:
            fits &= (n <= totals) if 0 in self.problem.modes else (n == totals)
        fewest: Ints = fits.argmax(1)
        return np.any(fits, axis=1), fewest

    def _peaks(self, mode: int, starts: Ints, n: Ints) -> Ints:
        """[rank, n] largest KiB with each number `n` of its layers in `mode`."""
        problem = self.problem
        first, end = starts[self._chunks], starts[self._chunks + 1]
        before = (end - first).cumsum(1) - (end - first)
        cut = n[None, :, None] - before[:, None, :]
        cut = first[:, None, :] + np.minimum(np.maximum(cut, 0), (end - first)[:, None, :])
        kept = (self._saved[end, 0] - self._saved[first, mode])[:, None, :]
        kept = kept + self._saved[cut, mode] - self._saved[cut, 0]
        static = problem.fixed_kib + (self._states[end] - self._states[first]).sum(1)
        update = (self._updates[end] - self._updates[first]).sum(1)
        transient = self._transient(mode, n, (end - first).sum(1)[:, None])
        for part, (rank, position) in zip(
            (problem.embedding, problem.head), problem.shape.ends, strict=True
        ):
            kept[rank, :, self._order[rank] == position] += part.saved_kib
            static[rank] += part.state_kib
            update[rank] += part.update_kib
            transient[rank] = np.maximum(transient[rank], part.transient_kib)
        held = np.stack([
            (matrix[:, order] @ layers.T).max(axis=0)
            for matrix, order, layers in zip(
                problem.shape.matrices, self._order, kept, strict=True
            )
        ])  # fmt: skip
        peaks: Ints = static[:, None] + np.maximum(held + transient, update[:, None])
        return peaks

    def _transient(self, mode: int, n: Ints, totals: Ints) -> Ints:
        of_mode, of_rest = self.problem.transient_kib[mode], self.problem.transient_kib[0]
        kept: Ints = np.where(n < totals, of_rest, 0)
        recomputed: Ints = np.where(n > 0, of_mode, 0)
        return np.maximum(kept, recomputed)
