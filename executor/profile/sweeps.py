"""Points are measured in several sweeps over all of them, minutes apart, and the median is kept.

A machine has slow moments (a busy host, power, heat) of seconds, longer than one measurement:
repeating it at once would only confirm them. With three sweeps such a moment spoils one of three.

    value    median over the sweeps
    spread   that within a sweep (median), or (largest - smallest) / median between them, whichever
             is larger
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from executor.profile.measurement import Measurement
from executor.profile.record import Record

SWEEPS = 3
MARK = "#"  # between the key of a measurement and the number of its sweep
VALUES = ("flops_per_s", "seconds", "value")  # what the kinds of results call their number


def swept(planned: Sequence[Measurement]) -> tuple[Measurement, ...]:
    """All of `planned`, then twice more those that each sweep repeats."""
    again = [
        replace(item, key=f"{item.key}{MARK}{number}")
        for number in range(2, SWEEPS + 1)
        for item in planned
        if item.every_sweep
    ]
    return (*planned, *again)


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
    values = [getattr(record.result, name) for record in records]
    between = (max(values) - min(values)) / median(values)
    spread = max(between, median(record.result.spread or 0.0 for record in records))
    return Record(
        key=key,
        result=first.result.model_copy(update={name: median(values), "spread": spread}),
        repeats=sum(record.repeats for record in records),
        outliers=sum(record.outliers for record in records),
        rank_seconds=tuple(
            median(ranks) for ranks in zip(*(r.rank_seconds for r in records), strict=True)
        ),
    )
