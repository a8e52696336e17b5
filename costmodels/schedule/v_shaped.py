"""V-shaped zero-bubble schedules: each rank does what it prefers of what it may do next.

The order is found as if messages took no time. With them a rank would begin a W whenever an I is
about to arrive, and keep its neighbours waiting by a whole W for the sake of a message.

Leaves out: schedules found by an integer programme (2401.10241, section 3.1); the order here is
I before F before W, late stages first, with as many micro-batches in flight as `in_flight` allows.
Also that the native engine and PyTorch's ScheduleZBVZeroBubble keep to the order of equal times
whatever actions take: 3 to 9 % longer where F, I and W are as 10, 11 and 9, 10 to 19 % where they
are as 10, 12 and 8.
"""

from collections import deque
from collections.abc import Iterator

from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.schedule.actions import Action, Work
from meshplan.costmodels.schedule.in_flight import in_flight, rank_of_chunk
from meshplan.costmodels.schedule.orders import source_of


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


def greedy_orders(
    schedule: Schedule, pp: int, vpp: int, m: int, work: Work
) -> tuple[tuple[Action, ...], ...]:
    """What each rank does, in order; `work.send_s` does not count."""
    stages = pp * vpp
    limits = [max(map(sum, vectors)) for vectors in in_flight(schedule, pp, vpp, m)]
    held_by = [
        tuple(j for j in range(stages) if rank_of_chunk(schedule, pp, j) == s) for s in range(pp)
    ]
    ranks = [_Rank(held, m, limit) for held, limit in zip(held_by, limits, strict=True)]
    arrived: dict[tuple[int, str, int], float] = {}
    played: list[list[Action]] = [[] for _ in ranks]
    choices = [_choice(rank, arrived, stages) for rank in ranks]
    while ready := [(*choice, s) for s, choice in enumerate(choices) if choice]:
        start, action, s = min(ready, key=lambda choice: (choice[0], choice[2]))
        ranks[s].take(action)
        ranks[s].free_s = start + work.seconds(action)
        arrived[action.stage, action.kind, action.micro_batch] = ranks[s].free_s
        played[s].append(action)
        for near in {s, *_receivers(schedule, pp, stages, action)}:
            choices[near] = _choice(ranks[near], arrived, stages)
    assert all(rank.done for rank in ranks), "the ranks wait for each other"
    return tuple(map(tuple, played))


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
        source = source_of(action, stages)
        ready = arrived.get(source) if source else 0.0
        if ready is not None and ready <= rank.free_s:
            return rank.free_s, action
        if ready is not None:
            waits.append((ready, action))
    if rank.weights:
        return rank.free_s, rank.weights[0]
    return min(waits, default=None)
