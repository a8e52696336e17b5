"""Several chunks per rank, any cut: counts of layers by chunk and recompute mode, by CP-SAT.

variables    x[j, r] layers of chunk j in mode r (full first, then selective, then none)
             X[g] the slowest of each group of `PipelineShape.waits`, D the largest once-per-step
             sum of a rank (`planner.problem.closed_form`)
_Chunks      the cut points, n[j, k, r] layers by kind as differences of prefix counts at them
_add_times   X[g] >= the c_j of its group, D >= each rank's sum
_add_memory  one row per rank and in-flight vector: exact for uneven chunks, one number is not
_tidy        among plans with the found split and objective, the one that recomputes least
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from meshplan.costmodels.layout import Stage
from meshplan.costmodels.layouts import Ints
from meshplan.planner.problem.stage_problem import StagePlan, StageProblem, evaluate
from meshplan.planner.stages.cpsat import Solved, new_model, solve_model, weighted_sum

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

ENDLESS_NS = 2**40
Expr = Any  # a CP-SAT linear expression or an int


class _Chunks:
    """The layers of each chunk in each mode, by kind, as expressions over cut points."""

    def __init__(self, model: "cp_model.CpModel", problem: StageProblem) -> None:
        self.model, self.problem, self.layers = model, problem, len(problem.pattern)
        self.count: list[dict[int, Expr]] = []
        self.of_kind: list[dict[tuple[int, int], Expr]] = []
        self._prefixes = [
            [sum(kind == k for kind in problem.pattern[:x]) for x in range(self.layers + 1)]
            for k in range(len(problem.state_kib))
        ]
        position: Expr = 0
        at: list[Expr] = [0] * len(problem.state_kib)
        for j in range(problem.chunks):
            position, at = self._add_chunk(j, position, at)
        model.add(position == self.layers)

    def _add_chunk(self, j: int, position: Expr, at: list[Expr]) -> tuple[Expr, list[Expr]]:
        counts: dict[int, Expr] = {}
        kinds: dict[tuple[int, int], Expr] = {}
        for mode in sorted(self.problem.modes, reverse=True):
            counts[mode] = self.model.new_int_var(0, self.layers, f"x{j},{mode}")
            position = position + counts[mode]
            if self.problem.uniform:
                kinds[self.problem.pattern[0], mode] = counts[mode]
                continue
            position, after = self._prefix_counts(position)
            kinds |= {(k, mode): b - a for k, (a, b) in enumerate(zip(at, after, strict=True))}
            at = after
        total = sum(counts.values())
        self.model.add_linear_constraint(total, self.problem.fewest_layers(j), self.layers)
        self.count.append(counts)
        self.of_kind.append(kinds)
        return position, at

    def _prefix_counts(self, position: Expr) -> tuple[Expr, list[Expr]]:
        """`position` as a variable, and the layers of each kind before it: a table look-up each,
        but the last kind is the rest."""
        index = self.model.new_int_var(0, self.layers, "")
        self.model.add(index == position)
        found = []
        for table in self._prefixes[:-1]:
            target = self.model.new_int_var(0, table[-1], "")
            self.model.add_element(index, table, target)
            found.append(target)
        return index, [*found, index - sum(found)]

    def layers_of(self, chunks: Sequence[int]) -> "_Layers":
        """Layer counts of `chunks`, one entry per chunk, kind and mode."""
        keys = [(at, k, r) for at, j in enumerate(chunks) for k, r in self.of_kind[j]]
        counts = [n for j in chunks for n in self.of_kind[j].values()]
        at, kinds, modes = np.array(keys).T
        return _Layers(counts, at, kinds, modes)


class _Layers(NamedTuple):
    """Counts of layers, and of each the place of its chunk among those asked for, kind and mode."""

    counts: list[Expr]
    at: Ints
    kinds: Ints
    modes: Ints

    def total(self, coefficients: Ints) -> Expr:
        """Sum over the layers of `coefficients`, one per entry."""
        return weighted_sum(self.counts, coefficients.tolist())


def solve_counts(problem: StageProblem, seconds: float) -> tuple[StagePlan | None, bool]:
    """The best plan that CP-SAT finds within deterministic `seconds`, whatever splits are listed,
    and whether there is none where none is found.
    """
    model = new_model()
    chunks = _Chunks(model, problem)
    objective, work = _add_times(model, chunks)
    _add_memory(model, chunks)
    model.minimize(objective)
    return _solved(_Built(model, chunks, objective, work), seconds)


class _Built(NamedTuple):
    """The finished model; `work` is the sum of all c_j."""

    model: "cp_model.CpModel"
    chunks: _Chunks
    objective: Expr
    work: Expr


def _solved(built: _Built, seconds: float) -> tuple[StagePlan | None, bool]:
    """Solve the model, and read its plan."""
    chunks, solved = built.chunks, solve_model(built.model, seconds)
    if not solved.found:
        return None, solved.status != "UNKNOWN"
    plan = evaluate(chunks.problem, _stages(chunks, _tidy(built, solved, seconds)))
    assert plan is not None, "CP-SAT returned a plan that does not fit"
    assert plan.objective <= solved.objective + chunks.problem.constant_ns, "a plan was mispriced"
    return plan, True


def _tidy(built: _Built, solved: Solved, seconds: float) -> Solved:
    """Of plans with the found split and objective, the one that recomputes least."""
    if len(built.chunks.problem.modes) == 1:
        return solved
    for counts in built.chunks.count:
        total = sum(counts.values())
        built.model.add(total == solved.value(total))
    built.model.add(built.objective <= solved.objective)
    built.model.minimize(built.work)
    tidied = solve_model(built.model, seconds)
    return tidied if tidied.found else solved


def _stages(chunks: _Chunks, solved: Solved) -> tuple[Stage, ...]:
    return tuple(
        Stage(
            sum(solved.value(count) for count in counts.values()),
            solved.value(counts.get(1, 0)),
            solved.value(counts.get(2, 0)),
        )
        for counts in chunks.count
    )


def _add_times(model: "cp_model.CpModel", chunks: _Chunks) -> tuple[Expr, Expr]:
    """The objective without the part that no plan changes, and the sum of all c_j."""
    problem, last, form = chunks.problem, chunks.problem.chunks - 1, chunks.problem.form
    layer_ns, step_ns, times = np.array(problem.layer_ns), np.array(problem.step_ns), []
    for j in range(problem.chunks):
        layers = chunks.layers_of((j,))
        time = problem.send_ns + layers.total(layer_ns[layers.kinds, layers.modes])
        time += problem.embedding.ns if j == 0 else 0
        time += problem.head.ns if j == last else 0
        times.append(time)
    work = sum(times)
    slowest = _slowest(model, chunks, times)
    share = model.new_int_var(0, ENDLESS_NS, "share")
    model.add(form.under * share >= form.over * work)
    step_end = model.new_int_var(0, ENDLESS_NS, "D")
    for rank in problem.chunks_of_rank:
        layers = chunks.layers_of(rank)
        end = layers.total(step_ns[layers.kinds])
        end += problem.embedding.step_ns if 0 in rank else 0
        end += problem.head.step_ns if last in rank else 0
        model.add(step_end >= end)
    return form.weight * slowest + share + step_end, work


def _slowest(model: "cp_model.CpModel", chunks: _Chunks, times: list[Expr]) -> Expr:
    """The sum of all X[g]; each rank's chunks together last no longer."""
    problem, longest = chunks.problem, []
    for group in problem.shape.waits:
        longest.append(model.new_int_var(0, ENDLESS_NS, ""))
        for together in group:
            model.add(longest[-1] >= sum(times[j] for j in together))
    slowest = sum(longest)
    if len(longest) > 1:  # implied, and what the relaxation needs
        for rank in problem.chunks_of_rank:
            model.add(slowest >= sum(times[j] for j in rank))
    model.add(slowest >= -(-problem.least_work_ns // problem.pp))
    return slowest


def _add_memory(model: "cp_model.CpModel", chunks: _Chunks) -> None:
    problem, last = chunks.problem, chunks.problem.chunks - 1
    state, update = np.array(problem.state_kib), np.array(problem.update_kib)
    saved = np.array(problem.saved_kib)
    for s, rank in enumerate(problem.chunks_of_rank):
        ends = [(e, j) for e, j in ((problem.embedding, 0), (problem.head, last)) if j in rank]
        room = problem.cap_kib - problem.fixed_kib - sum(end.state_kib for end, _ in ends)
        layers = chunks.layers_of(rank)
        updated = layers.total((state + update)[layers.kinds])
        model.add(updated <= room - sum(end.update_kib for end, _ in ends))
        floor = max((end.transient_kib for end, _ in ends), default=0)
        room -= _transient(model, chunks, rank, floor)
        for vector in problem.shape.matrices[s]:
            held = vector[layers.at] * saved[layers.kinds, layers.modes]
            at_ends = sum(int(vector[rank.index(j)]) * end.saved_kib for end, j in ends)
            model.add(layers.total(state[layers.kinds] + held) <= room - at_ends)


def _transient(
    model: "cp_model.CpModel", chunks: _Chunks, rank: tuple[int, ...], floor: int
) -> Expr:
    """The largest transient of the modes present: one Boolean per mode above the floor."""
    problem = chunks.problem
    above = [r for r in problem.modes if problem.transient_kib[r] > floor]
    if len(problem.modes) == 1 or not above:
        return max(floor, *(problem.transient_kib[r] for r in problem.modes))
    top = model.new_int_var(floor, max(problem.transient_kib), "")
    for mode in above:
        present = model.new_bool_var("")
        for j in rank:
            model.add(chunks.count[j][mode] <= chunks.layers * present)
        model.add(top >= problem.transient_kib[mode] * present)
    return top
