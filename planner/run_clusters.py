"""The cluster that a measured run used: what its row says, and the usual machine for the rest."""

import re
from functools import cache

from hardware_profiles.load import compose_cluster, load_cluster, usual_cluster
from hardware_profiles.schema import BusBandwidth, Cluster, CollectiveKind, Link
from planner.run_cells import count, number

GB = 1e9


def cluster_of(row: dict[str, str]) -> Cluster:
    """The GPU's usual cluster, or the one that the row's interconnect names, with the row's nodes
    and, unless it was named, the network that the row states.
    """
    gpu, text = gpu_of(row), row.get("interconnect") or ""
    usual = usual_cluster(gpu)
    named = [_named_cluster(name) for words, name in INTERCONNECTS.items() if words in text.lower()]
    known = [cluster for cluster in named if cluster.gpu.name == usual.gpu.name]
    cluster = known[0] if known else usual
    per_node = count(row, "gpus_per_node", cluster.gpus_per_node)
    if "nvl72" in text.lower():
        per_node = NVL72_RANKS
    cluster = cluster.model_copy(update={"gpus_per_node": per_node})
    return _with_measured_links(cluster if known else _with_stated_network(cluster, text), row)


def gpu_of(row: dict[str, str]) -> str:
    """The row's GPU. torchao's "H100" whose variant is not stated is the card that torchtitan's
    pages by the same people name: bf16 runs at the same speed on both.
    """
    gpu, note = (row.get("gpu") or "").strip(), row.get("note") or ""
    unknown = gpu == "h100-sxm" and "memory variant not stated" in note
    return "h100-96gb-hbm2e-500w" if unknown else gpu


def node_network_bytes_per_s(text: str, gpus_per_node: int) -> float | None:
    """What a node's network cards carry together, None where `text` does not say.

    Read are "8x400Gb/s", "4 * 100Gb RoCE" (cards x rate), "400 Gb/s RDMA NIC per GPU" and
    "1600 Gbps RoCE node-to-node" (whole node); b is bits, B bytes.
    """
    found = _RATE.findall(text)
    if not found:
        return None
    cards, rate, unit, rest = found[-1]
    number_of_cards = float(cards) if cards else gpus_per_node if "per gpu" in rest.lower() else 1
    return number_of_cards * float(rate) * GB / (1 if unit == "B" else 8)


_RATE = re.compile(
    r"(?:(\d+)\s*[x*\u00d7]\s*)?(\d+(?:\.\d+)?)\s*G([bB])(?:it)?(?:ps|/s)?"
    r"(?=[^;+]*(?:IB|InfiniBand|RoCE|RDMA|NIC|EFA|Omni-?Path|Ethernet|HDR|NDR))([^;+]*)",
    re.IGNORECASE,
)
SAME_NETWORK = 0.25


def _with_stated_network(cluster: Cluster, text: str) -> Cluster:
    """The network that the row states, where it is not the one that `cluster` is known with."""
    stated = node_network_bytes_per_s(text, cluster.gpus_per_node)
    if stated is None:
        return cluster
    per_gpu = stated / cluster.gpus_per_node
    composed = compose_cluster(cluster.gpu.name, cluster.gpus_per_node, per_gpu).network
    known = cluster.network.bus_bandwidth.all_gather
    if abs(composed.bus_bandwidth.all_gather / known - 1) <= SAME_NETWORK:
        return cluster
    return cluster.model_copy(update={"network": composed, "bandwidth_by_nodes": {}})


@cache
def _named_cluster(name: str) -> Cluster:
    return load_cluster(name)


NVL72_RANKS = 64
"""Of the 72 GPUs of a rack, those that a job with power-of-two degrees fills."""

INTERCONNECTS = {"efa": "aws-p5", "omni-path": "jean-zay-a100"}
"""Words of a row's interconnect, and the cluster that they name, for the same GPU."""


def _with_measured_links(cluster: Cluster, row: dict[str, str]) -> Cluster:
    """The row's own bus bandwidths in place of the cluster's.

    They were measured with 1 GiB over the whole job. Rings that were slow were slow per step:
    between 4 and 64 nodes the bandwidth of such jobs halves with each doubling of the ranks, that
    of all_reduce like that of all_gather. So what the usual bandwidth does not explain of an
    all_gather stalls each step, and the rate of all_reduce is what it has beside that.
    """
    world, per_node = count(row, "gpus"), cluster.gpus_per_node
    node = _measured_link(cluster.node, row, "node", min(world, per_node))
    if world <= per_node:
        return cluster.model_copy(update={"node": node})
    network = _measured_link(cluster.network, row, "world", world)
    return cluster.model_copy(update={"node": node, "network": network})


def _measured_link(link: Link, row: dict[str, str], scope: str, ranks: int) -> Link:
    rates = link.bus_bandwidth.model_dump()
    latency_s, stall_s, share = link.latency_s, 0.0, (ranks - 1) / ranks
    gathers = number(row, f"{scope}_allgather_gbs")
    if gathers and scope == "world":
        taken_s = share * MEASURED_SIZE_BYTES / (gathers * GB)
        wire_s = share * MEASURED_SIZE_BYTES / rates["all_gather"]
        step_s = (taken_s - wire_s) / (ranks - 1)
        latency_s = min(max(step_s, link.latency_s / 4), link.latency_s)
        stall_s = max(step_s - link.latency_s, 0.0)
    for kind, column in MEASURED_KINDS.items():
        value = number(row, f"{scope}_{column}_gbs")
        if value and (scope == "node" or kind == "all_reduce"):
            moved = 2 * share * MEASURED_SIZE_BYTES if kind == "all_reduce" else 0.0
            left_s = moved / (value * GB) - stall_s * (ranks - 1)
            if not stall_s:
                rates[kind] = value * GB
            elif left_s > moved / rates[kind]:
                rates[kind] = moved / left_s
    return Link(latency_s=latency_s, stall_s=stall_s, bus_bandwidth=BusBandwidth(**rates))


MEASURED_KINDS: dict[CollectiveKind, str] = {
    "all_reduce": "allreduce", "all_gather": "allgather", "reduce_scatter": "reducescatter",
}  # fmt: skip
MEASURED_SIZE_BYTES = 2**30
