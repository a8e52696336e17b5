"""The room that a layer's own communication leaves to the traffic of its weights.

Gathered weights and reduced gradients travel beside a pass of

    T = C + sum of X_a      C    seconds that the device computes or waits for its host
                            S_a  seconds that axis a sends (tensor, context, expert parallelism)
                            X_a  of these, the exposed ones; S_a - X_a are hidden under C

Two collectives on the same links take as long as one after the other, so the links of the weights
are theirs for T less all that other axes send over them, be it seen or hidden:

    room = T - sum of S_a over the same links
         = C + sum of X_a over other links - sum of (S_a - X_a) over the same links

Links are of two kinds: those inside a node, and the network between nodes, which the weights take
where the ranks that share them are on several nodes.

Source: bytes over a link's rate. Two of NCCL's broadcasts at once over one PCIe link have half of
one's bandwidth each (NVIDIA/nccl issue 204); FSDP's collectives and those of tensor parallelism
contend for NVLink (pytorch/pytorch pull request 179937). Collectives inside nodes do run beside
those between them (pytorch/pytorch pull request 121569).

Leaves out: a ring between nodes, which takes a part of the links inside them too; two axes of a
layer hidden under the same computing; the sends of a pipeline. Copies to the host have links of
their own (`ranks.beside`).
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.elementwise import Number, minimum
from meshplan.costmodels.operations.kinds import Axis
from meshplan.costmodels.seconds.process_groups import Group


class Traffic(NamedTuple):
    """Seconds that one collective of a layer is seen, and that it runs hidden under computing."""

    axis: Axis
    exposed_s: Number
    hidden_s: Number = 0.0


def more_room_s(
    exposed: Mapping[Axis, Number],
    traffic: Iterable[Traffic],
    groups: Mapping[str, Group],
    weights_leave: Number,
    computing_s: Number,
) -> Number:
    """By how much the room is longer than the computing; less than 0 where it is shorter.

    exposed  the exposed seconds of each axis, with what its ranks wait for each other
    weights_leave  1 where the ranks that share weights are on several nodes, else 0
    """
    longer_s = sum(
        seconds * (_on_network(groups[axis]) != weights_leave)
        for axis, seconds in exposed.items()
        if _is_some(seconds)
    )
    hidden_s = sum(
        each.hidden_s * (_on_network(groups[each.axis]) == weights_leave)
        for each in traffic
        if _is_some(each.hidden_s)
    )
    return longer_s - minimum(hidden_s, computing_s) if _is_some(hidden_s) else longer_s


def _on_network(group: Group) -> Number:
    """1 where it is on several nodes, else 0."""
    return (group.nodes > 1) * 1.0


def _is_some(seconds: Number) -> bool:
    """Whether there may be any: a column of layouts, or more than 0."""
    return isinstance(seconds, np.ndarray) or bool(seconds)
