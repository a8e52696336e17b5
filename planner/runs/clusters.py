"""The cluster that a measured run used: what its row says, and the usual machine for the rest."""

import re
from dataclasses import asdict

from meshplan.costmodels.seconds.process_groups import Group
from meshplan.costmodels.seconds.trees import ring_rate
from meshplan.costmodels.units import GB
from meshplan.hardware_profiles.built_in import usual_cluster
from meshplan.hardware_profiles.composed import compose_cluster
from meshplan.hardware_profiles.network_schema import BusBandwidth, Link
from meshplan.hardware_profiles.schema import Cluster
from meshplan.planner.case.resolve import cluster_named
from meshplan.planner.runs.rows import Bandwidths, Row


def cluster_of(row: Row) -> Cluster:
    """The GPU's usual cluster, or the one of the same card (at its power limit there) that the
    row's interconnect names, with the row's nodes and, unless it was named, the network that the
    row states.
    """
    text = row.interconnect
    usual = usual_cluster(row.gpu, row.gpus_per_node or 1)
    named = [
        cluster_named(name) for words, names in INTERCONNECTS.items() if words in text.lower()
        for name in names
    ]  # fmt: skip
    known = [cluster for cluster in named if cluster.gpu.name.startswith(usual.gpu.name)]
    cluster = known[0] if known else usual
    per_node = row.gpus_per_node or cluster.gpus_per_node
    if "nvl72" in text.lower():
        per_node = NVL72_RANKS
    cluster = _with_gpus_per_node(cluster, per_node)
    return _with_measured_links(cluster if known else _with_stated_network(cluster, text), row)


def _with_gpus_per_node(cluster: Cluster, per_node: int) -> Cluster:
    """A node of more or fewer GPUs has cards for as many more or fewer."""
    rates = cluster.network.bus_bandwidth
    share = per_node / cluster.gpus_per_node
    whole = {name: getattr(rates, name) * share for name in OF_WHOLE_NODES}
    network = cluster.network.model_copy(update={"bus_bandwidth": rates.model_copy(update=whole)})
    return cluster.model_copy(update={"gpus_per_node": per_node, "network": network})


def node_network_bytes_per_s(text: str, gpus_per_node: int) -> float | None:
    """What a node's network cards carry together, None where `text` does not say.

    Read are "8x400Gb/s", "4 * 100Gb RoCE" (cards x rate), "400 Gb/s per node" and "1600 Gbps RoCE
    node-to-node" (whole node). A rate without a count ("400 Gb/s NDR IB") is one card of several:
    people mean the card of each GPU. b is bits, B bytes. Where no rate is stated, a machine that is
    named brings its maker's cards (`MACHINES`).
    """
    cards_of = [cards for words, cards in MACHINES.items() if words in text.lower()]
    found = _RATE.findall(text) or _RATE.findall(next(iter(cards_of), ""))
    if not found:
        return None
    cards, rate, unit, rest = found[-1]
    whole = re.search(r"per node|node-to-node", rest, re.IGNORECASE)
    number_of_cards = float(cards) if cards else 1 if whole else gpus_per_node
    return number_of_cards * float(rate) * GB / (1 if unit == "B" else 8)


_RATE = re.compile(
    r"(?:(\d+)\s*[x*\u00d7]\s*)?(\d+(?:\.\d+)?)\s*G([bB])(?:it)?(?:ps|/s)?"
    r"(?=[^;+]*(?:IB|InfiniBand|RoCE|RDMA|NIC|EFA|Omni-?Path|Slingshot|Ethernet|HDR|NDR|per node))"
    r"([^;+]*)",
    re.IGNORECASE,
)
SAME_NETWORK = 0.25
OF_WHOLE_NODES = ("all_reduce", "all_gather", "reduce_scatter")
"""What `BusBandwidth` says of all cards of a node; the rest is of a GPU's own."""

MACHINES = {"dgx a100": "8x200 Gb/s HDR IB"}
"""Words of a row's interconnect, and the network cards for GPUs that machines of that name have:
NVIDIA DGX A100 datasheet.
"""


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


NVL72_RANKS = 64
"""Of the 72 GPUs of a rack, those that a job with power-of-two degrees fills."""

INTERCONNECTS = {
    "efa": ("aws-p5", "aws-p6-b300"), "omni-path": ("jean-zay-a100", "jean-zay-v100"),
    "alps": ("alps-gh200",), "a3 mega": ("gcp-a3-mega",), "a3 high": ("gcp-a3-high",),
    "h100-80gb-8": ("gcp-a3-high",), "slingshot": ("perlmutter",),
}  # fmt: skip
"""Words of a row's interconnect, and the clusters that they name, each for its GPU. h100-80gb is
A3 High's accelerator (Google Cloud, Compute Engine, "Networking and GPU machines"). A100 of 80 GB
on Slingshot are Perlmutter's (NERSC, "Perlmutter architecture").
"""


def _with_measured_links(cluster: Cluster, row: Row) -> Cluster:
    """The row's own bus bandwidths in place of the cluster's, and of what others measured of its
    kind of link.

    They were measured with 1 GiB over the whole job. Rings that were slow were slow per step:
    between 4 and 64 nodes the bandwidth of such jobs halves with each doubling of the ranks, that
    of all_reduce like that of all_gather. So what the usual bandwidth does not explain of an
    all_gather stalls each step, and the rate of all_reduce is what it has beside that. Where steps
    stall for longer than the bytes take, those move meanwhile (`costmodels.seconds.collectives`).
    """
    per_node = cluster.gpus_per_node
    node = cluster.node
    stated = {kind: value * GB for kind, value in _stated(row.node).items()}
    node = node.model_copy(update={
        "bus_bandwidth": BusBandwidth(**_rates(node) | stated),
        "collective_fits": () if stated else node.collective_fits,
    })  # fmt: skip
    if row.gpus <= per_node:
        return cluster.model_copy(update={"node": node})
    network = _measured_network(cluster, row.world, row.gpus)
    return cluster.model_copy(update={"node": node, "network": network})


def _rates(link: Link) -> dict[str, float]:
    rates: dict[str, float] = link.bus_bandwidth.model_dump()
    return rates


def _stated(measured: Bandwidths) -> dict[str, float]:
    return {kind: value for kind, value in asdict(measured).items() if value}


def _measured_network(cluster: Cluster, measured: Bandwidths, ranks: int) -> Link:
    """The network that `ranks` of all its nodes measured."""
    link, world = cluster.network, Group(float(ranks), float(cluster.gpus_per_node))
    rates = _rates(link)
    latency_s, share = link.latency_s, (ranks - 1) / ranks
    stall_s = beside_s = 0.0
    if measured.all_gather:
        taken_s = share * MEASURED_SIZE_BYTES / (measured.all_gather * GB)
        wire_s = share * MEASURED_SIZE_BYTES / rates["all_gather"]
        step_s = (taken_s - wire_s) / (ranks - 1)
        latency_s = min(max(step_s, link.latency_s / 4), link.latency_s)
        beside_s = max(step_s - link.latency_s, 0.0)
        hidden_s = wire_s / (ranks - 1) if beside_s * (ranks - 1) > wire_s else 0.0
        stall_s = beside_s + hidden_s
    if measured.all_reduce:
        moved = 2 * share * MEASURED_SIZE_BYTES
        left_s = moved / (measured.all_reduce * GB) - beside_s * (ranks - 1)
        if not stall_s:
            gathered = (measured.all_gather or 0.0) * GB
            rates["all_reduce"] = ring_rate(cluster.gpu, world, measured.all_reduce * GB, gathered)
        elif left_s > 0:
            beside = ring_rate(cluster.gpu, world, moved / left_s)
            rates["all_reduce"] = min(rates["all_reduce"], beside)
    return Link(latency_s=latency_s, stall_s=stall_s, bus_bandwidth=BusBandwidth(**rates))


MEASURED_SIZE_BYTES = 2**30
