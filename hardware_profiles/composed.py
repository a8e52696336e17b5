"""A cluster that nobody described: a GPU in the usual node of its kind, behind a stated card."""

import re

from meshplan.hardware_profiles.built_in import gpu_aliases, gpu_names, usual_cluster
from meshplan.hardware_profiles.files.profile_file import UnknownProfile
from meshplan.hardware_profiles.network_schema import BusBandwidth, Link
from meshplan.hardware_profiles.schema import Cluster

COMPOSED = re.compile(r"[^:/]+:\d+:.+")  # GPU:PER_NODE:NETWORK
NETWORK = re.compile(r"(?:([1-9]\d{0,2})x)?(\d+(?:\.\d+)?)G([bB])(?:/s)?")


def composed_cluster(text: str) -> Cluster:
    """The cluster that GPU:PER_NODE:NETWORK describes. Raises `UnknownProfile`."""
    gpu, per_node, network = (*text.split(":", 2), "", "")[:3]
    card = NETWORK.fullmatch(network)
    if not (per_node.isdigit() and int(per_node) > 0 and card and float(card[2]) > 0):
        known = gpu if gpu in (*gpu_names(), *gpu_aliases()) else "h100"
        raise UnknownProfile(
            f"{text} is not a cluster: write GPU:PER_NODE:NETWORK, as in "
            f"{known}:8:400Gb (bits per second and GPU), or {known}:8:8x400Gb (of a node)"
        )
    share = int(card[1]) / int(per_node) if card[1] else 1.0  # of each GPU in a card
    card_bytes_per_s = float(card[2]) * 1e9 / (8 if card[3] == "b" else 1)
    return compose_cluster(gpu, int(per_node), share * card_bytes_per_s)


NETWORK_EFFICIENCY = 0.85
"""Bus bandwidth over card rate that well-kept fabrics reach (nccl-tests: 335/400 on AWS p5, 385/400
on NDR with SHARP, 382/400 on p6-b200)."""
NETWORK_LATENCY_S = 14e-6
"""One ring step over a network, NCCL's own model (src/graph/tuning.cc, hwLat, ring, Simple)."""


def compose_cluster(gpu: str, gpus_per_node: int, network_bytes_per_s: float) -> Cluster:
    """A cluster that nobody described: `gpu` in the usual node of its kind, with a network card of
    `network_bytes_per_s` (one direction) for each GPU. Raises `UnknownProfile`.
    """
    donor = usual_cluster(gpu, gpus_per_node)
    gpu_name = donor.gpu.name
    card = network_bytes_per_s * NETWORK_EFFICIENCY
    whole = card * gpus_per_node
    bandwidth = BusBandwidth(
        all_reduce=whole, all_gather=whole, reduce_scatter=whole, all_to_all=card, send=card
    )
    given = f"given: {network_bytes_per_s:g} bytes/s per GPU x {NETWORK_EFFICIENCY:g} reached"
    return Cluster(
        name=f"{gpu_name}-x{gpus_per_node}-{network_bytes_per_s * 8e-9:g}gbit",
        title=f"{gpus_per_node} x {donor.gpu.title} per node, composed",
        gpu=donor.gpu,
        gpus_per_node=gpus_per_node,
        node=donor.node,
        network=Link(latency_s=NETWORK_LATENCY_S, bus_bandwidth=bandwidth),
        kernels=donor.kernels,
        host_memory_bytes=donor.host_memory_bytes,
        host_memory_bytes_per_s=donor.host_memory_bytes_per_s,
        host_link_bytes_per_s=donor.host_link_bytes_per_s,
        host_slowdown=donor.host_slowdown,
        sources={"node": f"as {donor.name}", "network": given},
    )
