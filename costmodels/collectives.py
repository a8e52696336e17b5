"""Seconds of one collective on a group of ranks.

    all_gather, reduce_scatter   t = hops + (n-1)/n size / busbw
    all_reduce                   t = hops + 2 (n-1)/n size / busbw
    all_to_all                   t = hops + max(size (r-1)/n / node, size (n-r)/n / nic)
    send                         t = latency + size / rate

    n      ranks of the group, r of them on each node
    size   bytes of the whole array: after all_gather, before reduce_scatter; of all_to_all and send, what
           one rank sends
    busbw  inside a node the link's bus bandwidth; across nodes the network's, of which a group gets r/g
           (g accelerators of a node share its network cards), never more than inside a node
    nic    one accelerator's share of the network
    hops   one latency to start and one per doubling of the ranks, at each tier that is crossed

Source: bandwidth terms, nccl-tests doc/PERFORMANCE.md. A measured curve of the same group shape wins over
the formula. Leaves out: two different axes on the network at once.
"""

import numpy as np

from costmodels.operations import Number
from costmodels.placement import Group
from hardware_profiles.schema import Cluster, CollectiveKind, Link


def collective_s(
    cluster: Cluster, kind: CollectiveKind, size_bytes: Number, group: Group
) -> Number:
    """Seconds until every rank of `group` has its result; 0 for a group of one."""
    n = group.size
    moved = size_bytes * np.where(n > 1, 1.0, 0.0)
    if kind == "all_to_all":
        wire_s = _all_to_all_wire_s(cluster, moved, group)
    else:
        share = (n - 1) / n * (2.0 if kind == "all_reduce" else 1.0)
        wire_s = share * moved / bus_bandwidth(cluster, kind, group)
    return np.where(n > 1, wire_s + hops_s(cluster, group), 0.0)


def bus_bandwidth(cluster: Cluster, kind: CollectiveKind, group: Group) -> Number:
    """Bytes per second and rank that a large collective reaches on `group`."""
    inside = _link_rate(cluster.node, kind)
    nodes = group.nodes
    share = group.ranks_per_node / cluster.gpus_per_node
    across = np.minimum(inside, _link_rate(cluster.network, kind) * share * _left(cluster, nodes))
    return np.where(nodes > 1, across, inside)


def send_s(cluster: Cluster, size_bytes: Number, *, across_nodes: Number) -> Number:
    """Seconds to hand `size_bytes` to the neighbouring pipeline rank."""
    network = cluster.network.bus_bandwidth.send
    inside = cluster.node.latency_s + size_bytes / cluster.node.bus_bandwidth.send
    across = cluster.network.latency_s + size_bytes / network
    return np.where(across_nodes, across, inside)


def hops_s(cluster: Cluster, group: Group) -> Number:
    """The part of a collective that does not depend on its size."""
    inside = cluster.node.latency_s * (1 + np.log2(np.maximum(group.ranks_per_node, 1.0)))
    across = cluster.network.latency_s * (1 + np.log2(np.maximum(group.nodes, 1.0)))
    return inside + np.where(group.nodes > 1, across, 0.0)


def _all_to_all_wire_s(cluster: Cluster, size_bytes: Number, group: Group) -> Number:
    n, r = group.size, group.ranks_per_node
    inside_s = size_bytes * (r - 1) / n / cluster.node.bus_bandwidth.all_to_all
    rate = cluster.network.bus_bandwidth.all_to_all * _left(cluster, group.nodes)
    across_s = size_bytes * (n - r) / n / rate
    return np.maximum(inside_s, across_s)


def _left(cluster: Cluster, nodes: Number) -> Number:
    """Fraction of the network's bandwidth left at so many nodes, where the cluster says."""
    table = cluster.bandwidth_by_nodes
    if not table:
        return 1.0
    known = sorted(table)
    fractions = [table[n] for n in known]
    return np.interp(np.log2(np.maximum(nodes, 1.0)), np.log2(known), fractions)


def _link_rate(link: Link, kind: CollectiveKind) -> float:
    rate: float = getattr(link.bus_bandwidth, "all_gather" if kind == "broadcast" else kind)
    return rate
