"""What a run measured beside what is predicted of it: its step time and its peaks of memory."""

from collections.abc import Iterator, Sequence
from math import inf, log

from meshplan.costmodels.units import GIB
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.errors.intervals import reserved_range
from meshplan.planner.runs.validate import Predicted


@dataclass(frozen=True, slots=True)
class Compared:
    """One number of a run, in seconds or GiB. `between`: where 8 of 10 runs lie; None where that is
    not known.
    """

    what: str
    measured: float
    predicted: float
    between: tuple[float, float] | None = None

    @property
    def error(self) -> float:
        """Predicted over measured, minus one."""
        return self.predicted / self.measured - 1

    @property
    def inside(self) -> bool | None:
        """Whether the measured number lies where 8 of 10 runs do."""
        return self.between and self.between[0] <= self.measured <= self.between[1]


def compared(row: Predicted) -> Iterator[Compared]:
    """Each number that the run states; none where it ran out of memory."""
    stated = row.run.measured
    if stated.oom:
        return
    if stated.step_time_s:
        yield Compared(
            "step time", stated.step_time_s, row.time.step_time_s, step_time_between(row)
        )
    if stated.reserved_gib:
        device_gib = row.run.cluster.gpu.memory_bytes / GIB
        between = reserved_range(row.reserved_gib, row.reserved_interval, device_gib)
        yield Compared("reserved", stated.reserved_gib, row.reserved_gib, between)
    if stated.allocated_gib:
        yield Compared("allocated", stated.allocated_gib, row.allocated_gib)


def step_time_between(row: Predicted) -> tuple[float, float]:
    """The step times that 8 of 10 runs lie between, in seconds."""
    seconds, around = row.time.step_time_s, row.step_time_interval
    return seconds * around.low, seconds * around.high


def farthest_first(rows: Sequence[Predicted]) -> list[Predicted]:
    """By how far off the worst number of each is; before all, those that ran out of memory and were
    said to fit.
    """
    return sorted(rows, key=_distance, reverse=True)


def _distance(row: Predicted) -> float:
    if row.run.measured.oom:
        return inf if row.fits else 0.0
    return max((abs(log(each.predicted / each.measured)) for each in compared(row)), default=0.0)
