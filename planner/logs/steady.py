"""Separates the steady steps of a log from warm-up and pauses, and measures their spread.

warm-up   of each attempt the first entry, and what is within `WARM_UP` steps of the first
pauses    entries above `PAUSE` times the median: evaluations, checkpoints, data that was late;
          where more than `SELDOM` of the entries are, and not at regular steps, the steps' work
          differs (sequences that are not packed): none is a pause, and the mean is the step's time
starts    their medians may differ by no more than a pause does: else the log is of two runs
drift     median of the last third over that of the first third, minus 1: throttling, or longer
          sequences
spread    interquartile range over the median
jitter    the median over the fastest tenth, minus 1
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from meshplan.costmodels.units import counted, format_seconds
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.planner.logs.read import UnreadableLog
from meshplan.planner.logs.training_log import LoggedStep, TrainingLog

Vector = NDArray[np.float64]
WARM_UP, PAUSE, SELDOM, FEWEST_FOR_DRIFT, FEWEST_FOR_SPREAD = 3, 1.5, 0.2, 9, 4
DRIFTED = 0.2
SHORTEST_S, LONGEST_S = 1e-6, 1e6
"""A step issues kernels, of which each takes over a microsecond; the other is eleven days."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """Statistics of the steady steps; None where too few entries tell.

    step_time_s  the median; the mean where steps hold differing work
    entries      of the log that are steady
    warm_up      entries dropped at the start of each attempt
    attempts     starts of the run in the log
    pauses       entries that took over 1.5 medians
    pause_share  fraction of the time after warm-up that pauses took beyond a usual step
    pause_every  steps from one to the next where they are regular
    spread       interquartile range over the median
    jitter       the median over the fastest tenth, minus 1
    drift        median of the last third over that of the first, minus 1
    differing    whether steps hold differing work
    """

    step_time_s: float
    entries: int
    warm_up: int
    attempts: int
    pauses: int
    pause_share: float
    pause_every: int | None
    spread: float | None
    jitter: float | None
    drift: float | None
    differing: bool = False

    @property
    def notes(self) -> tuple[str, ...]:
        """What was found, as text, one line each."""
        dropped = counted(self.warm_up, "logged step")
        found = [f"{dropped} of warm-up dropped"] * bool(self.warm_up)
        restarts = counted(self.attempts - 1, "restart")
        found += [f"{restarts}: the step number, or the clock, goes back"] * (self.attempts > 1)
        if self.differing:
            found.append(
                f"more than a fifth of the logged steps take over {PAUSE} x the median: their work "
                "differs (sequences that are not packed?), so the mean counts, as the step that "
                "the config's tokens would take only if they were in each"
            )
        if self.pauses:
            every = f", every {self.pause_every} steps" if self.pause_every else ""
            pauses = counted(self.pauses, "logged step")
            found.append(
                f"{pauses} above {PAUSE} x the median{every}: evaluations, checkpoints or late data"
            )
        if self.drift and abs(self.drift) > DRIFTED:
            longer = "longer" if self.drift > 0 else "shorter"
            found.append(
                f"steps at the end take {abs(self.drift):.0%} {longer} than at the beginning: the "
                "median is of both"
            )
        return tuple(found)


def steady(log: TrainingLog, name: str) -> Steady:
    """Of a log with steps; raises `UnreadableLog` where all of them are warm-up."""
    kept = list(log.steps) if log.whole or log.warmed else _after_warm_up(log.steps)
    if not kept:
        raise UnreadableLog(
            f"{name}: {counted(len(log.steps), 'logged step')}, all of the warm-up; log a few more"
        )
    _check_starts(kept, name)
    times = np.array([step.step_time_s for step in kept])
    middle = float(np.median(times))
    _check_is_a_time(middle, name)
    slow = [step for step in kept if step.step_time_s > PAUSE * middle]
    many = len(kept) >= FEWEST_FOR_DRIFT and len(slow) > SELDOM * len(kept)
    if differing := many and _period(slow) is None:
        slow, middle = [], float(times.mean())
    usual = times if differing else times[times <= PAUSE * middle]
    lost_s = sum(step.step_time_s - middle for step in slow)
    return Steady(
        step_time_s=middle, entries=len(kept), warm_up=len(log.steps) - len(kept),
        attempts=1 + max(step.attempt for step in log.steps), pauses=len(slow),
        pause_share=lost_s / float(times.sum()), pause_every=_period(slow),
        spread=_spread(usual), jitter=_jitter(usual), drift=_drift(usual), differing=differing,
    )  # fmt: skip


def _after_warm_up(steps: Sequence[LoggedStep]) -> list[LoggedStep]:
    first: dict[int, int] = {}
    for step in steps:
        first.setdefault(step.attempt, step.step)
    return [
        step for step in steps
        if step.step > first[step.attempt] and step.step >= first[step.attempt] + WARM_UP
    ]  # fmt: skip


def _check_starts(kept: Sequence[LoggedStep], name: str) -> None:
    """Raise `UnreadableLog` where one start's usual step is a pause beside another's."""
    by_start: dict[int, list[float]] = {}
    for step in kept:
        by_start.setdefault(step.attempt, []).append(step.step_time_s)
    usual = [np.median(times) for times in by_start.values() if len(times) >= FEWEST_FOR_SPREAD]
    least, most = (min(usual), max(usual)) if usual else (0.0, 0.0)
    if most > PAUSE * least:
        raise UnreadableLog(
            f"{name}: one start's steps take {format_seconds(least)}, another's "
            f"{format_seconds(most)}: two runs in one log; give each a log of its own"
        )


def _check_is_a_time(step_time_s: float, name: str) -> None:
    """Raise `UnreadableLog` where no step of a training takes so long, or so short."""
    if not SHORTEST_S <= step_time_s <= LONGEST_S:
        raise UnreadableLog(
            f"{name}: a step takes {step_time_s:.3g} s by the log, which no training step does; "
            "are these seconds?"
        )


def _period(slow: Sequence[LoggedStep]) -> int | None:
    """The steps between pauses, where they are alike."""
    gaps = {after.step - before.step for before, after in pairwise(slow)}
    return gaps.pop() if len(gaps) == 1 and len(slow) > 2 else None


def _spread(times: Vector) -> float | None:
    if len(times) < FEWEST_FOR_SPREAD:
        return None
    low, high = np.percentile(times, [25, 75])
    return float((high - low) / np.median(times))


def _jitter(times: Vector) -> float | None:
    if len(times) < FEWEST_FOR_DRIFT:
        return None
    return float(np.median(times) / np.percentile(times, 10) - 1)


def _drift(times: Vector) -> float | None:
    if len(times) < FEWEST_FOR_DRIFT:
        return None
    third = len(times) // 3
    return float(np.median(times[-third:]) / np.median(times[:third]) - 1)
