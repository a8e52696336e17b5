"""V-shaped zero-bubble schedules: each rank does what it prefers of what it may do next.

The order is found as if F, I and W took a unit each and messages nothing; engines keep to it
whatever actions take (the native one, and PyTorch's ScheduleZBVZeroBubble). With messages a rank
would begin a W whenever an I is about to arrive, and keep its neighbours waiting by a whole W.

DeepSeek-V3's DualPipe (2412.19437, section 3.2.1) is no schedule of its own here: over 2 S ranks
each rank holds the two chunks and waits as long as a rank of dualpipe_v does over S ranks in twice
as many replicas (deepseek-ai/DualPipe, README: the same bubble, parameters and activations on half
the devices; hackmd.io/@ufotalent/r1lVXsa9Jg). What differs is on which ranks the copies are.

Leaves out: schedules found by an integer programme (2401.10241, section 3.1), and orders made for
the times of one layout; the order here is I before F before W, late stages first, with as many
micro-batches in flight as `in_flight` allows.
"""

import math
from collections import deque
from heapq import heapify, heappop, heappush

from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.schedule.actions import Action, Kind
from meshplan.costmodels.schedule.in_flight import in_flight, rank_of_chunk

# When what the next micro-batch of each stage waits for is there, in units; None: nobody knows.
Arrivals = list[deque[int]]
Choice = tuple[float, int, Kind]
NEVER: Choice = (math.inf, -1, "W")


class _Rank:
    """One rank of a zero-bubble schedule: what it may still do, and what it holds."""

    def __init__(self, stages: list[int], m: int, limit: int) -> None:
        self.stages = sorted(stages, reverse=True)  # late ones first: micro-batches leave soon
        self.forwards, self.backwards = dict.fromkeys(stages, 0), dict.fromkeys(stages, 0)
        self.held, self.total = dict.fromkeys(stages, 0), 0
        self.weights: deque[tuple[int, int]] = deque()
        self.m, self.limit, self.free = m, limit, 0

    def choice(self, forward: Arrivals, backward: Arrivals) -> Choice:
        """When and what next: the preferred action that is ready, else W, else the first to
        arrive.
        """
        waits: list[Choice] = []
        preferred: tuple[tuple[Kind, Arrivals, list[int]], ...] = (
            ("I", backward, self.stages),
            ("F", forward, self._may_begin()),
        )
        for kind, arrivals, stages in preferred:
            for stage in stages:
                if arrivals[stage]:
                    ready = arrivals[stage][0]
                    if ready <= self.free:
                        return self.free, stage, kind
                    waits.append((ready, stage, kind))
        if self.weights:
            return self.free, self.weights[0][0], "W"
        return min(waits, default=NEVER)

    def _may_begin(self) -> list[int]:
        """The stages whose next forward has room: every other chunk keeps room for one
        micro-batch, or the ranks wait for each other.
        """
        room = self.limit - self.total
        if room <= 0:
            return []
        empty = {j for j in self.stages if not self.held[j] and self.forwards[j] < self.m}
        return [
            j for j in self.stages
            if self.forwards[j] < self.m and room > len(empty) - (j in empty)
        ]  # fmt: skip

    def take(self, stage: int, kind: Kind) -> int:
        """The micro-batch of the next `kind` of `stage`, which is then done."""
        if kind == "W":
            self.held[stage] -= 1
            self.total -= 1
            return self.weights.popleft()[1]
        done = self.forwards if kind == "F" else self.backwards
        micro_batch = done[stage]
        done[stage] += 1
        if kind == "I":
            self.weights.append((stage, micro_batch))
        else:
            self.held[stage] += 1
            self.total += 1
        return micro_batch


def greedy_orders(schedule: Schedule, pp: int, vpp: int, m: int) -> list[list[Action]]:
    """What each rank does, in order."""
    stages = pp * vpp
    holder = [rank_of_chunk(schedule, pp, j) for j in range(stages)]
    ranks = [
        _Rank([j for j in range(stages) if holder[j] == s], m, max(map(sum, vectors)))
        for s, vectors in enumerate(in_flight(schedule, pp, vpp, m))
    ]
    forward: Arrivals = [deque([0] * m if j == 0 else []) for j in range(stages)]
    backward: Arrivals = [deque() for _ in range(stages)]
    played: list[list[Action]] = [[] for _ in ranks]
    choices = [rank.choice(forward, backward) for rank in ranks]
    soonest = [(choice[0], s) for s, choice in enumerate(choices)]  # with choices since replaced
    heapify(soonest)
    while soonest:
        start, s = heappop(soonest)
        if start == math.inf:
            break
        if start != choices[s][0]:
            continue
        _, stage, kind = choices[s]
        played[s].append(Action(stage, kind, ranks[s].take(stage, kind)))
        end = ranks[s].free = int(start) + 1
        near = s
        if kind != "W":
            (forward if kind == "F" else backward)[stage].popleft()
            to, queue = (stage + 1, forward) if kind == "F" else (stage - 1, backward)
            if to == stages:
                to, queue = stage, backward
            if to >= 0:
                queue[to].append(end)
                near = holder[to]
        for each in {s, near}:
            choices[each] = ranks[each].choice(forward, backward)
            heappush(soonest, (choices[each][0], each))
    assert all(len(done) == 3 * vpp * m for done in played), "the ranks wait for each other"
    return played
