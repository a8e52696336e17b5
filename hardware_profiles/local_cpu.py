"""This machine as a cluster: each process of a gloo job is one accelerator.

    peak        cores x clock x FLOPs per cycle and core / processes
    clock       the highest the system names, or 1.3 x the base clock that virtual machines show
    memory      what the system (or the container's limit) gives / processes

Leaves out: lower clocks under AVX, NUMA. `meshplan profile` measures what this only reads off.
"""

import os
import platform
from functools import cache
from pathlib import Path
from typing import Any

from meshplan.hardware_profiles.schema import Gpu

LOCAL_CPU = "local-cpu"
NOT_MEASURED = (
    "this machine's rates, read off its processor's description and not measured: steps may be "
    "several times shorter, and the range does not hold (meshplan profile --quick)"
)


def is_unmeasured(cluster: str) -> bool:
    """Whether the cluster of this name is this machine by its processor's description."""
    return cluster.partition(":")[0] == LOCAL_CPU


ASSUMED_CLOCK_HZ = 3e9
TURBO_OVER_BASE = 1.3  # server parts under load on all cores; no more than a guess
MEMORY_BYTES_PER_S = 15e9  # per core: eight DDR5 channels over the cores of a current server
GLOO_PROCESSOR_SHARE = 0.7
"""[fitted] The part of a message's seconds in which gloo keeps a core of each rank busy: the median
of twelve ratios (0.47 to 0.94) of measured processor time to this profile's seconds, all_reduce,
all_gather, reduce_scatter and all_to_all of 0.5, 4 and 16 MiB between two processes, torch 2.13,
2026-11-24.
"""
AMX_BF16_PER_CYCLE = 1024  # Intel, 4th Gen Xeon: 1,024 BF16 operations per cycle and core

# FP32 FLOPs per cycle and core: two FMA units x lanes x 2. Widest first.
FP32_PER_CYCLE = {"avx512f": 64, "avx2": 32, "avx": 16, "asimd": 16}
DEFAULT_FP32_PER_CYCLE = 8  # SSE2, the least that x86-64 has


@cache
def _cpuinfo() -> dict[str, str]:
    """First processor's fields of /proc/cpuinfo, empty where the system has none."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    first = path.read_text(encoding="utf-8").split("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def num_cores() -> int:
    """Processors that this process may run on, and that its container's quota pays for."""
    allowed = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    quota = Path("/sys/fs/cgroup/cpu.max")
    if quota.exists():
        limit, period = quota.read_text(encoding="utf-8").split()
        if limit != "max":
            return max(1, min(allowed, round(int(limit) / int(period))))
    return allowed


def memory_bytes() -> float:
    """Memory of the machine, or the container's limit if that is lower."""
    total = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text(encoding="utf-8").strip() if limit.exists() else "max"
    return total if text == "max" else min(total, float(text))


def free_memory_bytes() -> float:
    """What new processes may take now: the system's own estimate (/proc/meminfo, MemAvailable), or
    what the container's limit leaves if that is less.
    """
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return memory_bytes()
    fields = dict(line.split(":", 1) for line in meminfo.read_text(encoding="utf-8").splitlines())
    free = float(fields["MemAvailable"].split()[0]) * 1024
    limit, used = (Path(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
    if limit.exists() and used.exists():
        text = limit.read_text(encoding="utf-8").strip()
        if text != "max":
            free = min(free, float(text) - float(used.read_text(encoding="utf-8")))
    return free


def _clock_hz() -> float:
    """The clock that the peak is counted at."""
    highest = Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
    if highest.exists():
        return float(highest.read_text(encoding="utf-8")) * 1e3
    base_mhz = _cpuinfo().get("cpu MHz")
    return float(base_mhz) * 1e6 * TURBO_OVER_BASE if base_mhz else ASSUMED_CLOCK_HZ


def detect_cpu(processes: int) -> Gpu:
    """The share of this machine that one of `processes` gets."""
    info = _cpuinfo()
    share = num_cores() / processes
    flags = set(info.get("flags", info.get("Features", "")).split())
    wide = next((flag for flag in FP32_PER_CYCLE if flag in flags), None)
    per_cycle = FP32_PER_CYCLE[wide] if wide else DEFAULT_FP32_PER_CYCLE
    clock_hz = _clock_hz()
    fp32 = share * clock_hz * per_cycle
    bf16 = share * clock_hz * AMX_BF16_PER_CYCLE if "amx_bf16" in flags else fp32
    read = f"this machine at {clock_hz / 1e9:.2f} GHz"
    return Gpu(
        name="cpu",
        title=info.get("model name", platform.processor() or platform.machine()),
        vendor="cpu",
        memory_bytes=memory_bytes() / processes,
        memory_bandwidth_bytes_per_s=share * MEMORY_BYTES_PER_S,
        peak_flops_per_s={"fp64": fp32 / 2, "fp32": fp32, "bf16": bf16, "fp16": fp32},
        compute_units=max(1, round(share)),
        sources={
            "memory_bytes": "this machine, shared evenly by its processes",
            "memory_bandwidth_bytes_per_s": "assumed 15 GB/s per core; `meshplan profile` measures",
            "peak_flops_per_s": f"{read}; {wide or 'sse2'}: {per_cycle} FP32 FLOPs per cycle",
            "compute_units": "this machine",
        },
    )


def local_cluster(document: dict[str, Any], processes: int) -> dict[str, Any]:
    """The `Cluster` fields of this machine: the links of `document` around `processes` shares."""
    return {
        **document,
        "gpu": detect_cpu(processes),
        "gpus_per_node": processes,
        "max_gpus": processes,
        "host_memory_bytes": memory_bytes(),
    }
