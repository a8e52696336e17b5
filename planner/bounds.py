"""Lower bounds of the inner problem: what no cut into stages and no recomputation can beat.

Each removes constraints or rounds down, so it is at most the optimum whatever the cost model says.
In thirds of a nanosecond, with T = sum of all c_j without recomputation, e = mean of the
once-per-step costs, f the fill and the other letters of `planner.stage_problem`:

    row_bounds    perfect balance, the row's best schedule:  3 m T/S + f/V (T - T/S) + 3 e
    row_fits      sum over ranks of floor(room / (state + in flight x least saved)) >= layers, for
                  each kind and for all layers taken as the lightest: else nothing fits
    packing       W(s, n) = least time of rank s with n layers, recomputation in any
                  proportion. Some rank lasts Y >= the L-th smallest entry of W, because a plan in
                  which every rank lasts less than that holds fewer than L layers. Then
                      3 m Y + f/V (T - Y) + 3 e
                  since V X + E >= Y and the other ranks share the rest of T (V = 1: E = 0).
    whole_layers  V > 1: the fullest body chunk holds a whole number n of layers:
                      min over n of  weight (c0 + n t) + 3 m E(n) + 3 e

With layers of several kinds, packing and whole_layers take the larger of two relaxations: every
layer as cheap as the cheapest kind, and only the layers of the most frequent kind.
`planner.stage_path.greedy_path` gives the last rung for V = 1: the least X itself.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodels.grid import Ints
from costmodels.in_flight import V_SHAPED, in_flight, rank_of_chunk
from planner.coefficients import Coefficients
from planner.space import Space
from planner.stage_counts import limits_below
from planner.stage_problem import FILL_THIRDS, StageProblem

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
SAFETY = 1 - 1e-9  # of a bound that was computed in floating point


def row_bounds(space: Space, coefficients: Coefficients) -> Floats:
    """For each row of `space` a lower bound of the objective of all its variants."""
    c, grid = coefficients, space.grid
    counts = np.array([space.model.pattern.count(k) for k in range(len(space.model.kinds))])
    fastest = c.layer_ns[:, :, _modes(space)].min(2)
    pp, m = grid.pipeline_parallel.astype(float), grid.num_micro_batches.astype(float)
    work = fastest @ counts + c.embedding_ns + c.head_ns + pp * c.send_ns
    ends = (c.layer_step_ns @ counts + c.embedding_step_ns + c.head_step_ns) / pp
    fill = np.zeros(len(grid))
    for _, _, rows in _shapes(space):
        fill[rows] = _least_fill(space, int(rows[0]))
    bound = 3 * m * work / pp + fill * (work - work / pp) + 3 * (ends + c.fixed_step_ns)
    return np.asarray(bound * SAFETY)


def row_fits(space: Space, coefficients: Coefficients) -> Bools:
    """Whether each row passes the necessary condition on memory."""
    c, grid = coefficients, space.grid
    fits = np.zeros(len(grid), dtype=bool)
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
    """The rows of each (pipeline ranks, micro-batches)."""
    grid = space.grid
    keys = grid.pipeline_parallel * 2**32 + grid.num_micro_batches
    order = np.argsort(keys, kind="stable")
    cuts = np.flatnonzero(np.diff(keys[order])) + 1
    groups = np.split(order, cuts) if len(order) else []
    return [
        (int(grid.pipeline_parallel[rows[0]]), int(grid.num_micro_batches[rows[0]]), rows)
        for rows in groups
    ]


def _least_fill(space: Space, row: int) -> float:
    return min(FILL_THIRDS[v.schedule] / v.virtual_stages for v in space.variants(row))


def _least_held(space: Space, pp: int, m: int, row: int) -> tuple[Ints, bool]:
    """Micro-batches that each layer of a rank is held for at least, in any variant of the row."""
    least = np.full(pp, 2**30, np.int64)
    v_shaped = False
    for schedule, vpp in {(v.schedule, v.virtual_stages) for v in space.variants(row)}:
        v_shaped |= schedule in V_SHAPED
        # Interleaved ranks hold some vector with at least what 1f1b holds in every chunk.
        plain = schedule == "interleaved_1f1b"
        vectors = in_flight("1f1b", pp, 1, m) if plain else in_flight(schedule, pp, vpp, m)
        least = np.minimum(least, [max(min(q) for q in rank) for rank in vectors])
    return least, v_shaped


@dataclass(frozen=True, slots=True)
class Relaxed:
    """Layers all alike: how many, the least time of one, and what its recomputation trades."""

    count: int
    ns: int
    state_kib: int
    saved_kib: int
    savings: tuple[tuple[float, float], ...]  # hull of (KiB saved, ns) per layer, from (0, 0)
    rest_ns: int  # the layers that the relaxation leaves out
    times: tuple[int, ...]  # by mode
    saved: tuple[int, ...]


def relaxations(problem: StageProblem) -> list[Relaxed]:
    """Stacks of equal layers that are nowhere dearer than the problem's."""
    kinds = range(len(problem.state_kib))
    if problem.uniform:
        return [_relax(problem, [problem.pattern[0]], len(problem.pattern))]
    frequent = max(kinds, key=lambda k: problem.kind_counts[k])
    return [
        _relax(problem, list(kinds), len(problem.pattern)),
        _relax(problem, [frequent], problem.kind_counts[frequent]),
    ]


def _relax(problem: StageProblem, kinds: list[int], count: int) -> Relaxed:
    times = [min(problem.layer_ns[k][r] for k in kinds) for r in range(3)]
    saved = [min(problem.saved_kib[k][r] for k in kinds) for r in range(3)]
    fastest = min(problem.modes, key=lambda r: (times[r], saved[r]))
    ns = times[fastest]
    if len(kinds) > 1:
        # Overheads are not comparable across kinds: only the capacity to save is kept.
        saving = max(problem.modes, key=lambda r: saved[fastest] - saved[r])
        points = [(float(max(0, saved[fastest] - saved[saving])), 0.0)]
    else:
        points = [(float(saved[fastest] - saved[r]), float(times[r] - ns)) for r in problem.modes]
    left_out = sum(
        n * min(problem.layer_ns[k][r] for r in problem.modes)
        for k, n in enumerate(problem.kind_counts)
        if k not in kinds
    )
    state = min(problem.state_kib[k] for k in kinds)
    return Relaxed(
        count, ns, state, saved[fastest], _hull(points), left_out, tuple(times), tuple(saved)
    )


def _hull(points: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """The lower convex hull of (saved, ns) from the origin to the point that saves most."""
    hull = [(0.0, 0.0)]
    useful = [p for p in points if p[0] > 0]
    while useful:
        x, y = hull[-1]
        ahead = [p for p in useful if p[0] > x]
        if not ahead:
            break
        hull.append(min(ahead, key=lambda p: ((p[1] - y) / (p[0] - x), -p[0])))
    return tuple(hull)


def packing_bound(problem: StageProblem, below: int | None) -> int | None:
    """A lower bound of the objective, `below` or more if nothing is below that; None: no fit."""
    bounds = [_packing(problem, relaxed, below) for relaxed in relaxations(problem)]
    found = [bound for bound in bounds if bound is not None]
    if len(found) < len(bounds):
        return below
    return max(found)


def _packing(problem: StageProblem, relaxed: Relaxed, below: int | None) -> int | None:
    table = _rank_times(problem, relaxed, below)
    entries, count = table[:, 1:].ravel(), relaxed.count
    if not np.isfinite(table[:, 0]).all() or np.count_nonzero(np.isfinite(entries)) < count:
        return None
    last = np.partition(entries, count - 1)[count - 1]
    steps = np.diff(np.where(np.isfinite(table), table, 1e30), axis=1).ravel()
    work = table[:, 0].sum() + np.partition(steps, count - 1)[:count].sum() + relaxed.rest_ns
    work = max(work, problem.least_work_ns)
    slowest = max(last, table[:, 0].max(), work / problem.pp)
    time = 3 * problem.m * slowest + problem.fill * (work - slowest) / problem.vpp
    bound = int((time + 3 * problem.least_end_ns) * SAFETY)
    return max(bound, _whole_layers(problem, relaxed)) if problem.vpp > 1 else bound


def _rank_times(problem: StageProblem, relaxed: Relaxed, below: int | None) -> Floats:
    """W(s, n) for n = 0..count, infinite where it does not fit; it never falls with n.

    With `below` the table ends where a rank would last too long for that objective.
    """
    n = np.arange(min(relaxed.count, _most_per_rank(problem, relaxed, below)) + 1)
    body, end = _most_per_chunk(problem, relaxed, below)
    vectors = np.array([max(rank, key=sum) for rank in problem.in_flight])
    base, static, has_end = end_costs(problem, vectors)
    held = _least_in_flight(n, np.sort(vectors, axis=1), np.where(has_end, end, body))
    room = problem.cap_kib - static[:, None] - relaxed.state_kib * n
    overhead = _overhead(n, relaxed, room, held, vectors.max(axis=1))
    table = base[:, None] + problem.vpp * problem.send_ns + relaxed.ns * n + overhead
    return np.minimum.accumulate(table[:, ::-1], axis=1)[:, ::-1]


def end_costs(problem: StageProblem, vectors: Ints) -> tuple[Ints, Ints, Bools]:
    """By rank: ns and KiB that it has without a layer, and whether it holds an end."""
    base = np.zeros(problem.pp, np.int64)
    static = np.full(problem.pp, problem.fixed_kib, np.int64)
    transient = np.full(problem.pp, _least_transient(problem), np.int64)
    has_end = np.zeros(problem.pp, dtype=bool)
    last = problem.chunks - 1
    for end, j in ((problem.embedding, 0), (problem.head, last)):
        rank = rank_of_chunk(problem.schedule, problem.pp, j)
        base[rank] += end.ns
        held = vectors[rank, problem.chunks_of_rank[rank].index(j)]
        static[rank] += end.state_kib + held * end.saved_kib
        transient[rank] = max(int(transient[rank]), end.transient_kib)
        has_end[rank] = True
    return base, static + transient, has_end


def _least_transient(problem: StageProblem) -> int:
    return min(problem.transient_kib[r] for r in problem.modes)


def _most_per_rank(problem: StageProblem, relaxed: Relaxed, below: int | None) -> int:
    if below is None:
        return relaxed.count
    longest = (below - 3 * problem.least_end_ns) // (3 * problem.m)
    return max(0, longest // max(1, relaxed.ns))


def _most_per_chunk(problem: StageProblem, relaxed: Relaxed, below: int | None) -> tuple[int, int]:
    """Layers that a body chunk and an end chunk may hold in a plan below `below`."""
    if below is None or problem.vpp == 1:
        return relaxed.count, relaxed.count
    limits, layer = limits_below(problem, below), max(1, relaxed.ns)
    longest = (limits.slowest_ns - problem.send_ns, limits.end_ns - problem.send_ns)
    body, end = (min(relaxed.count, max(0, ns // layer)) for ns in longest)
    return body, end


def _least_in_flight(n: Ints, vectors: Ints, most: Ints) -> Ints:
    """Layer-micro-batches held with n layers, the least held chunks filled first; -1: too many."""
    total = np.zeros((len(vectors), len(n)), np.int64)
    most = most[:, None]
    for position in range(vectors.shape[1]):
        filled = np.minimum(np.maximum(n - position * most, 0), most)
        total += vectors[:, position, None] * filled
    return np.where(n > vectors.shape[1] * most, -1, total)


def _overhead(n: Ints, relaxed: Relaxed, room: Ints, held: Ints, most_held: Ints) -> Floats:
    """The least ns of recomputation with which n layers fit into `room`, infinite if none does."""
    need = np.maximum(relaxed.saved_kib * held - room, 0)
    fits = (held >= 0) & (room >= 0) & (need <= relaxed.savings[-1][0] * held)
    if not need[fits].any():
        return np.where(fits, 0.0, np.inf)
    per_layer = np.where(fits, need, 0) / np.maximum(1, n * most_held[:, None])
    xs, ys = (np.array(axis) for axis in zip(*relaxed.savings, strict=True))
    return np.where(fits, n * np.interp(per_layer, xs, ys), np.inf)


def _whole_layers(problem: StageProblem, relaxed: Relaxed) -> int:
    """V > 1: the fullest body chunk has n layers; what it leaves is in the two end chunks."""
    body, send = problem.chunks - 2, problem.send_ns
    bounds = []
    for n in range(relaxed.count // body + 2):
        slowest = send + n * relaxed.ns
        left = max(0, relaxed.count - body * n)
        both = problem.embedding.ns + problem.head.ns + 2 * send + left * relaxed.ns - 2 * slowest
        alone = sum(max(0, e.ns + send - slowest) for e in (problem.embedding, problem.head))
        bounds.append(problem.weight * slowest + 3 * problem.m * max(0, both, alone))
    return min(bounds) + 3 * problem.least_end_ns
