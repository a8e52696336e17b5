"""The sets of modules that selective recompute may replay, of which a search chooses one.

What a set replays and frees is read off the one list of a layer's operations, as every price is.
Modules are added one after the other, each time the one that takes least seconds for each byte that
it frees of all layers together, on one rank that has the model alone. Where seconds and bytes add
up, the sets on this way are the corners of the convex hull of all sets: of any other, layers that
mix two neighbours of these (or nothing, or everything) free as much in no more time. Of the corners
left out are those that full recompute beats, and one after the other those that save less than a
twentieth of a full replay against layers that mix their neighbours; one stays in any case.

Not modelled: the order on ranks that communicate, where a module's exchanges make it dearer.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from meshplan.costmodels.layout import SELECTIVE, Layout, RecomputeModule, Stage
from meshplan.costmodels.operations.replayed import HOLDS, replayed_of
from meshplan.costmodels.ranks.rank import Rank
from meshplan.costmodels.setting import Setting

Modules = tuple[RecomputeModule, ...]
LEAST_GAIN = 1 / 20  # a set that saves less of a full replay is not offered
FEWEST = 3  # points of the line: nothing, one set, everything


class _Point(NamedTuple):
    """What a set takes and frees of one micro-batch in all layers."""

    seconds: float
    freed_bytes: float
    modules: Modules


_known: deque[tuple[Setting, tuple[Modules, ...]]] = deque(maxlen=8)
"""Settings that were asked last, for a batch of one sequence, and their sets."""


def recompute_sets(setting: Setting) -> tuple[Modules, ...]:
    """The sets, each larger than the one before; at least one. The batch does not matter."""
    setting = replace(setting, training=replace(setting.training, global_batch_size=1))
    for known, sets in _known:
        if known == setting:
            return sets
    _known.append((setting, _sets_of(setting)))
    return _known[-1][1]


def _sets_of(setting: Setting) -> tuple[Modules, ...]:
    rules = setting.engine.legality
    if rules.recompute_policy:
        return (rules.recompute_modules,)
    if not rules.recompute_modules:
        return (SELECTIVE,)
    priced = _Priced(setting)
    way = list(priced.way(rules.recompute_modules))
    corners = priced.corners(way)
    line = [priced.point(()), *corners, priced.of_all]
    kept = tuple(point.modules for point in _worth_having(line))
    return kept or tuple(point.modules for point in way[:1]) or (SELECTIVE,)


def replaying(layout: Layout, setting: Setting) -> Layout:
    """`layout`, whose selective layers replay the engine's smallest set."""
    return replace(layout, selective_modules=recompute_sets(setting)[0])


class _Priced:
    """Prices of sets on one rank."""

    def __init__(self, setting: Setting) -> None:
        layers = Stage(setting.model.num_layers)
        self.rank, self.pattern = Rank(setting, Layout(stages=(layers,))), setting.model.pattern
        self.kinds = sorted(set(self.pattern))
        self.of_all = self._point("full", ())

    def point(self, modules: Modules) -> _Point:
        """What `modules` take and free."""
        return self._point(modules, modules)

    def _point(self, mode: str | Modules, modules: Modules) -> _Point:
        seconds = freed = 0.0
        for kind in self.kinds:
            count = self.pattern.count(kind)
            seconds += count * float(self.rank.plain_cost(kind, mode).replay.total_s)
            freed += count * float(self.rank.replay_bytes(kind, mode))
        return _Point(seconds, freed, modules)

    def way(self, allowed: Modules) -> Iterator[_Point]:
        """One module more each time, the one that takes least for each byte."""
        at = _Point(0.0, 0.0, ())
        listed = [self.rank.operations(kind) for kind in self.kinds]
        left = [one for one in allowed if any(replayed_of(each, (one,)) for each in listed)]
        while left:
            points = [self.point(_with(at.modules, module)) for module in left]
            points = [each for each in points if each.freed_bytes > at.freed_bytes]
            if not points:
                return
            at = min(points, key=lambda each: _slope(at, each))
            yield at
            held = {part for module in at.modules for part in HOLDS.get(module, (module,))}
            left = [module for module in left if module not in held]

    def corners(self, way: list[_Point]) -> list[_Point]:
        """Of the way, what lies below the line from the corner before to full recompute."""
        found = [_Point(0.0, 0.0, ())]
        for each in [*way, self.of_all]:
            while len(found) > 1 and _slope(found[-2], found[-1]) >= _slope(found[-2], each):
                found.pop()
            if each.freed_bytes > found[-1].freed_bytes:
                found.append(each)
        return [each for each in found[1:] if each is not self.of_all]


def _with(modules: Modules, more: RecomputeModule) -> Modules:
    """`modules` and one more, without those that it holds."""
    return (*(each for each in modules if each not in HOLDS.get(more, ())), more)


def _slope(one: _Point, other: _Point) -> float:
    """Seconds for each byte more."""
    more = other.freed_bytes - one.freed_bytes
    return (other.seconds - one.seconds) / more if more > 0 else float("inf")


def _worth_having(line: list[_Point]) -> list[_Point]:
    """`line` without the corners that save too little against layers that mix their neighbours."""
    while len(line) > FEWEST:
        gains = [_gain(*three) for three in zip(line, line[1:], line[2:], strict=False)]
        least = min(range(len(gains)), key=lambda at: gains[at])
        if gains[least] >= LEAST_GAIN * line[-1].seconds:
            break
        line = line[: least + 1] + line[least + 2 :]
    return line[1:-1]


def _gain(before: _Point, at: _Point, after: _Point) -> float:
    """Seconds that a corner saves where layers would mix its neighbours to free as much."""
    share = (at.freed_bytes - before.freed_bytes) / (after.freed_bytes - before.freed_bytes)
    return before.seconds + share * (after.seconds - before.seconds) - at.seconds
