"""A bound of every cut of the layouts whose cuts a list limits, once the proof has ended.

Where an engine cuts anywhere, layouts of several chunks per rank are solved over a list of cuts
(`planner.space.stage_splits`). What is faster however they are cut is bounded here, the smallest
bound first, each by what costs little before what costs much:

    row       of all cuts, by the mean rank (`planner.search.rows.rows_below.bounds_of_rows`), in
              the modes of one way to run it; not those whose ranks cannot hold all layers, nor rows
              that others beat in everything (`planner.search.rows.dominated`)
    asked     the one with the smallest bound gets a program of the chains that every step has
              (`planner.cuts.free_cut_program`), and its multipliers are asked of all with the same
              schedule and ranks (`planner.bounds.asked_prices`)
    packed    by the whole layers that ranks can hold (`planner.bounds.packed_ranks`)
    solved    by a program of its own with all chains that it learns; then below which limit the
              whole layers of ranks leave it no answer, by halving

What has the smallest bound of all is bounded by the next of these, until it is solved.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np

from meshplan.costmodels.layouts import Bools, Floats, Ints
from meshplan.planner.bounds.asked_prices import AskedPrices
from meshplan.planner.bounds.first_chains import Line, first_lines
from meshplan.planner.bounds.free_cuts import FreeCuts, Multipliers
from meshplan.planner.bounds.packed_ranks import PackedRanks
from meshplan.planner.bounds.simulated import SAFETY
from meshplan.planner.cuts import budget as costs
from meshplan.planner.cuts.free_cut_program import FreeCutProgram
from meshplan.planner.cuts.known_chains import Shape, actions_of
from meshplan.planner.problem.coefficients import Priced
from meshplan.planner.problem.pipeline_shape import pipeline_shape
from meshplan.planner.problem.same_pipeline import run_as
from meshplan.planner.search.found import SETTLED
from meshplan.planner.search.rows.dominated import dominated
from meshplan.planner.search.rows.least_held import LeastHeld
from meshplan.planner.search.rows.rows_below import bounds_of_rows
from meshplan.planner.search.simulation.simulated import Simulated
from meshplan.planner.space.legal_layouts import Variant
from meshplan.planner.space.stage_splits import lists_all

BUDGET = 2_000_000  # units of work, as those of `planner.cuts.budget`: some 0.2 seconds
GROUP, PACKED = 8_000, 100  # layouts that are alike; each of their ranks
USUAL = 4  # chunks of a rank: what is found for them says most of other numbers
PROGRAM, CELL = 15_000, 3  # a program; each of its cells, in each round
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
        self.asked: Bools = np.zeros(len(rows), bool)
        self.packed: Bools = np.zeros(len(rows), bool)
        self.solved: Bools = np.zeros(len(rows), bool)

    @property
    def open_s(self) -> float:
        """The least bound of what is not solved."""
        return float(np.where(self.solved, np.inf, self.bounds).min(initial=math.inf))


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
        rows = rows[~dominated(space, self.proof.passes, self.proof.open.prices, rows)]
        taken = self._taken(rows)
        left = bounds[np.setdiff1d(rows, taken)].min(initial=math.inf)
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
            for number in np.unique(m).tolist():
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
        """What has the smallest bound is asked, packed, and solved; the best plan's own layout is
        solved before others.
        """
        found_s, first = self.limit_s, True
        while self._goes_on(found_s):
            alike = min(self._alike, key=lambda each: (each.open_s, abs(each.shape[2] - USUAL)))
            at = int(np.where(alike.solved, np.inf, alike.bounds).argmin())
            if not alike.asked[at]:
                self._ask_all(alike, at)
            elif not alike.packed[at]:
                self._pack(alike, found_s)
            elif first and (best := self._of_the_best()):
                found_s, first = min(found_s, self._solve(*best, found_s)), False
            else:
                found_s, first = min(found_s, self._solve(alike, at, found_s)), False

    def _ask_all(self, first: _Alike, at: int) -> None:
        """A program of the chains that every step has, and its multipliers of all layouts with the
        same schedule and ranks.
        """
        first.asked[at] = True
        program = FreeCutProgram(
            self._cuts(first, np.array([at])), self.limit_s, first_lines(*first.shape)
        )
        answer = program.answer()
        self._left -= PROGRAM + CELL * program.size
        first.bounds[at] = max(float(first.bounds[at]), min(answer.bound_s, self.limit_s))
        if answer.by is None:
            return
        price = answer.by.memory * self.limit_s / program.cuts.same.prices.cap_kib
        ways = dict[Variant, list[_Alike]]()
        for each in self._alike:
            if each.shape[:2] == first.shape[:2] and each.open_s < self.limit_s:
                ways.setdefault(each.variant, []).append(each)
        for alike in ways.values():
            self._ask_alike(alike, answer.by.lines, price)

    def _ask_alike(self, alike: list[_Alike], weights: Floats, price: Floats) -> None:
        """Of layouts of one variant with equally many ranks."""
        some = [np.flatnonzero(~each.solved & (each.bounds < self.limit_s)) for each in alike]
        rows = np.concatenate([each.rows[at] for each, at in zip(alike, some, strict=True)])
        same = run_as(self.proof.space, self._prices, rows, alike[0].variant)
        cuts = FreeCuts(same, self.proof.passes, rows)
        if price.shape == cuts.room_kib.shape[1:]:
            found = AskedPrices(cuts, weights, price).bounds_s(self.limit_s)
            found = np.minimum(found, self.limit_s)
            ends = np.cumsum([len(at) for at in some])[:-1]
            for each, at, bounds in zip(alike, some, np.split(found, ends), strict=True):
                each.bounds[at] = np.maximum(each.bounds[at], bounds)
        self._left -= GROUP + CELL * cuts.runs[0].size * same.chunks * len(rows) // 3

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
        ranks = PackedRanks(cuts)
        alike.bounds[some] = ranks.bounds_s(alike.bounds[some], self.limit_s)
        alike.most[some] = ranks.most_layers(np.full(len(some), self.limit_s))
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
        found_s, actions, by = 0.0, actions_of(program.shape), None
        for answer in program.answers(below_s):
            self._left -= CELL * program.size + costs.CHAINED * actions
            by = answer.by or by
            found_s = max(found_s, answer.bound_s)
            if found_s >= below_s or self._left <= 0 or self.proof.tally.late:
                break
        if shape and by:
            self._ask(shape, program.lines[: len(by.lines)], by)
        return found_s

    def _ask(self, shape: Shape, lines: Sequence[Line], by: Multipliers) -> None:
        """What a program has learnt, of all that is open and has the same order of actions."""
        for alike in self._alike:
            if alike.shape != shape or alike.open_s >= self.limit_s:
                continue
            some = np.flatnonzero(~alike.solved & (alike.bounds < self.limit_s))
            cuts = self._cuts(alike, some)
            if by.memory.shape != cuts.room_kib.shape[1:]:
                continue
            price = by.memory * self.limit_s / cuts.same.prices.cap_kib
            own = AskedPrices(cuts, by.lines, price, lines).bounds_s(self.limit_s)
            bounds = cuts.bounds_s(lines, by, self.limit_s, alike.most[some])
            bounds = np.minimum(np.maximum(own, bounds), self.limit_s)
            alike.bounds[some] = np.maximum(alike.bounds[some], bounds)
            self._left -= GROUP + CELL * cuts.runs[0].size * cuts.same.chunks * len(some) // 3
