"""Dominated rows: another row is nowhere slower and needs nowhere more memory.

Two rows that may be run in the same ways, with equally many pipeline ranks and micro-batches, have
the same cuts and mixes. If of one of them each pass, message and update takes no longer than the
other's, each pass hides no less, and no part of its memory is larger, then under every cut and mix
that the other may have it fits too and its simulated step is no longer: a schedule gets no shorter
when an action gets longer. So the other is dominated and need not be looked at. Where layers are of
several kinds, of which a rank pays for those that it holds, each kind's parts are compared.

On a cluster with measured curves the seconds of a rank's late traffic are not linear in what it
holds; there no row is left out.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from meshplan.costmodels.layouts import Bools, Floats, Ints, distinct
from meshplan.costmodels.prices.passes import WEIGHT_GRAD, PassSeconds
from meshplan.planner.problem.coefficients import Coefficients, Priced
from meshplan.planner.search.rows.least_of_kinds import LeastOfKinds
from meshplan.planner.space.legal_layouts import Space, Variant

ROWS = 8_192  # rows whose costs are in memory at once; a single group may have more
FIRST = 8  # columns that are compared first, for every two rows
TOGETHER = 128  # rows that are compared at a time
FEW, PAIRS = 32, 8_192  # rows of a small group; two rows whose costs are in memory at once
LONGER = (
    "layer_s", "hop_s", "blocking_s", "module_outputs_s", "layer_update_s",
    "ends_update_s", "step_s",
)  # fmt: skip
ENDS = ("embedding_s", "head_s")
HIDING = ("layer_room_s", "ends_room_s")
LATE = ("layer_s", "ends_s", "latency_s", "shown")
LARGER = (
    "layer_saved_kib", "layer_state_kib", "layer_update_kib", "layer_deferred_kib",
    "layer_waiting_kib", "put_off_kib", "transient_kib", "embedding_saved_kib",
    "embedding_state_kib", "embedding_update_kib", "head_saved_kib", "head_state_kib",
    "head_update_kib", "head_transient_kib", "fixed_kib",
)  # fmt: skip


def dominated(
    space: Space,
    passes: PassSeconds,
    prices: Priced,
    rows: Ints,
    alike: Sequence[Ints] = (),
) -> Bools:
    """Which of `rows` (all different) are dominated by another of them that has the same values in
    the columns `alike`; of rows with equal costs the first stays.
    """
    found = np.zeros(len(rows), bool)
    if not len(rows) or passes.reduce.measured:
        return found
    several = [group for group in _groups(space, rows, alike) if len(group) > 1]
    for some in _together(several):
        places = np.concatenate(some)
        at = rows[places]
        more = [prices.kib_by_kind(at)] if isinstance(prices, LeastOfKinds) else []
        costs = _costs(passes.take(at), prices.take(at), more)
        found[places] = beaten_of_each(costs, np.array([len(each) for each in some]))
    return found


def _together(groups: Sequence[Ints]) -> Iterator[list[Ints]]:
    """Groups of some `ROWS` rows in all: their costs are in memory at once."""
    some, rows = list[Ints](), 0
    for group in groups:
        if some and rows + len(group) > ROWS:
            yield some
            some, rows = [], 0
        some.append(group)
        rows += len(group)
    if some:
        yield some


def _costs(passes: PassSeconds, prices: Coefficients, more: Sequence[Ints] = ()) -> Floats:
    """[row, cost] everything of which more is worse: longer steps or fuller memory, and `more`."""
    late = [getattr(each, name) for each in (passes.reduce, passes.refresh) for name in LATE]
    every = [
        *(getattr(passes, name) for name in LONGER),
        *(_with_waits(passes, getattr(passes, name)) for name in ENDS),
        *(-getattr(passes, name) for name in HIDING),
        *late,
        *(getattr(prices, name) for name in LARGER),
        *more,
    ]
    columns = [each.reshape(len(each), -1) for each in every]
    found: Floats = np.concatenate(columns, axis=1, dtype=float)
    return found[:, (found != found[:1]).any(axis=0)]


def _with_waits(passes: PassSeconds, end_s: Floats) -> Floats:
    """The passes of an end with what its stage waits for in a forward and in a backward, which
    `blocking_s` says too much of there.
    """
    waits_s = np.zeros_like(end_s)
    waits_s[:, :WEIGHT_GRAD] = passes.blocking_s[:, None]
    return end_s + waits_s


def _groups(space: Space, rows: Ints, alike: Sequence[Ints]) -> list[Ints]:
    """Places in `rows` by the ways to run them, their ranks and micro-batches, and `alike`."""
    layouts = space.layouts
    columns = [layouts.pipeline_parallel, layouts.num_micro_batches, layouts.zero_stage,
               layouts.virtual_stages, layouts.schedule - layouts.schedule.min(initial=0),
               (layouts.activation_offload > 0).astype(np.int64)]  # fmt: skip
    first, which = distinct([column[rows] for column in columns])
    ways: dict[tuple[Variant, ...], int] = {}
    number = np.array([
        ways.setdefault(space.variants(row), len(ways)) for row in rows[first].tolist()
    ], np.int64)  # fmt: skip
    _, group = distinct([column[rows] for column in (*columns[:2], *alike)] + [number[which]])
    order = np.argsort(group, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(group[order])) + 1)


def beaten_of_each(costs: Floats, sizes: Ints) -> Bools:
    """`beaten` of groups of so many rows, one after the other: of all small ones at once."""
    found, firsts, small = np.zeros(len(costs), bool), np.cumsum(sizes) - sizes, sizes <= FEW
    one, other = _pairs(firsts[small], sizes[small])
    for column in range(0, costs.shape[1], max(1, costs.shape[1] // FIRST)):
        below = costs[other, column] <= costs[one, column]
        one, other = one[below], other[below]
    for begin in range(0, len(one), PAIRS):
        some = slice(begin, begin + PAIRS)
        found[_worse(costs, one[some], other[some])] = True
    for first, size in zip(firsts[~small].tolist(), sizes[~small].tolist(), strict=True):
        found[first : first + size] = beaten(costs[first : first + size])
    return found


def _pairs(firsts: Ints, sizes: Ints) -> tuple[Ints, Ints]:
    """Every two rows of each group of so many, both ways round."""
    many = sizes**2
    place = np.arange(int(many.sum())) - np.repeat(many.cumsum() - many, many)
    one, other = np.divmod(place, np.repeat(sizes, many)) + np.repeat(firsts, many)
    return one[one != other], other[one != other]


def _worse(costs: Floats, one: Ints, other: Ints) -> Ints:
    """Of `one` those that their `other` beats: it is nowhere above, and somewhere below or before
    it.
    """
    kept = (costs[other] <= costs[one]).all(axis=1)
    one, other = one[kept], other[kept]
    better = (other < one) | (costs[other] < costs[one]).any(axis=1)
    return one[better]


def beaten(costs: Floats) -> Bools:
    """Which rows of `costs` another one is nowhere above; of equal ones the first stays.

    What one row beats adds up to no less, so rows are looked at by their sums, in blocks between
    which sums differ: only what stays of the blocks before can beat a row of a block.
    """
    costs = costs[:, (costs != costs[:1]).any(axis=0)]  # what is infinite for all has no sum
    found, sums = np.zeros(len(costs), bool), costs.sum(axis=1)
    order, stays = np.argsort(sums, kind="stable"), costs[:0]
    sums, end = sums[order], 0
    while end < len(order):
        last = sums[min(end + TOGETHER, len(order)) - 1]
        begin, end = end, int(np.searchsorted(sums, last, side="right"))
        some = order[begin:end]
        free = ~_beaten_by(stays, costs[some])
        found[some[~free]] = True
        some = some[free]
        best = ~_beaten_among(costs[some])
        found[some[~best]] = True
        stays = np.concatenate([stays, costs[some[best]]])
    return found


def _beaten_by(better: Floats, costs: Floats) -> Bools:
    """Which of `costs` one of `better` is nowhere above."""
    found = np.zeros(len(costs), bool)
    found[_nowhere_above(better, costs)[0]] = True
    return found


def _beaten_among(costs: Floats) -> Bools:
    """`beaten`, of every two rows."""
    found = np.zeros(len(costs), bool)
    one, other = _nowhere_above(costs, costs)
    found[_worse(costs, one[one != other], other[one != other])] = True
    return found


def _nowhere_above(better: Floats, costs: Floats) -> tuple[Ints, Ints]:
    """Each row of `costs`, and of `better` one that is nowhere above it."""
    below = np.ones((len(costs), len(better)), bool)
    for column in range(0, costs.shape[1], max(1, costs.shape[1] // FIRST)):
        below &= better[:, column] <= costs[:, column, None]
    one, other = np.nonzero(below)
    kept = (better[other] <= costs[one]).all(axis=1)
    return one[kept], other[kept]
