"""Lower bounds of the simulated step for each split of a list (several chunks per rank).

Each is the longest of the chains of `planner.bounds.simulated`, with what each rank must recompute:
first by prices of memory, for all splits of many layouts at once; then, layout by layout, by a
knapsack for each rank (`planner.bounds.split`).
"""

from itertools import product

import numpy as np

from meshplan.costmodels.elementwise import least_along, most_along
from meshplan.costmodels.layouts import Floats, Ints
from meshplan.costmodels.schedule.orders import V_SHAPED
from meshplan.planner.bounds.first_mixes import first_mixes, mix_times
from meshplan.planner.bounds.memory_prices import least_work_ns
from meshplan.planner.bounds.simulated import SAFETY, Passes
from meshplan.planner.bounds.split import Pairs, layers_of_kind
from meshplan.planner.bounds.split_times import Known, Replays, SplitTimes, rows_below, split_chains
from meshplan.planner.problem.coefficients import NS_PER_S
from meshplan.planner.problem.same_pipeline import SamePipeline

CELLS, FEWEST, MOST = 2**17, 8, 64  # chunks of splits of so many rows at a time: small arrays


def bounds_of_splits(
    same: SamePipeline, passes: Passes, limit_s: float, known: Known | None = None
) -> tuple[Floats, int]:
    """[row] the least over the list of splits of the longest chain; `limit_s` where none is below
    that. And how many rows were not above it by the chains that cost least to find.
    """
    bounds, looked_at = np.full(len(same), limit_s), 0
    cells = len(same.splits or ()) * same.chunks
    step = max(FEWEST, min(MOST, CELLS // max(1, cells)))
    for first in range(0, len(same), step):
        block = np.arange(first, min(first + step, len(same)))
        block = block[rows_below(same.take(block), passes.take(block), limit_s)]
        if not len(block):
            continue
        looked_at += len(block)
        some, of_some = same.take(block), passes.take(block)
        split, layout, least, _ = rough_split_bounds_s(some, of_some, limit_s, known)
        if same.first and len(split):
            least = _of_first_mixes(some, of_some, (layout, split, least), limit_s, known)
        np.minimum.at(bounds, block[layout], least)
    return bounds, looked_at


def split_bounds_s(
    same: SamePipeline, passes: Passes, limit_s: float, known: Known | None = None
) -> tuple[Ints, Ints, Floats, Floats]:
    """The splits that may be below the limit by `rough_split_bounds_s`, the layout of each, and the
    longest chain with the least recomputation that fits; and [.., rank] the chains of the ranks
    with nothing recomputed.
    """
    split, layout, least, by_rank = rough_split_bounds_s(same, passes, limit_s, known)
    if not len(layout):
        return split, layout, least, by_rank
    if same.first:
        least = _first_least_s(same, passes, (layout, split, least), None)
        kept = least < limit_s
        return split[kept], layout[kept], least[kept], by_rank[kept]
    pairs = Pairs.of(same, layout, split)
    for worst, which in product((True, False), range(same.covers.shape[1])):
        work_s = pairs.least_work_ns(which, worst) / NS_PER_S
        beyond = by_rank + (same.m[pairs.layout] * SAFETY)[:, None] * work_s
        least = np.maximum(least, np.where(work_s > 0, beyond, 0.0).max(axis=1))
        kept = least < limit_s
        if not kept.all():
            pairs, by_rank, least = pairs.take(kept), by_rank[kept], least[kept]
    return pairs.split, pairs.layout, least, by_rank


def rough_split_bounds_s(
    same: SamePipeline, passes: Passes, limit_s: float, known: Known | None
) -> tuple[Ints, Ints, Floats, Floats]:
    """The splits whose chains may be shorter than the limit, the layout of each, and the longest
    chain with what memory asks for by one price of each layout (`planner.bounds.memory_prices`);
    and [.., rank] the chains of the ranks with nothing recomputed.
    """
    times = SplitTimes.of(same, passes)
    chains = split_chains(same, times)
    longest = chains.max(axis=0, initial=0.0)
    if known and longest.size:
        longest = np.maximum(longest, known(same, times, None))
    rows = np.flatnonzero((longest < limit_s).any(axis=1))
    some, longest = same.take(rows), longest[rows]
    rounding = some.m * len(same.pattern) / NS_PER_S
    by_rank = np.maximum(chains[: same.pp, rows], chains[same.pp : 2 * same.pp, rows])
    by_rank -= rounding[:, None]
    if len(rows):
        work_s = least_work_ns(some, longest.argmin(axis=1)) / NS_PER_S
        beyond = by_rank + (some.m * SAFETY)[:, None] * work_s
        beyond[work_s <= 0] = 0.0
        longest = np.maximum(longest, beyond.max(axis=0))
        work_s = np.where(np.isfinite(work_s), work_s, 0.0)
        work_s *= passes.replays[rows, None] * SAFETY
        if work_s.any():
            ways = _with_replays(some, times.take(rows), chains[:, rows], work_s, known)
            longest = np.maximum(longest, ways)
    row, split = np.nonzero(longest < limit_s)
    return split, rows[row], longest[row, split], by_rank[:, row, split].T


def _with_replays(
    same: SamePipeline, times: SplitTimes, chains: Floats, each: Floats, known: Known | None
) -> Floats:
    """[row, split] of chains through several ranks, with what each of them recomputes [rank, row,
    split]: down to the last chunk and up again; down to a rank, its work and up again; and the
    known ones.
    """
    replays = Replays(each, _most_replays(same))
    found: Floats = chains[3 * same.pp] + each.sum(axis=0)
    if same.schedule not in V_SHAPED:
        above = replays.least(np.array(same.chunks_of_rank), np.arange(same.vpp) == 0)
        above = above.cumsum(axis=0) - above
        ways = chains[: same.pp] + same.m[:, None] * each + above
        found = np.maximum(found, ways.max(axis=0))
    if known:
        found = np.maximum(found, known(same, times, replays))
    found -= (same.m * len(same.pattern) / NS_PER_S)[:, None]
    return found


def _most_replays(same: SamePipeline) -> Floats:
    """[chunk, row, split] seconds by which the slowest modes are longer than the fastest."""
    kinds = layers_of_kind(same.pattern, len(same.kind_counts), same.splits or ())
    ns = same.prices.layer_ns[:, :, list(same.modes)]
    longer = (most_along(ns, 2) - least_along(ns, 2) + 1) / NS_PER_S
    found: Floats = longer @ kinds.transpose(2, 0, 1)
    return found


Listed = tuple[Ints, Ints, Floats]
"""Pairs: the layout and the split of each, and a lower bound."""


def _of_first_mixes(
    same: SamePipeline, passes: Passes, pairs: Listed, limit_s: float, known: Known | None
) -> Floats:
    """[pair] a bound of which the least of a layout is that of its mixes. The pair with the
    smallest is the limit of the others of its layout.
    """
    layout, split, least = pairs
    order = np.lexsort((least, layout))
    likeliest = order[np.diff(layout[order], prepend=-1) > 0]
    found, limits = least.copy(), np.full(len(same), limit_s)
    for each in (likeliest, np.delete(np.arange(len(least)), likeliest)):
        some = each[least[each] < limits[layout[each]]]
        if len(some):
            asked = layout[some], split[some], least[some]
            found[some] = _first_least_s(same, passes, asked, known)
            np.minimum.at(limits, layout[some], found[some])
    return found


def _first_least_s(
    same: SamePipeline, passes: Passes, pairs: Listed, known: Known | None
) -> Floats:
    """[pair] the longest chain of its only mix, infinite where none fits, if not the bound."""
    layout, split, least = pairs
    fewest = first_mixes(same, layout, split)
    fit = np.flatnonzero(fewest >= 0)
    found = np.full(len(least), np.inf)
    if len(fit):
        times = mix_times(same, passes, (layout[fit], split[fit]), fewest[fit])
        chains = split_chains(same, times).max(axis=0)
        if known:
            chains = np.maximum(chains, known(same, times, None))
        found[fit] = np.maximum(least[fit], chains[:, 0])
    return found
