"""Interference: by how much computing is slowed beside a collective.

Computing takes 1 + i times as long beside one, so of B hidden seconds of communication
B i / (1 + i) are exposed all the same. i is `Tuning.interference` for all collectives, unless a
tier of the network states its own (`Link.interference`): that of the node for groups inside a node,
that of the network for all others.

Beside routed experts weights take long: they have many numbers for few products. There a collective
inside a node, which is NCCL's kernel on 24 of the units or so, slows products as much as was
measured with a product and a gather alone (`BESIDE_EXPERTS`). In dense layers such traffic is short
beside their products, and what it costs is in the constants that were learnt of their runs.
"""

from meshplan.costmodels.elementwise import Number, maximum, where
from meshplan.costmodels.seconds.process_groups import Group
from meshplan.hardware_profiles.schema import Cluster

BESIDE_EXPERTS = 0.73
"""Products beside an all-gather inside a node take 2.08 ms, 1.18 alone, on A100s
(NVIDIA/nccl issue 1428), and reach 47 % of an H100's peak, 80 alone, as the blocks that find their
units taken make a second wave (forums.developer.nvidia.com/t/337991): 0.76 and 0.70. Attention
takes 1.83 times as long on the A100; PyTorch's pull request 179937 has 0.3 to 0.4 for products on
H100s. Leaves out: that the collective takes longer too (up to twice, NVIDIA/nccl issue 1433).
"""


def interference_of(cluster: Cluster, fitted: float, group: Group) -> Number:
    """i of the collectives of `group`; `fitted` where their tier states none."""
    inside, between = cluster.node.interference, cluster.network.interference
    if inside is None and between is None:
        return fitted
    inside, between = (fitted if stated is None else stated for stated in (inside, between))
    return where(group.nodes <= 1, inside, between)


def beside_experts(cluster: Cluster, fitted: float, group: Group) -> Number:
    """i of the traffic of weights in a layer with routed experts; a tier that states its own i
    keeps it.
    """
    usual = interference_of(cluster, fitted, group)
    if cluster.node.interference is not None:
        return usual
    return where(group.nodes <= 1, max(BESIDE_EXPERTS, fitted), usual)


def exposed_s(whole_s: Number, room_s: Number, overlap: Number, interference: Number) -> Number:
    """Exposed seconds of `whole_s` of communication, `overlap` of which may run under `room_s` of
    computing.
    """
    beside = overlap * whole_s
    slowed = beside * interference / (1 + interference)
    return whole_s - beside + maximum(beside - room_s, slowed)
