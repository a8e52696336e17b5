"""The order of a schedule written out once, and the recurrence that times it.

An order depends on the schedule, the ranks, the chunks and the micro-batches, never on how long
actions take: an engine keeps to it too. So it is written out once as places in a list, and each
timing is one pass over plain numbers.
"""

import math
from collections import deque
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.schedule.actions import Action, Timeline, Work
from meshplan.costmodels.schedule.orders import KINDS, numbered_order
from meshplan.costmodels.schedule.v_shaped import B, I
from meshplan.hardware_profiles.dataclass import dataclass

MOST_PROGRAMS = 16  # kept at a time: a few thousand actions each, of some 100 bytes
NOTHING, BEGIN, FIRST = 0, 1, 2  # places: before all times, the step's begin, the first action

Step = tuple[int, int, int]


class Chain(NamedTuple):
    """A chain of actions by what it holds: how often each entry of `Work.table`, how many hops, and
    the rank where it ends. Its length under any `Work` is a lower bound of a step in that order.
    """

    counts: tuple[int, ...]
    hops: int
    rank: int

    def length_s(self, work: Work) -> float:
        """Seconds under `work`."""
        table = zip(self.counts, work.table, strict=True)
        return sum(count * each for count, each in table if count) + self.hops * work.send_s


@dataclass(frozen=True)
class Program:
    """The actions of all ranks, each after all that it waits for.

    steps         for each action the place of the one before it on its rank, of the one whose
                  output it waits for, and where its seconds stand in `Work.table`
    micro_batch   of each action
    last          the place of each rank's last action
    rank_of_stage the rank of each virtual stage

    The action of steps[i] has the place `FIRST` + i.
    """

    steps: tuple[Step, ...]
    micro_batch: tuple[int, ...]
    last: tuple[int, ...]
    rank_of_stage: tuple[int, ...]

    def end_s(self, work: Work) -> tuple[float, ...]:
        """When each rank is done."""
        ends = self._ends_s(work)
        return tuple(ends[at] for at in self.last)

    def timeline(self, work: Work) -> Timeline:
        """When each action starts and ends."""
        ends = self._ends_s(work)
        played: list[list[tuple[Action, float, float]]] = [[] for _ in self.last]
        for place, (rank, action, step) in enumerate(self._actions, FIRST):
            start = max(ends[step[0]], ends[step[1]] + work.send_s)
            played[rank].append((action, start, ends[place]))
        return Timeline(tuple(map(tuple, played)))

    def chain(self, work: Work, after_s: Sequence[float]) -> "Chain":
        """A longest chain of actions that wait for each other, to the end of the rank that is done
        last when each takes `after_s` beyond its last action.
        """
        ends = self._ends_s(work)
        rank = max(range(len(self.last)), key=lambda rank: ends[self.last[rank]] + after_s[rank])
        counts, hops, place = [0] * len(work.table), 0, self.last[rank]
        while place != BEGIN:
            before, needed, what = self.steps[place - FIRST]
            counts[what] += 1
            sent = ends[needed] + work.send_s > ends[before]
            hops, place = hops + sent, needed if sent else before
        return Chain(tuple(counts), hops, rank)

    @cached_property
    def _actions(self) -> list[tuple[int, Action, Step]]:
        """Each with its rank."""
        stages, found = len(self.rank_of_stage), []
        for step, micro_batch in zip(self.steps, self.micro_batch, strict=True):
            kind, stage = divmod(step[2], stages)
            action = Action(stage, KINDS[kind], micro_batch)
            found.append((self.rank_of_stage[stage], action, step))
        return found

    def _ends_s(self, work: Work) -> list[float]:
        """When each action ends, by place."""
        ends = [-math.inf, 0.0]
        run(ends, self.steps, work.table, work.send_s)
        return ends


def run(ends: list[float], steps: Sequence[Step], seconds: list[float], send_s: float) -> None:
    """Append to `ends` when each of `steps` ends: it starts when its rank is free and its input,
    from another rank, has arrived.
    """
    append = ends.append
    for before, needed, what in steps:
        free, ready = ends[before], ends[needed] + send_s
        append((free if free >= ready else ready) + seconds[what])


@lru_cache(maxsize=MOST_PROGRAMS)
def program(schedule: Schedule, pp: int, vpp: int, m: int) -> Program:
    """The order of `schedule` for `m` micro-batches on `pp` ranks with `vpp` stages each."""
    return written_anew(schedule, pp, vpp, m)


def written_anew(schedule: Schedule, pp: int, vpp: int, m: int) -> Program:
    """`program`, which is not kept: of large ones 16 take tens of MiB."""
    stages = pp * vpp
    numbered = [numbered_order(schedule, pp, vpp, m, s).tolist() for s in range(pp)]
    return written_out(numbered, stages, m)


def written_out(orders: Sequence[Sequence[int]], stages: int, m: int) -> Program:
    """The program in which each rank keeps to its order, of `orders.KINDS`' numbers."""
    rank_of_stage = [0] * stages
    for rank, order in enumerate(orders):
        for what in {number // m for number in order}:
            rank_of_stage[what % stages] = rank
    sources, actions = _sources(rank_of_stage), stages * m
    begin_b, begin_i, end_i = B * actions, I * actions, (I + 1) * actions
    places: list[int] = [NOTHING] * (len(KINDS) * stages * m)
    steps: list[Step] = []
    numbers: list[int] = []
    last, position, idle = [BEGIN] * len(orders), [0] * len(orders), 0
    waiting = deque(range(len(orders)))
    while waiting:
        rank = waiting.popleft()
        order, at, before = orders[rank], position[rank], last[rank]
        while at < len(order):
            number = order[at]
            what = number // m
            source, near = sources[what]
            needed = places[number + (source - what) * m] if source >= 0 else NOTHING
            if source >= 0 and needed == NOTHING:
                break
            steps.append((before, NOTHING if near else needed, what))
            numbers.append(number)
            before = FIRST - 1 + len(steps)
            places[number] = before
            if begin_b <= number < end_i:  # a whole backward has the input gradient of I
                places[number + (begin_i - begin_b) * (1 if number < begin_i else -1)] = before
            at += 1
        idle = 0 if at > position[rank] else idle + 1
        assert idle <= len(orders), "the schedule's order waits for itself"
        last[rank], position[rank] = before, at
        if at < len(order):
            waiting.append(rank)
    micro_batch = tuple(number % m for number in numbers)
    return Program(tuple(steps), micro_batch, tuple(last), tuple(rank_of_stage))


def _sources(rank_of_stage: list[int]) -> list[tuple[int, bool]]:
    """For each place in `Work.table` the one that it waits for (-1: none), and whether its rank is
    the same, so that nothing is sent. A W stands after its I in the order of its rank.
    """
    stages, found = len(rank_of_stage), []
    for kind in KINDS:
        row = KINDS.index(kind) * stages
        for stage in range(stages):
            if kind == "W" or (kind == "F" and stage == 0):
                found.append((-1, False))
            elif kind == "F":
                found.append((stage - 1, rank_of_stage[stage - 1] == rank_of_stage[stage]))
            elif stage == stages - 1:
                found.append((stage, True))
            else:
                near = rank_of_stage[stage + 1] == rank_of_stage[stage]
                found.append((row + stage + 1, near))
    return found
