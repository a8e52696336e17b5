"""Points are measured in several sweeps over all of them, minutes apart.

A machine has slow moments (a busy host, power, heat) of seconds, longer than one measurement:
repeating it at once would only confirm them. With three sweeps such a moment spoils one of three.
A CPU that others use too is slow for half of the time or more: there it takes many short visits to
meet each point in a quiet moment (of 12 sweeps the fastest agrees within 3-6 % between two runs
while the processors are shared for 90 % of the time, of 3 within 10-30 %).

    value     a quantile over the sweeps, by time (`statistics.kept_quantile`)
    spread    that within a sweep (median), or between the neighbours of the value among the sweeps,
              whichever is larger
    slowdown  mean over the sweeps of their median repeats, over the value
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean, median

from meshplan.executor.profile.measurement import Measurement
from meshplan.executor.profile.record import Record
from meshplan.executor.profile.statistics import kept, kept_quantile
from meshplan.hardware_profiles.network_schema import CurvePoint

SWEEPS = {"cuda": 3, "cpu": 12}
MARK = "#"  # between the key of a measurement and the number of its sweep
VALUES = ("flops_per_s", "seconds", "value")  # what the kinds of results call their number


def swept(planned: Sequence[Measurement], sweeps: int) -> tuple[Measurement, ...]:
    """All of `planned`, then again those that each sweep repeats."""
    again = [
        replace(item, key=f"{item.key}{MARK}{number}")
        for number in range(2, sweeps + 1)
        for item in planned
        if item.every_sweep
    ]
    return (*planned, *again)


def repeated(measurement: Measurement) -> bool:
    """Whether an earlier sweep has measured it, so that it may be left out when time is up."""
    return MARK in measurement.key


def is_of(record_key: str, measurement_key: str) -> bool:
    """Whether a record so named (`named`) is one that the measurement writes, in its sweep."""
    record, _, record_sweep = record_key.partition(MARK)
    measurement, _, sweep = measurement_key.partition(MARK)
    return f"{record}/".startswith(f"{measurement}/") and record_sweep == sweep


def named(record: Record, measurement: Measurement) -> Record:
    """`record` under a key that says its sweep."""
    _, mark, number = measurement.key.partition(MARK)
    return record.model_copy(update={"key": f"{record.key}{mark}{number}"})


def merged(records: Sequence[Record]) -> tuple[Record, ...]:
    """One record per measurement, in the order of the first sweep."""
    sweeps: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        sweeps[record.key.partition(MARK)[0]].append(record)
    return tuple(_merged(key, found) for key, found in sweeps.items())


def _merged(key: str, records: Sequence[Record]) -> Record:
    first = records[0]
    if len(records) == 1:
        return first
    name = next(name for name in VALUES if hasattr(first.result, name))
    together, shared = isinstance(first.result, CurvePoint), first.slowdown is not None
    power = 1 if name == "seconds" else -1  # a rate is the larger, the less time it took
    times = [getattr(record.result, name) ** power for record in records]
    value, between = kept(times, kept_quantile(shared=shared, together=together))
    spread = max(between, median(record.result.spread or 0.0 for record in records))
    typical = [time * (r.slowdown or 1.0) for time, r in zip(times, records, strict=True)]
    return Record(
        key=key,
        result=first.result.model_copy(
            update={name: value**power, "spread": spread, **_beside(records)}
        ),
        repeats=sum(record.repeats for record in records),
        outliers=sum(record.outliers for record in records),
        rank_seconds=tuple(
            median(ranks) for ranks in zip(*(r.rank_seconds for r in records), strict=True)
        ),
        slowdown=mean(typical) / value if shared else None,
    )


def _beside(records: Sequence[Record]) -> dict[str, float]:
    """Of a collective between CPU processes the processor seconds of the median sweep, and how far
    its ranks computed apart on the whole: rare and long stalls, of which a median knows nothing.
    """
    points = [r.result for r in records if isinstance(r.result, CurvePoint)]
    busy = [point.processor_s for point in points if point.processor_s is not None]
    apart = [point.apart for point in points if point.apart is not None]
    found = {"processor_s": median(busy)} if busy else {}
    return found | ({"apart": mean(apart)} if apart else {})
