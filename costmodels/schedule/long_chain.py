"""The critical path of a long step (a longest chain of actions that wait for each other), most of
whose periods are not played one by one.

A chain is followed back from the end (`Program.chain`): through the tail, through the periods, and
through the head. Over a leap (`costmodels.schedule.steady_state`) each kept end grows by the same
in each cycle, and is a maximum of sums that grow alike: the sum that is the largest amid the leap
is so all along. So each cycle leads from a kept end to the same one before it, after some cycles
the same come again, and whole rounds of them are counted at once.
"""

from collections.abc import Sequence

from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.schedule.actions import Work
from meshplan.costmodels.schedule.program import FIRST, Chain, Step, program
from meshplan.costmodels.schedule.steady_state import Leap, Periods, Repeating, repeating


def longest_chain(
    schedule: Schedule, pp: int, vpp: int, m: int, work: Work, after_s: Sequence[float]
) -> Chain:
    """A longest chain to the end of the rank that is done last when each takes `after_s` beyond its
    last action.
    """
    found = repeating(schedule, pp, vpp, m)
    if found is None:
        return program(schedule, pp, vpp, m).chain(work, after_s)
    played = found.played(work)
    rank = max(range(pp), key=lambda rank: played.done_s[rank] + after_s[rank])
    way = _Way(found, played.periods, len(work.table))
    way.back(played.tail, found.tail, found.last[rank])
    for passed in reversed(played.periods.passed):
        if isinstance(passed, Leap):
            way.leap(passed)
        else:
            way.back(passed, found.body, way.start)
    way.back(played.head, found.head, FIRST + len(found.head) - found.reach + way.at, kept=0)
    return Chain(tuple(way.counts), way.hops, rank)


class _Way:
    """The later part of a chain, followed back so far as the kept end `at`."""

    def __init__(self, found: Repeating, periods: Periods, places: int) -> None:
        self.found, self.periods = found, periods
        self.counts, self.hops, self.at = [0] * places, 0, 0

    @property
    def start(self) -> int:
        """The place of that kept end among the ends of the period before it."""
        return FIRST + len(self.found.body) + self.at

    def back(
        self, ends: list[float], steps: Sequence[Step], place: int, kept: int | None = None
    ) -> None:
        """From `place` to the kept ends that came before `steps`."""
        kept, send_s = self.found.reach if kept is None else kept, self.periods.send_s
        while place >= FIRST + kept:
            before, needed, what = steps[place - FIRST - kept]
            self.counts[what] += 1
            sent = ends[needed] + send_s > ends[before]
            self.hops, place = self.hops + sent, needed if sent else before
        self.at = place - FIRST

    def leap(self, leap: Leap) -> None:
        """Through its cycles, whole rounds of them at once."""
        cycle, left = self.periods.cycle_of(leap), leap.cycles
        known = dict[int, tuple[int, list[int], int]]()
        while left:
            if self.at in known:
                since, counts, hops = known[self.at]
                rounds, left = divmod(left, since - left)
                more = [
                    rounds * (now - then) for now, then in zip(self.counts, counts, strict=True)
                ]
                self.counts = [a + b for a, b in zip(self.counts, more, strict=True)]
                self.hops, known = self.hops + rounds * (self.hops - hops), {}
                continue
            known[self.at] = left, self.counts.copy(), self.hops
            for ends in reversed(cycle):
                self.back(ends, self.found.body, self.start)
            left -= 1
