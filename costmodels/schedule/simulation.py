"""Pipeline schedules as orders of actions, and the time that a step of them takes.

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
"""

from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.schedule.actions import Timeline, Work
from meshplan.costmodels.schedule.orders import Program, program, written_out
from meshplan.costmodels.schedule.v_shaped import greedy_orders

GREEDY: frozenset[Schedule] = frozenset({"zb_v", "dualpipe_v"})


def play(schedule: Schedule, pp: int, vpp: int, m: int, work: Work) -> Timeline:
    """The timeline of `m` micro-batches on `pp` ranks with `vpp` virtual stages each."""
    return _program(schedule, pp, vpp, m, work).timeline(work)


def end_s(schedule: Schedule, pp: int, vpp: int, m: int, work: Work) -> tuple[float, ...]:
    """When each rank is done: of a long step from two shorter ones, since the middle repeats.

    Exact where stages are equal. Uneven ones settle later (measured: one chunk per rank within
    0.1 %, interleaved 1.5 %), and the greedy schedules repeat only on average (2.5 %).
    """
    warm = 2 * pp if schedule in GREEDY else 4 * pp
    window = 4 * pp if vpp > 1 else 2 * pp
    if m <= warm + pp + window:
        return _played_end_s(schedule, pp, vpp, m, work)
    short = warm + m % pp
    a = _played_end_s(schedule, pp, vpp, short, work)
    b = _played_end_s(schedule, pp, vpp, short + window, work)
    repeats = (m - short) / window
    return tuple(x + (y - x) * repeats for x, y in zip(a, b, strict=True))


def _played_end_s(schedule: Schedule, pp: int, vpp: int, m: int, work: Work) -> tuple[float, ...]:
    return _program(schedule, pp, vpp, m, work).end_s(work)


def _program(schedule: Schedule, pp: int, vpp: int, m: int, work: Work) -> Program:
    if schedule in GREEDY:
        return written_out(greedy_orders(schedule, pp, vpp, m, work), pp * vpp)
    return program(schedule, pp, vpp, m)
