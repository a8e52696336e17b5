"""Multipliers of one layout's program, asked of other layouts: each bound may rise, none falls.

Each function returns the units of work that it took.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from meshplan.costmodels.layouts import Floats, Ints
from meshplan.costmodels.schedule.orders import V_SHAPED
from meshplan.planner.bounds.asked_chunks import AskedChunks, Group
from meshplan.planner.bounds.asked_prices import AskedPrices, ScaledPrices
from meshplan.planner.bounds.free_cuts import Multipliers
from meshplan.planner.search.simulation.alike_layouts import Alike, Asked
from meshplan.planner.search.simulation.listed_layouts import ListedLayouts
from meshplan.planner.space.legal_layouts import Variant

GROUP = 8_000  # units of work of layouts that are asked at once
AT_ONCE = 16_384  # their ranks


def ask_others(
    layouts: ListedLayouts, every: Sequence[Alike], by: Multipliers, cap_kib: int, aim_s: float
) -> int:
    """Multipliers of the chains that every step has, of layouts of one schedule with equally many
    ranks.
    """
    ways, work = dict[Variant, list[Alike]](), 0
    for each in every:
        chunks = each.shape[2] if each.shape[0] in V_SHAPED else 0
        ways.setdefault(replace(each.variant, virtual_stages=chunks), []).append(each)
    for alike in ways.values():
        for some in _in_blocks(alike):
            work += _ask_others(layouts, some, by, by.memory * aim_s / cap_kib, aim_s)
    return work


def _in_blocks(every: Sequence[Alike]) -> Iterator[list[Alike]]:
    """As many at once as one array should hold."""
    some, ranks = list[Alike](), 0
    for each in every:
        some.append(each)
        ranks += each.shape[1] * len(each.rows)
        if ranks >= AT_ONCE:
            yield some
            some, ranks = [], 0
    if some:
        yield some


def _ask_others(
    layouts: ListedLayouts, alike: Sequence[Alike], by: Multipliers, price: Floats, aim_s: float
) -> int:
    """Of layouts of one variant, or of interleaved ones that differ in chunks alone."""
    some = [np.flatnonzero(~each.solved & (each.bounds < aim_s)) for each in alike]
    rows = np.concatenate([each.rows[at] for each, at in zip(alike, some, strict=True)])
    groups = [Group(*each.shape[2:], len(at)) for each, at in zip(alike, some, strict=True)]
    asked = _asked(layouts, alike[0].variant, rows, groups)(by.lines, price)
    bounds = np.split(asked.bounds_s(aim_s), np.cumsum([len(at) for at in some])[:-1])
    for each, at, own in zip(alike, some, bounds, strict=True):
        each.bounds[at] = np.clip(own, each.bounds[at], aim_s)
        each.changed()
    return GROUP + asked.seconds.size


def _asked(
    layouts: ListedLayouts, variant: Variant, rows: Ints, groups: Sequence[Group]
) -> Callable[[Floats, Floats], ScaledPrices]:
    """What takes weights and prices of memory."""
    if variant.schedule in V_SHAPED:
        return partial(AskedPrices, layouts.cuts(variant, rows))
    vpps = np.repeat([each.vpp for each in groups], [each.layouts for each in groups])
    return partial(AskedChunks, layouts.cuts(variant, rows, vpps), groups)


def ask(layouts: ListedLayouts, every: Sequence[Alike], asked: Asked, aim_s: float) -> int:
    """Of all that is open and has the same order of actions."""
    lines, by, work = asked.lines, asked.by, 0
    for alike in every:
        if alike.shape != asked.shape or alike.open_s >= aim_s:
            continue
        some = np.flatnonzero(~alike.solved & (alike.bounds < aim_s))
        cuts = layouts.cuts(alike.variant, alike.rows[some])
        if by.memory.shape != cuts.room_kib.shape[1:]:
            continue
        price = by.memory * asked.limit_s / cuts.same.prices.cap_kib
        order = by.order * asked.limit_s
        own = AskedPrices(cuts, by.lines, price, lines, order).bounds_s(aim_s)
        bounds = np.maximum(own, cuts.bounds_s(lines, by, asked.limit_s, alike.most[some]))
        alike.bounds[some] = np.clip(bounds, alike.bounds[some], aim_s)
        alike.changed()
        work += GROUP + cuts.runs[0].size * cuts.same.chunks * len(some)
    return work
