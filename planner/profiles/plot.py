"""Two pictures of a cluster: matmul rate by size, and bus bandwidth by message size."""

from pathlib import Path
from typing import Any

import numpy as np

from meshplan.costmodels.units import GB, TFLOPS, counted
from meshplan.hardware_profiles.curves import curve_seconds
from meshplan.hardware_profiles.network_schema import CurvePoint
from meshplan.hardware_profiles.schema import Cluster
from meshplan.planner.report.picture import check_plot, save


def plot_profile(cluster: Cluster, path: Path) -> None:
    """Write the roofline and the bus-bandwidth curves of `cluster` to `path` (png, svg or pdf).

    Raises `NoPlot` and `CannotWrite`.
    """
    check_plot(path, ".pdf")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), layout="constrained")
    roofline, curves = figure.subplots(1, 2)
    _draw_roofline(roofline, cluster)
    _draw_curves(curves, cluster)
    figure.suptitle(cluster.title)
    save(figure, path)


def _draw_roofline(axes: Any, cluster: Cluster) -> None:
    """Rate of each measured matmul over its arithmetic intensity, under the datasheet's roof."""
    intensity = np.geomspace(1, 1e5, 200)
    roof_16bit = max(
        cluster.gpu.peak_flops_per_s.get("bf16", 0.0), cluster.gpu.peak_flops_per_s.get("fp16", 0.0)
    )
    roof = np.minimum(intensity * cluster.gpu.memory_bandwidth_bytes_per_s, roof_16bit)
    axes.loglog(intensity, roof / TFLOPS, color="black", label="datasheet, 16 bit")
    points = cluster.kernels.matmul_points if cluster.kernels else ()
    widths = {"fp8": 1, "mxfp8": 1, "int8": 1, "tf32": 4, "fp32": 4, "fp64": 8}
    for dtype in sorted({point.dtype for point in points}):
        chosen = [point for point in points if point.dtype == dtype]
        width = widths.get(dtype, 2)
        flops_per_byte = [
            2 * p.m * p.n * p.k / (width * (p.m * p.k + p.k * p.n + p.m * p.n)) for p in chosen
        ]
        rates = [p.flops_per_s / TFLOPS for p in chosen]
        axes.loglog(flops_per_byte, rates, ".", label=f"{dtype}, {len(chosen)} shapes")
    axes.set(xlabel="FLOPs per byte", ylabel="TFLOP/s", title="Matmul rate")
    axes.legend()


def _draw_curves(axes: Any, cluster: Cluster) -> None:
    """Bus bandwidth of each measured curve and its fit; without curves, the large-message rates."""
    for fit in cluster.collective_fits:
        shape = (fit.kind, fit.nodes, fit.ranks_per_node)
        points = [
            point
            for point in cluster.collective_points
            if (point.kind, point.nodes, point.ranks_per_node) == shape
        ]
        shown = f"{counted(fit.nodes, 'node')} x {counted(fit.ranks_per_node, 'GPU')}"
        label = f"{fit.kind}, {shown}"
        (line,) = axes.loglog(
            [p.size_bytes for p in points], [bus_bandwidth(p) / GB for p in points], "."
        )
        sizes = np.geomspace(
            min(p.size_bytes for p in points), max(p.size_bytes for p in points), 200
        )
        rates = wire_bytes(fit.kind, fit.nodes * fit.ranks_per_node, sizes) / curve_seconds(
            fit, sizes
        )
        axes.loglog(sizes, rates / GB, color=line.get_color(), label=label)
    for tier, style in (("node", "--"), ("network", ":")):
        rate = getattr(cluster, tier).bus_bandwidth.all_reduce
        axes.axhline(rate / GB, linestyle=style, color="gray", label=f"{tier}, large all_reduce")
    axes.set(xlabel="message, bytes", ylabel="bus bandwidth, GB/s", title="Collectives")
    axes.legend()


def wire_bytes(kind: str, ranks: int, size_bytes: Any) -> Any:
    """Bytes that nccl-tests counts for its bus bandwidth (doc/PERFORMANCE.md)."""
    factor = {"all_reduce": 2 * (ranks - 1) / ranks, "send": 1.0, "broadcast": 1.0}
    return size_bytes * factor.get(kind, (ranks - 1) / ranks)


def bus_bandwidth(point: CurvePoint) -> float:
    """Bytes per second and rank as nccl-tests prints them."""
    ranks = point.nodes * point.ranks_per_node
    return float(wire_bytes(point.kind, ranks, point.size_bytes)) / point.seconds
