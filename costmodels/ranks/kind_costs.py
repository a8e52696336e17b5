"""Costs by which layouts that differ only in the kind of an exchange are compared: one that is
nowhere cheaper than another need not be searched.

A pass takes max(issued, busy): the host's time or the device's. Where the host waits for the rows
of experts it takes the longest chain through both (`seconds.expert_counts`). Traffic of weights
hides under all of it but `waits`, the communication on the links that this traffic takes.
One layout is never slower than another, under any cut, schedule or recomputation, if in each pass
of each layer none of issued, busy, waits and chains is larger, and no layer keeps more: a step is
the longest chain of a fixed order of actions, and a pass with traffic t takes waits + room +
exposed(t, room), which grows with waits and with room. That holds whatever else both passes have in
common, so kinds of context parallelism are compared without experts on other ranks, and dispatchers
under any kind of context parallelism.

Leaves out: traffic once a step hides under a rank's passes, so longer passes hide more of it, which
may pay where another rank is the last to end. The plan says that its space leaves this out.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from meshplan.costmodels.elementwise import Number
from meshplan.costmodels.layout import Mode
from meshplan.costmodels.layouts import Floats, Layouts
from meshplan.costmodels.ranks.rank import Rank
from meshplan.costmodels.ranks.recompute_sets import recompute_sets
from meshplan.costmodels.seconds.cost import Pass
from meshplan.costmodels.seconds.layer import DIRECTIONS
from meshplan.costmodels.setting import Setting

PICOSECOND = 12  # digits of a second


def kind_costs(layouts: Layouts, setting: Setting, kinds: Iterable[int]) -> Floats:
    """(N, C) of each layout: busy, waiting and issuing seconds and chains of each pass, and bytes
    kept, of each of the layer `kinds` under each recompute mode. (What else differs are modules of
    multi-token prediction, which are layers of one of these kinds and what both have in common.)
    """
    rank = Rank(setting, layouts)
    modes: tuple[Mode, ...] = (*recompute_sets(setting), "full")
    columns = [column for kind in kinds for column in _columns(rank, kind, modes)]
    if not columns:
        return np.zeros((len(layouts), 0))
    return np.stack([np.broadcast_to(column, len(layouts)) for column in columns], axis=1)


def _columns(rank: Rank, kind: int, modes: Iterable[Mode]) -> Iterator[Number]:
    """Of one kind: first what no mode changes."""
    plain = rank.plain_cost(kind, "none")
    for each in (plain.forward, plain.input_grad, plain.weight_grad):
        yield from _seconds(each)
    for direction in DIRECTIONS:
        yield rank.pricer.issued_s(rank.operations(kind), direction)
    if rank.pricer.checkpoint_hooks:  # which take as long for each kernel
        yield rank.pricer.launches(rank.operations(kind))
    yield plain.saved_bytes
    yield from _chains(rank, kind, "none")
    for mode in modes:
        cost = rank.plain_cost(kind, mode)
        yield from _seconds(cost.replay)
        yield rank.pricer.issued_s(rank.run_forward(kind, mode), "forward")
        yield cost.saved_bytes
        yield from _chains(rank, kind, mode)


def _seconds(each: Pass) -> tuple[Number, Number]:
    """Busy, and of that what leaves the traffic of weights no room: to the picosecond, as the same
    bytes are seen and hidden in different parts.
    """
    waits = np.round(each.exposed_s - each.more_room_s, PICOSECOND)
    return each.total_s - each.host_s, waits


def _chains(rank: Rank, kind: int, mode: Mode) -> list[Number]:
    """Of the pass that a replay runs; that of `full` is the forward pass, which has been said."""
    return [] if mode == "full" else rank.pricer.chains_s(rank.run_forward(kind, mode))
