"""Lower bounds of the inner problem: what no cut into stages and no recomputation can beat.

Each removes constraints or rounds down, so it is at most the optimum whatever the cost model says.
In nanoseconds, with T = sum of all c_j without recomputation, e = mean of the once-per-step costs
and the letters of `planner.problem.closed_form`:

    row_bounds    perfect balance, the row's best schedule:  weight T/S + share T + constant + e
    row_fits      sum over ranks of floor(room / (state + in flight x least saved)) >= layers, for
                  each kind and for all layers taken as the lightest: else nothing fits

`planner.bounds.packing` bounds a layout more tightly, and `planner.stages.path.greedy_path` gives
the last rung for V = 1: the least X itself.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.layouts import Ints
from meshplan.costmodels.schedule.in_flight import V_SHAPED, in_flight
from meshplan.planner.bounds.packing import at_least
from meshplan.planner.problem.coefficients import Coefficients
from meshplan.planner.space.legal_layouts import Space

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def row_bounds(space: Space, coefficients: Coefficients) -> Floats:
    """For each row of `space` a lower bound of the objective of all its variants."""
    c, layouts = coefficients, space.layouts
    counts = np.array([space.model.pattern.count(k) for k in range(len(space.model.kinds))])
    fastest = c.layer_ns[:, :, _modes(space)].min(2)
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


def row_fits(space: Space, coefficients: Coefficients) -> Bools:
    """Whether each row passes the necessary condition on memory."""
    c, layouts = coefficients, space.layouts
    fits = np.zeros(len(layouts), dtype=bool)
    modes = _modes(space)
    saved, transient = c.layer_saved_kib[:, :, modes].min(2), c.transient_kib[:, modes].min(1)
    counts = [space.model.pattern.count(k) for k in range(len(space.model.kinds))]
    for pp, m, rows in _shapes(space):
        held, v_shaped = _least_held(space, pp, m, int(rows[0]))
        room = np.repeat((c.cap_kib - c.fixed_kib[rows] - transient[rows])[:, None], pp, axis=1)
        room[:, 0] -= c.embedding_state_kib[rows] + held[0] * c.embedding_saved_kib[rows]
        if not v_shaped:
            room[:, -1] -= c.head_state_kib[rows] + held[-1] * c.head_saved_kib[rows]
        enough = (room >= 0).all(axis=1)
        weight = c.layer_state_kib[rows][:, :, None] + saved[rows][:, :, None] * held
        for kind, count in enumerate(counts):
            enough &= _holds(room, weight[:, kind]) >= count
        fits[rows] = enough & (_holds(room, weight.min(1)) >= sum(counts))
    return fits


def _holds(room: Ints, weight: Ints) -> Ints:
    """Layers of `weight` per rank that fit into `room`, over all ranks."""
    held: Ints = np.clip(room // np.maximum(weight, 1), 0, 2**20).sum(axis=1)
    return held


def _modes(space: Space) -> list[int]:
    return sorted({mode for modes in space.mode_classes for mode in modes})


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


def _least_held(space: Space, pp: int, m: int, row: int) -> tuple[Ints, bool]:
    """Micro-batches that each layer of a rank is held for at least, in any variant of the row."""
    least = np.full(pp, 2**30, np.int64)
    v_shaped = False
    for schedule, vpp in {(v.schedule, v.virtual_stages) for v in space.variants(row)}:
        v_shaped |= schedule in V_SHAPED
        # Interleaved ranks hold some vector with at least what 1f1b holds in every chunk.
        plain = schedule == "interleaved_1f1b"
        least = np.minimum(least, _held("1f1b", pp, 1, m) if plain else _held(schedule, pp, vpp, m))
    return least, v_shaped


@cache
def _held(schedule: Schedule, pp: int, vpp: int, m: int) -> Ints:
    """By rank, the most of what any in-flight vector holds in each chunk at least."""
    vectors = in_flight(schedule, pp, vpp, m)
    return np.array([max(min(vector) for vector in rank) for rank in vectors], np.int64)
