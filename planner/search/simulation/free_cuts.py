"""A bound of every cut of the layouts whose cuts a list limits, once the proof has ended.

Where an engine cuts anywhere, layouts of several chunks per rank are solved over a list of cuts
(`planner.space.stage_splits`). What is faster however they are cut is bounded here, the smallest
bound first, each by what costs little before what costs much:

    row       of all cuts, by the mean rank (`planner.search.rows.rows_below.bounds_of_rows`), in
              the modes of one way to run it; not those whose ranks cannot hold all layers
    asked     by the multipliers that were found for a layout with the same schedule, ranks, chunks
    packed    by the whole layers that ranks can hold (`FreeCuts.packing_bounds_s`)
    solved    by a program of its own (`planner.cuts.free_cut_program`); then below which limit the
              whole layers of ranks leave it no answer, by halving

The first that is solved is the best plan's layout: others need not be solved beyond it.
"""

import math
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layouts import Bools, Floats, Ints, each_once
from meshplan.planner.bounds.free_cuts import FreeCuts, Line, Multipliers, first_lines
from meshplan.planner.bounds.simulated import SAFETY
from meshplan.planner.cuts import budget as costs
from meshplan.planner.cuts.free_cut_program import FreeCutProgram
from meshplan.planner.cuts.known_chains import Shape, actions_of
from meshplan.planner.problem.coefficients import Priced
from meshplan.planner.problem.pipeline_shape import pipeline_shape
from meshplan.planner.problem.same_pipeline import run_as
from meshplan.planner.search.found import SETTLED
from meshplan.planner.search.rows.least_held import LeastHeld
from meshplan.planner.search.rows.rows_below import bounds_of_rows
from meshplan.planner.search.simulation.simulated import Simulated
from meshplan.planner.space.legal_layouts import Variant
from meshplan.planner.space.stage_splits import lists_all

BUDGET = 1_500_000  # units of work, as those of `planner.cuts.budget`: some 0.15 seconds
GROUP, BOUNDED, PACKED = 8_000, 1, 100  # layouts that are alike; each of their chunks, and ranks
PROGRAM, CELL = 100_000, 4  # a program; each of its cells, in each round
HALVINGS = 5
MOST_ROWS = 32_768  # that are looked at


class _Alike:
    """Layouts with the same ways to run, ranks and micro-batches, each with its bound; `most` are
    the layers that each rank holds at most in steps below the limit, [row, rank].
    """

    def __init__(
        self, variant: Variant, shape: Shape, rows: Ints, bounds: Floats, layers: int
    ) -> None:
        self.variant, self.shape, self.rows, self.bounds = variant, shape, rows, bounds
        self.most = np.full((len(rows), shape[1]), float(layers))
        self.packed: Bools = np.zeros(len(rows), bool)
        self.solved: Bools = np.zeros(len(rows), bool)

    @property
    def unpacked_s(self) -> float:
        """The least bound of what is not packed."""
        return float(np.where(self.packed, np.inf, self.bounds).min(initial=math.inf))

    @property
    def open_s(self) -> float:
        """The least bound of what is not solved."""
        return float(np.where(self.solved, np.inf, self.bounds).min(initial=math.inf))


class _Asked(NamedTuple):
    """Multipliers of the chains of `shape`; `first`: of those that all micro-batches have."""

    lines: list[Line]
    by: Multipliers
    shape: Shape
    first: bool


class FreeCutBounds:
    """The layouts of `proof` that may be faster if they are cut as no list says."""

    def __init__(self, proof: Simulated) -> None:
        self.proof, self.limit_s = proof, proof.best_s * SETTLED
        self._left = BUDGET
        self._lines = dict[Shape, list[Line]]()
        self._alike = list[_Alike]()

    def bound_s(self) -> float:
        """A lower bound of every such layout; infinite where none can be faster."""
        bounds, space = self.proof.open.row_bounds, self.proof.space
        rows = space.listed(np.flatnonzero(bounds < self.limit_s))
        taken = self._taken(rows)
        rest = np.sort(rows)
        left = bounds[np.delete(rest, np.searchsorted(rest, taken))].min(initial=math.inf)
        if len(taken):
            self._prices = self._least_held(taken)
            self._rows, self._held = taken, self._prices.take(taken)
            self._alike = list(self._groups(taken))
            with suppress(KeyboardInterrupt):  # bounds only rise
                self._settle()
        least_s = min([float(left), *(float(each.bounds.min()) for each in self._alike)])
        return least_s if least_s < self.limit_s else math.inf

    def _taken(self, rows: Ints) -> Ints:
        """Those with the smallest bounds: as many as memory allows, none once it is late, and none
        that keeps activations on the host, whose memory is priced alone.
        """
        if self.proof.tally.late:
            return rows[:0]
        some = rows[self.proof.space.layouts.activation_offload[rows] == 0]
        order = np.argsort(self.proof.open.row_bounds[some], kind="stable")
        return np.sort(some[order[:MOST_ROWS]])

    def _groups(self, rows: Ints) -> Iterator[_Alike]:
        space, bounds = self.proof.space, dict[tuple[int, ...], Floats]()
        layers = sum(space.kind_counts)
        for variant, same in space.by_variant(rows):
            modes = tuple(variant.columns[mode] for mode in variant.modes)
            if modes not in bounds:
                bounds[modes] = bounds_of_rows(space, self.proof.passes, list(modes))
            same = same[bounds[modes][same] < self.limit_s]
            if not len(same):
                continue
            pp, vpp = int(space.layouts.pipeline_parallel[same[0]]), variant.virtual_stages
            if vpp == 1 or lists_all(space.model, space.legality, pp, vpp):
                continue
            m = space.layouts.num_micro_batches[same]
            for number in each_once(m).tolist():
                some, shape = same[m == number], (variant.schedule, pp, vpp, int(number))
                some = some[self._holds(np.searchsorted(rows, some), modes, shape)]
                if not len(some):
                    continue
                yield _Alike(variant, shape, some, bounds[modes][some], layers)

    def _holds(self, at: Ints, modes: tuple[int, ...], shape: Shape) -> Bools:
        """Whether the ranks of layouts, at these places of all rows, hold all layers if each keeps
        them in the chunk that holds the fewest micro-batches, with no room for passes; and do their
        work below the limit.
        """
        held, c, space = pipeline_shape(*shape), self._held, self.proof.space
        kinds = [kind for kind, count in enumerate(space.kind_counts) if count]
        saved = c.layer_saved_kib[at][:, kinds][:, :, list(modes)].min(axis=2).astype(float)
        room = np.repeat((c.cap_kib - c.fixed_kib[at])[:, None].astype(float), shape[1], axis=1)
        (first, _), (last, _) = held.ends
        room[:, first] -= c.embedding_state_kib[at]
        room[:, last] -= c.head_state_kib[at]
        fewest = held.covers.min(axis=2)  # [cover, rank]
        each = saved[:, :, None, None] * fewest + c.layer_state_kib[at][:, kinds, None, None]
        most = np.floor(room[:, None] / np.maximum(each.min(axis=1), 1e-9)).min(axis=1)
        layers, passes = sum(space.kind_counts), self.proof.passes.layer_s[self._rows[at]]
        work_s = passes[:, kinds][:, :, list(modes)].sum(axis=3).min(axis=(1, 2)) * shape[3]
        most = np.minimum(most, np.floor(self.limit_s / SAFETY / work_s)[:, None])
        found: Bools = (most >= 0).all(axis=1) & (np.clip(most, 0, layers).sum(axis=1) >= layers)
        return found

    def _least_held(self, rows: Ints) -> Priced:
        """Prices whose memory is not above what ranks hold."""
        proof = self.proof
        if not proof.setting.engine.kernels.counts_passes:
            return proof.open.prices
        return LeastHeld(proof.prices, proof.space.layouts, proof.setting, rows)

    def _cuts(self, alike: _Alike, some: Ints) -> FreeCuts:
        rows = alike.rows[some]
        same = run_as(self.proof.space, self._prices, rows, alike.variant)
        return FreeCuts(same, self.proof.passes, rows)

    def _settle(self) -> None:
        """All are packed before any is solved, for half of the budget."""
        found_s = self.limit_s
        while self._goes_on(found_s) and self._left > BUDGET // 2:
            alike = min(self._alike, key=lambda each: each.unpacked_s)
            if alike.unpacked_s >= found_s:
                break
            self._pack(alike, found_s)
        if (best := self._of_the_best()) and self._goes_on(found_s):
            found_s = min(found_s, self._solve(*best, found_s))
        while self._goes_on(found_s):
            alike = min(self._alike, key=lambda each: each.open_s)
            at = int(np.where(alike.solved, np.inf, alike.bounds).argmin())
            if not alike.packed[at]:
                self._pack(alike, found_s)
            else:
                found_s = min(found_s, self._solve(alike, at, found_s))

    def _of_the_best(self) -> tuple[_Alike, int] | None:
        best = self.proof.ranked()[0]
        row = self.proof.row_of(best)
        for alike in self._alike:
            places = np.flatnonzero(alike.rows == row)
            if alike.variant == best.variant and len(places):
                return alike, int(places[0])
        return None

    def _goes_on(self, found_s: float) -> bool:
        """Whether something is open below what is found, and there is time, and budget."""
        open_s = min((each.open_s for each in self._alike), default=math.inf)
        return open_s < found_s and self._left > 0 and not self.proof.tally.late

    def _pack(self, alike: _Alike, limit_s: float) -> None:
        """Bound what is below the limit by whole layers of ranks."""
        some = np.flatnonzero(~alike.packed & (alike.bounds < limit_s))
        cuts = self._cuts(alike, some)
        alike.bounds[some] = cuts.packing_bounds_s(alike.bounds[some], self.limit_s)
        alike.most[some] = cuts.most_layers(np.full(len(some), self.limit_s))
        alike.packed[some] = True
        self._left -= GROUP * (1 + cuts.same.pp // 2) + PACKED * cuts.same.pp * len(some)

    def _solve(self, alike: _Alike, at: int, limit_s: float) -> float:
        """The bound of one layout by its own program, as far as it is below the limit."""
        schedule, pp, vpp, m = alike.shape
        known = self._lines.setdefault(alike.shape, list(first_lines(schedule, pp, vpp, m)))
        program = FreeCutProgram(self._cuts(alike, np.array([at])), self.limit_s, known)
        self._left -= PROGRAM
        low_s = max(float(alike.bounds[at]), self._proved_s(program, self.limit_s, alike.shape))
        high_s = self.limit_s
        for _ in range(HALVINGS if low_s < limit_s else 0):
            middle_s = (low_s + high_s) / 2
            if program.overfull(middle_s) or self._proved_s(program, middle_s) >= middle_s:
                low_s = middle_s
            else:
                high_s = middle_s
        self._lines[alike.shape] = program.lines
        alike.bounds[at] = max(float(alike.bounds[at]), min(low_s, self.limit_s))
        alike.solved[at] = alike.packed[at] = True
        return float(alike.bounds[at])

    def _proved_s(
        self, program: FreeCutProgram, below_s: float, shape: Shape | None = None
    ) -> float:
        """What a program proves of steps below some limit; asked of all of a shape, if said."""
        found_s, actions, asked = 0.0, actions_of(program.shape), None
        for answer in program.answers(below_s):
            self._left -= CELL * program.size + costs.CHAINED * actions
            if shape and answer.by:
                lines = list(program.lines[: len(answer.by.lines)])
                first = asked is None
                asked = _Asked(lines, answer.by, shape, first)
                if first:
                    self._ask(asked)
            found_s = max(found_s, answer.bound_s)
            if found_s >= below_s or self._left <= 0 or self.proof.tally.late:
                break
        if asked and not asked.first:
            self._ask(asked)
        return found_s

    def _ask(self, asked: _Asked) -> None:
        """Of all that is open with the same schedule, ranks and chunks."""
        for alike in self._alike:
            other = alike.shape != asked.shape
            if alike.shape[:3] != asked.shape[:3] or alike.open_s >= self.limit_s:
                continue
            if other and not asked.first:
                continue
            some = np.flatnonzero(~alike.solved & (alike.bounds < self.limit_s))
            cuts, lines, by = self._cuts(alike, some), asked.lines, asked.by
            if other:
                lines = list(first_lines(*alike.shape))
                by = by._replace(lines=by.lines[: len(lines)])
            if by.lines.sum() <= 0 or len(by.memory) != cuts.room_kib.shape[1]:
                continue
            bounds = np.minimum(
                cuts.bounds_s(lines, by, self.limit_s, alike.most[some]), self.limit_s
            )
            alike.bounds[some] = np.maximum(alike.bounds[some], bounds)
            self._left -= GROUP + BOUNDED * cuts.same.chunks * len(some)
