"""Opens the kinds of context parallelism and the dispatchers of each row, and drops those that
another kind of the same row beats.

A row has a kind where it has the exchange: with cp > 1, with ep > 1. Memory hardly depends on it,
so one kind is mostly best in everything (`costmodels.ranks.kind_costs`), and the row stays one row.
Where one kind is faster and another keeps less, both stay.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any, Literal, NamedTuple

import numpy as np

from meshplan.costmodels.layout import CONTEXT_KINDS, DISPATCHERS, Layout
from meshplan.costmodels.layouts import Bools, Floats, Ints, Layouts, distinct
from meshplan.costmodels.prices.known_work import KnownWork
from meshplan.costmodels.prices.tables import work_key
from meshplan.costmodels.ranks.kind_costs import kind_costs
from meshplan.costmodels.ranks.rank import Rank
from meshplan.costmodels.seconds.process_groups import axis_group
from meshplan.costmodels.setting import Setting
from meshplan.hardware_profiles.engine_schema import Dispatcher
from meshplan.hardware_profiles.kernel_habits import ContextKind
from meshplan.planner.space.exchange_rules import (
    context_kinds,
    dispatches,
    expert_ranks,
    splits_heads,
)
from meshplan.planner.space.legal_layouts import Space
from meshplan.planner.space.pins import Pins

NO_ROWS = np.empty(0, np.int64)
BLOCK = 4096  # layouts whose options are priced at once
ROWS = 65_536  # rows whose kinds of exchanges are opened at once
NONE_SPLITS = "no kind of context parallelism that the engine has, or the pins, splits the heads"
NONE_SENDS = "no dispatcher that is pinned has kernels for these ranks"


class _Option(NamedTuple):
    """A kind, as `Layouts` has it, and the layouts that may have it."""

    code: int
    legal: Bools


class _Asked(NamedTuple):
    """For what kinds are opened, and what is known of them."""

    setting: Setting
    pins: Pins
    known: KnownWork | None


Options = Callable[[Layouts, Setting, Pins], list[_Option]]


Opened = tuple[Layouts, dict[str, int]]
"""Rows with the kinds of each, and what was dropped of them by reason."""
PartsOf = Callable[[int, int], range]
"""Where parts of at most so many of some rows begin."""
DoneOf = Callable[[Callable[[int], Opened], Sequence[int]], list[Opened]]
"""What a function gives of each."""


def open_exchanges(
    space: Space,
    setting: Setting,
    parts_of: PartsOf,
    done_of: DoneOf,
    known: KnownWork | None = None,
) -> Space:
    """`space` with each row once for each kind that may be worth having, some rows at a time;
    `known`: which kinds are, of questions that differ in the batch alone.
    """
    rules, number = setting.engine.legality, len(space.layouts)
    if not number or not (rules.dispatchers or rules.context_kinds):
        return space
    firsts, dropped = parts_of(number, ROWS), dict(space.dropped)

    def part(first: int) -> Opened:
        args = _Asked(setting, space.pins, known), (lost := dict[str, int]())
        layouts = space.layouts.take(np.arange(first, min(first + firsts.step, number)))
        layouts = _opened(layouts, "dispatcher", _dispatchers, NONE_SENDS, *args)
        layouts = _opened(layouts, "context_kind", _contexts, NONE_SPLITS, *args)
        return layouts.packed(), lost

    done = done_of(part, firsts)
    for _, lost in done:
        for why, rows in lost.items():
            dropped[why] = dropped.get(why, 0) + rows
    return replace(space, layouts=Layouts.joined([each for each, _ in done]), dropped=dropped)


def _opened(
    every: Layouts,
    axis: str,
    options_of: Options,
    why: str,
    asked: "_Asked",
    dropped: dict[str, int],
) -> Layouts:
    """With the kinds of one axis; `why`: the reason that rows without one are `dropped`."""
    setting, pins, known = asked
    if not (options := options_of(every.take(NO_ROWS), setting, pins)):
        return every
    alike = _alone(every, axis)
    key = work_key(setting, alike)
    first, which = distinct(key)

    def found(entries: Ints) -> Bools:
        some = alike.take(first[entries])
        return _worth_having(some, setting, axis, options_of(some, setting, pins)).T

    if known is None:
        kept = found(np.arange(len(first))).T
    else:
        kept = known.of(axis, [column[first] for column in key], found).T
    none: Bools = ~np.any(kept, axis=0)
    if lost := int(np.count_nonzero(none[which])):
        dropped[why] = dropped.get(why, 0) + lost
    row, option = np.nonzero(kept.T[which])
    codes = np.array([each.code for each in options], np.int64)[option]
    opened: Any = {axis: codes}
    return replace(every.take(row), **opened)


def _alone(layouts: Layouts, axis: str) -> Layouts:
    """`layouts` without what has no say in which kind of `axis` is best."""
    one, none = np.ones_like(layouts.zero_stage), np.zeros_like(layouts.zero_stage)
    if axis == "dispatcher":
        return replace(layouts, context_kind=none)
    return replace(
        layouts, expert_parallel=one, expert_tensor_parallel=one, virtual_stages=none
    )  # fmt: skip


def _contexts(layouts: Layouts, setting: Setting, pins: Pins) -> list[_Option]:
    """No kind where there is no exchange; else each that splits the heads. Empty: no choice."""
    rules, alone = setting.engine.legality, layouts.context_parallel == 1
    if not rules.context_kinds:
        return []
    kinds, _ = context_kinds(setting.model, setting.training, setting.engine)
    group = axis_group(layouts, "cp", rules.rank_order, setting.cluster.gpus_per_node)
    tp = layouts.tensor_parallel * 1.0
    return [_Option(0, alone)] + [
        _Option(
            1 + CONTEXT_KINDS.index(kind), ~alone & splits_heads(kind, setting.model, tp, group)
        )
        for kind in kinds
        if pins.allows("context_kind", kind)
    ]


def _dispatchers(layouts: Layouts, setting: Setting, pins: Pins) -> list[_Option]:
    """The same of dispatchers: those that recipes use, or that are pinned. HybridEP sends what
    DeepEP does and its routing map, and takes the host less.
    """
    rules, alone = setting.engine.legality, layouts.expert_parallel == 1
    named = rules.dispatchers if "dispatcher" in pins.axes else rules.usual_dispatchers
    if not rules.dispatchers:
        return []
    ep, etp = layouts.expert_parallel * 1.0, layouts.expert_tensor_parallel * 1.0
    ranks = expert_ranks(ep, etp, setting.cluster.gpus_per_node)
    return [_Option(0, alone)] + [
        _Option(1 + DISPATCHERS.index(kind), ~alone & dispatches(kind, ranks, setting.cluster))
        for kind in named
        if pins.allows("dispatcher", kind)
    ]


def _worth_having(layouts: Layouts, setting: Setting, axis: str, options: list[_Option]) -> Bools:
    """(options, N): legal, and no other legal option of the layout costs as little in everything;
    of equals the first.
    """
    legal = np.array([option.legal for option in options])
    several = np.flatnonzero(np.count_nonzero(legal, axis=0) > 1)
    for first in range(0, len(several), BLOCK):
        some = several[first : first + BLOCK]
        costs = _costs(layouts.take(some), setting, axis, options, legal[:, some])
        for b, a in permutations(range(len(options)), 2):
            no_dearer = np.all(costs[a] <= costs[b], axis=1)
            beaten = no_dearer & (a < b or np.any(costs[a] < costs[b], axis=1))
            legal[b, some] &= ~(beaten & legal[a, some])
    return legal


def _costs(
    layouts: Layouts, setting: Setting, axis: str, options: list[_Option], legal: Bools
) -> Floats:
    """(options, N, C), infinite where an option is not legal; all priced at once."""
    option, row = np.nonzero(legal)
    opened: Any = {axis: np.array([each.code for each in options], np.int64)[option]}
    kinds = [
        kind
        for kind, each in enumerate(setting.model.kinds)
        if (each.experts if axis == "dispatcher" else each.attention.heads)
    ]
    found = kind_costs(replace(layouts.take(row), **opened), setting, kinds)
    costs = np.full((*legal.shape, found.shape[1]), np.inf)
    costs[option, row] = found
    return costs


def with_fastest_kinds(layout: Layout, setting: Setting) -> Layout:
    """`layout` with the fastest kinds of those that a search would choose from, where it leaves
    them open or states one that cannot run.
    """
    own = _own_kinds(layout, setting)
    ways = [
        replace(layout, context_kind=context, dispatcher=dispatcher)
        for context in ((layout.context_kind,) if layout.context_kind in own[0] else own[0])
        for dispatcher in ((layout.dispatcher,) if layout.dispatcher in own[1] else own[1])
    ]
    return min(ways, key=lambda way: _layers_s(way, setting)) if len(ways) > 1 else ways[0]


def _own_kinds(
    la: Layout, setting: Setting
) -> tuple[list[ContextKind | Literal[""]], list[Dispatcher | Literal[""]]]:
    """What each exchange of one layout may be: "" where there is none, or no choice."""
    engine, cluster = setting.engine, setting.cluster
    rules, per_node = engine.legality, cluster.gpus_per_node
    kinds, _ = context_kinds(setting.model, setting.training, engine)
    group, tp = axis_group(la, "cp", rules.rank_order, per_node), la.tensor_parallel * 1.0
    ranks = expert_ranks(la.expert_parallel * 1.0, la.expert_tensor_parallel * 1.0, per_node)
    contexts = [each for each in kinds if splits_heads(each, setting.model, tp, group)]
    sends = [each for each in rules.usual_dispatchers if dispatches(each, ranks, cluster)]
    return (
        [*contexts] if la.context_parallel > 1 and contexts else [""],
        [*sends] if la.expert_parallel > 1 and sends else [""],
    )


def _layers_s(layout: Layout, setting: Setting) -> float:
    """Seconds of one micro-batch in all layers, nothing recomputed."""
    rank, pattern = Rank(setting, layout), setting.model.pattern
    return sum(
        pattern.count(kind) * float(rank.plain_cost(kind, "none").total_s)
        for kind in range(len(setting.model.kinds))
    )
