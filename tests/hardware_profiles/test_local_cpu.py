"""What is read off this machine, of machines that are written down as their files."""

import os
from pathlib import Path

import pytest

from meshplan.hardware_profiles import local_cpu
from meshplan.hardware_profiles.local_cpu import (
    detect_cpu,
    free_memory_bytes,
    is_unmeasured,
    memory_bytes,
    num_cores,
)

GIB = 2**30
CPUINFO = (
    "processor : 0\nmodel name : A CPU\ncpu MHz : 2000.0\nflags : fma {flags}\n\nprocessor : 1\n"
)
CGROUP = "sys/fs/cgroup"


class Machine:
    """One of 16 processors and 64 GiB, with files of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def has(self, name: str, text: str) -> "Machine":
        """With one more file."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return self


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """What `local_cpu` reads then."""
    sizes = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 64 * GIB // 4096}
    monkeypatch.setattr(local_cpu, "Path", lambda path: tmp_path / path.lstrip("/"))
    monkeypatch.setattr(local_cpu, "_cpuinfo", local_cpu._cpuinfo.__wrapped__)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(16), raising=False)
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__)
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        pytest.param(None, 16, id="no container"), pytest.param("max 100000", 16, id="no quota"),
        pytest.param("400000 100000", 4, id="400 ms of 100 ms"),
        pytest.param("160000 100000", 2, id="1.6: two"), pytest.param("9000 100000", 1, id="0.09"),
        pytest.param("9900000 100000", 16, id="99, of 16 that it may run on"),
    ],
)  # fmt: skip
def test_processors_that_a_quota_pays_for(machine: Machine, quota: str | None, cores: int) -> None:
    """Whole ones, one at least."""
    if quota:
        machine.has(f"{CGROUP}/cpu.max", quota)
    assert num_cores() == cores


def test_memory_of_the_machine_and_of_its_container(machine: Machine) -> None:
    """64 GiB, of which 40 are free where that is said. A container of 48 that has taken 10 leaves
    38; one of 96, or of any size, leaves what the machine has.
    """
    assert (memory_bytes(), free_memory_bytes()) == (64 * GIB, 64 * GIB)
    machine.has("proc/meminfo", f"MemTotal: 1 kB\nMemAvailable: {40 * 2**20} kB\n")
    assert free_memory_bytes() == 40 * GIB
    machine.has(f"{CGROUP}/memory.max", "max\n").has(f"{CGROUP}/memory.current", f"{10 * GIB}\n")
    assert (memory_bytes(), free_memory_bytes()) == (64 * GIB, 40 * GIB)
    machine.has(f"{CGROUP}/memory.max", f"{96 * GIB}\n")
    assert (memory_bytes(), free_memory_bytes()) == (64 * GIB, 40 * GIB)
    machine.has(f"{CGROUP}/memory.max", f"{48 * GIB}\n")
    assert (memory_bytes(), free_memory_bytes()) == (48 * GIB, 38 * GIB)


@pytest.mark.parametrize(
    ("flags", "clock_khz", "fp32", "bf16"),
    [
        pytest.param("avx avx2 avx512f", None, 8 * 2.6e9 * 64, 8 * 2.6e9 * 64,
                     id="1.3 x 2 GHz, the widest of three"),
        pytest.param("avx2 amx_bf16", None, 8 * 2.6e9 * 32, 8 * 2.6e9 * 1024, id="matrices too"),
        pytest.param("sse2", 4_000_000, 8 * 4e9 * 8, 8 * 4e9 * 8, id="4 GHz as the system names"),
    ],
)  # fmt: skip
def test_a_share_of_a_processor(
    machine: Machine, flags: str, clock_khz: int | None, fp32: float, bf16: float
) -> None:
    """Eight of 16 cores for each of two processes."""
    machine.has("proc/cpuinfo", CPUINFO.format(flags=flags))
    if clock_khz:
        machine.has("sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", f"{clock_khz}\n")
    gpu = detect_cpu(2)
    assert gpu.peak_flops_per_s == {"fp64": fp32 / 2, "fp32": fp32, "bf16": bf16, "fp16": fp32}
    assert (gpu.title, gpu.compute_units, gpu.memory_bytes) == ("A CPU", 8, 32 * GIB)
    assert gpu.memory_bandwidth_bytes_per_s == 8 * 15e9


def test_a_machine_that_says_nothing_of_its_processor(machine: Machine) -> None:
    """3 GHz and the least that x86-64 has, of 16 cores."""
    assert detect_cpu(1).peak_flops_per_s["fp32"] == 16 * 3e9 * 8


def test_which_cluster_is_this_machine_unmeasured() -> None:
    """By its name, with a number of processes or without."""
    names = ("local-cpu", "local-cpu:4", "local-cpus", "dgx-h100")
    assert [is_unmeasured(name) for name in names] == [True, True, False, False]
