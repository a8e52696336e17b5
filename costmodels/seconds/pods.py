"""The bandwidth that one group of ranks gets of a network which is oversubscribed between pods.

    P      accelerators of a pod, whose links to other pods carry 1/o of its cards' bandwidth
    n, s   ranks of the group, and how many ranks they are apart: groups side by side fill blocks
           of n s consecutive ranks
    b      blocks that reach from a pod into others: 0 where blocks fill pods or the job is in one,
           1 where pods fill a block or the job is one block, else 2, one at each end

Every group of the axis communicates at once, and each crosses its pod's border with one link: a
ring in and out of each pod, a pipeline's hop once. So b min(s, P) links share the bandwidth of P/o
cards, each link gets P / (o b min(s, P)) of a card. Of an all_to_all's bytes 1 - P/(b n s) leave
the pod, all but the part for its own ranks there; of shorter blocks halves at both ends at worst.

Source: 2407.21783 section 3.3.1 (Llama 3: 7:1 between pods of 3,072) names the tier; the shares
follow from the placement, against flows on the graph in `tests/costmodels/seconds/test_pods.py`.
Leaves out: longer latency, jobs on some of a pod's nodes only, and collectives of a hierarchy
(a tree over pods, or two steps) instead of one ring.
"""

import math

from meshplan.costmodels.elementwise import Number, maximum, minimum, where
from meshplan.costmodels.seconds.process_groups import Group
from meshplan.hardware_profiles.network_schema import Pod


def uplink_cards(pod: Pod | None, group: Group) -> Number:
    """Network cards' worth of bandwidth of one link of `group` between pods; inf inside one."""
    if pod is None:
        return math.inf
    links = _blocks(pod, group) * minimum(group.stride, pod.gpus * 1.0)
    shared = pod.gpus / (pod.oversubscription * maximum(links, 1.0))
    return where(links > 0, shared, math.inf)


def leaving(pod: Pod, group: Group) -> Number:
    """The fraction of an all_to_all's bytes that leave a pod."""
    blocks, span = _blocks(pod, group), group.size * group.stride
    inside = maximum(pod.gpus / (maximum(blocks, 1.0) * span), 1 / group.size)
    halves = span / (2.0 * pod.gpus)
    return where(blocks == 0, 0.0, where(span > pod.gpus, 1 - inside, halves))


def _blocks(pod: Pod, group: Group) -> Number:
    span = group.size * group.stride
    fills = where((span % pod.gpus == 0) | (span >= group.world), 1.0, 2.0)
    inside = (pod.gpus % span == 0) | (group.size <= 1) | (group.world <= pod.gpus)
    return where(inside, 0.0, fills)
