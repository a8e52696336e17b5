"""Matrix products: the shapes of LLM layers and a coarse logarithmic grid, by number format.

The three products of a linear layer y = x w^T, with w stored (n, k), as BLAS calls them:

    forward  y  (m x n) = x  (m x k) @ w^T          "TN"
    dgrad    dx (m x k) = dy (m x n) @ w            "NN"
    wgrad    dw (n x k) = dy^T (n x m) @ x          "NT"

A point's m, n, k are those of its own product: (m x k) @ (k x n), 2 m n k FLOPs.
Inputs are normal random numbers: GPUs draw less power, and clock higher, on zeros. As in training,
the result is allocated anew each time (on a CPU up to a quarter of a product's time), and operands
come from memory: the calls take turns on as many sets of them as no cache holds.
fp8 kernels take "TN" only (the framework transposes), so only that is measured. Grouped products
are PyTorch's, on a CPU the native engine's loops over groups.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import cycle, product
from statistics import median

import torch
import torch.nn.functional as F

from meshplan.executor.profile.bench import Bench, Call
from meshplan.executor.profile.measured.native_kernels import grouped_call
from meshplan.executor.profile.measured.operands import random_numbers
from meshplan.executor.profile.measurement import Measurement
from meshplan.executor.profile.record import Quantity, Record
from meshplan.hardware_profiles.schema import Dtype, MatmulPoint

TORCH_DTYPE: dict[Dtype, torch.dtype] = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.float8_e4m3fn,
}
LAYOUTS = ("TN", "NN", "NT")
UNCACHED_BYTES = {"cpu": 16 * 2**20, "cuda": 256 * 2**20}
MOST_SETS = 16


@dataclass(frozen=True, slots=True)
class Shape:
    """One product to measure: `groups` of (m x k) @ (k x n)."""

    m: int
    n: int
    k: int
    groups: int = 1

    @property
    def flops(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.m * self.n * self.k * self.groups

    @property
    def elements(self) -> float:
        """Numbers read and written."""
        m, n, k = self.m, self.n, self.k
        return float(self.groups * (m * k + k * n + m * n))


def dtypes_of(device: torch.device) -> tuple[Dtype, ...]:
    """The number formats that the device multiplies in hardware."""
    if device.type != "cuda":
        return ("fp32", "bf16")
    if torch.version.hip:
        arch = torch.cuda.get_device_properties(device).gcnArchName
        return ("fp32", "bf16", "fp16", *(("fp8",) if arch.startswith("gfx95") else ()))
    capability = torch.cuda.get_device_capability(device)
    newer: tuple[Dtype, ...] = ("tf32", "bf16") if capability >= (8, 0) else ()
    return ("fp32", *newer, "fp16", *(("fp8",) if capability >= (8, 9) else ()))


def layer_shapes(
    hidden: int, ffn: int, kv_fraction: float, tensor_parallel: int, tokens: int
) -> tuple[Shape, ...]:
    """The forward products of one Llama-like layer on one of `tensor_parallel` ranks."""
    h, t = hidden, tensor_parallel
    return (
        Shape(tokens, int(h * (1 + 2 * kv_fraction)) // t, h),  # query, key and value together
        Shape(tokens, h, h // t),  # attention output
        Shape(tokens, 2 * ffn // t, h),  # gate and up together
        Shape(tokens, h, ffn // t),  # down
    )


def shapes(*, is_cuda: bool, quick: bool) -> tuple[Shape, ...]:
    """The forward products to measure, without repetition, smallest first."""
    found = {*(_gpu_shapes(quick) if is_cuda else _cpu_shapes(quick))}
    return tuple(sorted(found, key=lambda shape: (shape.flops, shape.m, shape.n, shape.k)))


def _gpu_shapes(quick: bool) -> Iterator[Shape]:
    tokens = (1024, 4096) if quick else (512, 2048, 4096, 8192, 16384)
    degrees = (1, 8) if quick else (1, 2, 4, 8)
    for m, t in product(tokens, degrees):
        yield from layer_shapes(2048, 8192, 0.25, t, m)  # 1B
        yield from layer_shapes(4096, 14336, 0.25, t, m)  # 8B
        yield from layer_shapes(8192, 28672, 0.125, t, m)  # 70B
        if not quick:
            yield from layer_shapes(16384, 53248, 0.0625, t, m)  # 405B
        yield Shape(m, 128256 // t, 4096)  # head
    side = (512, 2048, 8192) if quick else (256, 1024, 4096, 8192, 16384)
    yield from _grid((128, 1024, 8192) if quick else (64, 256, 1024, 4096, 16384), side)


def _cpu_shapes(quick: bool) -> Iterator[Shape]:
    for m in (256, 2048):
        yield from layer_shapes(256, 704, 0.5, 1, m)
        yield from layer_shapes(512, 1408, 0.5, 2, m)
    yield from _grid(
        (64, 512) if quick else (32, 128, 512, 2048),
        (128, 512, 2048) if quick else (64, 256, 512, 1024, 2048, 4096),
    )


def _grid(tokens: Iterable[int], sides: tuple[int, ...]) -> Iterator[Shape]:
    for m, n, k in product(tokens, sides, sides):
        if max(n, k) <= 16 * min(n, k):
            yield Shape(m, n, k)


def as_layout(shape: Shape, layout: str) -> Shape:
    """The product of the forward (`TN`), input gradient or weight gradient of a linear layer."""
    m, n, k, g = shape.m, shape.n, shape.k, shape.groups
    return {"TN": shape, "NN": Shape(m, k, n, g), "NT": Shape(n, k, m, g)}[layout]


def product_call(shape: Shape, dtype: Dtype, layout: str, device: torch.device) -> Call:
    """A call that does the product once."""
    m, n, k, kind = shape.m, shape.n, shape.k, TORCH_DTYPE[dtype]
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    if dtype == "fp8":
        return _scaled_call(shape, device)
    if shape.groups > 1:
        if device.type == "cpu":
            return grouped_call((m, n, k, shape.groups), kind, layout)
        return _grouped_call(shape, kind, device)
    one_set = m * k + k * n
    uncached = UNCACHED_BYTES[device.type] // kind.itemsize
    numbers = random_numbers(max(uncached, one_set), kind, device)

    def operands(start: int) -> tuple[torch.Tensor, torch.Tensor]:
        middle = start + m * k
        left, right = numbers[start:middle], numbers[middle : start + one_set]
        a = left.view(k, m).t() if layout == "NT" else left.view(m, k)
        return a, right.view(n, k).t() if layout == "TN" else right.view(k, n)

    sets = min(MOST_SETS, len(numbers) // one_set)
    turns = cycle([operands(start * one_set) for start in range(sets)])
    return lambda: torch.mm(*next(turns))


def _scaled_call(shape: Shape, device: torch.device) -> Call:
    one = torch.ones((), device=device)
    a = torch.randn(shape.m, shape.k, device=device).to(torch.float8_e4m3fn)
    b = torch.randn(shape.n, shape.k, device=device).to(torch.float8_e4m3fn).t()
    return lambda: torch._scaled_mm(
        a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
    )


def _grouped_call(shape: Shape, kind: torch.dtype, device: torch.device) -> Call:
    rows = torch.full((shape.groups,), shape.m, dtype=torch.int32, device=device)
    ends = torch.cumsum(rows, 0, dtype=torch.int32)
    a = torch.randn(shape.groups * shape.m, shape.k, device=device).to(kind)
    b = torch.randn(shape.groups, shape.n, shape.k, device=device).to(kind).transpose(1, 2)
    return lambda: F.grouped_mm(a, b, offs=ends)


def measurements(
    device: torch.device, *, quick: bool, memory_bytes: float
) -> tuple[Measurement, ...]:
    """Burst and sustained rates of a large product, then every shape, format and layout.

    Shapes whose operands would take more than a quarter of `memory_bytes` are left out. Formats
    that little training uses get a quarter of the shapes, backward layouts every second one.
    """
    planned: list[Measurement] = []
    is_cuda = device.type == "cuda"
    found = [
        shape
        for shape in shapes(is_cuda=is_cuda, quick=quick)
        if shape.elements * 4 <= memory_bytes / 4
    ]
    for dtype in dtypes_of(device):
        planned.append(_steady(dtype, device))
        minor = is_cuda and dtype in ("fp32", "tf32", "fp16")  # bf16 and fp8 are what trains
        for index, shape in enumerate(found[::4] if minor else found):
            backward = dtype != "fp8" and index % (4 if quick else 2) == 0
            planned += [
                _point(as_layout(shape, layout), dtype, layout)
                for layout in (LAYOUTS if backward else ("TN",))
            ]
    return (*planned, *_grouped(device, quick=quick))


def _grouped(device: torch.device, *, quick: bool) -> tuple[Measurement, ...]:
    """Expert feed-forwards: many groups of few rows; the device needs bf16 matmul for it."""
    if "bf16" not in dtypes_of(device):
        return ()
    dtypes: tuple[Dtype, ...] = ("bf16",)
    layouts: tuple[str, ...] = ("TN",)
    if device.type == "cuda":
        rows, sides, groups = (128, 512, 2048), ((2048, 4096), (7168, 2048)), (8, 32)
    else:
        rows, sides, groups = (16, 64, 256), ((256, 512), (512, 256)), (4, 16)
        dtypes, layouts = ("fp32", "bf16"), LAYOUTS
    keep = rows[1:2] if quick else rows
    found = [Shape(m, n, k, g) for m, (n, k), g in product(keep, sides, groups)]
    return tuple(
        _point(as_layout(shape, layout), dtype, layout)
        for dtype, shape, layout in product(dtypes, found, layouts)
    )


def _point(shape: Shape, dtype: Dtype, layout: str) -> Measurement:
    m, n, k, g = shape.m, shape.n, shape.k, shape.groups
    size = f"{g}x{m}x{n}x{k}" if g > 1 else f"{m}x{n}x{k}"
    key = f"matmul/{dtype}/{layout}/{size}"

    def run(bench: Bench) -> tuple[Record, ...]:
        timing = bench.measure(product_call(shape, dtype, layout, bench.device), queued=True)
        rate = shape.flops / timing.seconds
        point = MatmulPoint.model_validate(
            asdict(shape)
            | {"dtype": dtype, "layout": layout, "flops_per_s": rate, "spread": timing.spread}
        )
        return (Record.timed(key, point, timing),)

    return Measurement(key, f"matmul {dtype} {size}", 1.0, run, every_sweep=True)


def _steady(dtype: Dtype, device: torch.device) -> Measurement:
    """Burst: the first samples after idling. Sustained: the end of a long run of the same product.

    It comes before the points of its format, and so brings a GPU to their steady state. Others do
    not leave a CPU in one: there every sweep makes a short run, and both are the fastest of all.
    """
    is_cuda = device.type == "cuda"
    side = 8192 if is_cuda else 1024

    def run(bench: Bench) -> tuple[Record, ...]:
        return run_steady(bench, Shape(side, side, side), dtype)

    key, title = f"steady/{dtype}", f"matmul {dtype}, burst and sustained"
    return Measurement(key, title, 10.0 if is_cuda else 1.0, run, every_sweep=not is_cuda)


def run_steady(bench: Bench, shape: Shape, dtype: Dtype) -> tuple[Record, ...]:
    """Repeat one product for the budget; the first tenth is burst, the last half sustained (of a
    CPU all of it is both).
    """
    call = product_call(shape, dtype, "TN", bench.device)
    call()
    bench.synchronise()
    one_s = max(row[0] for row in bench.everywhere([bench.once_s(call)]))
    repeats = max(20 if bench.is_cuda else 10, int(bench.budget_s / one_s))
    row = bench.samples(call, 1, repeats)
    first, last = (row[: repeats // 10], row[repeats // 2 :]) if bench.is_cuda else (row, row)
    parts = (("burst", first), ("sustained", last))
    return tuple(_rate(bench, (dtype, name), shape, part) for name, part in parts)


def _rate(bench: Bench, what: tuple[Dtype, str], shape: Shape, samples: list[float]) -> Record:
    rows = bench.everywhere(samples)
    middle = sorted(bench.kept(row)[0] for row in rows)[(len(rows) - 1) // 2]
    dtype, name = what
    result = Quantity(name=f"{name}.{dtype}", value=shape.flops / middle, unit="flops/s")
    return Record(
        key=f"steady/{dtype}/{name}",
        result=result,
        repeats=len(samples),
        rank_seconds=tuple(median(row) for row in rows),
        slowdown=None if bench.is_cuda else median(map(median, rows)) / middle,
    )
