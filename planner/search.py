"""The best layout of a question, with a proof: best-first branch and bound over all legal layouts.

Every legal layout is in exactly one place at any time:
    (a) a row that is not opened yet, or an open layout in the queue, each with a lower bound
        (`planner.bounds`; every rung that a layout climbs raises it);
    (b) dropped by a necessary condition on memory, or proved infeasible by the solver;
    (c) solved: its best cut into stages is known and compared.
The smallest bound is always taken next. CP-SAT is asked only for plans below a window just above
the bound, which is far faster than an open question: no plan there raises the bound to the window's
edge, and the layout goes back to (a). When the smallest bound of (a) reaches the best plan found,
that plan is optimal over the whole space under the prices; on a time limit or Ctrl-C the same
smallest bound is the honest distance.

Runners-up differ in kind (tp, cp, pp, ep): the search goes on until the k best kinds are proved
too, or are slower than `SPREAD` times the best.
"""

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import Literal, NamedTuple

import numpy as np

from costmodels.grid import Grid
from costmodels.layout import Layout, check_layout
from planner.bounds import packing_bound, row_bounds, row_fits
from planner.chunk_bound import chunk_bound
from planner.coefficients import Coefficients, stage_problem
from planner.priced_space import Pricer, closed_form, price_space
from planner.priced_space import Question as Question
from planner.space import Space, Variant, enumerate_space
from planner.stage_problem import THIRDS_PER_S, StagePlan, StageProblem, StepParts
from planner.stages import Solver

WINDOWS = (0.03, 0.25)
NEAR = 1.02  # a cutoff so close to the bound is window enough
LAST = len(WINDOWS)
SPREAD = 1.5
FIRST_KINDS = 32
PROGRESS_S = 0.2

Kind = tuple[int, int, int, int]
Family = tuple[str, int, int, int, tuple[int, ...]]


class NoLayoutFits(Exception):
    """No legal layout of the question fits; `planner.footprint.explain` says what would."""


@dataclass(frozen=True, slots=True)
class Solution:
    """One layout with its best cut into stages.

    step_time_s   under the closed-form prices
    peak_bytes    reserved, by pipeline rank
    reranked_s    what the caller's own judgement says (`search(rerank=...)`), None without one
    proved        no layout that should precede it was left open
    """

    layout: Layout
    step_time_s: float
    parts: StepParts
    peak_bytes: tuple[float, ...]
    proved: bool
    reranked_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """How a search ended.

    status       OPTIMAL when every legal layout was solved, infeasible or bounded away
    bound_s      nothing is faster; gap = 1 - bound_s / best
    candidates   legal layouts (all axes but the cut into stages)
    priced       rows that the cost model priced; their schedules and chunks share a price
    misfits      layouts dropped by memory        bounded   layouts never solved: bound too high
    dropped      rows dropped before pricing, by rule
    """

    status: Literal["OPTIMAL", "FEASIBLE"]
    solutions: tuple[Solution, ...]
    bound_s: float
    gap: float
    candidates: int
    priced: int
    misfits: int
    bounded: int
    solved: int
    cpsat_solves: int
    wall_s: float
    dropped: dict[str, int]


class Progress(NamedTuple):
    """Where a running search stands; `best_s` is None before the first plan."""

    best_s: float | None
    bound_s: float
    candidates: int
    cpsat_solves: int


class _Open(NamedTuple):
    """A layout in the queue: `rung` 0 opened, 1 packed, 2 and more asked in window rung - 2."""

    bound: int
    number: int
    row: int
    variant: Variant
    rung: int


def search(
    question: Question,
    *,
    k: int = 1,
    time_limit_s: float | None = None,
    price: Pricer = closed_form,
    progress: Callable[[Progress], None] | None = None,
    rerank: Callable[[Layout], float] | None = None,
) -> SearchResult:
    """The `k` best layouts that differ in kind, the first one proved best; raises `NoLayoutFits`.

    `rerank` gives a finer step time (the event simulation); solutions are then ordered by it.
    """
    started = time.perf_counter()
    q = question
    space = enumerate_space(q.model, q.training, q.gpus, q.engine, q.pins, q.cluster.gpus_per_node)
    if not len(space.grid):
        raise NoLayoutFits(f"no layout of {q.model.name} on {q.gpus} GPUs obeys every rule")
    run = _Run(question, space, price_space(question, space, price), progress)
    deadline = started + time_limit_s if time_limit_s is not None else None
    run.seed()
    finished = run.prove(1, deadline) and run.prove(k, deadline)
    if not run.best and finished:
        raise NoLayoutFits(f"no layout of {q.model.name} fits on {q.gpus} GPUs")
    return run.result(k, started, rerank)


class _Run:
    """One search: rows in order of bound, the queue, the best plan of each kind."""

    def __init__(
        self,
        question: Question,
        space: Space,
        coefficients: Coefficients,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self.question, self.space, self.coefficients = question, space, coefficients
        self.progress, self._reported = progress, time.perf_counter()
        fits = row_fits(space, coefficients)
        bounds = row_bounds(space, coefficients)
        self.bounds = bounds
        self.rows = np.flatnonzero(fits)[np.argsort(bounds[fits], kind="stable")]
        self.next_row = 0
        self.candidates = self._variants_in(np.arange(len(space.grid)))
        self.misfits = self.candidates - self._variants_in(self.rows)
        self.queue: list[_Open] = []
        self.best: dict[Kind, tuple[int, int, Variant, StagePlan]] = {}
        self.numbers = count()
        self.solver = Solver()
        self.solved = 0
        self.unsolved_bound: int | None = None
        self.refuted: dict[Family, list[tuple[tuple[int, ...], int]]] = {}

    def seed(self) -> None:
        """A plan of each of the likeliest kinds, so that the first windows are narrow."""
        tried: set[Kind] = set()
        for row in self.rows:
            kind = self._kind(int(row))
            if kind in tried:
                continue
            tried.add(kind)
            for variant in self.space.variants(int(row)):
                if variant.virtual_stages == 1:
                    entry = _Open(0, 0, int(row), variant, 0)
                    _, plan = self.solver.first_plan(self._problem(entry))
                    self._offer(entry, plan)
            if len(tried) == FIRST_KINDS:
                return

    def _variants_in(self, rows: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> int:
        pp, m = self.space.grid.pipeline_parallel[rows], self.space.grid.num_micro_batches[rows]
        _, first, counts = np.unique(pp * 2**32 + m, return_index=True, return_counts=True)
        return sum(
            int(times) * len(self.space.variants(int(rows[i])))
            for i, times in zip(first, counts, strict=True)
        )

    @property
    def bound(self) -> int | None:
        """Nothing that is still open is below this; None when nothing is open."""
        bounds = [self.queue[0].bound] if self.queue else []
        if self.next_row < len(self.rows):
            bounds.append(int(self.bounds[self.rows[self.next_row]]))
        return min(bounds, default=None)

    def cutoff(self, target: int) -> int | None:
        """What a layout must beat to be among the `target` best kinds."""
        values = sorted(found[0] for found in self.best.values())
        if not values:
            return None
        if target == 1:
            return values[0]
        slowest = int(values[0] * SPREAD)
        return min(values[target - 1], slowest) if len(values) >= target else slowest

    def prove(self, target: int, deadline: float | None) -> bool:
        """Work until the `target` best kinds are proved; False if time or the user ended it."""
        try:
            while (bound := self.bound) is not None:
                cutoff = self.cutoff(target)
                if cutoff is not None and bound >= cutoff:
                    return True
                if deadline is not None and time.perf_counter() >= deadline:
                    return False
                self._report(bound)
                self._step(bound, cutoff)
        except KeyboardInterrupt:
            return False
        return True

    def _report(self, bound: int) -> None:
        now = time.perf_counter()
        if self.progress and now - self._reported >= PROGRESS_S:
            self._reported = now
            best = self.cutoff(1)
            self.progress(
                Progress(
                    best / THIRDS_PER_S if best is not None else None,
                    bound / THIRDS_PER_S,
                    self.candidates,
                    self.solver.solves,
                )
            )

    def _step(self, bound: int, cutoff: int | None) -> None:
        """Open the next row, or take the open layout with the smallest bound one rung up."""
        if not self.queue or self.queue[0].bound > bound:
            row = int(self.rows[self.next_row])
            self.next_row += 1
            for variant in self.space.variants(row):
                self._push(_Open(bound, next(self.numbers), row, variant, 0))
            return
        entry = self.queue[0]
        own = self.best.get(self._kind(entry.row))
        below = _least(cutoff, own[0] if own else None)
        problem = self._problem(entry)
        raised = self._climb(entry, problem, below)
        # Replaced only now: an interrupted step leaves the layout where it was.
        heapq.heappop(self.queue)
        if raised is not None and (own is None or raised.bound < own[0]):
            self._push(raised)

    def _climb(self, entry: _Open, problem: StageProblem, below: int | None) -> _Open | None:
        """`entry` one rung up with a higher bound; None when it is solved or infeasible."""
        if entry.rung == 0:
            bound = packing_bound(problem, below)
            if bound is None:
                self.misfits += 1
                return None
            return entry._replace(bound=max(bound, entry.bound), rung=1)
        if entry.rung == 1:
            bound, plan = self.solver.first_plan(problem)
            self._offer(entry, plan)
            if bound is None:
                self.misfits += 1
                return None
            bound = max(bound, entry.bound)
            if problem.vpp > 1 and below is not None:
                bound = max(bound, chunk_bound(problem, below))
            if plan is not None and plan.objective <= bound:
                self.solved += 1
                return None
            return entry._replace(bound=bound, rung=2)
        return self._ask(entry, problem, below)

    def _ask(self, entry: _Open, problem: StageProblem, below: int | None) -> _Open | None:
        window, step = below, entry.rung - 2
        near = below is not None and below <= entry.bound * NEAR
        if step < len(WINDOWS) and not near:
            window = _least(below, entry.bound + 1 + int(entry.bound * WINDOWS[step]))
        if window is not None:
            packed = packing_bound(problem, window)
            if (packed is not None and packed >= window) or self._known_refuted(problem, window):
                return entry._replace(bound=window, rung=entry.rung + (window != below))
        outcome = self.solver.solve(problem, window)
        self._offer(entry, outcome.plan)
        if outcome.status == "OPTIMAL":
            self.solved += 1
            return None
        if outcome.bound is None:
            self.misfits += 1
            return None
        bound = max(entry.bound, outcome.bound)
        if outcome.status == "INFEASIBLE":
            self.refuted.setdefault(_family(problem), []).append((problem.costs, bound))
            return entry._replace(bound=bound, rung=entry.rung + (window != below))
        if step >= LAST:
            self.unsolved_bound = _least(self.unsolved_bound, bound)
            return None
        return entry._replace(bound=bound, rung=LAST + 2)

    def _known_refuted(self, problem: StageProblem, window: int) -> bool:
        """Whether a layout that is nowhere dearer was proved to have no plan below `window`."""
        return any(
            bound >= window and all(a <= b for a, b in zip(costs, problem.costs, strict=True))
            for costs, bound in self.refuted.get(_family(problem), ())
        )

    def _push(self, entry: _Open) -> None:
        heapq.heappush(self.queue, entry)

    def _problem(self, entry: _Open) -> StageProblem:
        return stage_problem(
            self.coefficients,
            self.space.grid,
            entry.row,
            entry.variant,
            self.space.model,
            self.space.legality,
        )

    def _kind(self, row: int) -> Kind:
        grid = self.space.grid
        return (
            int(grid.tensor_parallel[row]),
            int(grid.context_parallel[row]),
            int(grid.pipeline_parallel[row]),
            int(grid.expert_parallel[row]),
        )

    def _offer(self, entry: _Open, plan: StagePlan | None) -> None:
        kind = self._kind(entry.row)
        known = self.best.get(kind)
        if plan is not None and (known is None or plan.objective < known[0]):
            self.best[kind] = (plan.objective, entry.row, entry.variant, plan)

    def result(
        self, k: int, started: float, rerank: Callable[[Layout], float] | None
    ) -> SearchResult:
        """What was found and what is proved about it."""
        open_bound = _least(self.bound, self.unsolved_bound)
        found = sorted(self.best.values(), key=lambda item: (item[0], item[1]))[:k]
        if not found:
            raise NoLayoutFits("the search was ended before it found a layout that fits")
        best = found[0][0]
        bound = best if open_bound is None else min(best, open_bound)
        solutions = tuple(self._solution(item, open_bound) for item in found)
        if rerank:
            judged = [replace(s, reranked_s=rerank(s.layout)) for s in solutions]
            solutions = tuple(sorted(judged, key=lambda s: s.reranked_s or 0.0))
        return SearchResult(
            status="OPTIMAL" if bound >= best else "FEASIBLE",
            solutions=solutions,
            bound_s=bound / THIRDS_PER_S,
            gap=1 - bound / best if best else 0.0,
            candidates=self.candidates,
            priced=len(self.space.grid),
            misfits=self.misfits,
            bounded=self.candidates - self.misfits - self.solved,
            solved=self.solved,
            cpsat_solves=self.solver.solves,
            wall_s=time.perf_counter() - started,
            dropped=self.space.dropped,
        )

    def _solution(
        self, item: tuple[int, int, Variant, StagePlan], open_bound: int | None
    ) -> Solution:
        objective, row, variant, plan = item
        layout = layout_of_row(self.space.grid, row, variant, plan)
        check_layout(layout, self.space.model, self.question.training)
        return Solution(
            layout=layout,
            step_time_s=objective / THIRDS_PER_S,
            parts=plan.parts,
            peak_bytes=tuple(map(self.coefficients.reserved_bytes, plan.peak_kib)),
            proved=open_bound is None or objective <= open_bound,
        )


def layout_of_row(grid: Grid, row: int, variant: Variant, plan: StagePlan) -> Layout:
    """The layout that `plan` makes of a row and its variant."""
    zero = int(grid.zero_stage[row])
    replicas = int(grid.data_parallel[row] * grid.context_parallel[row])
    group = int(grid.shard_group[row])
    return Layout(
        data_parallel=int(grid.data_parallel[row]),
        tensor_parallel=int(grid.tensor_parallel[row]),
        pipeline_parallel=int(grid.pipeline_parallel[row]),
        virtual_stages=variant.virtual_stages,
        context_parallel=int(grid.context_parallel[row]),
        expert_parallel=int(grid.expert_parallel[row]),
        expert_tensor_parallel=int(grid.expert_tensor_parallel[row]),
        sequence_parallel=bool(grid.sequence_parallel[row]),
        zero_stage=zero,
        shard_group=0 if zero == 0 or group == replicas else group,
        micro_batch_size=int(grid.micro_batch_size[row]),
        schedule=variant.schedule,
        stages=plan.stages,
    )


def _family(problem: StageProblem) -> Family:
    """Problems that differ only in their prices."""
    return (problem.schedule, problem.pp, problem.vpp, problem.m, problem.modes)


def _least(*values: int | None) -> int | None:
    return min((value for value in values if value is not None), default=None)
