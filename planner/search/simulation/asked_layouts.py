"""Multipliers of one layout's program, asked of other layouts: each bound may rise, none falls.

Each function returns the units of work that it took.
"""

from collections.abc import Sequence

import numpy as np

from meshplan.planner.bounds.asked_prices import AskedPrices
from meshplan.planner.bounds.free_cuts import Multipliers
from meshplan.planner.search.simulation.alike_layouts import Alike, Asked
from meshplan.planner.search.simulation.listed_layouts import ListedLayouts

GROUP = 8_000  # units of work of layouts that are alike


def ask_others(
    layouts: ListedLayouts,
    alike: Sequence[Alike],
    by: Multipliers | None,
    cap_kib: int,
    aim_s: float,
) -> int:
    """Multipliers of the chains that every step has, of layouts of one variant with equally many
    ranks.
    """
    some = [np.flatnonzero(~each.solved & (each.bounds < aim_s)) for each in alike]
    rows = np.concatenate([each.rows[at] for each, at in zip(alike, some, strict=True)])
    cuts = layouts.cuts(alike[0].variant, rows)
    work: int = GROUP + cuts.runs[0].size * cuts.same.chunks * len(rows)
    if by is None or by.memory.shape != cuts.room_kib.shape[1:]:
        return work
    price = by.memory * aim_s / cap_kib
    bounds, end = AskedPrices(cuts, by.lines, price).bounds_s(aim_s), 0
    for each, at in zip(alike, some, strict=True):
        end += len(at)
        own = bounds[end - len(at) : end]
        each.bounds[at] = np.clip(own, each.bounds[at], aim_s)
        each.changed()
    return work


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
