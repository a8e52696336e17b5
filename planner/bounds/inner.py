"""Lower bounds of the inner problem: what no cut into stages and no recomputation can beat.

Each removes constraints or rounds down, so it is at most the optimum whatever the cost model says.
In nanoseconds, with T = sum of all c_j without recomputation, e = mean of the once-per-step costs
and the letters of `planner.problem.closed_form`:

    row_bounds    perfect balance, the row's best schedule:  weight T/S + share T + constant + e
    row_fits      layers <= sum over ranks of max over modes of
                      floor((room - transient of mode) / (state + in flight x least saved))
                  with the least saved by a mode of no larger transient, for each kind, for the
                  heaviest few and for all kinds, whose layers are taken as the lightest of them;
                  and without the floor for all kinds, each as it weighs: else nothing fits

`planner.bounds.packing` bounds a layout more tightly, and `planner.stages.path.greedy_path` gives
the last rung for V = 1: the least X itself.
"""

from collections.abc import Iterator
from functools import cache, reduce

import numpy as np

from meshplan.costmodels.elementwise import least_along
from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.layouts import Bools, Floats, Ints
from meshplan.costmodels.schedule.in_flight import in_flight
from meshplan.costmodels.schedule.orders import V_SHAPED
from meshplan.planner.bounds.packing import CELLS, at_least
from meshplan.planner.problem.coefficients import Coefficients, Held
from meshplan.planner.space.legal_layouts import Space

FRACTIONS = 1 - 2**-40  # of what fits exactly, which sums of fractions may miss
Ways = frozenset[tuple[Schedule, int]]
MOST_LAYERS = 2**20  # layers that a rank "holds" if they take no memory
MOST_KIB = 2**40  # beyond any memory, and products with the micro-batches held stay whole numbers


def row_bounds(space: Space, coefficients: Coefficients) -> Floats:
    """For each row of `space` a lower bound of the objective of all its variants."""
    c, layouts = coefficients, space.layouts
    counts = np.array(space.kind_counts)
    fastest = c.layer_ns[:, :, space.mode_columns].min(2)
    pp = layouts.pipeline_parallel.astype(float)
    work = fastest @ counts + c.embedding_ns + c.head_ns + pp * c.send_ns
    ends = (c.layer_step_ns @ counts + c.embedding_step_ns + c.head_step_ns) / pp
    time = np.zeros(len(layouts))
    for degree, count, rows in _shapes(space):
        forms = [
            c.form(schedule, degree, vpp, np.full(len(rows), count), rows)
            for schedule, vpp in _most_chunks(space, int(rows[0]))
        ]
        whole = work[rows]
        time[rows] = np.min([
            whole * (form.weight / degree + form.over / form.under) + form.constant_ns
            for form in forms
        ], axis=0)  # fmt: skip
    return at_least(time + ends + c.fixed_step_ns)


def row_fits(space: Space, coefficients: Coefficients | Held, *, plainly: bool = False) -> Bools:
    """Whether each row passes the necessary condition on memory; `plainly`: with one chunk per
    rank, where it may have that.
    """
    fits = np.zeros(len(space.layouts), dtype=bool)
    shapes = _shapes(space)
    for degree in {pp for pp, _, _ in shapes}:
        each = [(m, rows) for pp, m, rows in shapes if pp == degree]
        ways = list(_ways_to_run(space, [int(rows[0]) for _, rows in each], plainly))
        held = [_least_held(of, degree, m) for of, (m, _) in zip(ways, each, strict=True)]
        of_shape = np.repeat(np.arange(len(each)), [len(rows) for _, rows in each])
        every = np.concatenate([rows for _, rows in each])
        for first in range(0, len(every), max(1, CELLS // degree)):
            some = slice(first, first + max(1, CELLS // degree))
            ranks = _LeastHeld(
                coefficients,
                every[some],
                np.array([vector for vector, _ in held])[of_shape[some]],
                np.array([v_shaped for _, v_shaped in held])[of_shape[some]],
            )
            for modes in map(space.columns_of, space.mode_classes):
                fits[every[some]] |= ranks.hold(space, modes)
    return fits


class _LeastHeld:
    """How many layers each of the `ranks` of each row can hold at most.

    rows      rows of the prices, shape (n,)
    held      micro-batches that each layer of a rank is held for at least, shape (n, ranks)
    v_shaped  whether the head may be on another rank than the last, shape (n,)
    """

    def __init__(
        self, prices: Coefficients | Held, rows: Ints, held: Ints, v_shaped: Bools
    ) -> None:
        c = prices
        self.prices, self.rows, self.held = c, rows, held * 1.0
        room = (c.cap_kib - c.fixed_kib[rows]) * 1.0
        self.room = np.repeat(room[:, None], held.shape[1], axis=1)
        self.room[:, 0] -= c.embedding_state_kib[rows] + held[:, 0] * c.embedding_saved_kib[rows]
        head = c.head_state_kib[rows] + held[:, -1] * c.head_saved_kib[rows]
        self.room[:, -1] -= np.where(v_shaped, 0, head)
        self.floor = np.zeros_like(self.room)
        self.floor[:, -1] = np.where(v_shaped, 0, c.head_transient_kib[rows])

    def hold(self, space: Space, modes: tuple[int, ...]) -> Bools:
        """Whether all layers find room, some kinds as if they were the lightest of these and all as
        they weigh, with one at least on each rank between the ends.
        """
        counts = space.kind_counts
        enough = np.flatnonzero(np.all(self.room >= self.floor, axis=1))
        lightest = self._layers(modes, [list(range(len(counts)))], enough)[0]
        all_held = lightest.sum(axis=1) >= sum(counts)
        enough = enough[all_held & np.all(lightest[:, 1:-1] >= 1, axis=1)]
        if len(counts) > 1:
            enough = enough[self._hold_some_kinds(modes, counts, enough)]
            enough = enough[self._as_they_weigh(modes, counts, enough)]
        found = np.zeros(len(self.rows), bool)
        found[enough] = True
        return found

    def _hold_some_kinds(self, modes: tuple[int, ...], counts: list[int], some: Ints) -> Bools:
        """Whether the layers of each of `_some_kinds` find room in `some` rows."""
        each = self._some_kinds(len(counts))
        layers = self._layers(modes, each, some)
        wanted = [sum(counts[kind] for kind in kinds) for kinds in each]
        held = [of.sum(axis=1) >= count for of, count in zip(layers, wanted, strict=True)]
        return reduce(np.logical_and, held)

    def _some_kinds(self, number: int) -> list[list[int]]:
        """Each kind alone, and the two, three, ... whose states weigh most."""
        heaviest = np.argsort(-self.prices.layer_state_kib[self.rows].sum(axis=0)).tolist()
        several = [heaviest[:few] for few in range(2, number)]
        return [[kind] for kind in range(number)] + several

    def _as_they_weigh(self, modes: tuple[int, ...], counts: list[int], some: Ints) -> Bools:
        """Whether `some` rows have room for all layers, in layers of each kind: of these a rank has
        room for so many at most, whatever its largest transient is, and a layer of another kind
        weighs on any rank at least what it weighs on the one where it weighs least.
        """
        kinds = range(len(counts))
        most = np.zeros((len(kinds), len(some), self.held.shape[1]))
        weighs = np.full((len(kinds), len(kinds), len(some)), np.inf)
        for room, weights in self._rooms(modes, some):
            for unit in kinds:
                of_unit = np.maximum(weights[unit], 1)
                np.maximum(most[unit], room / of_unit, out=most[unit])
                least = [least_along(weight / of_unit, 1) for weight in weights]
                np.minimum(weighs[unit], least, out=weighs[unit])
        fits = most.sum(axis=2) >= np.array(counts) @ weighs * FRACTIONS
        return np.asarray(fits.all(axis=0))

    def _layers(self, modes: tuple[int, ...], each: list[list[int]], some: Ints) -> list[Floats]:
        """Of `each` of several lists of kinds, by rank of `some` rows, the most layers of the
        lightest of them: over each largest transient that its modes may have, with the least saved
        by the modes of no larger one.

        Whole numbers below 2^52 are divided and rounded down without error.
        """
        most = [np.zeros((len(some), self.held.shape[1])) for _ in each]
        for room, weights in self._rooms(modes, some):
            for kinds, found in zip(each, most, strict=True):
                weight = reduce(np.minimum, [weights[kind] for kind in kinds])
                np.maximum(found, np.floor(room / np.maximum(weight, 1)), out=found)
        return [np.minimum(found, MOST_LAYERS) for found in most]

    def _rooms(self, modes: tuple[int, ...], some: Ints) -> Iterator[tuple[Floats, list[Floats]]]:
        """For each largest transient of `some` rows the room beside it, [row, rank], and what a
        layer of each kind weighs at least, each [row, rank].
        """
        c, rows = self.prices, self.rows[some]
        saved = c.layer_saved_kib[rows][:, :, list(modes)]
        transient = c.transient_kib[rows][:, list(modes)]
        state = c.layer_state_kib[rows]
        held, floor, room = self.held[some], self.floor[some], self.room[some]
        for largest in transient.T:
            within = (transient <= largest[:, None])[:, None, :]
            least = np.minimum(least_along(np.where(within, saved, MOST_KIB), 2), MOST_KIB)
            weights = [state[:, [k]] + least[:, [k]] * held for k in range(state.shape[1])]
            yield room - np.maximum(largest[:, None], floor), weights


def _shapes(space: Space) -> list[tuple[int, int, Ints]]:
    """The rows of each shape, with its pipeline ranks and micro-batches."""
    layouts = space.layouts
    return [
        (int(layouts.pipeline_parallel[rows[0]]), int(layouts.num_micro_batches[rows[0]]), rows)
        for rows in space.shapes(np.arange(len(layouts)))
    ]


def _most_chunks(space: Space, row: int) -> set[tuple[Schedule, int]]:
    """Each schedule of a row with its most chunks per rank, which fill soonest."""
    most: dict[Schedule, int] = {}
    for variant in space.variants(row):
        most[variant.schedule] = max(most.get(variant.schedule, 0), variant.virtual_stages)
    return set(most.items())


def _ways_to_run(space: Space, rows: list[int], plainly: bool) -> Iterator[Ways]:
    """The schedules of each row, and chunks per rank; `plainly` those of one, where it has any.
    Rows that share their variants share them.
    """
    known = dict[int, Ways]()
    for variants in map(space.variants, rows):
        if id(variants) not in known:
            ways = frozenset((each.schedule, each.virtual_stages) for each in variants)
            plain = frozenset((schedule, vpp) for schedule, vpp in ways if vpp == 1)
            known[id(variants)] = plain if plainly and plain else ways
        yield known[id(variants)]


@cache
def _least_held(ways: Ways, pp: int, m: int) -> tuple[Ints, bool]:
    """Micro-batches that each layer of a rank is held for at least, whichever of `ways` it runs."""
    least = np.full(pp, 2**30, np.int64)
    v_shaped = False
    for schedule, vpp in ways:
        v_shaped |= schedule in V_SHAPED
        # Interleaved ranks hold some vector with at least what 1f1b holds in every chunk.
        plain = schedule == "interleaved_1f1b"
        least = np.minimum(
            least,
            _most_in_flight("1f1b", pp, 1, m) if plain else _most_in_flight(schedule, pp, vpp, m),
        )
    return least, v_shaped


@cache
def _most_in_flight(schedule: Schedule, pp: int, vpp: int, m: int) -> Ints:
    """By rank, the most of what any in-flight vector holds in each chunk at least."""
    vectors = in_flight(schedule, pp, vpp, m)
    return np.array([max(min(vector) for vector in rank) for rank in vectors], np.int64)
