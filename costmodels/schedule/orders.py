"""What each rank does, in order, in the schedules whose order is fixed."""

from collections.abc import Iterator

from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.schedule.actions import Action


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
