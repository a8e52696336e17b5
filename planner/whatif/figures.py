"""The hardware figures of a cluster that can be moved, and the cluster with one of them moved.

matmul            rate of matrix products, as sustained; the datasheet's peak stays, so MFU moves
attention         rate of attention
hbm               bandwidth of the GPU's memory
memory            its size, and what a plan may use of it
nvlink            bandwidth inside a node
network           bandwidth between nodes
network_latency   of one step between nodes
host_link         bandwidth between a GPU and its host

A measured curve of a collective moves with its link: with f times the bandwidth a message of f
times the bytes takes as long as before; with f times the latency every size takes longer by what
the smallest does. Left out: the host's time to issue kernels, which was fitted by engine.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from meshplan.hardware_profiles.schema import BusBandwidth, Cluster, Kernels, Link


@dataclass(frozen=True, slots=True)
class Figure:
    """What is moved, in words, and how."""

    words: str
    scaled: Callable[[Cluster, float], Cluster]


def _kernels(cluster: Cluster, change: Callable[[Kernels], Mapping[str, object]]) -> Cluster:
    kernels = cluster.kernels
    if kernels is None:
        return cluster
    return cluster.model_copy(update={"kernels": kernels.model_copy(update=dict(change(kernels)))})


def _times(table: Mapping[Any, float], factor: float) -> dict[Any, float]:
    return {name: value * factor for name, value in table.items()}


def _matmul(cluster: Cluster, factor: float) -> Cluster:
    def change(kernels: Kernels) -> Mapping[str, object]:
        points = kernels.matmul_points
        return {
            "matmul_efficiency": _times(kernels.matmul_efficiency, factor),
            "grouped_efficiency": _times(kernels.grouped_efficiency, factor),
            "matmul_points": tuple(
                p.model_copy(update={"flops_per_s": p.flops_per_s * factor}) for p in points
            ),
        }

    return _kernels(cluster, change)


def _attention(cluster: Cluster, factor: float) -> Cluster:
    def change(kernels: Kernels) -> Mapping[str, object]:
        points = kernels.attention_points
        return {
            "attention_forward": kernels.attention_forward * factor,
            "attention_backward": kernels.attention_backward * factor,
            "attention_points": tuple(
                p.model_copy(update={"flops_per_s": p.flops_per_s * factor}) for p in points
            ),
        }

    return _kernels(cluster, change)


def _hbm(cluster: Cluster, factor: float) -> Cluster:
    rate = cluster.gpu.memory_bandwidth_bytes_per_s * factor
    gpu = cluster.gpu.model_copy(update={"memory_bandwidth_bytes_per_s": rate})
    moved = _kernels(
        cluster,
        lambda k: {"pointwise_bytes_per_s": _times(k.pointwise_bytes_per_s, factor)},
    )
    return moved.model_copy(update={"gpu": gpu})


def _memory(cluster: Cluster, factor: float) -> Cluster:
    gpu = cluster.gpu.model_copy(update={"memory_bytes": cluster.gpu.memory_bytes * factor})
    limits = {
        name: stated * factor
        for name in ("usable_memory_bytes", "plan_memory_bytes")
        if (stated := getattr(cluster, name)) is not None
    }
    return cluster.model_copy(update={"gpu": gpu, **limits})


def _nvlink(cluster: Cluster, factor: float) -> Cluster:
    moved = _curves(cluster, factor, between_nodes=False)
    return moved.model_copy(update={"node": _wider(cluster.node, factor)})


def _network(cluster: Cluster, factor: float) -> Cluster:
    moved = _curves(cluster, factor, between_nodes=True)
    return moved.model_copy(update={"network": _wider(cluster.network, factor)})


def _wider(link: Link, factor: float) -> Link:
    rates = BusBandwidth(**_times(link.bus_bandwidth.model_dump(), factor))
    return link.model_copy(update={"bus_bandwidth": rates})


def _curves(cluster: Cluster, factor: float, *, between_nodes: bool) -> Cluster:
    """The measured curves of one tier, stretched along the size of the message."""
    points = tuple(
        p.model_copy(update={"size_bytes": p.size_bytes * factor})
        if (p.nodes > 1) == between_nodes
        else p
        for p in cluster.collective_points
    )
    fits = tuple(
        f.model_copy(
            update={"bandwidth_bytes_per_s": tuple(b * factor for b in f.bandwidth_bytes_per_s)}
        )
        if (f.nodes > 1) == between_nodes
        else f
        for f in cluster.collective_fits
    )
    return cluster.model_copy(update={"collective_points": points, "collective_fits": fits})


def _latency(cluster: Cluster, factor: float) -> Cluster:
    network = cluster.network.model_copy(update={"latency_s": cluster.network.latency_s * factor})
    fits = tuple(
        f.model_copy(
            update={"latency_s": tuple(s + (factor - 1) * f.latency_s[0] for s in f.latency_s)}
        )
        if f.nodes > 1
        else f
        for f in cluster.collective_fits
    )
    return cluster.model_copy(update={"network": network, "collective_fits": fits})


def _host_link(cluster: Cluster, factor: float) -> Cluster:
    rate = cluster.host_link_bytes_per_s
    return cluster.model_copy(
        update={"host_link_bytes_per_s": None if rate is None else rate * factor}
    )


FIGURES = {
    "matmul": Figure("rate of matrix products", _matmul),
    "attention": Figure("rate of attention", _attention),
    "hbm": Figure("memory bandwidth", _hbm),
    "memory": Figure("memory of a GPU", _memory),
    "nvlink": Figure("bandwidth inside a node", _nvlink),
    "network": Figure("bandwidth between nodes", _network),
    "network_latency": Figure("latency between nodes", _latency),
    "host_link": Figure("link between GPU and host", _host_link),
}


def matters(name: str, cluster: Cluster, gpus: int, *, offloads: bool) -> bool:
    """Whether a plan on `gpus` can see the figure at all."""
    if name in ("network", "network_latency"):
        return gpus > cluster.gpus_per_node
    if name == "nvlink":
        return gpus > 1 and cluster.gpus_per_node > 1
    return name != "host_link" or (offloads and cluster.host_link_bytes_per_s is not None)


def fastest_matmul(cluster: Cluster) -> float:
    """The factor at which matrix products would run at the datasheet's peak."""
    assert cluster.kernels is not None
    return 1 / max(cluster.kernels.matmul_efficiency.values())
