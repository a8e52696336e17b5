"""When to stop repeating a measurement, and what to keep of it.

    median      of n repeats, with its distribution-free 95 % interval: the order statistics
                n/2 - 0.98 sqrt(n) and n/2 + 1 + 0.98 sqrt(n), counted from 1
    spread      (third quartile - first quartile) / median
    outlier     a repeat above third quartile + 3 x (third quartile - first quartile)
    kept        a quantile of the repeats, and the difference between its neighbours in order over
                it: the median where the device is ours alone (a GPU), and of a collective, whose
                ranks wait for each other even alone; on a CPU, which others use too, the fastest
                (`kept_quantile`)

Timings are skewed to the right (an interrupted repeat is longer, none is shorter), so means and
standard deviations are not used. Source of the interval: Conover, Practical Nonparametric
Statistics, 3rd ed., section 3.2 (normal approximation of the binomial).
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MIN_REPEATS = 6  # the interval of fewer repeats cannot reach 95 %: 1 - 2 x 0.5^5 = 94 %


@dataclass(frozen=True, slots=True)
class Summary:
    """What is kept of the repeats of one measurement; `low_s` and `high_s` bound the median."""

    median_s: float
    low_s: float
    high_s: float
    spread: float
    repeats: int
    outliers: int

    @property
    def uncertainty(self) -> float:
        """Half the width of the interval of the median, over the median."""
        return (self.high_s - self.low_s) / 2 / self.median_s


@dataclass(frozen=True, slots=True)
class Timing:
    """What was measured.

    seconds       what is kept of the repeats (`statistics.kept_quantile`), and its `spread`
    summary       the repeats summed up
    rank_seconds  the median of every rank
    shared        whether others may have used the device meanwhile
    typical_s     a usual repeat there, None: the median
    """

    seconds: float
    spread: float
    summary: Summary
    rank_seconds: tuple[float, ...]
    shared: bool
    typical_s: float | None = None

    @property
    def slowdown(self) -> float | None:
        """How much longer a usual repeat took than the machine takes alone."""
        usual_s = self.summary.median_s if self.typical_s is None else self.typical_s
        return usual_s / self.seconds if self.shared else None


def summarise(seconds: Sequence[float]) -> Summary:
    """The summary of the repeats in `seconds`; there must be at least one."""
    ordered = sorted(seconds)
    n = len(ordered)
    reach = 0.98 * math.sqrt(n)
    low = max(1, math.floor(n / 2 - reach))
    high = min(n, math.ceil(n / 2 + 1 + reach))
    first, third = _quantile(ordered, 0.25), _quantile(ordered, 0.75)
    median = statistics.median(ordered)
    return Summary(
        median_s=median,
        low_s=ordered[low - 1],
        high_s=ordered[high - 1],
        spread=(third - first) / median,
        repeats=n,
        outliers=sum(value > third + 3 * (third - first) for value in ordered),
    )


def confident(seconds: Sequence[float], uncertainty: float) -> bool:
    """Whether enough repeats agree: the interval of the median is within +-`uncertainty` of it."""
    return len(seconds) >= MIN_REPEATS and summarise(seconds).uncertainty <= uncertainty


def kept_quantile(*, shared: bool, together: bool) -> float:
    """Which quantile of the repeats is kept of a device that others use too, or do not."""
    return 0.0 if shared and not together else 0.5


def kept(seconds: Sequence[float], quantile: float) -> tuple[float, float]:
    """A quantile of the repeats in `seconds`, and how far its neighbours are apart, over it."""
    ordered = sorted(seconds)
    position = quantile * (len(ordered) - 1)
    below = ordered[max(0, math.floor(position - 1))]
    above = ordered[min(len(ordered) - 1, math.ceil(position + 1))]
    value = _quantile(ordered, quantile)
    return value, (above - below) / value


def slow_members(ratios: Mapping[str, Sequence[float]], tolerance: float) -> dict[str, float]:
    """The members slower than their peers by more than `tolerance`, with how much slower.

    ratios   for each member (a rank, a group), its seconds over the median of all members, one per
             measurement; a member is judged by the median of its ratios
    """
    typical = {name: statistics.median(values) - 1 for name, values in ratios.items() if values}
    return {name: excess for name, excess in typical.items() if excess > tolerance}


def _quantile(ordered: Sequence[float], fraction: float) -> float:
    position = fraction * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])
