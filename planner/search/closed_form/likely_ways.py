"""Which rows are likely fast, and run how: an estimate of a step, with what memory asks for.

Neither a bound nor a plan, but cheap for all rows at once. Bounds of rows know no memory, so their
order is led by thousands of rows that fit slowly or not at all. With S ranks, V chunks on each and
m micro-batches, of every way to run a row:

    held        layer-micro-batches of the fullest rank: min(m, S) of each of its layers, of
                interleaved chunks S (V + 1) - 1 chunks, in DualPipeV 2 S + 1; where W is apart the
                larger of what is saved and what waits for it
    recomputed  the fraction of layers with which the first rank fits, in the mode in which it
                takes least; in whole layers of each chunk where that is the engine's rule
    step        `planner.problem.closed_form`: m micro-batches through the slowest chunk of each
                row, the longest run of so many layers in the most even split, or the longer head or
                embedding; and the bubble, of which a V shape has a third
"""

from collections.abc import Callable, Collection, Iterator
from functools import cache, partial
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.layouts import Bools, Floats, Ints, distinct, each_once
from meshplan.costmodels.schedule.in_flight import ZERO_BUBBLE
from meshplan.costmodels.schedule.orders import V_SHAPED
from meshplan.planner.problem.coefficients import Coefficients, Priced
from meshplan.planner.space.legal_layouts import Space, Variant
from meshplan.planner.space.module_splits import stack_splits

BLOCK = 16_384  # ways that are estimated together: what is made of them stays in the cache
FEW = 256  # ways that are sorted at first
V = 0  # stands for the two chunks of a V shape
V_SHAPED_BUBBLE = 1 / 3  # of 1F1B's: F + I - W or 2 I - W of F + I + W, with passes all alike
NEVER = 1e30  # ns of a way that does not fit


def likely_ways(space: Space, prices: Priced, rows: Ints) -> Iterator[tuple[int, Variant, float]]:
    """The place in `rows`, which have these `prices`, a way to run it, and the estimate in ns of
    those that likely fit; the likeliest first.
    """
    every, blocks = _EveryWay.of(space, rows), [np.zeros(0)]
    for first in range(0, len(every.place), BLOCK):
        ways = every.some(slice(first, first + BLOCK))
        places = each_once(ways.place)
        of_rows = _OfRows.of(space, prices.take(places))
        ways = ways._replace(place=np.searchsorted(places, ways.place))
        blocks.append(_estimates_ns(space, of_rows, ways))
    found = np.concatenate(blocks)
    for at in _ascending(found):
        if found[at] >= NEVER:
            return
        yield int(every.place[at]), every.variants[every.which[at]], float(found[at])


def _ascending(values: Floats) -> Iterator[int]:
    """Where `values` stand, the least first, equal ones in their order: sorted as they are asked
    for, of which mostly few are.
    """
    most = np.partition(values, FEW)[FEW] if len(values) > FEW else np.inf
    for part in (values <= most, values > most):
        places = np.flatnonzero(part)
        yield from places[np.argsort(values[places], kind="stable")].tolist()


class _EveryWay(NamedTuple):
    """[way] the place of its row in `rows`, and of its variant in `variants`; and the layers of the
    slowest chunk of so many ranks and chunks (`_most_even`).
    """

    space: Space
    rows: Ints
    place: Ints
    which: Ints
    variants: list[Variant]
    most_even: Callable[[int, int], float]

    @classmethod
    def of(cls, space: Space, rows: Ints) -> "_EveryWay":
        """Of `rows`."""
        number: dict[Variant, int] = {}
        place, which = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for places in space.shapes_at(rows):
            each = [
                number.setdefault(variant, len(number))
                for variant in space.variants(int(rows[places[0]]))
            ]
            place.append(np.repeat(places, len(each)))
            which.append(np.tile(np.array(each, np.int64), len(places)))
        most_even = cache(partial(_most_even, space))
        ways = np.concatenate(place), np.concatenate(which)
        return cls(space, rows, *ways, list(number), most_even)

    def some(self, part: slice) -> "_Ways":
        """Some of them."""
        place, which = self.place[part], self.which[part]
        layouts, rows = self.space.layouts, self.rows[place]
        pp = layouts.pipeline_parallel[rows].astype(np.int64)
        vpp = np.array([each.virtual_stages for each in self.variants], np.int64)[which]
        m = layouts.num_micro_batches[rows].astype(np.int64)
        ways = _Ways(place, which, pp, vpp, m, np.zeros(0), self.variants)
        chunks = np.where(ways.v_shaped, V, vpp)
        first, shape = distinct([pp, chunks])
        slowest = [self.most_even(int(pp[at]), int(chunks[at])) for at in first.tolist()]
        return ways._replace(slowest=np.array(slowest, float)[shape])


class _OfRows(NamedTuple):
    """A micro-batch of all layers of rows: [row, column] its ns and what it keeps, [row] what of it
    waits for W; their states, and what is done once per step.
    """

    prices: Coefficients
    layers_ns: Ints
    saved_kib: Ints
    waiting_kib: Ints
    state_kib: Ints
    once_ns: Ints

    @classmethod
    def of(cls, space: Space, c: Coefficients) -> "_OfRows":
        """Under these prices."""
        counts = np.array(space.kind_counts)
        return cls(
            c,
            np.einsum("rkx,k->rx", c.layer_ns, counts),
            np.einsum("rkx,k->rx", c.layer_saved_kib, counts),
            c.layer_deferred_kib @ counts,
            c.layer_state_kib @ counts,
            c.layer_step_ns @ counts + c.embedding_step_ns + c.head_step_ns,
        )


class _Ways(NamedTuple):
    """[way] of some ways, what `_EveryWay` says of them, pipeline ranks, chunks on each,
    micro-batches, and the layers of the slowest chunk.
    """

    place: Ints
    which: Ints
    pp: Ints
    vpp: Ints
    m: Ints
    slowest: Floats
    variants: list[Variant]

    @property
    def v_shaped(self) -> Bools:
        """[way] whether both ends are on the first rank."""
        return self.run_as(V_SHAPED)

    def run_as(self, schedules: Collection[Schedule]) -> Bools:
        """[way] whether its schedule is one of these."""
        return np.array([each.schedule in schedules for each in self.variants], bool)[self.which]

    def first_modes(self) -> Ints:
        """[way] the mode that saves most, before anything else recomputes."""
        return np.array([each.modes[0] for each in self.variants], np.int64)[self.which]

    def may(self, mode: int) -> Bools:
        """[way] whether layers may be in `mode` instead."""
        return np.array([mode in each.modes[1:] for each in self.variants], bool)[self.which]

    def columns(self, mode: Ints | int) -> Ints:
        """[way] the column of the prices that holds a mode."""
        columns = np.array([each.columns for each in self.variants], np.int64).reshape(-1, 3)
        found: Ints = columns[self.which, mode]
        return found

    def whole(self, fraction: Floats) -> Floats:
        """[way] a fraction of the layers; in whole layers of the slowest chunk if that counts."""
        first = np.array([each.first for each in self.variants], bool)[self.which]
        return np.where(first, np.ceil(fraction * self.slowest) / self.slowest, fraction)

    @property
    def held(self) -> Floats:
        """[way] micro-batches of a mean rank's layers on the fullest one."""
        chunks = np.where(self.vpp > 1, (self.pp * (self.vpp + 1) - 1) / self.vpp, self.pp)
        chunks = np.where(self.v_shaped, self.pp + 0.5 * self.run_as({"dualpipe_v"}), chunks)
        found: Floats = np.minimum(chunks, self.m) / self.pp
        return found


def _estimates_ns(space: Space, of_rows: _OfRows, ways: _Ways) -> Floats:
    """[way] a step; beyond `NEVER` where it likely does not fit."""
    c, at = of_rows.prices, ways.place
    pp, vpp = ways.pp, ways.vpp
    work = _work_ns(of_rows, ways)
    embedding, head = c.embedding_ns[at], c.head_ns[at]
    chunk = _longest(space, c, ways) * work
    rows = vpp * chunk + np.maximum(0.0, head - chunk)
    rows += np.where(vpp > 1, np.maximum(0.0, embedding - chunk), 0.0)
    every = work + embedding + head
    found: Floats = ways.m * (np.maximum(rows, every / pp) + vpp * c.send_ns[at])
    bubble = (pp - 1) / (pp * vpp) * np.where(ways.v_shaped, V_SHAPED_BUBBLE, 1) * every
    found = found + bubble + of_rows.once_ns[at] / pp + c.fixed_step_ns[at]
    return np.where(work < NEVER, found, NEVER)


def _work_ns(of_rows: _OfRows, ways: _Ways) -> Floats:
    """[way] a micro-batch's layers on all ranks, with what must be recomputed."""
    c, each = of_rows.prices, of_rows.layers_ns
    at, first, held = ways.place, ways.columns(ways.first_modes()), ways.held
    work, kept = each[at, first].astype(float), _saved_kib(of_rows, ways, first)
    static = c.fixed_kib + c.embedding_state_kib - c.cap_kib
    needed = static[at] + of_rows.state_kib[at] / ways.pp
    needed += held * (kept + ways.pp * c.embedding_saved_kib[at])
    needed += np.where(ways.v_shaped, (c.head_state_kib + c.head_transient_kib)[at], 0)
    lacks = needed + c.transient_kib[at, first]
    added = np.where(lacks > 0, NEVER, 0.0)
    for mode in (1, 2):
        column = ways.columns(mode)
        transient = np.maximum(c.transient_kib[at, first], c.transient_kib[at, column])
        freed = np.maximum(held * (kept - _saved_kib(of_rows, ways, column)), 1.0)
        fraction = ways.whole(np.maximum(needed + transient, 0.0) / freed)
        longer = np.where(fraction <= 1, fraction, NEVER) * np.maximum(each[at, column] - work, 1)
        added = np.where(ways.may(mode), np.minimum(added, longer), added)
    found: Floats = work + added
    return found


def _saved_kib(of_rows: _OfRows, ways: _Ways, columns: Ints) -> Ints:
    """[way] what a micro-batch keeps of all layers; where W is apart no less than waits for it."""
    saved, waiting = of_rows.saved_kib[ways.place, columns], of_rows.waiting_kib[ways.place]
    found: Ints = np.where(ways.run_as(ZERO_BUBBLE), np.maximum(saved, waiting), saved)
    return found


def _longest(space: Space, prices: Coefficients, ways: _Ways) -> Floats:
    """[way] the longest run of the layers of the slowest chunk, as a share of all layers."""
    each = prices.layer_ns[ways.place, :, ways.columns(ways.first_modes())].astype(float)
    whole, found = np.ceil(ways.slowest).astype(np.int64), np.zeros(len(ways.slowest))
    for layers in each_once(whole).tolist():
        runs = sliding_window_view(np.array(space.stack), layers)
        counts = np.stack([(runs == kind).sum(axis=1) for kind in range(each.shape[1])])
        at = whole == layers
        found[at] = (each[at] @ counts[:, distinct(list(counts))[0]]).max(axis=1)
    found *= ways.slowest / whole / (each @ np.array(space.kind_counts))
    return found


def _most_even(space: Space, pp: int, vpp: int) -> float:
    """Layers of the slowest chunk, the mean of a rank's, in the most even split: of the chunks of
    each row; with `V` chunks, of both chunks of a V shape's ranks.
    """
    number = 2 if vpp == V else vpp
    splits = stack_splits(space.model, space.legality, pp, number, space.apart)
    if not splits:
        return -(-len(space.stack) // (pp * number))
    rows = np.array(splits).reshape(len(splits), number, pp)
    if vpp == V:
        return float((rows[:, 0] + rows[:, 1, ::-1]).max(axis=1).min()) / number
    return float(rows.max(axis=2).sum(axis=1).min()) / number
