"""How many nodes or ranks the copies of a token reach: what a dispatch of single copies sends.

    p      places, nodes or ranks, each with as many of the experts
    k      experts of a token
    G, g   experts are in G groups, and those of a token are of its g best ones; 0: of any
    E      experts that a benchmark's gate deals out in order, as cards; 0: tokens choose

k uniform choices among p places reach p (1 - (1 - 1/p)^k) of them. A router limited to groups
limits places only as the groups are placed: ranks hold consecutive experts, so

    p >= G   each group is spread over p/G places, a token's over P = p g/G: P (1 - (1 - 1/P)^k)
    p < G    each place holds c = G/p groups, X of them among the g: p (1 - E[(1 - X/g)^k]),
             X hypergeometric

Where the groups are the nodes (p = G), that is at most g nodes: DeepSeek-V3's 256 experts in 8
groups, over 64 ranks on 8 nodes, reach 4 (1 - (3/4)^8) = 3.60 nodes instead of 5.25.

Experts that are dealt out are neighbours: token i gets i k to i k + k - 1, modulo E, on one place
mostly, on two where they straddle a border. What tokens reach is counted over a whole cycle.

Source: 2405.04434 section 2.2.2 (device-limited routing), 2412.19437 section 2.1.2 (node-limited);
FakeBalancedGate, NVIDIA-NeMo/Automodel@2c236e08 nemo_automodel/components/moe/layers.py.
Leaves out: groups that places cut unevenly, which count as no limit, and that close experts are
chosen together.
"""

from functools import cache
from math import comb, gcd

import numpy as np

from meshplan.costmodels.elementwise import Number
from meshplan.costmodels.operations.kinds import Routing


def distinct(places: Number, routing: Routing) -> Number:
    """The expected number of different places that a token's copies reach."""
    if not routing.cycle and not (routing.groups and routing.top_groups):
        return _of_any(places, routing.copies)
    reached = _dealt if routing.cycle else _limited
    if not isinstance(places, np.ndarray):
        return reached(float(places), routing)
    each, index = np.unique(places, return_inverse=True)
    found = np.array([reached(float(p), routing) for p in each])
    return found[index].reshape(places.shape)


def _of_any(places: Number, copies: int) -> Number:
    return places * (1 - (1 - 1 / places) ** copies)


@cache
def _dealt(places: float, routing: Routing) -> float:
    cycle, k = routing.cycle, routing.copies
    firsts = range(0, cycle, gcd(cycle, k))
    reached = ({int((e % cycle) * places / cycle) for e in range(i, i + k)} for i in firsts)
    return sum(map(len, reached)) / len(firsts)


@cache
def _limited(places: float, routing: Routing) -> float:
    k, groups, top = routing.copies, routing.groups, routing.top_groups
    if places % groups == 0:
        return float(_of_any(places * top / groups, k))
    if groups % places:
        return float(_of_any(places, k))
    here = groups // int(places)
    missed = sum(
        comb(here, x) * comb(groups - here, top - x) * (1 - x / top) ** k
        for x in range(min(here, top) + 1)
    )
    return places * (1 - missed / comb(groups, top))
