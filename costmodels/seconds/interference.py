"""By how much computing is slowed beside a collective, which depends on where its ranks sit.

`Tuning.interference` i, of B seconds of a message beside computing B i / (1 + i) are seen, holds
for all collectives. A tier of the network may state another (`Link.interference`): that of a node
for groups inside one, that of the network for all others.
"""

from meshplan.costmodels.elementwise import Number, where
from meshplan.costmodels.seconds.process_groups import Group
from meshplan.hardware_profiles.schema import Cluster


def interference_of(cluster: Cluster, fitted: float, group: Group) -> Number:
    """i of the collectives of `group`; `fitted`: where the tier does not state it."""
    inside, between = cluster.node.interference, cluster.network.interference
    if inside is None and between is None:
        return fitted
    inside, between = (fitted if stated is None else stated for stated in (inside, between))
    return where(group.nodes <= 1, inside, between)
