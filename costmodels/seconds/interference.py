"""Interference: by how much computing is slowed beside a collective.

Computing takes 1 + i times as long beside one, so of B hidden seconds of communication
B i / (1 + i) are exposed all the same. i is `Tuning.interference` for all collectives, unless a
tier of the network states its own (`Link.interference`): that of the node for groups inside a node,
that of the network for all others.
"""

from meshplan.costmodels.elementwise import Number, maximum, where
from meshplan.costmodels.seconds.process_groups import Group
from meshplan.hardware_profiles.schema import Cluster


def interference_of(cluster: Cluster, fitted: float, group: Group) -> Number:
    """i of the collectives of `group`; `fitted` where their tier states none."""
    inside, between = cluster.node.interference, cluster.network.interference
    if inside is None and between is None:
        return fitted
    inside, between = (fitted if stated is None else stated for stated in (inside, between))
    return where(group.nodes <= 1, inside, between)


def exposed_s(whole_s: Number, room_s: Number, overlap: Number, interference: Number) -> Number:
    """Exposed seconds of `whole_s` of communication, `overlap` of which may run under `room_s` of
    computing.
    """
    beside = overlap * whole_s
    slowed = beside * interference / (1 + interference)
    return whole_s - beside + maximum(beside - room_s, slowed)
