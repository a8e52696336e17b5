"""What moves bytes: copies, pointwise and norm kernels, the optimizer; and how many there are.

bandwidth     bytes that a fused kernel must read and write / seconds; arrays of 1 GiB on a GPU, on
              a CPU of 16 MiB, as small models make them: a large cache may hold them, as in
              training; also those of the native engine (`native_kernels`). What a step visits once
              (weights, gradients and moments: `ONCE_A_STEP`) no cache has kept: there 64 MiB
launch        seconds of a kernel on one number, many of them back to back
optimizer     fused AdamW on fp32: reads weight, gradient, 2 moments; writes weight, 2 moments
context       device memory in use before this process allocates: driver, kernels, libraries
              (CPU: resident bytes of the process)
usable        the largest block that can really be allocated (CPU: free memory / ranks of the host)
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

from meshplan.costmodels.units import MIB
from meshplan.executor.profile.bench import Bench
from meshplan.executor.profile.measured.native_kernels import NATIVE, Kinds, Moving
from meshplan.executor.profile.measured.operands import rows_of_numbers
from meshplan.executor.profile.measurement import Measurement
from meshplan.executor.profile.record import Quantity, Record

ARRAY_BYTES = {"cuda": 1024 * MIB, "cpu": 16 * MIB}
ONCE_A_STEP, ONCE_BYTES = ("copy", "adamw"), {"cuda": 1024 * MIB, "cpu": 64 * MIB}


def measurements(device: torch.device) -> tuple[Measurement, ...]:
    """All of the above, once each; what can be allocated before anything is."""
    size_bytes, once_bytes = ARRAY_BYTES[device.type], ONCE_BYTES[device.type]
    moved = tuple(
        _moved(name, make, once_bytes if name in ONCE_A_STEP else size_bytes)
        for name, make in {**POINTWISE, **NATIVE[device.type]}.items()
    )
    host = (_moved("host_to_device", _host_copy, size_bytes),) if device.type == "cuda" else ()
    return (
        Measurement("memory/usable", "usable memory", 0.0, _usable),
        Measurement("memory/launch", "kernel launch", 1.0, _launch, every_sweep=True),
        *moved,
        *host,
    )


def _copy(size_bytes: float, device: torch.device) -> Moving:
    source = rows_of_numbers(size_bytes, device)
    target = torch.empty_like(source)
    return (lambda: target.copy_(source)), 2 * source.nbytes


def _add(size_bytes: float, device: torch.device) -> Moving:
    a, b = (rows_of_numbers(size_bytes / 2, device) for _ in range(2))
    out = torch.empty_like(a)
    return (lambda: torch.add(a, b, out=out)), 3 * a.nbytes


def _of_rows(
    size_bytes: float, device: torch.device, kernel: Callable[[torch.Tensor, torch.Tensor], object]
) -> Moving:
    """A kernel of rows and of a weight as wide, which reads and writes the rows once."""
    x, weight = rows_of_numbers(size_bytes, device), torch.ones(1024, device=device)
    return (lambda: kernel(x, weight)), 2 * x.nbytes


def _adamw(size_bytes: float, device: torch.device) -> Moving:
    weight = torch.nn.Parameter(rows_of_numbers(size_bytes / 4, device))
    weight.grad = torch.randn_like(weight)
    optimizer = torch.optim.AdamW([weight], fused=True)
    return optimizer.step, 7 * weight.nbytes


def _host_copy(size_bytes: float, device: torch.device) -> Moving:
    source = torch.empty(int(size_bytes), dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(source, device=device)
    return (lambda: target.copy_(source, non_blocking=True)), source.nbytes


POINTWISE: Kinds = {
    "copy": _copy,
    "add": _add,
    "rms_norm": partial(_of_rows, kernel=lambda x, w: F.rms_norm(x, (1024,), w)),
    "layer_norm": partial(_of_rows, kernel=lambda x, w: F.layer_norm(x, (1024,), w, w)),
    "silu": partial(_of_rows, kernel=lambda x, _: F.silu(x)),
    "adamw": _adamw,
}


def _moved(
    name: str, make: Callable[[float, torch.device], Moving], size_bytes: float
) -> Measurement:
    def run(bench: Bench) -> tuple[Record, ...]:
        call, moved_bytes = make(size_bytes, bench.device)
        timing = bench.measure(call)
        rate = Quantity(
            name=f"bandwidth.{name}",
            value=moved_bytes / timing.seconds,
            unit="bytes/s",
            spread=timing.spread,
        )
        return (Record.timed(f"memory/{name}", rate, timing),)

    title = f"memory bandwidth, {name}"
    return Measurement(f"memory/{name}", title, 2.0, run, every_sweep=True)


def _launch(bench: Bench) -> tuple[Record, ...]:
    number = torch.zeros(1, device=bench.device)
    timing = bench.measure(lambda: number.add_(1), queued=True)
    result = Quantity(name="launch", value=timing.seconds, unit="s", spread=timing.spread)
    return (Record.timed("memory/launch", result, timing),)


def context_bytes(device: torch.device) -> float:
    """Bytes the process holds on `device` beyond its tensors, now."""
    if device.type == "cpu":
        return proc_bytes(Path("/proc/self/status"), "VmRSS")
    free, total = torch.cuda.mem_get_info(device)
    return float(total - free - torch.cuda.memory_reserved(device))


def proc_bytes(path: Path, field: str) -> float:
    """A field of a /proc file that counts in "kB" (1024 bytes)."""
    for line in path.read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return float(value.split()[0]) * 1024
    raise LookupError(f"{path} has no field {field}")


def _usable(bench: Bench) -> tuple[Record, ...]:
    own = usable_bytes(bench.device, bench.ranks_per_node)
    least = min(row[0] for row in bench.everywhere([own]))
    result = Quantity(name="usable_memory", value=least, unit="bytes")
    return (Record(key="memory/usable", result=result),)


def usable_bytes(device: torch.device, ranks_per_node: int) -> float:
    """The largest block this rank can have, found by allocating it on a GPU."""
    if device.type == "cpu":
        return proc_bytes(Path("/proc/meminfo"), "MemAvailable") / ranks_per_node
    torch.cuda.empty_cache()
    low, high = 0, torch.cuda.mem_get_info(device)[0]
    while high - low > 16 * MIB:
        middle = (low + high) // 2
        try:
            torch.empty(middle, dtype=torch.uint8, device=device)
        except torch.OutOfMemoryError:
            high = middle
        else:
            low = middle
        torch.cuda.empty_cache()
    return float(low)
