"""Long steps: a schedule repeats itself once warm, and what repeats is not played again and again.

    order   head, body x n, tail: the order of a short step whose middle, the body, is one period
            (one micro-batch; interleaved: S of them)
    body    x(k+1) = F(x(k)), where x are the ends of the actions that later ones wait for. F is
            max-plus: each component of it is a maximum of x(j) + a number, so it is convex, and
            F(x + t) = F(x) + t
    leap    if F(x + n v) = x + (n+1) v for n = 0, for n = 1 and for some n = N, it holds for each n
            between: along the line F(x + n v) - x - (n+1) v is convex in n and 0 in three places.
            So N periods are one addition, and N is found by secants from beyond

Stages drift apart before the slowest one holds all others up, so v is a vector, and it changes some
times before all its entries are the period of the slowest. Where a chain that returns after several
periods is the slowest (down to the last rank and back, with messages), drifts repeat after as many,
at most as many as there are ranks: then F is those periods one after the other, max-plus as well.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.layouts import Bools, Floats, Ints
from meshplan.costmodels.schedule.actions import Work
from meshplan.costmodels.schedule.program import FIRST, NOTHING, Program, Step, run, written_anew
from meshplan.hardware_profiles.dataclass import dataclass

TOLERANCE = 1e-12  # of a period: by which rounding makes equal drifts differ
ROUNDED = 1e-6  # of a cycle: a secant that small is 0 but for rounding
WORTH = 2  # periods: a step this much longer than the short one is not played as a whole
SHORT = (3, 5, 8)  # micro-batches per rank of the short step: more where it settles late
MOST_KEPT = 256


@dataclass(frozen=True, slots=True)
class Repeating:
    """A long step. Places of `body` and `tail` count from the first of `reach` kept ends.

    reach    so many ends of the actions before the body (and before the tail) are waited for
    repeats  how often the body is played
    last     the places of the ranks' last actions after the tail
    """

    head: tuple[Step, ...]
    body: tuple[Step, ...]
    tail: tuple[Step, ...]
    reach: int
    repeats: int
    last: tuple[int, ...]

    def end_s(self, work: Work) -> tuple[float, ...]:
        """When each rank is done."""
        return self.played(work).done_s

    def played(self, work: Work) -> "Played":
        """Its actions under `work`."""
        seconds, send_s = work.table, work.send_s
        head = [-math.inf, 0.0]
        run(head, self.head, seconds, send_s)
        start = head[-1]
        state = [end - start for end in head[-self.reach :]]
        periods = Periods(self.body, seconds, send_s)
        tail = [-math.inf, 0.0, *periods.advanced(state, self.repeats, len(self.last))]
        run(tail, self.tail, seconds, send_s)
        return Played(head, periods, tail, tuple(start + tail[at] for at in self.last))


class Played(NamedTuple):
    """A long step that was played: the ends of head and tail, the periods between them, and when
    each rank is done.
    """

    head: list[float]
    periods: "Periods"
    tail: list[float]
    done_s: tuple[float, ...]


class Leap(NamedTuple):
    """So many cycles of some periods, each of which adds the drift to the kept ends."""

    cycles: int
    length: int
    state: list[float]
    drift: list[float]


class Periods:
    """The body under the times of one layout; `passed`: the ends of each period that was played,
    and the leaps, in their order.
    """

    def __init__(self, body: Sequence[Step], seconds: list[float], send_s: float) -> None:
        self.body, self.seconds, self.send_s = body, seconds, send_s
        self.passed = list[list[float] | Leap]()

    def advanced(self, state: list[float], periods: int, longest: int) -> list[float]:
        """The kept ends so many periods later; a cycle has `longest` periods at most."""
        kept, played = 2 * longest + 1, 0
        known = deque([state], kept)
        while periods:
            self.passed.append(ends := self.ends_after(state))
            known.append(state := ends[-len(state) :])
            periods, played = periods - 1, played + 1
            for length in range(1, 2 if played % longest else longest + 1):
                drift = _drift(known, length)
                leap = self._leap(state, drift, length, periods // length) if drift else 0
                if leap:
                    self.passed.append(Leap(leap, length, state, drift))
                    before, state = _moved(state, drift, leap - 1), _moved(state, drift, leap)
                    known = deque([before, state] if length == 1 else [state], kept)
                    periods -= leap * length
                    break
        return state

    def _leap(self, state: list[float], drift: list[float], length: int, most: int) -> int:
        """How many cycles surely add `drift` each, of `most`.

        What F is above the line is convex in the cycles, so a secant from beyond is 0 no earlier.
        """
        leap, allowed = most, TOLERANCE * max(drift)
        while leap > 1:
            above = self._above(state, drift, length, leap - 1)
            if all(-allowed <= each <= allowed for each in above):
                return leap
            before = self._above(state, drift, length, leap - 2)
            reached = [
                leap - 1 - over / (over - under)
                for over, under in zip(above, before, strict=True)
                if over > allowed and over > under
            ]
            most = 1 + math.floor(min(reached) + ROUNDED) if reached else leap // 2
            leap = min(leap - 1, most)
        return 0

    def _above(
        self, state: list[float], drift: list[float], length: int, cycles: int
    ) -> list[float]:
        """Of each kept end by how much more than `drift` a cycle adds after so many. What all ends
        drift adds nothing to that, but for rounding, and is left out.
        """
        least = min(drift)
        nearly = after = _moved(state, [each - least for each in drift], cycles)
        for _ in range(length):
            after = self.ends_after(after)[-len(state) :]
        return [b - a - each for a, b, each in zip(nearly, after, drift, strict=True)]

    def ends_after(self, state: list[float]) -> list[float]:
        """The kept ends, and those of the period after them."""
        ends = [-math.inf, 0.0, *state]
        run(ends, self.body, self.seconds, self.send_s)
        return ends

    def cycle_of(self, leap: Leap) -> list[list[float]]:
        """The ends of the periods of a cycle amid a leap, where what decides it all along does."""
        state, found = _moved(leap.state, leap.drift, leap.cycles // 2), list[list[float]]()
        for _ in range(leap.length):
            found.append(ends := self.ends_after(state))
            state = ends[-len(state) :]
        return found


def _drift(known: Sequence[list[float]], length: int) -> list[float]:
    """What the last cycle of `length` periods added, if the one before it added the same."""
    if len(known) <= 2 * length:
        return []
    first, middle, last = known[-1 - 2 * length], known[-1 - length], known[-1]
    if abs(last[0] - 2 * middle[0] + first[0]) > 2 * TOLERANCE * abs(last[0] - first[0]):
        return []
    drift = [b - a for a, b in zip(middle, last, strict=True)]
    before = [b - a for a, b in zip(first, middle, strict=True)]
    return drift if _close(drift, before) else []


def _moved(state: list[float], drift: list[float], periods: int) -> list[float]:
    return [end + periods * each for end, each in zip(state, drift, strict=True)]


def _close(drift: list[float], other: list[float]) -> bool:
    allowed = TOLERANCE * max(drift)
    return all(-allowed <= a - b <= allowed for a, b in zip(drift, other, strict=True))


@lru_cache(maxsize=MOST_KEPT)
def repeating(schedule: Schedule, pp: int, vpp: int, m: int) -> Repeating | None:
    """The order of `m` micro-batches as head, body and tail; None where it is short, or where no
    part of it repeats.
    """
    if schedule == "gpipe":
        return None
    for factor in SHORT:
        period = pp if schedule == "interleaved_1f1b" else 1
        short = factor * pp + (m - factor * pp) % period
        if m < short + WORTH * period:
            return None
        if found := _short(schedule, pp, vpp, short, period):
            return replace(found, repeats=found.repeats + (m - short) // period)
    return None


@lru_cache(maxsize=MOST_KEPT)
def _short(schedule: Schedule, pp: int, vpp: int, m: int, period: int) -> Repeating | None:
    """The short step of `m` micro-batches, which many long ones share, with one body."""
    return _cut(written_anew(schedule, pp, vpp, m), period)


def _cut(short: Program, period: int) -> Repeating | None:
    """A short step as head, one body and tail, if its middle repeats after `period` micro-batches.

    Actions are put in the order of a step in which all take one unit: a window of that time, as
    long as a period, holds one body.
    """
    starts, micro_batch = _unit_starts(short), np.array(short.micro_batch)
    known = np.fromiter(chain.from_iterable(short.steps), np.int64, 3 * len(short.steps))
    ranks = np.array(short.rank_of_stage)[known[2::3] % len(short.rank_of_stage)]
    order = np.lexsort((ranks, starts))
    place = np.arange(FIRST + len(order))
    place[FIRST + order] = FIRST + np.arange(len(order))
    before, needed, what = known.reshape(-1, 3)[order].T
    steps = np.stack([place[before], place[needed], what], axis=1)
    half = max(short.micro_batch) // 2
    size = int(((half <= micro_batch) & (micro_batch < half + period)).sum())
    middle = (len(steps) - size) // 2
    repeats = _repeats(steps, micro_batch[order], size, period)
    turns = starts[order]
    for first in range(middle, middle + size):
        if turns[first] != turns[first - 1] and repeats[first : first + size].all():
            return _split(steps, first, size, tuple(place[list(short.last)].tolist()))
    return None


def _unit_starts(short: Program) -> Floats:
    """When each action starts if F, I and W take a unit each and messages nothing."""
    equal = (1.0,) * len(short.rank_of_stage)
    work = Work(equal, equal, equal, 0.0)
    ends, seconds = [-math.inf, 0.0], work.table
    run(ends, short.steps, seconds, 0.0)
    lasted = [seconds[what] for _, _, what in short.steps]
    starts: Floats = np.array(ends[FIRST:]) - lasted
    return starts


def _repeats(steps: Ints, batches: Ints, size: int, period: int) -> Bools:
    """Of each step whether the one `size` before it is the same, one period earlier."""
    (before, needed, what), earlier = steps.T, np.roll(steps, size, axis=0)
    waits = needed - earlier[:, 1] == size
    waits |= (needed == NOTHING) & (earlier[:, 1] == NOTHING)
    waits &= (earlier[:, 2] == what) & (before - earlier[:, 0] == size)
    found: Bools = waits & (batches - np.roll(batches, size) == period)
    return found


def _split(steps: Ints, first: int, size: int, last: tuple[int, ...]) -> Repeating:
    """Before `first`, the `size` steps from it, and the rest."""
    end = first + size
    body, tail = steps[first:end], steps[end:]

    def reach_of(part: Ints, start: int) -> int:
        waited = part[:, :2]
        return FIRST + start - int(waited[waited >= FIRST].min())

    reach = max(reach_of(body, first), reach_of(tail, end))

    def moved(part: Ints, start: int) -> tuple[Step, ...]:
        waited = part[:, :2]
        found = np.where(waited >= FIRST, waited - (start - reach), waited)
        return tuple(zip(*found.T.tolist(), part[:, 2].tolist(), strict=True))

    return Repeating(
        head=moved(steps[:first], reach), body=moved(body, first), tail=moved(tail, end),
        reach=reach, repeats=1, last=tuple(at - (end - reach) for at in last),
    )  # fmt: skip
