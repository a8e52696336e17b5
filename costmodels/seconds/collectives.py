"""Seconds of one collective on a group of ranks.

    all_gather, reduce_scatter   t = hops + (n-1)/n size / busbw
    all_reduce                   t = hops + 2 (n-1)/n size / busbw
    all_to_all                   t = hops + max(size (r-1)/n / node, size (n-r)/n / nic)
    send                         t = latency + size / rate

    n      ranks of the group, r of them on each node
    size   bytes of the whole array (after all_gather, before reduce_scatter); of all_to_all and
           send, what one rank sends
    busbw  inside a node the link's bus bandwidth; across nodes r/g of the network's, since the g
           accelerators of a node share its network cards, and never more than inside a node, or
           than the links between pods leave (`pods`). Where each two accelerators of a node have a
           link of their own (`Link.meshed`), r of them use the r - 1 that lead to each other.
           Of two nodes NCCL's all_reduce may have more: it takes a tree (`trees`)
    node, nic
           one accelerator's bandwidth inside its node, and its share of the network
    hops   (n-1) latency for all_gather and reduce_scatter: all links of the ring step at once, each
           as slow as the slowest; all_reduce twice that, or a tree's 2 (1 + log2 n) if that is
           less; all_to_all and send one latency, and for all_to_all 0.08 more for each peer
           (nccl-tests on 8 x H100 nodes with EFA: 7.6, 60, 621 us at 1, 2, 16 nodes). A network
           that stalls does so in each step, n-1 times for all_reduce too (`Link.stall_s`), while
           bytes of other parts of the message move: t = hops + max(stalls, bytes / busbw) [the
           Ultra-Scale Playbook's slow jobs: of 16 and 32 tensor-parallel ranks a collective takes
           4.5 to 5.1 ms from 67 to 805 MB]

Source: bandwidth terms, nccl-tests doc/PERFORMANCE.md. Alone, a balanced all_to_all between nodes
takes within 16 % of the price on five clusters (tests: test_measured_all_to_all.py); exchanges of
experts in training took up to three times as long on some (docs/accuracy_history.md). On a cluster
that was profiled itself the fitted curve of the same group shape wins over the formula, times
`Kernels.shared_slowdown`. So do, for one message, curves of the node's kind of link
(hardware_profiles/links): rings of 2 and 4 H100 move 64 MiB at 0.58 and 0.73 of the bandwidth that
large messages between 8 reach, which the formula takes for all. Between the sizes of groups that
were measured seconds are linear in the ranks, and larger groups take as many seconds more than the
largest as by the formula: both are assumptions. Weights and gradients go in many large messages and
keep to the formula.

Deduplicated dispatch (DeepEP): a token crosses the network once for each of the n/r nodes that hold
one of its experts, and inside a node once for each such rank (`dispatch.distinct`), n - n/r of n of
them on other ranks' links.

Between two collectives the ranks of a group compute apart, and whoever is done first waits for the
slowest, a straggler: for a fraction of what they compute that a profile of CPU processes measures
(`straggler_fraction`).

Two axes that share links are `shared_links`. Leaves out: waiting for the slowest on GPUs, which no
profile has measured.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import fsum
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from meshplan.costmodels.elementwise import (
    Condition,
    Number,
    anywhere,
    log2,
    maximum,
    minimum,
    plain,
    where,
)
from meshplan.costmodels.operations.kinds import Axis, Routing
from meshplan.costmodels.seconds.dispatch import distinct
from meshplan.costmodels.seconds.pods import leaving, uplink_cards
from meshplan.costmodels.seconds.process_groups import Group
from meshplan.costmodels.seconds.trees import tree_bandwidth
from meshplan.hardware_profiles.curves import curve_seconds
from meshplan.hardware_profiles.network_schema import CollectiveKind, CurveFit, Link
from meshplan.hardware_profiles.schema import Cluster

Found = TypeVar("Found")
PEER_LATENCY = 0.08
ALL_SENT = Routing()


def collective_s(
    cluster: Cluster,
    kind: CollectiveKind,
    size_bytes: Number,
    group: Group,
    routing: Routing = ALL_SENT,
    *,
    one_message: bool = True,
) -> Number:
    """Seconds until every rank of `group` has its result; 0 for a group of one.

    one_message  False: the bytes of many, large ones, which no curve of one message tells
    routing  of the tokens of an all_to_all that sends one copy to each node, and from there one to
             each rank (one copy: it sends them all)
    """
    n = group.size
    if isinstance(n, float | int) and n <= 1:
        return 0.0
    formula_s = _formula_s(cluster, kind, size_bytes, group, routing)
    if routing.copies > 1:
        return formula_s
    if one_message:
        formula_s = _on_link_s(cluster, kind, size_bytes, group, formula_s)
    return _as_measured_s(cluster, kind, size_bytes, group, formula_s)


def _formula_s(
    cluster: Cluster, kind: CollectiveKind, size_bytes: Number, group: Group, routing: Routing
) -> Number:
    if kind == "all_to_all":
        wire_s = _all_to_all_wire_s(cluster, size_bytes, group, routing)
    else:
        share = (group.size - 1) / group.size * (2.0 if kind == "all_reduce" else 1.0)
        wire_s = share * size_bytes / _found_once(bus_bandwidth, cluster, kind, group)
    latency_s, stalls_s = _found_once(_hops_s, cluster, kind, group)
    return where(group.size > 1, latency_s + maximum(stalls_s, wire_s), 0.0)


def _found_once(
    find: Callable[[Cluster, CollectiveKind, Group], Found],
    cluster: Cluster,
    kind: CollectiveKind,
    group: Group,
) -> Found:
    """What `find` says of the links of a group: many operations send over the same ones."""
    known = group.on_links.get((find, kind))
    if known is None or known[0] is not cluster:
        known = group.on_links[find, kind] = cluster, find(cluster, kind, group)
    found: Found = known[1]
    return found


def _on_link_s(
    cluster: Cluster, kind: CollectiveKind, size_bytes: Number, group: Group, formula_s: Number
) -> Number:
    """`formula_s`, but inside a node by the curves of its kind of link, where it has some."""
    fits = [fit for fit in cluster.node.collective_fits if fit.kind == kind]
    if not fits:
        return formula_s
    fits.sort(key=lambda fit: fit.ranks_per_node)
    on_link = (group.nodes == 1) & (group.ranks_per_node >= fits[0].ranks_per_node)
    if not isinstance(on_link, np.ndarray):
        found_s = _by_curves_s(cluster, fits, size_bytes, group.ranks_per_node, formula_s)
        return found_s if on_link else formula_s
    rows = np.flatnonzero(on_link)
    some = (_at_rows(each, rows) for each in (size_bytes, group.ranks_per_node, formula_s))
    seconds = np.array(np.broadcast_to(formula_s, on_link.shape))
    seconds[rows] = _by_curves_s(cluster, fits, *some) if len(rows) else 0.0
    return seconds


def _at_rows(each: Number, rows: NDArray[np.intp]) -> Number:
    return each[rows] if isinstance(each, np.ndarray) else each


def _by_curves_s(
    cluster: Cluster, fits: Sequence[CurveFit], size_bytes: Number, ranks: Number, formula_s: Number
) -> Number:
    """By the curves of one kind on links, of ever more ranks: seconds between them are linear."""
    known = [float(fit.ranks_per_node) for fit in fits]
    seconds = [plain(curve_seconds(fit, size_bytes)) for fit in fits]
    found = seconds[0]
    for (fewer, less_s), (more, more_s) in pairwise(zip(known, seconds, strict=True)):
        part = minimum(maximum((ranks - fewer) / (more - fewer), 0.0), 1.0)
        found = found + part * (more_s - less_s)
    last = known[-1]
    if anywhere(ranks > last):
        at_last_s = _formula_s(cluster, fits[0].kind, size_bytes, Group(last, last), ALL_SENT)
        found = where(ranks > last, found + formula_s - at_last_s, found)
    return found


def _as_measured_s(
    cluster: Cluster, kind: CollectiveKind, size_bytes: Number, group: Group, formula_s: Number
) -> Number:
    """`formula_s`, but the fitted curve of a profiled group of this shape."""
    for fit in cluster.collective_fits if cluster.is_measured else ():
        if fit.kind == kind:
            same = (group.ranks_per_node == fit.ranks_per_node) & (group.nodes == fit.nodes)
            if np.any(same):
                alone_s = plain(curve_seconds(fit, size_bytes))
                formula_s = where(same, alone_s * _shared_slowdown(cluster), formula_s)
    return formula_s


def straggler_fraction(cluster: Cluster, group: Group) -> Number:
    """Straggler fraction of `group`: seconds that its mean rank waits for the slowest, over those
    that it computes between two collectives. 0 where the profile did not measure it.

    Proportional to the computing as long as stalls are rarer than collectives, for then each stall
    of any rank delays all. Two CPU ranks: mostly 2 to 12 %, for 0.3 to 40 ms of computing.
    """
    measured = defaultdict[tuple[int, int], list[float]](list)
    for fit in cluster.collective_fits if cluster.is_measured else ():
        if fit.apart is not None:
            measured[fit.ranks_per_node, fit.nodes].append(fit.apart)
    found: Number = 0.0
    for (ranks_per_node, nodes), fractions in measured.items():
        same = (group.ranks_per_node == ranks_per_node) & (group.nodes == nodes)
        found = where(same, fsum(fractions) / len(fractions), found)
    return found


def waits_s(
    cluster: Cluster, meeting: Mapping[Axis, Group], computing_s: Number
) -> dict[Axis, Number]:
    """Seconds by axis that ranks wait for stragglers after `computing_s`; `meeting` has their
    groups. A wait is counted once: the next group adds only what it waits for beyond the longest
    wait so far.
    """
    longest: Number = 0.0
    waits: dict[Axis, Number] = {}
    if not cluster.is_measured:
        return waits
    for axis, group in meeting.items():
        if np.any(fraction := straggler_fraction(cluster, group)):
            each = fraction * computing_s
            waits[axis] = maximum(each - longest, 0.0)
            longest = maximum(longest, each)
    return waits


def _shared_slowdown(cluster: Cluster) -> float:
    return cluster.kernels.shared_slowdown.get("collectives", 1.0) if cluster.kernels else 1.0


def bus_bandwidth(cluster: Cluster, kind: CollectiveKind, group: Group) -> Number:
    """Bytes per second and rank that a large collective reaches on `group`."""
    inside = _link_rate(cluster.node, kind) * _linked_fraction(cluster.node, group.ranks_per_node)
    nodes = group.nodes
    share: Number = group.ranks_per_node / cluster.gpus_per_node
    if cluster.pod:
        share = minimum(share, uplink_cards(cluster.pod, group) / cluster.gpus_per_node)
    across = _link_rate(cluster.network, kind) * share * _bandwidth_left(cluster, nodes)
    reached = minimum(inside, across)
    if kind == "all_reduce":
        reached = maximum(reached, tree_bandwidth(cluster.gpu, group, inside, across))
    return where(nodes > 1, reached, inside)


def send_s(
    cluster: Cluster, size_bytes: Number, *, across_nodes: Condition, cards: Number = 1.0
) -> Number:
    """Seconds to hand `size_bytes` to the neighbouring pipeline rank.

    cards  of network cards, what the hop gets (`pods.uplink_cards`), one at most
    """
    network = cluster.network.bus_bandwidth.send * minimum(cards, 1.0)
    inside = cluster.node.latency_s + size_bytes / cluster.node.bus_bandwidth.send
    inside = _as_measured_s(cluster, "send", size_bytes, Group(2.0, 2.0), inside)
    across = cluster.network.latency_s + cluster.network.stall_s + size_bytes / network
    across = _as_measured_s(cluster, "send", size_bytes, Group(2.0, 1.0), across)
    return where(across_nodes, across, inside)


def hops_s(cluster: Cluster, kind: CollectiveKind, group: Group) -> Number:
    """Seconds of a collective without a payload."""
    return sum(_hops_s(cluster, kind, group))


def _hops_s(cluster: Cluster, kind: CollectiveKind, group: Group) -> tuple[Number, Number]:
    """Latencies, and the stalls during which bytes move."""
    n = group.size
    step = where(group.nodes > 1, cluster.network.latency_s, cluster.node.latency_s)
    stall = where(group.nodes > 1, cluster.network.stall_s, cluster.node.stall_s)
    if kind == "all_to_all":
        peers = 1 + PEER_LATENCY * (n - 1)
        return step * peers, stall * peers
    if kind == "all_reduce":
        return step * minimum(2 * (n - 1), 2 * (1 + log2(n))), stall * (n - 1)
    return step * (n - 1), stall * (n - 1)


def _all_to_all_wire_s(
    cluster: Cluster, size_bytes: Number, group: Group, routing: Routing
) -> Number:
    n, r, nodes = group.size, group.ranks_per_node, group.nodes
    rate = cluster.network.bus_bandwidth.all_to_all * _bandwidth_left(cluster, group.nodes)
    copy_bytes = size_bytes / routing.copies
    away = (n - r) / n
    if cluster.pod:
        away = maximum(away, leaving(cluster.pod, group) * cluster.pod.oversubscription)
    across_s = copy_bytes * _reached("nodes", group, routing) * away / rate
    # what came over the network goes on inside a node, but for the rank that it came to
    on_links = (n - nodes if routing.copies > 1 else r - 1) / n * _reached("size", group, routing)
    inside = cluster.node.bus_bandwidth.all_to_all * _linked_fraction(cluster.node, r)
    inside_s = copy_bytes * on_links / inside
    return maximum(inside_s, across_s)


def _reached(places: Literal["size", "nodes"], group: Group, routing: Routing) -> Number:
    """`distinct` of the group's ranks or nodes, which a dispatch and its way back both ask for."""
    if (places, routing) not in group.reached:
        group.reached[places, routing] = distinct(getattr(group, places), routing)
    return group.reached[places, routing]


def _linked_fraction(link: Link, ranks: Number) -> Number:
    """Fraction of an accelerator's links that a group of `ranks` in its node can use: all of them
    through a switch; where pairs have links of their own, those to the `ranks` - 1 others.
    """
    if not link.meshed:
        return 1.0
    return minimum(maximum(ranks - 1, 1.0) / (link.meshed - 1), 1.0)


def _bandwidth_left(cluster: Cluster, nodes: Number) -> Number:
    """Fraction of the network's bandwidth that is left on `nodes` nodes (1: not stated)."""
    table = cluster.bandwidth_by_nodes
    if not table:
        return 1.0
    known = sorted(table)
    fractions = np.log2([table[n] for n in known])
    left: Number = 2.0 ** np.interp(np.log2(maximum(nodes, 1.0)), np.log2(known), fractions)
    return left if isinstance(nodes, np.ndarray) else float(left)


def _link_rate(link: Link, kind: CollectiveKind) -> float:
    rate: float = getattr(link.bus_bandwidth, "all_gather" if kind == "broadcast" else kind)
    return rate
