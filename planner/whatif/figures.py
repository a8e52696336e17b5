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
from typing import Any, Literal, TypeVar

from pydantic import BaseModel

from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.network_schema import BusBandwidth
from meshplan.hardware_profiles.schema import Cluster

Scaled = Callable[[Cluster, float], Cluster]
T = TypeVar("T", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Figure:
    """What is moved, in words, and how."""

    words: str
    scaled: Scaled


def _scaled(of: T, factor: float, *names: str, **others: object) -> T:
    """`of` with the numbers `names` (or tables of them) times `factor`, and `others` replaced."""
    stated = {name: value for name in names if (value := getattr(of, name)) is not None}
    moved = {name: _times(value, factor) for name, value in stated.items()}
    return of.model_copy(update=moved | others)


def _times(value: Any, factor: float) -> Any:
    if isinstance(value, Mapping):
        return {name: each * factor for name, each in value.items()}
    return tuple(each * factor for each in value) if isinstance(value, tuple) else value * factor


def _kernels(*names: str, points: str = "") -> Scaled:
    """What moves these numbers of the kernels, and the rates of these measured points."""

    def scaled(cluster: Cluster, factor: float) -> Cluster:
        kernels, others = cluster.kernels, {}
        if kernels is None:
            return cluster
        if points:
            rates = (_scaled(p, factor, "flops_per_s") for p in getattr(kernels, points))
            others[points] = tuple(rates)
        return _scaled(cluster, factor, kernels=_scaled(kernels, factor, *names, **others))

    return scaled


def _hbm(cluster: Cluster, factor: float) -> Cluster:
    gpu = _scaled(cluster.gpu, factor, "memory_bandwidth_bytes_per_s")
    return _scaled(_kernels("pointwise_bytes_per_s")(cluster, factor), factor, gpu=gpu)


def _memory(cluster: Cluster, factor: float) -> Cluster:
    gpu = _scaled(cluster.gpu, factor, "memory_bytes")
    return _scaled(cluster, factor, "usable_memory_bytes", "plan_memory_bytes", gpu=gpu)


def _tier(name: Literal["node", "network"]) -> Scaled:
    """What moves a tier's bandwidths; measured curves stretch along the size of the message."""

    def scaled(cluster: Cluster, factor: float) -> Cluster:
        def stretched(each: T, *names: str, nodes: int) -> T:
            return _scaled(each, factor, *names) if (nodes > 1) == (name == "network") else each

        link = getattr(cluster, name)
        rates = _scaled(link.bus_bandwidth, factor, *BusBandwidth.model_fields)
        points = (stretched(p, "size_bytes", nodes=p.nodes) for p in cluster.collective_points)
        fits = (
            stretched(f, "bandwidth_bytes_per_s", nodes=f.nodes) for f in cluster.collective_fits
        )
        curves = tuple(_scaled(f, factor, "bandwidth_bytes_per_s") for f in link.collective_fits)
        return cluster.model_copy(update={
            name: link.model_copy(update={"bus_bandwidth": rates, "collective_fits": curves}),
            "collective_points": tuple(points), "collective_fits": tuple(fits),
        })  # fmt: skip

    return scaled


def _latency(cluster: Cluster, factor: float) -> Cluster:
    fits = []
    for fit in cluster.collective_fits:
        more_s = (factor - 1) * fit.latency_s[0] if fit.nodes > 1 else 0.0
        latency_s = tuple(each + more_s for each in fit.latency_s)
        fits.append(fit.model_copy(update={"latency_s": latency_s}))
    network = _scaled(cluster.network, factor, "latency_s")
    return cluster.model_copy(update={"network": network, "collective_fits": tuple(fits)})


FIGURES = {
    "matmul": Figure(
        "rate of matrix products",
        _kernels("matmul_efficiency", "grouped_efficiency", points="matmul_points"),
    ),
    "attention": Figure(
        "rate of attention",
        _kernels("attention_forward", "attention_backward", points="attention_points"),
    ),
    "hbm": Figure("memory bandwidth", _hbm),
    "memory": Figure("memory of a GPU", _memory),
    "nvlink": Figure("bandwidth inside a node", _tier("node")),
    "network": Figure("bandwidth between nodes", _tier("network")),
    "network_latency": Figure("latency between nodes", _latency),
    "host_link": Figure(
        "link between GPU and host",
        lambda cluster, factor: _scaled(cluster, factor, "host_link_bytes_per_s"),
    ),
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
