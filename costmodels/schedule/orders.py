"""Schedules whose order of actions is fixed: that order, and a recurrence that times it.

A step is timed thousands of times in `validate`, always over the same few orders, so an order is
written out once as places in a list (`Program`) and each timing is one pass over plain numbers.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.schedule.actions import Action, Timeline, Work

MOST_PROGRAMS = 64  # kept at a time: a few thousand actions each
BEGIN, NOTHING = -2, -1  # places behind the last action: the step's begin, and before all times


@dataclass(frozen=True, slots=True)
class Program:
    """The actions of all ranks, each after all that it waits for.

    actions  with the rank of each
    steps    for each action the one before it on its rank, the one whose output it waits for, and
             where its seconds stand in `Work.table`
    last     the last action of each rank
    """

    actions: tuple[tuple[int, Action], ...]
    steps: tuple[tuple[int, int, int], ...]
    last: tuple[int, ...]

    def end_s(self, work: Work) -> tuple[float, ...]:
        """When each rank is done."""
        ends = self._ends_s(work)
        return tuple(ends[at] for at in self.last)

    def timeline(self, work: Work) -> Timeline:
        """When each action starts and ends."""
        ends = self._ends_s(work)
        played: list[list[tuple[Action, float, float]]] = [[] for _ in self.last]
        for at, ((rank, action), step) in enumerate(zip(self.actions, self.steps, strict=True)):
            start = max(ends[step[0]], ends[step[1]] + work.send_s)
            played[rank].append((action, start, ends[at]))
        return Timeline(tuple(map(tuple, played)))

    def _ends_s(self, work: Work) -> list[float]:
        """When each action ends; then what `BEGIN` and `NOTHING` stand for."""
        seconds, send_s = work.table, work.send_s
        ends = [0.0] * len(self.steps) + [0.0, -math.inf]
        for at, (before, needed, what) in enumerate(self.steps):
            free, ready = ends[before], ends[needed] + send_s
            ends[at] = (free if free >= ready else ready) + seconds[what]
        return ends


@lru_cache(maxsize=MOST_PROGRAMS)
def program(schedule: Schedule, pp: int, vpp: int, m: int) -> Program:
    """The order of `schedule` for `m` micro-batches on `pp` ranks with `vpp` stages each."""
    return written_out([order(schedule, pp, vpp, m, s) for s in range(pp)], pp * vpp)


def written_out(orders: Sequence[Sequence[Action]], stages: int) -> Program:
    """The program in which each rank keeps to its order."""
    pp = len(orders)
    places: dict[tuple[int, str, int], int] = {}
    actions: list[tuple[int, Action]] = []
    steps: list[tuple[int, int, int]] = []
    last, position, waiting, idle = [BEGIN] * pp, [0] * pp, deque(range(pp)), 0
    while waiting:
        rank = waiting.popleft()
        first = position[rank]
        for action in orders[rank][first:]:
            needed = _needed(action, places, stages)
            if needed is None:
                break
            if needed != NOTHING and actions[needed][0] == rank:
                needed = NOTHING  # it is here already
            steps.append((last[rank], needed, _place_in_table(action, stages)))
            last[rank] = places[action] = len(actions)
            actions.append((rank, action))
            position[rank] += 1
        idle = 0 if position[rank] > first else idle + 1
        assert idle <= pp, "the schedule's order waits for itself"
        if position[rank] < len(orders[rank]):
            waiting.append(rank)
    return Program(tuple(actions), tuple(steps), tuple(last))


def _place_in_table(action: Action, stages: int) -> int:
    return "FBIW".index(action.kind) * stages + action.stage


def _needed(action: Action, places: dict[tuple[int, str, int], int], stages: int) -> int | None:
    """Where the action stands that sends `action` its input, None if it has no place yet."""
    source = source_of(action, stages)
    return NOTHING if source is None else places.get(source)


def source_of(action: Action, stages: int) -> tuple[int, str, int] | None:
    """The action whose output `action` waits for; None: nothing that another rank does."""
    stage, kind, i = action
    if kind == "W":
        return None  # its I stands before it in the order of the same rank
    if kind == "F":
        return (stage - 1, "F", i) if stage else None
    return (stage, "F", i) if stage == stages - 1 else (stage + 1, kind, i)


def order(schedule: Schedule, pp: int, vpp: int, m: int, s: int) -> tuple[Action, ...]:
    """What rank `s` does, in order, in the schedules whose order is fixed."""
    if schedule == "zb_h1":
        return tuple(_zb_h1(pp, m, s))
    forwards, backwards = _forwards(pp, vpp, m, s), _backwards(pp, vpp, m, s)
    if schedule == "gpipe":
        return (*forwards, *backwards)
    ahead = pp - s - 1 if vpp == 1 else 2 * (pp - s - 1) + (vpp - 1) * pp
    ahead = min(ahead, len(forwards))
    actions = forwards[:ahead]
    for forward, backward in zip(forwards[ahead:], backwards, strict=False):
        actions += [forward, backward]
    return (*actions, *backwards[len(forwards) - ahead :])


def _zb_h1(pp: int, m: int, s: int) -> Iterator[Action]:
    """S - s forwards ahead; then I, the W of s micro-batches ago, and the next forward."""
    ahead = min(pp - s, m)
    yield from (Action(s, "F", i) for i in range(ahead))
    for i in range(m + s):
        if i < m:
            yield Action(s, "I", i)
        if i >= s:
            yield Action(s, "W", i - s)
        if i < m - ahead:
            yield Action(s, "F", i + ahead)


def _forwards(pp: int, vpp: int, m: int, s: int) -> list[Action]:
    """Groups of S micro-batches through this rank's chunk 0, then 1, ..."""
    return [
        Action(chunk * pp + s, "F", i)
        for first in range(0, m, pp if vpp > 1 else m)
        for chunk in range(vpp)
        for i in range(first, min(first + pp, m) if vpp > 1 else m)
    ]


def _backwards(pp: int, vpp: int, m: int, s: int) -> list[Action]:
    return [
        Action((vpp - 1 - forward.stage // pp) * pp + s, "B", forward.micro_batch)
        for forward in _forwards(pp, vpp, m, s)
    ]
