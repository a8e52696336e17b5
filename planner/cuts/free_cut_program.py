"""The least step of a layout of several chunks in real numbers of layers, by cutting planes.

`planner.bounds.free_cuts` says what is linear in such a cut. The program minimises t above the
chains known so far; the longest chain of a cut between its answer and an even one is known then
(in-out separation, which takes far fewer rounds than the answer's own chain: Ben-Ameur and Neto
2007), and it is solved again. What a rank holds too much costs `TOO_MUCH`, so that there always is
an answer. Whatever the solver says, only its multipliers count: they prove the bound.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from meshplan.costmodels.layouts import Floats
from meshplan.costmodels.schedule.actions import Work
from meshplan.costmodels.schedule.long_chain import longest_chain
from meshplan.planner.bounds.free_cuts import FreeCuts, Line, Multipliers, lines_of
from meshplan.planner.bounds.late import BEYOND_ANY, SHOWN
from meshplan.planner.cuts.known_chains import Shape

TOO_MUCH = 1e3  # limits of time for all that a rank can hold
ROUNDS, IN_VAIN, LITTLE = 60, 6, 1e-4  # of a limit at most; in vain, that gain less each
NEAR = 1e-5  # a chain that is so little longer than the answer is no news
BETWEEN = 0.5  # how far a cut whose chain is learnt is from the even one to the program's answer


@cache
def _solvers() -> ModuleType:
    """OR-Tools' linear solvers, imported when one is needed."""
    from ortools.linear_solver import pywraplp

    found: ModuleType = pywraplp
    return found


class Answer(NamedTuple):
    """A bound of every cut, and the multipliers that prove it; None where the solver failed."""

    bound_s: float
    by: Multipliers | None


class FreeCutProgram:
    """The program of the only layout of `cuts`, in units of `limit_s`; `known` chains begin it."""

    def __init__(self, cuts: FreeCuts, limit_s: float, known: Sequence[Line]) -> None:
        self.cuts, self.row, self.limit_s = cuts, 0, limit_s
        self._solver: Any = _solvers().Solver.CreateSolver("GLOP")
        self._endless = self._solver.infinity()
        kinds, modes = cuts.runs.shape[1:]
        self._parts = [
            (chunk, kind, mode)
            for chunk in range(cuts.same.chunks) for kind in range(kinds) for mode in range(modes)
            if cuts.runs[0, kind, mode]
        ]  # fmt: skip
        self._x = [self._solver.NumVar(0, self._endless, "") for _ in self._parts]
        self._t = self._solver.NumVar(0, self._endless, "")
        self._solver.Objective().SetCoefficient(self._t, 1)
        self._solver.Objective().SetMinimization()
        self.lines, self._line_rows = list[Line](), list[Any]()
        self._layers()
        self._memory_rows = self._memory()
        for line in known:
            self.add(line)
        self._even: Floats | None = None

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
            answer = self.answer()
            yield answer
            if answer.by is None:
                return
            vain = vain + 1 if answer.bound_s < least * (1 + LITTLE) else 0
            least = max(least, answer.bound_s)
            if vain > IN_VAIN or not self._learn():
                return

    def _learn(self) -> bool:
        """Add the chain of a cut between the answer and another one, if that or else the answer's
        own is longer than the answer.
        """
        cut, step_s = self.cut(), self.step_s() * (1 + NEAR)
        even = self.evenly(cut) if self._even is None else self._even
        for self._even in ((1 - BETWEEN) * cut + BETWEEN * even, cut):
            new = self.learnt(self._even)
            if self.value_s(new, cut) > step_s:
                for line in new:
                    self.add(line)
                return True
        return False

    @property
    def size(self) -> int:
        """Rows times columns."""
        return int(self._solver.NumConstraints()) * len(self._x)

    def _row(self, least: float, most: float, each: Floats) -> Any:
        found = self._solver.Constraint(least, most)
        for variable, at in zip(self._x, self._parts, strict=True):
            if each[at]:
                found.SetCoefficient(variable, float(each[at]))
        return found

    def _layers(self) -> None:
        """All layers of each kind, and the fewest of each chunk."""
        cuts, shape = self.cuts, (self.cuts.same.chunks, *self.cuts.runs.shape[1:])
        for kind, count in enumerate(cuts.counts):
            each = np.zeros(shape)
            each[:, kind] = 1
            self._row(count, count, each)
        self._fewest_rows = []
        for chunk, fewest in enumerate(cuts.fewest):
            each = np.zeros(shape)
            each[chunk] = 1
            self._fewest_rows.append(self._row(fewest, self._endless, each))
        self._most_rows = []
        for rank in range(cuts.same.pp):
            each = np.zeros(shape)
            each[cuts.rank_of == rank] = 1
            self._most_rows.append(self._row(-self._endless, self._endless, each))

    def limit_to(self, below_s: float) -> None:
        """Only steps below that are of interest: ranks hold so many whole layers at most."""
        self.most = self.cuts.most_layers(np.full(len(self.cuts.same), below_s))
        for row, most in zip(self._most_rows, self.most[self.row], strict=True):
            row.SetUb(float(most))

    def _memory(self) -> list[tuple[int, int, Any]]:
        cuts, found = self.cuts, list[tuple[int, int, Any]]()
        held, late = cuts.held()
        cap_kib = cuts.same.prices.cap_kib
        for rank in range(cuts.same.pp):
            own, known = (cuts.rank_of == rank).astype(float), set[bytes]()
            for cover in range(len(held)):
                room = cuts.room_kib[self.row, cover, rank] / cap_kib
                key = np.array([*(held[cover] * own), *(late[cover] * own), room]).tobytes()
                if key in known:
                    continue
                known.add(key)
                each = cuts.kib_of(held[cover] * own, late[cover] * own, own)[self.row] / cap_kib
                row = self._row(-self._endless, room, each)
                beyond = self._solver.NumVar(0, self._endless, "")
                self._solver.Objective().SetCoefficient(beyond, TOO_MUCH)
                row.SetCoefficient(beyond, -1)
                found.append((cover, rank, row))
        return found

    def add(self, line: Line) -> None:
        """The step is as long as a chain."""
        each, fixed = self.cuts.seconds_of([line], np.ones(1))
        row = self._row(float(fixed[self.row]) / self.limit_s, self._endless,
                        -each[self.row] / self.limit_s)  # fmt: skip
        row.SetCoefficient(self._t, 1)
        self.lines.append(line)
        self._line_rows.append(row)

    def answer(self) -> Answer:
        """What the chains that are known prove."""
        if self._solver.Solve() != self._solver.OPTIMAL:
            return Answer(0.0, None)
        lines = np.array([max(0.0, row.dual_value()) for row in self._line_rows])
        if lines.sum() <= 0:
            return Answer(0.0, None)
        covers = self.cuts.room_kib.shape[1]
        memory = np.zeros((covers, self.cuts.same.pp))
        for cover, rank, row in self._memory_rows:
            memory[cover, rank] = max(0.0, -row.dual_value())
        fewest = np.array([max(0.0, row.dual_value()) for row in self._fewest_rows])
        most = np.array([max(0.0, -row.dual_value()) for row in self._most_rows])
        by = Multipliers(lines, memory, fewest, most / lines.sum())
        by = by._replace(memory=memory / lines.sum(), fewest=fewest / lines.sum())
        bounds = self.cuts.bounds_s(self.lines, by, self.limit_s, self.most)
        return Answer(float(bounds[self.row]), by)

    def cut(self) -> Floats:
        """[chunk, kind, mode] layers of the last answer."""
        found = np.zeros((self.cuts.same.chunks, *self.cuts.runs.shape[1:]))
        for variable, at in zip(self._x, self._parts, strict=True):
            found[at] = variable.solution_value()
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
        held = np.zeros((cuts.same.pp, len(cuts.kinds)))
        np.add.at(held, cuts.rank_of, cut.sum(axis=2))
        lines = [SHOWN, BEYOND_ANY]
        found = held @ late.layer[row][lines][:, cuts.kinds].T + late.fixed[row, lines]
        for end, (rank, _) in enumerate(cuts.same.ends):
            found[rank] += late.ends[row, lines, end]
        reduced: Floats = found.max(axis=1)
        return reduced

    def value_s(self, lines: list[Line], cut: Floats) -> float:
        """The longest of some chains under a cut."""
        found = []
        for line in lines:
            each, fixed = self.cuts.seconds_of([line], np.ones(1))
            taken = np.where(self.cuts.runs[self.row], each[self.row], 0) * cut
            found.append(float(fixed[self.row] + taken.sum()))
        return max(found)

    def evenly(self, cut: Floats) -> Floats:
        """A cut with as many of each kind in each mode, spread evenly over the chunks."""
        return np.broadcast_to(cut.mean(axis=0), cut.shape)
