"""The interval around a prediction that 8 of 10 runs fall into, learnt from runs left out of fits.

    low, high   the 10th and the 90th percentile of measured / predicted over left-out runs, each
                taken at rank (n + 1) p, so that a new run falls inside as often as is said
                (split conformal prediction: Vovk et al. 2005; Lei et al., arXiv 1604.04173)

Runs of the same engine and GPU family count. `BORROWED` ratios of the next wider pool are added,
spread evenly over its percentiles: they matter where an engine has few runs. The wider pools are
the engine on all GPUs, and last every source whose framework was left out as a whole, each source
with the same weight. `python -m benchmarks.intervals` writes the ratios.

Leaves out: that errors may be larger for scales, precisions and kinds of model that no run of the
engine covers.
"""

import csv
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

import numpy as np

from meshplan.hardware_profiles.tunings import gpu_family

FILE = Path(__file__).parent / "fits" / "intervals.csv"
COVERAGE = 0.8
BORROWED = 10
UNKNOWN = (0.5, 2.0)
"""Of a kind that no run was ever left out of: a CPU's memory, say [assumed]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Measured over predicted of one left-out run; None where the run does not state it.

    engine    that priced it
    gpu       the family of the run's GPU
    left_out  together with it: its "layout", its whole "source", or its "framework", of which no
              run was ever fitted to
    """

    engine: str
    gpu: str
    suite: str
    left_out: str
    step_time: float
    reserved: float | None

    def cells(self) -> list[str]:
        """As a row of the file."""
        values = [getattr(self, field.name) for field in fields(self)]
        return ["" if value is None else str(value) for value in values]


@dataclass(frozen=True, slots=True)
class Interval:
    """Factors on a prediction between which 8 of 10 runs lie, and how many runs say so."""

    low: float
    high: float
    runs: int

    @property
    def error_fraction(self) -> float:
        """|predicted / measured - 1| at the farther end."""
        return max(abs(1 / self.low - 1), abs(1 / self.high - 1))


def step_time_interval(engine: str, gpu: str, but: str = "") -> Interval:
    """Around the step time of `engine` on `gpu`; `but`: without the runs of that suite."""
    return _interval(engine, gpu_family(gpu), "step_time", but)


def reserved_interval(engine: str, gpu: str) -> Interval:
    """Around the reserved memory of `engine` on `gpu`."""
    return _interval(engine, gpu_family(gpu), "reserved")


def fits_probability(
    engine: str, gpu: str, predicted_bytes: float, has_bytes: float
) -> float | None:
    """How probable it is that a run reserves no more than the device has: the share of left-out
    runs whose measured memory over the predicted one is not above `has_bytes / predicted_bytes`,
    one more run counted as one that is (as at rank (n + 1) p). None where no run is known.
    """
    values, _ = _values(engine, gpu_family(gpu), "reserved")
    room = has_bytes / predicted_bytes
    return sum(value <= room for value in values) / (len(values) + 1) if values else None


@cache
def _interval(engine: str, family: str, what: str, but: str = "") -> Interval:
    values, own = _values(engine, family, what, but)
    return Interval(*_percentiles(values), own) if values else Interval(*UNKNOWN, 0)


def _values(engine: str, family: str, what: str, but: str = "") -> tuple[list[float], int]:
    """The ratios that count, and how many of them are of the engine and the GPU family.

    `but`: a suite whose runs do not count, to see how often the interval holds for them.
    """
    known = [ratio for ratio in ratios() if ratio.suite != but and getattr(ratio, what)]
    same = _of_fits([ratio for ratio in known if ratio.engine == engine])
    own = _of_fits([r for r in known if (r.engine, r.gpu) == (engine, family)])
    return _blended(own, _blended(same, _by_source(known, what), what), what), len(own)


def _of_fits(found: list[Ratio]) -> list[Ratio]:
    """Those of constants of the engine's own, if there are any."""
    return [ratio for ratio in found if ratio.left_out != "framework"] or found


def _by_source(known: Sequence[Ratio], what: str) -> list[float]:
    """Ratios of frameworks that no constant was fitted to, `BORROWED` of each source."""
    suites: dict[str, list[float]] = defaultdict(list)
    for ratio in known:
        if ratio.left_out == "framework":
            suites[ratio.suite].append(getattr(ratio, what))
    return [value for found in suites.values() for value in _spread(found)]


def _blended(own: Sequence[Ratio], wider: Sequence[float], what: str) -> list[float]:
    return [*(getattr(ratio, what) for ratio in own), *_spread(wider)]


def _spread(values: Sequence[float]) -> list[float]:
    """`BORROWED` values evenly over the percentiles of `values`."""
    if not len(values):
        return []
    places = (np.arange(BORROWED) + 0.5) / BORROWED
    return [float(value) for value in np.quantile(values, places)]


def _percentiles(values: Sequence[float]) -> tuple[float, float]:
    """At rank (n + 1) p from either end; beyond the outermost value that value."""
    ordered = np.sort(values)
    n, tail = len(ordered), (1 - COVERAGE) / 2
    low = max(int(np.floor((n + 1) * tail)) - 1, 0)
    return float(ordered[low]), float(ordered[n - 1 - low])


@cache
def ratios() -> tuple[Ratio, ...]:
    """Every ratio that ships."""
    with FILE.open(encoding="utf-8", newline="") as file:
        return tuple(_ratio(row) for row in csv.DictReader(file))


def _ratio(row: dict[str, str]) -> Ratio:
    return Ratio(
        engine=row["engine"], gpu=row["gpu"], suite=row["suite"], left_out=row["left_out"],
        step_time=float(row["step_time"]),
        reserved=float(row["reserved"]) if row["reserved"] else None,
    )  # fmt: skip
