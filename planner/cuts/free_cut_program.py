"""The least step of a layout of several chunks in real numbers of layers, by cutting planes.

`planner.bounds.free_cuts` says what is linear in such a cut. The program minimises t above the
chains known so far. Then the longest chains of some cuts between its answer and the fastest cut of
real numbers so far are known (in-out separation, which takes far fewer rounds than the answer's own
chain: Ben-Ameur and Neto 2007), and it is solved again, from where it stood (dual simplex). What a
rank holds too much costs `TOO_MUCH`, so that there always is an answer. Whatever the solver says,
only its multipliers count: they prove the bound.
"""

import math
from collections.abc import Iterator, Sequence
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from meshplan.costmodels.layouts import Floats
from meshplan.costmodels.schedule.actions import Work
from meshplan.costmodels.schedule.long_chain import longest_chain
from meshplan.planner.bounds.first_chains import Line, lines_of
from meshplan.planner.bounds.free_cuts import Multipliers
from meshplan.planner.bounds.late import BEYOND_ANY, SHOWN
from meshplan.planner.bounds.packed_cuts import PackedCuts
from meshplan.planner.cuts.known_chains import Shape, actions_of
from meshplan.planner.cuts.linear_model import LinearModel
from meshplan.planner.processes.late_binding import bound_when_called

TOO_MUCH = 1e3  # limits of time for all that a rank can hold
ROUNDS, IN_VAIN, LITTLE = 120, 6, 1e-4  # of a limit at most; in vain, that gain less each
NEAR = 1e-5  # a chain that is so little longer than the answer is no news
ROUND, CELLS = 25_000, 2  # units of a round; cells that cost one unit in each
PROGRAM, CELL = 15_000, 3  # units of a program; of each of its cells when it is made
BETWEEN = (0.9, 0.6, 0.3)
"""How far the cuts whose chains are learnt are from the program's answer to the fastest one."""
ENOUGH = 5e-4  # the program's bound and its fastest cut are so near that rounds are in vain
FROM_THE_LAST = "use_preprocessing: false use_dual_simplex: true use_scaling: false"
"""GLOP goes on from its last basis, which is dual feasible when rows are added."""


@cache
def _solvers() -> ModuleType:
    """OR-Tools' linear solvers, imported when one is needed."""
    with bound_when_called():
        from ortools.linear_solver import pywraplp

    found: ModuleType = pywraplp
    return found


def _loaded(model: LinearModel) -> Any:
    """A simplex solver with that model: at once, since to set one coefficient after the other takes
    several times as long as to solve. A model that is not valid would be solved as an empty one.
    """
    solver = _solvers().Solver.CreateSolver("GLOP")
    if refusal := solver.LoadModelFromProto(model):
        raise ValueError(f"no linear program: {refusal}")
    return solver


class _Row(NamedTuple):
    """least <= each [part] x + more [column] y <= most."""

    least: float
    most: float
    each: Floats
    more: dict[int, float]


class Answer(NamedTuple):
    """A bound of every cut, and the multipliers that prove it; None where the solver failed."""

    bound_s: float
    by: Multipliers | None


class FreeCutProgram:
    """The program of the only layout of `cuts`, in units of `limit_s`; `known` chains begin it.
    `in_order`: where kinds of layers differ, with what follows from their order.

    Its columns are the layers of each part (chunk, kind, mode), the step, and of each row of memory
    what is too much.
    """

    def __init__(
        self, cuts: PackedCuts, limit_s: float, known: Sequence[Line], *, in_order: bool = True
    ) -> None:
        self.cuts, self.row, self.limit_s = cuts, 0, limit_s
        self.most = np.full((1, cuts.same.pp), cuts.counts.sum())
        self._runs = np.broadcast_to(cuts.runs[0], (cuts.same.chunks, *cuts.runs[0].shape))
        self._parts = int(self._runs.sum())
        self.lines = list[Line]()
        self._is_solved = False
        self._fastest: Floats | None = None
        self._fastest_s = math.inf
        rows = self._layers()
        self._covers, memory = self._memory()
        blocks = [
            *rows,
            self._in_order() if in_order else [],
            memory,
            self._of_lines(known) if known else [],
        ]
        first = [len(each) for each in blocks]
        self._solver = self._loaded([row for block in blocks for row in block])
        self._x, self._t = (
            self._solver.variables()[: self._parts],
            self._solver.variables()[self._parts],
        )
        every, ends = self._solver.constraints(), np.cumsum(first).tolist()
        self._fewest_rows, self._most_rows = every[ends[0] : ends[1]], every[ends[1] : ends[2]]
        self._order_rows = every[ends[2] : ends[3]]
        self._memory_rows, self._line_rows = every[ends[3] : ends[4]], every[ends[4] :]

    def _loaded(self, rows: Sequence[_Row]) -> Any:
        """The solver with all rows."""
        model, beyond = LinearModel(), len(self._covers)
        for cost in [0.0] * self._parts + [1.0] + [TOO_MUCH] * beyond:
            model.add_variable(0.0, math.inf, cost)
        for least, most, each, more in rows:
            at = np.flatnonzero(each)
            columns, values = [*at.tolist(), *more], [*each[at].tolist(), *more.values()]
            model.add_row(least, most, columns, values)
        solver = _loaded(model)
        solver.SetSolverSpecificParametersAsString(FROM_THE_LAST)
        return solver

    @property
    def shape(self) -> Shape:
        """What decides the order of actions."""
        same = self.cuts.same
        return same.schedule, same.pp, same.vpp, int(same.m[self.row])

    def overfull(self, below_s: float) -> bool:
        """Whether ranks cannot hold all layers in steps below a limit."""
        return not self.cuts.packed(np.array([below_s]))[self.row]

    def answers(self, below_s: float) -> Iterator[Answer]:
        """Of steps below a limit, each with more chains than the one before, as long as these say
        more.
        """
        self.limit_to(below_s)
        least, vain = 0.0, 0
        for _ in range(ROUNDS):
            answer, fastest_s = self.answer(), self._fastest_s
            yield answer
            if answer.by is None or self._is_near(max(least, answer.bound_s), below_s):
                return
            more = self._learn()
            gains = answer.bound_s >= least * (1 + LITTLE)
            vain = 0 if gains or self._fastest_s < fastest_s * (1 - LITTLE) else vain + 1
            least = max(least, answer.bound_s)
            if vain > IN_VAIN or not more:
                return

    def _is_near(self, least_s: float, below_s: float) -> bool:
        """Whether no more rounds can raise a bound to the limit, nor much at all."""
        return least_s < self._fastest_s < min(below_s, least_s * (1 + ENOUGH))

    def _learn(self) -> bool:
        """Add the chains of some cuts between the answer and the fastest one, those that are longer
        than the answer; else its own, if that is.
        """
        cut, step_s, new = self.cut(), self.step_s() * (1 + NEAR), list[Line]()
        middle = self.evenly(cut) if self._fastest is None else self._fastest
        for between in BETWEEN:
            new += self._longer(cut + between * (middle - cut), cut, step_s)
        if not new:
            new = self._longer(cut, cut, step_s)
        if new:
            self.add(new)
        return bool(new)

    def _longer(self, played: Floats, cut: Floats, step_s: float) -> list[Line]:
        """The longest chain of a cut, if another one takes longer than `step_s` by it."""
        lines = self.learnt(played)
        of_each, of_cut = (self.values_s(lines, each) for each in (played, cut))
        if of_each.max() < self._fastest_s:
            self._fastest, self._fastest_s = played, float(of_each.max())
        if of_cut.max() <= step_s:
            return []
        return [lines[at] for at in sorted({int(of_each.argmax()), int(of_cut.argmax())})]

    @property
    def size(self) -> int:
        """Rows times columns."""
        return int(self._solver.NumConstraints()) * len(self._x)

    @property
    def round_work(self) -> int:
        """What a round costs, in units of `planner.cuts.budget`: one cut is played for each of
        `BETWEEN`.
        """
        return ROUND + self.size // CELLS + len(BETWEEN) * actions_of(self.shape)

    def _layers(self) -> tuple[list[_Row], list[_Row], list[_Row]]:
        """All layers of each kind, the fewest of each chunk, and the most of each rank."""
        cuts = self.cuts
        chunk, kind, _ = np.nonzero(self._runs)
        every = np.arange(max(cuts.same.chunks, len(cuts.counts)))[:, None]
        kinds, chunks = (every == kind).astype(float), (every == chunk).astype(float)
        ranks, most = (every == cuts.rank_of[chunk]).astype(float), float(cuts.counts.sum())
        return (
            [_Row(n, n, kinds[at], {}) for at, n in enumerate(cuts.counts.tolist())],
            [_Row(n, math.inf, chunks[at], {}) for at, n in enumerate(cuts.fewest.tolist())],
            [_Row(-math.inf, most, each, {}) for each in ranks[: cuts.same.pp]],
        )

    def _in_order(self) -> list[_Row]:
        """What the layers of a kind are ahead of its share, up to the end of each mode of a chunk;
        a chunk has those first that recompute most.
        """
        cuts, found, modes = self.cuts, list[_Row](), self._runs.shape[2]
        (chunk, kind, mode), drift = np.nonzero(self._runs), self.cuts.drift
        place = chunk * modes + modes - 1 - mode
        for end in range(cuts.same.chunks * modes - 1) if len(cuts.kinds) > 1 else ():
            for at, share in enumerate(drift.share.tolist()):
                each = np.where(place <= end, (kind == at) - share, 0.0)
                found.append(_Row(float(drift.least[at]), float(drift.most[at]), each, {}))
        return found

    def limit_to(self, below_s: float) -> None:
        """Only steps below that are of interest: ranks hold so many whole layers at most."""
        self.most = self.cuts.most_layers(np.full(len(self.cuts.same), below_s))
        self._fastest_s = math.inf  # the fastest cut may hold more
        for row, most in zip(self._most_rows, self.most[self.row], strict=True):
            row.SetUb(float(most))

    def _memory(self) -> tuple[list[tuple[int, int]], list[_Row]]:
        """(cover, rank) of each row of memory, each different one once; and these rows."""
        cuts, found, covers = self.cuts, list[_Row](), list[tuple[int, int]]()
        cap_kib, alone = cuts.same.prices.cap_kib, np.ones(cuts.same.chunks)
        every = [
            cuts.kib_of(held, late, alone)[0][self._runs] / cap_kib
            for held, late in zip(*cuts.held(), strict=True)
        ]
        rank_of, known = cuts.rank_of[np.nonzero(self._runs)[0]], set[bytes]()
        for rank in range(cuts.same.pp):
            own = rank_of == rank
            for cover, kib in enumerate(every):
                each, room = np.where(own, kib, 0.0), float(cuts.room_kib[0, cover, rank] / cap_kib)
                key = np.append(each, room).tobytes()
                if key in known:
                    continue
                known.add(key)
                beyond = {self._parts + 1 + len(found): -1.0}
                found.append(_Row(-math.inf, room, each, beyond))
                covers.append((cover, rank))
        return covers, found

    def _of_lines(self, lines: Sequence[Line]) -> list[_Row]:
        """The step is as long as each chain."""
        each, fixed = (found[:, 0] for found in self.cuts.seconds_of_each(lines))
        self.lines += lines
        return [
            _Row(rest, math.inf, one[self._runs], {self._parts: 1.0})
            for rest, one in zip((fixed / self.limit_s).tolist(), -each / self.limit_s, strict=True)
        ]

    def add(self, lines: Sequence[Line]) -> None:
        """More chains."""
        for row in self._of_lines(lines):
            added = self._solver.Constraint(row.least, row.most)
            for variable, value in zip(self._x, row.each.tolist(), strict=True):
                if value:
                    added.SetCoefficient(variable, value)
            added.SetCoefficient(self._t, 1)
            self._line_rows.append(added)

    def answer(self) -> Answer:
        """What the chains that are known prove."""
        self._is_solved = self._solver.Solve() == self._solver.OPTIMAL
        if not self._is_solved:
            return Answer(0.0, None)
        lines = np.array([max(0.0, row.dual_value()) for row in self._line_rows])
        if lines.sum() <= 0:
            return Answer(0.0, None)
        covers = self.cuts.room_kib.shape[1]
        memory = np.zeros((covers, self.cuts.same.pp))
        for (cover, rank), row in zip(self._covers, self._memory_rows, strict=True):
            memory[cover, rank] = max(0.0, -row.dual_value())
        fewest = np.array([max(0.0, row.dual_value()) for row in self._fewest_rows])
        most = np.array([max(0.0, -row.dual_value()) for row in self._most_rows])
        chunks, kinds, modes = self._runs.shape
        order = np.zeros(chunks * modes * kinds)
        order[: len(self._order_rows)] = [row.dual_value() for row in self._order_rows]
        order = order.reshape(chunks, modes, kinds)[:, ::-1]
        each = (part / lines.sum() for part in (memory, fewest, most, order))
        by = Multipliers(lines, *each)
        bounds = self.cuts.bounds_s(self.lines, by, self.limit_s, self.most)
        return Answer(float(bounds[self.row]), by)

    def cut(self) -> Floats:
        """[chunk, kind, mode] layers of the last answer; none where the solver has no answer: asked
        for its values all the same it prints an error for each.
        """
        found = np.zeros(self._runs.shape)
        if self._is_solved:
            found[self._runs] = [variable.solution_value() for variable in self._x]
        return found

    def step_s(self) -> float:
        """The last answer's step above the chains that are known, what is too much left out."""
        return float(self._t.solution_value()) * self.limit_s

    def learnt(self, cut: Floats) -> list[Line]:
        """The longest chain of a cut of real numbers."""
        cuts, row, p, same = self.cuts, self.row, self.cuts.passes, self.cuts.same
        times = np.einsum("jkm,kmp->jp", cut, np.where(cuts.runs[..., None], cuts.seconds, 0)[row])
        times[0] += p.embedding[row]
        times[-1] += p.head[row]
        times[:, :2] += p.extra[row]
        forward, input_grad, weight_grad = (tuple(each) for each in times.T.tolist())
        work = Work(forward, input_grad, weight_grad, float(p.hop[row]))
        chain = longest_chain(*self.shape, work, self._reduced_s(cut).tolist())
        return lines_of(chain, same.chunks)

    def _reduced_s(self, cut: Floats) -> Floats:
        """[rank] what each reduces after its last backward at least."""
        cuts, late, row = self.cuts, self.cuts.passes.late, self.row
        held = np.zeros((cuts.same.pp, *cut.shape[1:]))
        np.add.at(held, cuts.rank_of, cut)
        lines = [SHOWN, BEYOND_ANY]
        found = np.tensordot(held, cuts.late_s[row, lines], axes=([1, 2], [1, 2]))
        found += late.fixed[row, lines]
        for end, (rank, _) in enumerate(cuts.same.ends):
            found[rank] += late.ends[row, lines, end]
        reduced: Floats = found.max(axis=1)
        return reduced

    def value_s(self, lines: list[Line], cut: Floats) -> float:
        """The longest of some chains under a cut."""
        return float(self.values_s(lines, cut).max())

    def values_s(self, lines: list[Line], cut: Floats) -> Floats:
        """[line] seconds of chains under a cut."""
        each, fixed = (found[:, 0] for found in self.cuts.seconds_of_each(lines))
        taken = np.where(self.cuts.runs[0], each, 0) * cut
        found: Floats = fixed + taken.sum(axis=(1, 2, 3))
        return found

    def evenly(self, cut: Floats) -> Floats:
        """A cut with as many of each kind in each mode, spread evenly over the chunks."""
        return np.broadcast_to(cut.mean(axis=0), cut.shape)


def best_weights(seconds: Floats) -> tuple[float, Floats]:
    """The weights [line], which sum to 1, whose least sum of all cuts [cut, line] is largest, and
    that sum; infinite, and those of the first line, where the solver fails.
    """
    model, unit = LinearModel(maximizes=True), float(np.abs(seconds).max())
    lines = list(range(seconds.shape[1]))
    for _ in lines:
        model.add_variable(0.0, math.inf, 0.0)
    model.add_variable(-math.inf, math.inf, 1.0)
    for each in (seconds / unit).tolist():
        model.add_row(0.0, math.inf, [*lines, len(lines)], [*each, -1.0])
    model.add_row(1.0, 1.0, lines, [1.0] * len(lines))
    solver = _loaded(model)
    if solver.Solve() != solver.OPTIMAL:
        return math.inf, np.eye(len(lines))[0]
    *weights, most = (variable.solution_value() for variable in solver.variables())
    found = np.maximum(weights, 0.0)
    return most * unit, found / found.sum()
