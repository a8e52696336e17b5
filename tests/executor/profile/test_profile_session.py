"""Profiling end to end: two gloo processes, a kill in between, and ranks that agree."""

import itertools
import json
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from meshplan.executor.profile import session
from meshplan.executor.profile.bench import Bench
from meshplan.executor.profile.measurement import Measurement
from meshplan.executor.profile.options import Options
from meshplan.executor.profile.record import Quantity, Record, partial_path
from meshplan.executor.profile.sweeps import swept
from meshplan.hardware_profiles.curves import curve_seconds
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.schema import Cluster


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """A real profile of this machine by two processes, with hardly any time per measurement."""
    out = tmp_path_factory.mktemp("profile") / "cpu.toml"
    options = Options(out=out, quick=True, limit_s=session.RESERVE_S + 1, device="cpu")
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
        "-m", "meshplan.executor.profile.session", options.model_dump_json(),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    assert not partial_path(out).exists()
    return load_cluster(out)


@pytest.mark.nightly  # times kernels: needs the machine to itself
def test_everything_promised_is_measured(measured: Cluster) -> None:
    """The file holds every collective, both attention directions, all layouts, and conditions."""
    assert {p.kind for p in measured.collective_points} == set(
        ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send")
    )
    assert all(p.processor_s is not None and p.processor_s > 0 for p in measured.collective_points)
    kernels = measured.kernels
    assert kernels is not None
    assert {p.layout for p in kernels.matmul_points} == {"TN", "NN", "NT"}
    assert {p.direction for p in kernels.attention_points} == {"forward", "backward"}
    assert any(p.groups > 1 for p in kernels.matmul_points)
    assert kernels.context_bytes is not None
    assert 1e8 < kernels.context_bytes < 2e9  # a process with torch in it
    assert measured.interference is not None
    assert measured.conditions["ranks"] == "2, 2 per node, measuring at once"


@pytest.mark.nightly  # times kernels: needs the machine to itself
def test_the_planner_can_use_it(measured: Cluster) -> None:
    """Two accelerators named cpu, a fitted curve for each collective, and points that price."""
    assert measured.is_measured
    assert measured.kernels is not None
    assert measured.kernels.is_measured
    assert (measured.gpu.name, measured.gpus_per_node, measured.max_gpus) == ("cpu", 2, 2)
    engine_kernels = {"rms_norm", "rms_norm_backward", "rope", "swiglu", "swiglu_backward"}
    both = engine_kernels | {f"{kernel}_bf16" for kernel in engine_kernels}
    assert both <= measured.kernels.pointwise_bytes_per_s.keys()
    for fit in measured.collective_fits:
        assert curve_seconds(fit, 2**24) > curve_seconds(fit, 2**10) > 0


@pytest.mark.nightly  # times kernels: needs the machine to itself
def test_matmul_rates_are_those_of_this_machine(measured: Cluster) -> None:
    """The fp32 rate of a product timed here is within a factor of five of the profile's best."""
    torch.set_num_threads(1)
    a = torch.randn(512, 512)
    a @ a
    seconds = []
    for _ in range(9):
        start = time.perf_counter()
        a @ a
        seconds.append(time.perf_counter() - start)
    rate = 2 * 512**3 / statistics.median(seconds)
    assert 0.2 < rate / measured.gpu.peak_flops_per_s["fp32"] < 5


def _counted(name: str, calls: list[str], *, die: bool = False) -> Measurement:
    def run(bench: Bench) -> tuple[Record, ...]:
        if die:
            raise KeyboardInterrupt
        calls.append(name)
        return (Record(key=f"{name}/x", result=Quantity(name=name, value=1.0, unit="s")),)

    return Measurement(name, name, 1.0, run)


def test_a_killed_run_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was measured before the kill is kept, the rest is measured by the second run only."""
    calls: list[str] = []
    bench, options = Bench(torch.device("cpu")), Options(out=tmp_path / "c.toml", limit_s=1e3)
    dying = (_counted("a", calls), _counted("b", calls, die=True), _counted("c", calls))
    monkeypatch.setattr(session, "plan", lambda *_, **__: dying)
    with pytest.raises(KeyboardInterrupt):
        session.measure_all(bench, options, time.monotonic())
    healthy = tuple(_counted(name, calls) for name in "abc")
    monkeypatch.setattr(session, "plan", lambda *_, **__: healthy)
    records = session.measure_all(bench, options, time.monotonic())
    assert calls == ["a", "b", "c"]
    assert [record.key for record in records] == ["a/x", "b/x", "c/x"]


def test_progress_says_what_and_how_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that the starting process draws from holds the title, the counts and the time."""
    state: list[dict[str, object]] = []
    path = tmp_path / "progress.json"

    def look(bench: Bench) -> tuple[Record, ...]:
        state.append(json.loads(path.read_text(encoding="utf-8")))
        return ()

    monkeypatch.setattr(
        session, "plan", lambda *_, **__: (Measurement("k", "matmul bf16", 1.0, look),)
    )
    options = Options(out=tmp_path / "c.toml", limit_s=110.0, progress=path)
    session.measure_all(Bench(torch.device("cpu")), options, time.monotonic())
    assert state[0]["title"] == "matmul bf16"
    assert (state[0]["done"], state[0]["total"]) == (0, 1)
    assert 95 < state[0]["left_s"] <= 100  # type: ignore[operator]


@pytest.mark.parametrize(
    ("weights", "left_s", "expected_s"),
    [
        pytest.param((1, 1, 2), 8.0, 2.0, id="a quarter of the weight, a quarter of 8 s"),
        pytest.param((1,), 100.0, 4.0, id="never more than 4 s"),
        pytest.param((1, 1), -3.0, 0.0, id="late: as few repeats as can be"),
    ],
)
def test_budget_by_hand(weights: tuple[float, ...], left_s: float, expected_s: float) -> None:
    """A measurement gets its share of the time left, so that a slow machine still finishes."""
    waiting = [Measurement(str(i), "", weight, lambda _: ()) for i, weight in enumerate(weights)]
    assert session.budget_s(waiting, left_s, most_s=4.0) == expected_s


def test_a_measurement_stops_early_when_it_is_sure() -> None:
    """A call that takes the same time each time is repeated a few times, not for the budget."""
    bench = Bench(torch.device("cpu"), budget_s=60.0, uncertainty=0.5)
    timing = bench.measure(lambda: time.sleep(0.01))
    assert timing.seconds >= 0.01
    assert 6 <= timing.summary.repeats < 1000  # its budget would do for 6000


def test_of_a_cpu_the_fastest_repeat_is_kept() -> None:
    """A neighbour that slows every repeat but one: that one is what the machine does alone."""
    bench, waits = Bench(torch.device("cpu"), budget_s=0.3), itertools.count()
    timing = bench.measure(lambda: time.sleep(0.001 if next(waits) == 5 else 0.010))
    assert 0.001 <= timing.seconds < 0.005
    assert timing.slowdown is not None
    assert timing.slowdown > 2.0
    assert timing.summary.median_s >= 0.010


def test_a_call_longer_than_its_budget_is_measured_once() -> None:
    """The first call counts: a second one would take as long again and tell little more."""
    calls: list[float] = []
    bench = Bench(torch.device("cpu"), budget_s=0.001)
    timing = bench.measure(lambda: calls.append(time.sleep(0.01) or 1.0))
    assert len(calls) == timing.summary.repeats == 1
    assert timing.slowdown == 1.0


def test_later_sweeps_are_left_out_when_time_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything is measured once, however late it is; again only while there is time."""
    calls: list[str] = []
    both = (_counted("a", calls), _counted("b", calls))
    planned = swept([replace(item, every_sweep=True) for item in both], 3)
    monkeypatch.setattr(session, "plan", lambda *_, **__: planned)
    options = Options(out=tmp_path / "c.toml", limit_s=session.RESERVE_S - 1)
    session.measure_all(Bench(torch.device("cpu")), options, time.monotonic())
    assert calls == ["a", "b"]
