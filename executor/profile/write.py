"""The measurements of a session as a `Cluster`.

    GPU        the datasheet where the device is one we know, else what was measured
    kernels    fractions of the datasheet, and the points behind them; of pointwise kernels the
               harmonic mean: a layer moves about as many bytes through each kind
    links      large-message bus bandwidth and the latency of one step, from the curves

Bus bandwidth at the largest message: size / seconds x f(n), with f = 2(n-1)/n for all_reduce,
(n-1)/n for all_gather, reduce_scatter and all_to_all, 1 for send (nccl-tests, doc/PERFORMANCE.md).
The latency of one step is that of the smallest all_reduce / 2(n-1). Both on the fitted curves.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import harmonic_mean, mean, median

from meshplan.costmodels.seconds.process_groups import Group
from meshplan.costmodels.seconds.trees import ring_rate
from meshplan.executor.profile.health import slow_links, slow_ranks, told
from meshplan.executor.profile.record import Quantity, Record, Result
from meshplan.hardware_profiles.curves import curve_seconds, fit_curve, fit_curves
from meshplan.hardware_profiles.local_cpu import memory_bytes
from meshplan.hardware_profiles.network_schema import BusBandwidth, CurvePoint, Interference, Link
from meshplan.hardware_profiles.schema import (
    AttentionPoint,
    Cluster,
    Dtype,
    Gpu,
    Kernels,
    MatmulPoint,
    pointwise_name,
)

MEASURED = "measured, see conditions"
EXACT = frozenset({"size_bytes", "memory_bytes", "host_memory_bytes"})  # counted, not measured


@dataclass(frozen=True, slots=True)
class MeasuringRanks:
    """The ranks that measured."""

    ranks_per_node: int
    nodes: int

    @property
    def world_size(self) -> int:
        """All ranks."""
        return self.ranks_per_node * self.nodes


@dataclass(frozen=True, slots=True)
class Measured:
    """A session's records by what they are."""

    quantities: dict[str, float]
    matmuls: tuple[MatmulPoint, ...]
    attentions: tuple[AttentionPoint, ...]
    curves: tuple[CurvePoint, ...]

    @classmethod
    def of(cls, records: Sequence[Record]) -> "Measured":
        """Sorted out; the order of the measurements is kept."""
        results = [record.result for record in records]
        return cls(
            {r.name: r.value for r in results if isinstance(r, Quantity)},
            tuple(r for r in results if isinstance(r, MatmulPoint)),
            tuple(r for r in results if isinstance(r, AttentionPoint)),
            tuple(r for r in results if isinstance(r, CurvePoint)),
        )

    @property
    def bandwidths(self) -> dict[str, float]:
        """Bytes per second of everything that moves bytes on the device."""
        found = self.quantities.items()
        return {
            name.removeprefix("bandwidth."): value
            for name, value in found
            if name.startswith("bandwidth.") and name != "bandwidth.host_to_device"
        }

    def rates(self, name: str) -> dict[Dtype, float]:
        """`burst` or `sustained` FLOP/s by number format."""
        return {  # the formats come from MatmulPoint.dtype, so they are ours
            point.dtype: self.quantities[f"{name}.{point.dtype}"] for point in self.matmuls
        }


def measured_gpu(gpu: Gpu, measured: Measured) -> Gpu:
    """`gpu` with peaks and bandwidth as measured: for a device that no datasheet describes."""
    best: dict[Dtype, float] = defaultdict(float)
    for point in measured.matmuls:
        best[point.dtype] = max(best[point.dtype], point.flops_per_s)
    for dtype, rate in measured.rates("sustained").items():
        best[dtype] = max(best[dtype], rate)
    sources = {
        "peak_flops_per_s": "measured: the fastest matmul of the format, sustained",
        "memory_bandwidth_bytes_per_s": "measured: the fastest pointwise kernel",
    }
    return gpu.model_copy(
        update={
            "peak_flops_per_s": dict(best),
            "memory_bandwidth_bytes_per_s": max(measured.bandwidths.values()),
            "sources": {**gpu.sources, **sources},
        }
    )


def build_cluster(
    records: Sequence[Record], gpu: Gpu, job: MeasuringRanks, conditions: dict[str, str], name: str
) -> Cluster:
    """The profile: `gpu` is what the device is known to be, the rest is measured."""
    measured = Measured.of(records)
    quantities = measured.quantities
    interference = None
    if "interference.compute" in quantities:
        interference = Interference(
            compute=quantities["interference.compute"],
            communication=quantities["interference.communication"],
        )
    conditions = {**conditions, **_health(records, job)}
    links = _links(measured, job, gpu)
    cluster = Cluster(
        name=name,
        title=f"{job.nodes} x {job.ranks_per_node} x {gpu.title}, measured",
        gpu=gpu,
        gpus_per_node=job.ranks_per_node,
        max_gpus=job.world_size,
        node=links[0],
        network=links[1],
        kernels=build_kernels(measured, gpu, conditions, shared_slowdown(records)),
        collective_points=measured.curves,
        collective_fits=fit_curves(measured.curves),
        usable_memory_bytes=quantities["usable_memory"],
        communicator_bytes=quantities.get("communicator"),
        interference=interference,
        host_memory_bytes=memory_bytes(),
        host_link_bytes_per_s=quantities.get("bandwidth.host_to_device"),
        conditions=conditions,
        sources={"node": _link_source(job, nodes=1), "network": _link_source(job, job.nodes)},
    )
    return Cluster.model_validate(rounded(cluster.model_dump()))


def rounded(value: object) -> object:
    """`value` with every measured float in it to six significant digits: more is noise to read."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: item if key in EXACT else rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(rounded(item) for item in value)
    return value


def shared_slowdown(records: Sequence[Record]) -> dict[str, float]:
    """`Kernels.shared_slowdown`: seconds of everything measured of a kind over those alone."""
    typical_s, alone_s = defaultdict[str, float](float), defaultdict[str, float](float)
    for record in records:
        if record.slowdown is not None and (kind := _kind(record.result)):
            seconds = median(record.rank_seconds)
            typical_s[kind] += seconds
            alone_s[kind] += seconds / record.slowdown
    return {kind: typical_s[kind] / alone_s[kind] for kind in typical_s}


def _kind(result: Result) -> str:
    if isinstance(result, CurvePoint):
        return "collectives"
    if isinstance(result, Quantity):
        return "memory" if result.name.startswith("bandwidth.") else ""
    return result.dtype


def build_kernels(
    measured: Measured, gpu: Gpu, conditions: dict[str, str], slowdown: dict[str, float]
) -> Kernels:
    """Fractions of the peaks of `gpu`, and the points."""
    bandwidth, peak = gpu.memory_bandwidth_bytes_per_s, gpu.peak_flops_per_s
    moved = measured.bandwidths
    in_bf16 = pointwise_name("", "bf16")
    pointwise = [r for name, r in moved.items() if name != "adamw" and not name.endswith(in_bf16)]
    longest = _longest(measured.attentions)
    grouped: dict[Dtype, float] = defaultdict(float)
    for point in measured.matmuls:
        if point.groups > 1:
            grouped[point.dtype] = max(grouped[point.dtype], point.flops_per_s)
    return Kernels(
        gpu=gpu.name,
        matmul_efficiency={d: rate / peak[d] for d, rate in measured.rates("sustained").items()},
        grouped_efficiency={dtype: rate / peak[dtype] for dtype, rate in grouped.items()},
        attention_forward=_best(longest, "forward") / _peak_16_bit(gpu),
        attention_backward=_best(longest, "backward") / _peak_16_bit(gpu),
        flash2_fraction=_flash2_fraction(longest),
        memory_efficiency=min(1.0, harmonic_mean(pointwise) / bandwidth),
        launch_s=measured.quantities["launch"],
        context_bytes=measured.quantities["context"],
        burst_flops_per_s=measured.rates("burst"),
        pointwise_bytes_per_s=moved,
        optimizer_efficiency=moved["adamw"] / bandwidth,
        shared_slowdown=slowdown,
        matmul_points=measured.matmuls,
        attention_points=measured.attentions,
        conditions=conditions,
        sources={"all": MEASURED},
    )


def _peak_16_bit(gpu: Gpu) -> float:
    return gpu.peak_flops_per_s[gpu.format_16_bit]


def _longest(points: Sequence[AttentionPoint]) -> tuple[AttentionPoint, ...]:
    """Of the longest causal 16-bit attention with the widest heads up to 128, every kernel."""
    usual = [
        point
        for point in points
        if point.causal
        and point.dtype in ("bf16", "fp16")
        and point.head_dim == point.v_head_dim <= 128
        and point.heads == point.kv_heads
    ]
    largest = max((point.head_dim, point.seq_len) for point in usual)
    return tuple(point for point in usual if (point.head_dim, point.seq_len) == largest)


def _best(points: Iterable[AttentionPoint], direction: str) -> float:
    return max(point.flops_per_s for point in points if point.direction == direction)


def _flash2_fraction(points: Sequence[AttentionPoint]) -> float:
    """FlashAttention-2 over the best kernel, the mean of both directions; 1 where it is the only
    one, or was not measured.
    """
    found = [p.flops_per_s / _best(points, p.direction) for p in points if p.kernel == "flash2"]
    return mean(found) if found else 1.0


def _links(measured: Measured, job: MeasuringRanks, gpu: Gpu) -> tuple[Link, Link]:
    """Inside a node, and between nodes; what this job cannot measure is the next nearest thing."""
    if job.world_size == 1:
        free = dict.fromkeys(BusBandwidth.model_fields, math.inf)
        alone = Link(latency_s=0.0, bus_bandwidth=BusBandwidth(**free))
        return alone, alone
    across = _link(measured.curves, job.ranks_per_node, job.nodes)
    inside = _link(measured.curves, job.ranks_per_node, 1) if job.ranks_per_node > 1 else across
    rates = across.bus_bandwidth
    whole = Group(float(job.world_size), float(job.ranks_per_node))
    ring = ring_rate(gpu, whole, rates.all_reduce, rates.all_gather)
    rates = rates.model_copy(update={"all_reduce": ring})
    return inside, across.model_copy(update={"bus_bandwidth": rates})


def _link(points: Sequence[CurvePoint], ranks_per_node: int, nodes: int) -> Link:
    """From the smallest and the largest messages of the full shape, and of its pairs."""
    n = ranks_per_node * nodes
    full, pair = (ranks_per_node, nodes), ((2, 1) if nodes == 1 else (1, 2))
    share = (n - 1) / n
    factor = {"all_reduce": 2 * share, "send": 1.0}
    rates: dict[str, float] = {}
    for kind in BusBandwidth.model_fields:
        size_bytes, seconds = _fitted(points, kind, pair if kind == "send" else full, max)
        rates[kind] = size_bytes / seconds * factor.get(kind, share)
    _, smallest_s = _fitted(points, "all_reduce", full, min)
    return Link(latency_s=smallest_s / (2 * (n - 1)), bus_bandwidth=BusBandwidth(**rates))


def _fitted(
    points: Sequence[CurvePoint],
    kind: str,
    shape: tuple[int, int],
    end: Callable[[Iterable[float]], float],
) -> tuple[float, float]:
    """The smallest or largest measured size of a collective, and its seconds on the curve."""
    curve = [p for p in points if p.kind == kind and (p.ranks_per_node, p.nodes) == shape]
    size_bytes = end(point.size_bytes for point in curve)
    return size_bytes, float(curve_seconds(fit_curve(curve), size_bytes))


def _link_source(job: MeasuringRanks, nodes: int) -> str:
    if job.world_size == 1:
        return "one process: a group of one rank moves nothing, and max_gpus says that it is alone"
    if nodes == 1 and job.nodes > 1 and job.ranks_per_node == 1:
        return "one rank per node: as between nodes"
    if nodes == job.nodes == 1:
        return f"{MEASURED}; one node: between nodes nothing was measured, and max_gpus excludes it"
    return MEASURED


def _health(records: Sequence[Record], job: MeasuringRanks) -> dict[str, str]:
    repeats = sum(record.repeats for record in records)
    outliers = sum(record.outliers for record in records)
    return {
        "slow_ranks": told(slow_ranks(records, job.world_size)) if job.world_size > 1 else "none",
        "slow_links": told(slow_links(records, job.ranks_per_node, job.nodes)),
        "outliers": f"{outliers} of {repeats} samples, above third quartile + 3 x quartile range",
    }
