"""Several sweeps over all points: a slow moment of the machine spoils one of them."""

import pytest
import torch

from meshplan.executor.profile.bench import Bench
from meshplan.executor.profile.measurement import Measurement
from meshplan.executor.profile.record import Quantity, Record
from meshplan.executor.profile.sweeps import is_of, merged, named, swept
from meshplan.hardware_profiles.network_schema import CurvePoint
from meshplan.hardware_profiles.schema import MatmulPoint


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
    planned = swept([_measurement("launch", every_sweep=False), *points], 3)
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


def _on_shared_cpu(key: str, rate: float, slowdown: float) -> Record:
    point = MatmulPoint(dtype="bf16", m=1, n=1, k=1, flops_per_s=rate, spread=0.02)
    return Record(key=key, result=point, repeats=5, rank_seconds=(1.0,), slowdown=slowdown)


def test_of_a_shared_cpu_the_fastest_sweep_is_kept() -> None:
    """8, 10 and 5 FLOP/s: 10, with 8 next to it (1/8 s is 25 % over 1/10 s). The sweeps' medians
    were 1.0, 1.5 and 1.0 times what they kept: (1/8 + 1.5/10 + 1/5) / 3 s is 1.583 times 1/10 s.
    """
    sweeps = (("x", 8.0, 1.0), ("x#2", 10.0, 1.5), ("x#3", 5.0, 1.0))
    (record,) = merged([_on_shared_cpu(*sweep) for sweep in sweeps])
    assert isinstance(record.result, MatmulPoint)
    assert record.result.flops_per_s == pytest.approx(10.0)
    assert record.result.spread == pytest.approx(0.25)
    assert record.slowdown == pytest.approx((1 / 8 + 0.15 + 1 / 5) / 3 * 10)


def test_of_collectives_between_shared_cpus_the_median_is_kept() -> None:
    """Of 1, 2, 3, 4 and 10 s: 3 s, between 2 and 4 s; they took 20/5 s on the whole."""
    found = [
        _seconds(f"x#{i}" if i > 1 else "x", float(i)).model_copy(update={"slowdown": 1.0})
        for i in (10, 1, 4, 2, 3)
    ]
    (record,) = merged(found)
    assert isinstance(record.result, CurvePoint)
    assert (record.result.seconds, record.result.spread) == (3.0, pytest.approx(2 / 3))
    assert record.slowdown == pytest.approx(4.0 / 3.0)


def test_processor_seconds_are_those_of_the_middle_sweep() -> None:
    """Of 1, 5 and 2 s: 2 s. How far ranks computed apart is the mean's: a stall in one sweep of
    three counts.
    """
    found = []
    for key, busy_s, apart in (("x", 1.0, 0.0), ("x#2", 5.0, 0.3), ("x#3", 2.0, 0.0)):
        record = _seconds(key, 6.0)
        point = record.result.model_copy(update={"processor_s": busy_s, "apart": apart})
        found.append(record.model_copy(update={"result": point}))
    (record,) = merged(found)
    assert isinstance(record.result, CurvePoint)
    assert record.result.processor_s == 2.0
    assert record.result.apart == pytest.approx(0.1)


def test_other_records_pass_unchanged() -> None:
    """A quantity measured once is what it was, in its place."""
    launch = Record(key="launch", result=Quantity(name="launch", value=1e-6, unit="s"))
    assert merged([_seconds("x", 1.0), launch])[1] == launch


def test_records_of_a_later_sweep_have_keys_of_their_own() -> None:
    """A measurement that writes "x" writes "x#3" in the third sweep: resuming tells them apart."""
    item = Measurement("x#3", "x", 1.0, lambda _: (_seconds("x", 1.0),), every_sweep=True)
    (record,) = item.run(Bench(torch.device("cpu")))
    assert named(record, item).key == "x#3"


@pytest.mark.parametrize(
    ("record", "measurement", "expected"),
    [
        ("steady/bf16/burst#2", "steady/bf16#2", True),
        ("steady/bf16/burst#2", "steady/bf16", False),
        ("steady/bf16/burst", "steady/bf16#2", False),
        ("x", "x", True),
        ("xy", "x", False),
    ],
)
def test_a_record_knows_its_measurement(record: str, measurement: str, expected: bool) -> None:
    """What a resumed run need not measure again: the same measurement in the same sweep."""
    assert is_of(record, measurement) is expected
