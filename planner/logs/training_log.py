"""A training log in one form, whatever framework printed it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace

from meshplan.hardware_profiles.dataclass import dataclass

Stated = Mapping[str, frozenset[int]]
"""What a log says of its run, and the values it gives: `planner.logs.stated`."""


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """One step as its log line tells it.

    step_time_s  mean of the steps since the line before, where the framework logs every few
    attempt      0 for the first start; one more wherever the step number, or the job's own clock,
                 goes back (a restart)
    sequences    of the step's batch, None where the line does not say it
    """

    step: int
    step_time_s: float
    loss: float | None
    attempt: int = 0
    sequences: int | None = None


@dataclass(frozen=True, slots=True)
class TrainingLog:
    """A run as its log tells it; a peak is None where nothing was printed.

    device_peak_bytes  in use on the device as its driver counts, with what is outside the allocator
    steps  one for each step and attempt, of the rank that took longest
    whole  the one step time is a mean over the whole run, its first steps included
    warmed  the warm-up steps are already left out
    out_of_memory  the device's memory did not suffice
    stated what the log says of the run
    warned what the log says itself of why its steps take long: `planner.logs.warned`
    notes  what was recognised beside steps, or not understood, one line each
    """

    steps: tuple[LoggedStep, ...]
    allocated_peak_bytes: float | None
    reserved_peak_bytes: float | None
    device_peak_bytes: float | None = None
    whole: bool = False
    warmed: bool = False
    out_of_memory: bool = False
    stated: Stated = field(default_factory=dict)
    warned: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


LAG = 1  # steps that one rank's line may come after the next step's of another


def slowest(steps: Iterable[LoggedStep]) -> tuple[LoggedStep, ...]:
    """One entry per step and attempt, of the rank that took longest, in order."""
    return slowest_rank(_by_attempt(steps))


def _by_attempt(steps: Iterable[LoggedStep]) -> Iterator[LoggedStep]:
    """Steps with their attempt: one more wherever the step goes back, or the steps' own says so."""
    attempt, newest, start = 0, -1, 0
    for each in steps:
        if each.step < newest - LAG or each.attempt != start:
            attempt, newest = attempt + 1, each.step
        start = each.attempt
        newest = max(newest, each.step)
        yield replace(each, attempt=attempt)


def slowest_rank(steps: Iterable[LoggedStep]) -> tuple[LoggedStep, ...]:
    """One entry per step and attempt that they state, of the rank that took longest, in order."""
    found: dict[tuple[int, int], LoggedStep] = {}
    for each in steps:
        key = (each.attempt, each.step)
        if key not in found or each.step_time_s > found[key].step_time_s:
            found[key] = each
    return tuple(found[key] for key in sorted(found))
