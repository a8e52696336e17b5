"""What `meshplan profiles` says: the list, and one profile with its sources.

Tables and JSON hold the same content.
"""

from collections.abc import Iterator
from typing import Any, TypedDict

from rich.table import Table

from meshplan.costmodels.units import GB, GIB, TB, TFLOPS, format_bytes, format_seconds
from meshplan.hardware_profiles.built_in import (
    cluster_names,
    gpu_aliases,
    gpu_names,
    load_gpu,
    load_kernels,
)
from meshplan.hardware_profiles.files.profile_file import UnknownProfile, unknown
from meshplan.hardware_profiles.load import is_path, load_cluster
from meshplan.hardware_profiles.schema import Cluster, Gpu, Kernels
from meshplan.planner.profiles.compare import leaves


class GpuSummary(TypedDict):
    """One line of the list of GPUs, in SI."""

    name: str
    title: str
    memory_bytes: float
    memory_bandwidth_bytes_per_s: float
    peak_16bit_flops_per_s: float
    sustained_16bit_flops_per_s: float
    power_w: float | None
    known_from: str


class ClusterSummary(TypedDict):
    """One line of the list of clusters, in SI."""

    name: str
    title: str
    gpu: str
    gpus_per_node: int
    node_all_reduce_bytes_per_s: float
    network_all_reduce_bytes_per_s: float
    network_latency_s: float
    known_from: str


class Listing(TypedDict):
    """All built-in profiles, and the other names of GPUs."""

    gpus: list[GpuSummary]
    clusters: list[ClusterSummary]
    gpu_aliases: dict[str, str]


def listing() -> Listing:
    """Every built-in GPU and cluster in a line each."""
    return {
        "gpus": [_gpu_summary(load_gpu(name), load_kernels(name)) for name in gpu_names()],
        "clusters": [_cluster_summary(load_cluster(name)) for name in cluster_names()],
        "gpu_aliases": gpu_aliases(),
    }


def _gpu_summary(gpu: Gpu, kernels: Kernels) -> GpuSummary:
    wide = gpu.format_16_bit
    peak = gpu.peak_flops_per_s[wide]
    return {
        "name": gpu.name,
        "title": gpu.title,
        "memory_bytes": gpu.memory_bytes,
        "memory_bandwidth_bytes_per_s": gpu.memory_bandwidth_bytes_per_s,
        "peak_16bit_flops_per_s": peak,
        "sustained_16bit_flops_per_s": peak * kernels.matmul_efficiency[wide],
        "power_w": gpu.power_w,
        "known_from": kernels.conditions.get("kind", "not stated"),
    }


def _cluster_summary(cluster: Cluster) -> ClusterSummary:
    return {
        "name": cluster.name,
        "title": cluster.title,
        "gpu": cluster.gpu.name,
        "gpus_per_node": cluster.gpus_per_node,
        "node_all_reduce_bytes_per_s": cluster.node.bus_bandwidth.all_reduce,
        "network_all_reduce_bytes_per_s": cluster.network.bus_bandwidth.all_reduce,
        "network_latency_s": cluster.network.latency_s,
        "known_from": cluster.conditions.get("kind", "not stated"),
    }


def listing_tables(found: Listing) -> tuple[Table, ...]:
    """The list as a table of clusters and one of GPUs."""
    title = "Clusters (GB/s: bus bandwidth of an all-reduce; network: all cards of a node together)"
    clusters = _table(title, "GPU", "per node", "node GB/s", "network GB/s")
    for line in found["clusters"]:
        rates = line["node_all_reduce_bytes_per_s"], line["network_all_reduce_bytes_per_s"]
        clusters.add_row(
            line["name"], line["gpu"], str(line["gpus_per_node"]),
            *(f"{rate / GB:.3g}" for rate in rates), line["known_from"], line["title"],
        )  # fmt: skip
    gpus = _table("GPUs", "memory", "TB/s", "16-bit TFLOP/s", "sustained")
    for gpu in found["gpus"]:
        peaks = gpu["peak_16bit_flops_per_s"], gpu["sustained_16bit_flops_per_s"]
        gpus.add_row(
            gpu["name"], format_bytes(gpu["memory_bytes"]),
            f"{gpu['memory_bandwidth_bytes_per_s'] / TB:.3g}",
            *(f"{peak / TFLOPS:.4g}" for peak in peaks), gpu["known_from"], gpu["title"],
        )  # fmt: skip
    return clusters, gpus


def _table(title: str, *figures: str) -> Table:
    table = Table(title=title, title_justify="left")
    for name in ("name", *figures, "from", "what it is"):
        left = name in ("name", "GPU", "from", "what it is")
        table.add_column(name, justify="left" if left else "right")
    return table


def listing_markdown(found: Listing) -> str:
    """The list as two Markdown tables, without the machine that it runs on."""
    lines = [
        "| cluster | GPU | per node | in the node, GB/s | network per node, GB/s | what it is |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| `{line['name']}` | {line['gpu']} | {line['gpus_per_node']} "
        f"| {line['node_all_reduce_bytes_per_s'] / GB:.4g} "
        f"| {line['network_all_reduce_bytes_per_s'] / GB:.4g} | {line['title']} |"
        for line in found["clusters"]
        if line["gpu"] != "cpu"
    ]
    lines += [
        "",
        "| GPU | memory, GiB | TB/s | 16-bit peak, TFLOP/s | what it is |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| `{gpu['name']}` | {gpu['memory_bytes'] / GIB:.1f} "
        f"| {gpu['memory_bandwidth_bytes_per_s'] / TB:.3g} "
        f"| {gpu['peak_16bit_flops_per_s'] / TFLOPS:.4g} | {gpu['title']} |"
        for gpu in found["gpus"]
        if gpu["name"] != "cpu"
    ]
    return "\n".join(lines)


def find_profile(name_or_path: str) -> Cluster | Gpu:
    """The cluster of that name or path, or else the GPU. Raises `UnknownProfile`."""
    if name_or_path in (*gpu_names(), *gpu_aliases()):
        return load_gpu(name_or_path)
    try:
        return load_cluster(name_or_path)
    except UnknownProfile as error:
        if is_path(name_or_path) or ":" in name_or_path:
            raise
        both = (*cluster_names(), *gpu_names())
        raise unknown(name_or_path, both, "cluster or GPU") from error


def profile_table(profile: Cluster | Gpu) -> Table:
    """Every number of `profile` with its source; measured points only as a count."""
    table = Table(title=f"{profile.name}: {profile.title}", title_justify="left")
    for name in ("field", "value", "source"):
        table.add_column(name, overflow="fold")
    above = ""
    for field, value in leaves(profile.model_dump(), ()):
        if field[-1] not in ("name", "title") and "conditions" not in field:
            source = _source(profile, field)
            ditto = '"' if source and source == above else source
            table.add_row(".".join(field), _shown(field, value), ditto)
            above = source
    for name, count in _tables(profile):
        table.add_row(name, f"{count} rows", _source(profile, tuple(name.split("."))))
    return table


def _tables(profile: Cluster | Gpu) -> Iterator[tuple[str, int]]:
    if isinstance(profile, Gpu):
        return
    for owner, prefix in ((profile, ""), (profile.kernels, "kernels.")):
        for name in ("matmul_points", "attention_points", "collective_points", "collective_fits"):
            rows = getattr(owner, name, ())
            if rows:
                yield prefix + name, len(rows)


def _shown(field: tuple[str, ...], value: Any) -> str:
    if not isinstance(value, (int, float)):
        return str(value)
    text = ".".join(field)
    if "flops_per_s" in text:
        return f"{value / TFLOPS:.4g} TFLOP/s"
    if "bytes_per_s" in text or "bus_bandwidth" in text:
        return f"{value / GB:.4g} GB/s"
    if text.endswith("_bytes"):
        return format_bytes(value)
    return format_seconds(value) if text.endswith("_s") else f"{value:g}"


def _source(profile: Cluster | Gpu, field: tuple[str, ...]) -> str:
    """The source of `field`: of itself, or of the nearest enclosing one, in its own part."""
    sources = profile.sources
    if field[0] in ("gpu", "kernels") and isinstance(profile, Cluster):
        part = profile.gpu if field[0] == "gpu" else profile.kernels
        sources, field = (part.sources if part else {}), field[1:]
    for end in range(len(field), 0, -1):
        if ".".join(field[:end]) in sources:
            return sources[".".join(field[:end])]
    return ""
