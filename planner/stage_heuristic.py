"""Several chunks per rank, by rule of thumb: a first plan, before any solver is asked.

counts      even chunks, the ends shorter by what the embedding and the head weigh; or the
            engine's most even splits
recompute   rank by rank the fewest layers, the longest held chunks first, in the one mode that
            costs least time
"""

from functools import cached_property

import numpy as np

from costmodels.grid import Ints
from costmodels.layout import Stage
from planner.stage_problem import (
    StagePlan,
    StageProblem,
    chunk_times_ns,
    evaluate,
    modes_of,
    objective_of,
    starts_of,
)

ENGINE_SPLITS = 2  # of the engine's own, the most even ones


def first_counts(problem: StageProblem) -> StagePlan | None:
    """The best plan of the rule, None where it finds none that fits."""
    recompute, best = _Recompute(problem), None
    for floor, counts in sorted(_priced_without(problem)):
        if best is not None and floor >= best.objective:
            break
        stages = recompute.everywhere(counts)
        plan = evaluate(problem, stages) if stages else None
        if plan is not None and (best is None or plan.objective < best.objective):
            best = plan
    return best


def _priced_without(problem: StageProblem) -> list[tuple[int, tuple[int, ...]]]:
    """Each choice of counts, with its objective if nothing were recomputed or saved."""
    least = min(problem.modes)
    found = []
    for counts in _even_counts(problem):
        bare = tuple(Stage(n, n if least == 1 else 0, n if least == 2 else 0) for n in counts)
        times = chunk_times_ns(problem, bare, [modes_of(stage) for stage in bare])
        found.append((objective_of(problem, times, problem.least_end_ns), counts))
    return found


def _even_counts(problem: StageProblem) -> list[tuple[int, ...]]:
    layers, chunks = len(problem.pattern), problem.chunks
    if problem.splits is not None:
        return sorted(problem.splits, key=lambda n: (max(n[1:-1]), max(n)))[:ENGINE_SPLITS]
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
    """How many layers each rank of one problem must recompute."""

    def __init__(self, problem: StageProblem) -> None:
        self.problem = problem
        kinds = np.array(problem.pattern, np.int64)
        self._saved = _prefix(np.array(problem.saved_kib)[kinds])
        self._states = _prefix(np.array(problem.state_kib)[kinds])
        self._updates = _prefix(np.array(problem.update_kib)[kinds])

    @cached_property
    def cost_ns(self) -> tuple[int, ...]:
        """What a layer in each mode takes beyond the fastest, all kinds taken together."""
        totals = [
            sum(n * times[mode] for n, times in zip(
                self.problem.kind_counts, self.problem.layer_ns, strict=True
            ))
            for mode in range(3)
        ]  # fmt: skip
        return tuple(total - min(totals[mode] for mode in self.problem.modes) for total in totals)

    def everywhere(self, counts: tuple[int, ...]) -> tuple[Stage, ...]:
        """`counts` with as little recomputation as fits; () if that does not fit."""
        starts = starts_of(tuple(Stage(n) for n in counts))
        stages: dict[int, Stage] = {}
        for rank in range(self.problem.pp):
            chosen = self._fewest(rank, counts, starts)
            if chosen is None:
                return ()
            stages |= chosen
        return tuple(stages[j] for j in range(len(counts)))

    def _fewest(
        self, rank: int, counts: tuple[int, ...], starts: list[int]
    ) -> dict[int, Stage] | None:
        problem, chunks = self.problem, self.problem.chunks_of_rank[rank]
        vector = problem.shape.fullest[rank].tolist()
        order = [j for _, j in sorted(zip(vector, chunks, strict=True))][::-1]
        total = sum(counts[j] for j in chunks)
        found = []
        for mode in problem.modes:
            n = self._first_that_fits(rank, mode, order, starts)
            if n is not None:
                found.append((n * self.cost_ns[mode], n, mode))
        if not found:
            return None
        _, left, mode = min(found)
        assert left <= total
        stages = {}
        for j in order:
            now = min(left, counts[j])
            stages[j] = Stage(counts[j], now if mode == 1 else 0, now if mode == 2 else 0)
            left -= now
        return stages

    def _first_that_fits(
        self, rank: int, mode: int, order: list[int], starts: list[int]
    ) -> int | None:
        """The fewest layers of `rank` in `mode` with which it fits, the rest keeping all."""
        problem = self.problem
        total = sum(starts[j + 1] - starts[j] for j in order)
        if mode == 0:
            n = np.zeros(1, np.int64)
        else:
            n = np.arange(1 if 0 in problem.modes else total, total + 1)
        if not len(n):
            return None
        fits = self._peaks(rank, mode, order, starts, n) <= problem.cap_kib
        first = int(fits.argmax())
        return int(n[first]) if fits[first] else None

    def _peaks(self, rank: int, mode: int, order: list[int], starts: list[int], n: Ints) -> Ints:
        """Largest KiB of `rank` with each number `n` of its layers in `mode`."""
        problem, last = self.problem, self.problem.chunks - 1
        static, update, transient = problem.fixed_kib, 0, self._transient(mode, order, starts, n)
        saved: dict[int, Ints] = {}
        before = 0
        for j in order:
            first, end = starts[j], starts[j + 1]
            cut = first + np.clip(n - before, 0, end - first)
            before += end - first
            saved[j] = self._saved[cut, mode] - self._saved[first, mode]
            saved[j] = saved[j] + self._saved[end, 0] - self._saved[cut, 0]
            static += int(self._states[end] - self._states[first])
            update += int(self._updates[end] - self._updates[first])
            for part, holder in ((problem.embedding, 0), (problem.head, last)):
                if j == holder:
                    saved[j] = saved[j] + part.saved_kib
                    static, update = static + part.state_kib, update + part.update_kib
                    transient = np.maximum(transient, part.transient_kib)
        kept = np.stack([saved[j] for j in problem.chunks_of_rank[rank]])
        held = (problem.shape.matrices[rank] @ kept).max(axis=0)
        peaks: Ints = static + np.maximum(held + transient, update)
        return peaks

    def _transient(self, mode: int, order: list[int], starts: list[int], n: Ints) -> Ints:
        total = sum(starts[j + 1] - starts[j] for j in order)
        of_mode, of_rest = self.problem.transient_kib[mode], self.problem.transient_kib[0]
        kept: Ints = np.where(n < total, of_rest if mode else of_mode, 0)
        recomputed: Ints = np.where(n > 0, of_mode, 0)
        return np.maximum(kept, recomputed)


def _prefix(values: Ints) -> Ints:
    """Sums of the first 0, 1, 2, ... rows."""
    nothing = np.zeros((1, *values.shape[1:]), np.int64)
    return np.concatenate([nothing, values.cumsum(axis=0)])
