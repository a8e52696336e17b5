"""Pipeline schedules as orders of actions, and the time that a step of them takes.

An action is `2F0`: virtual stage 2, forward, micro-batch 0. `B` is a whole backward; zero-bubble
schedules split it into `I` (input gradient, which the previous stage waits for) and `W` (weight
gradient, which nobody does).

    gpipe             every forward, then every backward                           1811.06965
    1f1b              S - s - 1 forwards ahead, then one forward one backward       2006.09503
    interleaved_1f1b  Megatron-LM: groups of S micro-batches through chunk after chunk  2104.04473
    zb_h1             1f1b's order of F and I; rank s leaves s micro-batches' W for   2401.10241
                      later, which fill the drain: the bubble is (S-1)(F + I - W)
    zb_v, dualpipe_v  two chunks per rank, down and up again; I before F before W,
                      as many micro-batches in flight as `in_flight` allows         2401.10241

    S, s  pipeline ranks, this rank

An action starts when its rank is free and its input has arrived. Schedules repeat themselves once
warm, so a long step is two shorter ones and their difference (`end_s`).

Leaves out: V-shaped schedules found by an integer programme (the greedy order above is played).
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

from costmodels.in_flight import in_flight, rank_of_chunk
from costmodels.layout import Schedule

Kind = Literal["F", "B", "I", "W"]
GREEDY: frozenset[Schedule] = frozenset({"zb_v", "dualpipe_v"})


class Action(NamedTuple):
    """One piece of work of one virtual stage; prints as `2F0`."""

    stage: int
    kind: Kind
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"


@dataclass(frozen=True, slots=True)
class Work:
    """Seconds of each virtual stage's actions, and of handing an activation to the next rank.

    forward_s, input_grad_s, weight_grad_s  by virtual stage in model order
    send_s                                  arrival after the sender is done
    """

    forward_s: tuple[float, ...]
    input_grad_s: tuple[float, ...]
    weight_grad_s: tuple[float, ...]
    send_s: float

    def seconds(self, action: Action) -> float:
        """How long `action` keeps its rank busy."""
        stage = action.stage
        if action.kind == "F":
            return self.forward_s[stage]
        if action.kind == "I":
            return self.input_grad_s[stage]
        if action.kind == "W":
            return self.weight_grad_s[stage]
        return self.input_grad_s[stage] + self.weight_grad_s[stage]


@dataclass(frozen=True, slots=True)
class Timeline:
    """When each action started and ended, by pipeline rank, and when each rank was done."""

    actions: tuple[tuple[tuple[Action, float, float], ...], ...]

    @property
    def end_s(self) -> tuple[float, ...]:
        """When each rank ended its last action."""
        return tuple(rank[-1][2] for rank in self.actions)

    @property
    def makespan_s(self) -> float:
        """When the last rank was done."""
        return max(self.end_s)


def play(schedule: Schedule, pp: int, vpp: int, m: int, work: Work) -> Timeline:
    """The timeline of `m` micro-batches on `pp` ranks with `vpp` virtual stages each."""
    if schedule in GREEDY:
        return _play_greedily(schedule, pp, vpp, m, work)
    return _play_in_order(tuple(order(schedule, pp, vpp, m, s) for s in range(pp)), work, pp * vpp)


def end_s(schedule: Schedule, pp: int, vpp: int, m: int, work: Work) -> tuple[float, ...]:
    """When each rank is done: of a long step from two shorter ones, since the middle repeats.

    Exact where stages are equal. Uneven ones settle later (measured: one chunk per rank within
    0.1 %, interleaved 1.5 %), and the greedy schedules repeat only on average (2.5 %).
    """
    warm = 2 * pp if schedule in GREEDY else 4 * pp
    window = 4 * pp if vpp > 1 else 2 * pp
    if m <= warm + pp + window:
        return play(schedule, pp, vpp, m, work).end_s
    short = warm + m % pp
    a = play(schedule, pp, vpp, short, work).end_s
    b = play(schedule, pp, vpp, short + window, work).end_s
    repeats = (m - short) / window
    return tuple(x + (y - x) * repeats for x, y in zip(a, b, strict=True))


@cache
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


def _play_in_order(orders: tuple[tuple[Action, ...], ...], work: Work, stages: int) -> Timeline:
    arrived: dict[tuple[int, str, int], float] = {}
    played: list[list[tuple[Action, float, float]]] = [[] for _ in orders]
    free, position = [0.0] * len(orders), [0] * len(orders)
    waiting = deque(range(len(orders)))
    idle = 0
    while waiting:
        rank = waiting.popleft()
        before = position[rank]
        while position[rank] < len(orders[rank]):
            action = orders[rank][position[rank]]
            ready = _ready_s(action, arrived, stages)
            if ready is None:
                break
            start = max(free[rank], ready)
            free[rank] = start + work.seconds(action)
            arrived[action.stage, action.kind, action.micro_batch] = free[rank] + work.send_s
            played[rank].append((action, start, free[rank]))
            position[rank] += 1
        idle = 0 if position[rank] > before else idle + 1
        assert idle <= len(orders), "the schedule's order waits for itself"
        if position[rank] < len(orders[rank]):
            waiting.append(rank)
    return Timeline(tuple(map(tuple, played)))


def _ready_s(
    action: Action, arrived: dict[tuple[int, str, int], float], stages: int
) -> float | None:
    """When the input of `action` has arrived, None if it has not been sent yet."""
    stage, kind, i = action
    if kind == "W":
        return 0.0  # its I stands before it in the order of the same rank
    if kind == "F":
        return 0.0 if stage == 0 else arrived.get((stage - 1, "F", i))
    if stage == stages - 1:
        return arrived.get((stage, "F", i))
    return arrived.get((stage + 1, kind, i))


class _Rank:
    """One rank of a zero-bubble schedule: what it may still do, and what it holds."""

    def __init__(self, stages: tuple[int, ...], m: int, limit: int) -> None:
        self.forwards = {stage: deque(range(m)) for stage in stages}
        self.backwards = {stage: deque(range(m)) for stage in stages}
        self.weights: deque[Action] = deque()
        self.limit, self.held, self.free_s = limit, dict.fromkeys(stages, 0), 0.0

    @property
    def done(self) -> bool:
        return not (any(self.backwards.values()) or self.weights)

    def candidates(self) -> Iterator[Action]:
        """In order of preference: late stages first, so that micro-batches leave soon."""
        for stage in sorted(self.backwards, reverse=True):
            if self.backwards[stage]:
                yield Action(stage, "I", self.backwards[stage][0])
        room = self.limit - sum(self.held.values())
        for stage in sorted(self.forwards, reverse=True):
            # Every other chunk keeps room for one micro-batch, or the ranks wait for each other.
            others = sum(
                held == 0 and other != stage and bool(self.forwards[other])
                for other, held in self.held.items()
            )
            if self.forwards[stage] and room > others:
                yield Action(stage, "F", self.forwards[stage][0])

    def take(self, action: Action) -> None:
        """Mark `action` as done."""
        if action.kind == "F":
            self.forwards[action.stage].popleft()
            self.held[action.stage] += 1
        elif action.kind == "I":
            self.backwards[action.stage].popleft()
            self.weights.append(Action(action.stage, "W", action.micro_batch))
        else:
            self.weights.popleft()
            self.held[action.stage] -= 1


def _play_greedily(schedule: Schedule, pp: int, vpp: int, m: int, work: Work) -> Timeline:
    stages = pp * vpp
    limits = [max(map(sum, vectors)) for vectors in in_flight(schedule, pp, vpp, m)]
    held_by = [
        tuple(j for j in range(stages) if rank_of_chunk(schedule, pp, j) == s) for s in range(pp)
    ]
    ranks = [_Rank(held, m, limit) for held, limit in zip(held_by, limits, strict=True)]
    arrived: dict[tuple[int, str, int], float] = {}
    played: list[list[tuple[Action, float, float]]] = [[] for _ in ranks]
    choices = [_choice(rank, arrived, stages) for rank in ranks]
    while ready := [(*choice, s) for s, choice in enumerate(choices) if choice]:
        start, action, s = min(ready, key=lambda choice: (choice[0], choice[2]))
        ranks[s].take(action)
        ranks[s].free_s = start + work.seconds(action)
        arrived[action.stage, action.kind, action.micro_batch] = ranks[s].free_s + work.send_s
        played[s].append((action, start, ranks[s].free_s))
        for near in {s, *_receivers(schedule, pp, stages, action)}:
            choices[near] = _choice(ranks[near], arrived, stages)
    assert all(rank.done for rank in ranks), "the ranks wait for each other"
    return Timeline(tuple(map(tuple, played)))


def _receivers(schedule: Schedule, pp: int, stages: int, action: Action) -> tuple[int, ...]:
    """The rank that waits for what `action` made."""
    waiting = {"F": action.stage + 1, "I": action.stage - 1, "W": -1, "B": -1}[action.kind]
    return (rank_of_chunk(schedule, pp, waiting),) if 0 <= waiting < stages else ()


def _choice(
    rank: _Rank, arrived: dict[tuple[int, str, int], float], stages: int
) -> tuple[float, Action] | None:
    """When and what next: the preferred action that is ready, else W, else the first to arrive."""
    waits: list[tuple[float, Action]] = []
    for action in rank.candidates():
        ready = _ready_s(action, arrived, stages)
        if ready is not None and ready <= rank.free_s:
            return rank.free_s, action
        if ready is not None:
            waits.append((ready, action))
    if rank.weights:
        return rank.free_s, rank.weights[0]
    return min(waits, default=None)
