"""Pipeline schedules as orders of actions, and the time that a step of them takes.

    gpipe             every forward, then every backward                           1811.06965
    1f1b              S - s - 1 forwards ahead, then one forward one backward       2006.09503
    interleaved_1f1b  Megatron-LM: groups of S micro-batches through chunk after chunk  2104.04473
    zb_h1             1f1b's order of F and I; rank s leaves s micro-batches' W for   2401.10241
                      later, which fill the drain: the bubble is (S-1)(F + I - W)
    zb_v, dualpipe_v  two chunks per rank, down and up again: `v_shaped`  2401.10241, 2412.19437

    S, s  pipeline ranks, this rank

An action starts when its rank is free and its input has arrived. Schedules repeat themselves once
warm, so the middle of a long step is not played micro-batch by micro-batch
(`costmodels.schedule.steady_state`).
"""

from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.schedule.actions import Timeline, Work
from meshplan.costmodels.schedule.program import program
from meshplan.costmodels.schedule.steady_state import repeating


def play(schedule: Schedule, pp: int, vpp: int, m: int, work: Work) -> Timeline:
    """The timeline of `m` micro-batches on `pp` ranks with `vpp` virtual stages each."""
    return program(schedule, pp, vpp, m).timeline(work)


def end_s(schedule: Schedule, pp: int, vpp: int, m: int, work: Work) -> tuple[float, ...]:
    """When each rank is done, which is what `play` says to 1e-9 of it."""
    if schedule == "gpipe":
        return _gpipe_end_s(pp, m, work)
    found = repeating(schedule, pp, vpp, m)
    return found.end_s(work) if found else program(schedule, pp, vpp, m).end_s(work)


def _gpipe_end_s(pp: int, m: int, work: Work) -> tuple[float, ...]:
    """Two flow shops, one after the other: m equal jobs wait for the slowest rank they passed."""
    backward, ends = work.table[pp : 2 * pp], []
    passed, slowest = sum(work.forward_s) + (pp - 1) * work.send_s, max(work.forward_s)
    passed, slowest = passed + (m - 1) * slowest, 0.0
    for rank in reversed(range(pp)):
        passed += backward[rank] + (work.send_s if rank < pp - 1 else 0.0)
        slowest = max(slowest, backward[rank])
        ends.append(passed + (m - 1) * slowest)
    return tuple(reversed(ends))
