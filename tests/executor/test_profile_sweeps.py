"""Three sweeps over all points: one slow moment of the machine spoils one of three."""

import torch

from executor.profile.bench import Bench
from executor.profile.measurement import Measurement
from executor.profile.record import Quantity, Record
from executor.profile.sweeps import merged, named, swept
from hardware_profiles.schema import CurvePoint


def _measurement(key: str, *, every_sweep: bool) -> Measurement:
    return Measurement(key, key, 1.0, lambda _: (), every_sweep=every_sweep)


def _seconds(key: str, seconds: float, spread: float = 0.01) -> Record:
    point = CurvePoint(
        kind="all_reduce", ranks_per_node=2, nodes=1, size_bytes=1024, seconds=seconds,
        spread=spread,
    )  # fmt: skip
    return Record(key=key, result=point, repeats=10, rank_seconds=(seconds, 2 * seconds))


def test_what_is_repeated_comes_once_per_sweep() -> None:
    """Launch once, the points three times, and a later sweep only after all of an earlier one."""
    points = [_measurement(name, every_sweep=True) for name in "ab"]
    planned = swept([_measurement("launch", every_sweep=False), *points])
    assert [item.key for item in planned] == ["launch", "a", "b", "a#2", "b#2", "a#3", "b#3"]


def test_a_slow_sweep_is_outvoted_and_shows_in_the_spread() -> None:
    """Of 1.0, 5.0 and 1.2 s the median is kept; the spread is (5.0 - 1.0) / 1.2."""
    records = [_seconds("x", 1.0), _seconds("x#2", 5.0), _seconds("x#3", 1.2)]
    (record,) = merged(records)
    assert isinstance(record.result, CurvePoint)
    assert record.result.seconds == 1.2
    assert record.result.spread == 4.0 / 1.2
    assert record.repeats == 30
    assert record.rank_seconds == (1.2, 2.4)


def test_agreeing_sweeps_keep_their_own_spread() -> None:
    """Sweeps within 1 % whose samples spread by 20 % are known to 20 %."""
    (record,) = merged([_seconds(key, 1.0, spread=0.2) for key in ("x", "x#2", "x#3")])
    assert isinstance(record.result, CurvePoint)
    assert record.result.spread == 0.2


def test_other_records_pass_unchanged() -> None:
    """A quantity measured once is what it was, in its place."""
    launch = Record(key="launch", result=Quantity(name="launch", value=1e-6, unit="s"))
    assert merged([_seconds("x", 1.0), launch])[1] == launch


def test_records_of_a_later_sweep_have_keys_of_their_own() -> None:
    """A measurement that writes "x" writes "x#3" in the third sweep: resuming tells them apart."""
    item = Measurement("x#3", "x", 1.0, lambda _: (_seconds("x", 1.0),), every_sweep=True)
    (record,) = item.run(Bench(torch.device("cpu")))
    assert named(record, item).key == "x#3"
