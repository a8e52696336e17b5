"""How probable it is that a layout fits, by measured runs whose memory was predicted too.

    need   predicted: all tensors, the allocator's slack and the context, of the fullest rank
    room   what the device has, over that need
    P      that a run fits, from runs that had about the same room

Two kinds of runs say whether one fits. Where a source publishes what ran out of memory beside what
ran, each run counts at its own room:

    n_s(room) = sum of K(ln room - ln room_i)            K a Gaussian of `WIDTH`, 1 at its middle
    p_s(room) = sum of K(...) [run i ran] / n_s(room)

Where a run states what was allocated and what was reserved, its real need lies between: at any room
it counts as one run, as fitting above the upper one, not below the lower one, and half between.
What a source publishes only of runs that ran says nothing: what did not run is missing. So readings
without a lower end are not used; caches make them up to twice the need.

A source on a GPU family with runs of the engine is its own (what ran out of memory does not say in
which release of a framework). What an engine does of which nobody knows anything, the other sources
say that publish what ran out of memory, each alike where it knows `MOST` runs or more, and beside
them one that nobody has seen, whose needs are off by `UNSEEN` (root mean square of ln):

    w_s = min(n_s, MOST) / MOST
    P0  = (sum of w_s p_s + Phi(ln room / UNSEEN)) / (sum of w_s + 1)
    P   = (n_own p_own + BORROWED P0) / (n_own + BORROWED)

So few sources never make sure of a new one, however well each of them is known; an engine's own
runs do. P is made never to fall with the room, by isotonic regression.

`UNSEEN` [fitted] 2026-11-27 on what the other sources say of each of 2,454 runs of 13 sources: mean
log loss with 0.13, 0.17, 0.2, 0.23, 0.26 0.1052, 0.1052, 0.1053, 0.1056, 0.1070, of those with 0.9
to 1.4 times the need 0.3678, 0.3680, 0.3683, 0.3688, 0.3693. That is flat up to 0.2, and of those
said to fit with 80 to 90 % most ran there (25 of 34; 20 of 30 with 0.13).

`python -m benchmarks.accuracy.memory_needs` writes the runs, predicted by constants that had not
seen their layout, and counts how often P holds.
"""

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import fields
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.tunings import gpu_family

FILE = Path(__file__).parents[1] / "fits" / "memory_needs.csv"
GRID = np.linspace(-0.5, 1.0, 151)
"""Of ln room."""
WIDTH, MOST, BORROWED = 0.05, 10.0, 10.0
UNSEEN = 0.2
FITS = 0.85
"""What plans fit with, unless `--headroom` says otherwise."""

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one run says of its need, over the predicted one: above `low`, not above `high`.

    engine  that priced it    gpu  the family    suite  its source
    room    of the run, where its source publishes what ran out of memory too; else 0
    """

    engine: str
    gpu: str
    suite: str
    low: float
    high: float
    room: float

    @property
    def ran(self) -> bool:
        """Whether it did not run out of memory."""
        return self.high < math.inf


@dataclass(frozen=True, eq=False)
class Chances:
    """P at each room of `GRID`; `runs` of the engine on the GPU family say so."""

    fits: Vector
    runs: int

    def probability(self, room: float) -> float:
        """That a run with so much room fits."""
        return float(np.interp(math.log(room), GRID, self.fits))

    def room(self, probability: float) -> float:
        """The least room with which a run fits so probably; that of the grid's end if none does."""
        at = int(np.searchsorted(self.fits, probability))
        return math.exp(GRID[min(at, len(GRID) - 1)])


def chances_of(engine: str, gpu: str) -> Chances:
    """Of an engine on a GPU, the name of a profile."""
    return _shipped(engine, gpu_family(gpu))


@cache
def _shipped(engine: str, family: str) -> Chances:
    return chances(needs(), engine, family)


def chances(known: Iterable[Need], engine: str, family: str) -> Chances:
    """What `known` says of an engine on a GPU family."""
    sources: dict[tuple[str, str], list[Need]] = defaultdict(list)
    for need in known:
        sources[need.suite, need.gpu].append(need)
    own, others = list[list[Need]](), list[list[Need]]()
    for source in sources.values():
        is_own = any((need.engine, need.gpu) == (engine, family) for need in source)
        (own if is_own else others).append(source)
    counted = _sum(map(_told, own))
    runs = counted.runs + BORROWED
    fits = (counted.fit + BORROWED * _of_a_stranger(others)) / runs
    return Chances(_rising(fits, runs), sum(map(len, own)))


def _of_a_stranger(sources: Iterable[Sequence[Need]]) -> Vector:
    """P0 of an engine that none of these `sources` ran."""
    weights = np.ones(len(GRID))
    fits = np.array([(1 + math.erf(each / UNSEEN / math.sqrt(2))) / 2 for each in GRID])
    for source in sources:
        if any(need.room for need in source):
            told = _told(source)
            weight = np.minimum(told.runs, MOST) / MOST
            weights, fits = weights + weight, fits + weight * told.fit / told.runs
    return fits / weights


class _Told(NamedTuple):
    """Runs that say something at each room of the grid, and how many of them fit."""

    runs: Vector
    fit: Vector


def _told(source: Sequence[Need]) -> _Told:
    low, high, room = (
        np.array([getattr(need, name) for need in source]) for name in ("low", "high", "room")
    )
    some, none = room > 0, room == 0
    near = np.exp(((GRID - np.log(room[some])[:, None]) / WIDTH) ** 2 / -2)
    between = (np.exp(GRID) >= np.concatenate([low[none], high[none]])[:, None]) / 2
    fit = np.isfinite(high[some]) @ near + between.sum(axis=0)
    return _Told(near.sum(axis=0) + np.count_nonzero(none) + TINY, fit + TINY / 2)


TINY = 1e-9  # where a source knows nothing, a half


def _sum(told: Iterable[_Told]) -> _Told:
    runs, fit = np.full(len(GRID), TINY), np.full(len(GRID), TINY / 2)
    for each in told:
        runs, fit = runs + each.runs, fit + each.fit
    return _Told(runs, fit)


def _rising(values: Vector, weights: Vector) -> Vector:
    """The nearest function that never falls, by weighted squares: neighbours that fall are pooled
    (isotonic regression; Ayer et al., Ann. Math. Stat. 26, 1955).
    """
    pools = list[tuple[float, float, int]]()  # mean, weight, how many
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        mean, total, count = value, weight, 1
        while pools and pools[-1][0] >= mean:
            before, its, many = pools.pop()
            mean = (before * its + mean * total) / (its + total)
            total, count = total + its, count + many
        pools.append((mean, total, count))
    return np.repeat([mean for mean, *_ in pools], [count for *_, count in pools])


@cache
def needs() -> tuple[Need, ...]:
    """All that ships."""
    with FILE.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    return tuple(map(_need, map(itemgetter(*map(header.index, COLUMNS)), rows)))


COLUMNS = tuple(field.name for field in fields(Need))


def _need(cells: tuple[str, ...]) -> Need:
    """Of a row's cells in `COLUMNS`: a command reads some thousand rows."""
    engine, gpu, suite, low, high, room = cells
    return Need(
        engine=engine, gpu=gpu, suite=suite, low=float(low), high=float(high), room=float(room)
    )
