"""NCCL's tree of two nodes, which its all_reduce takes where it beats a ring.

    ring   a card sends 2 (n-1)/n size, a link inside a node as much
    tree   a card sends size, half up one tree and half down the other; a link inside a node, along
           the chain of its ranks, size up and size down
    t      min(ring, tree): bus bandwidth max(min(inside, across), 2 (n-1)/n min(inside/2, across))

    n               ranks of the group, on two nodes
    inside, across  bus bandwidth of a ring inside a node, and of their network cards

A tree of more nodes sends as much as a ring does. Sources: S. Jeaugey, NCCL's author, in
NVIDIA/nccl issues 209 (2019) and 330 (2020), and in nccl-tests issue 196 (2024): a tree of two
nodes "can indeed go beyond the network bottleneck", and NCCL takes it or not by what it reaches.
So since 2.4: of two nodes NCCL counts a tree's bandwidth inside them, and NVLSTree's as twice the
network's (NVIDIA/nccl@5067397c src/graph/tuning.cc; v2.4.8 src/init.cc ncclTreeThreshold).

Bus bandwidths of large messages that were measured, in GB/s; `of` is the second over the first, as
a fraction of 2 (n-1)/n:

    node of 8     cards, Gb/s   ring             two nodes    of     source
    V100, EFA     1 x 100       7.5              15.0         1.07   nccl-tests issue 22
    GPUs, RoCE    2 x 25        5.6              9.0 or 5.3   0.86   nccl issue 330
    A100, EFA     4 x 100       31.8, 3 nodes    57.2         0.96   nccl issue 527
    H100, TCPXO   8 x 200       188.5, gathers   338.8        0.96   gcp-a3-mega.toml; A3 Mega below
    H100, EFA     32 x 100      166, gathers     332          1.07   55 jobs of runs.csv, medians
    H100, EFA     32 x 100      206, 4 nodes     428          1.11   66 jobs, bandwidth-by-nodes.csv
    H100, NVLS    8 x 400       320, 4 nodes     430                 nccl issue 1221
    H100, no NVLS 8 x 400       320, 4 nodes     330                 nccl issue 1221

A3 Mega's two nodes: lessizzmore/create-a3mega-ztan-fork@02dd8f45 ztan-NCCL-test-result.

How many accelerators share a card makes no difference. In the last three the links inside are the
limit: 15/16 of 458, of 475 and of 361 are 429, 445 and 338. Four GH200 of Alps with a card each
reach 0.81 of their cards in a tree (the slope from 64 to 128 MiB: eth-cscs/cscs-docs@80abed1
docs/software/communication/nccl.md). Those of Polaris (2 for 4 A100) and Delta (1 for 4; both in
perlmutter.toml) and of 8 A100 with 2 (nccl issue 837) are used to 0.42, 0.39 and 0.61 by a tree;
nobody measured a ring there, and a ring uses those of the third line to 0.6. Why 16 V100 of two
nodes with one card each were no faster than 32 of four under NCCL of 2020 (Oneflow-Inc/DLPerf) is
not known.

RCCL gives trees of two nodes of MI300X 0.11 of a ring's bandwidth (ROCm/rccl@0cbce2a7
src/graph/tuning.cc, tuning_model_5), and on MI350X rings won a sweep from 128 MB on
(ROCm/rocm-systems pull request 9406); of MI250X trees get 0.99 to 1.75 by how its cards are
attached, which no profile says: a ring is priced. gloo takes rings (pytorch/gloo
gloo/allreduce.cc).
"""

from meshplan.costmodels.elementwise import Number, minimum, where
from meshplan.costmodels.seconds.process_groups import Group
from meshplan.hardware_profiles.schema import Gpu


def _tree_gain(gpu: Gpu, group: Group) -> Number:
    """By how much less a card sends for a tree of `group` than for a ring (1: none is taken)."""
    gain = 2.0 * (group.size - 1) / group.size if gpu.vendor == "nvidia" else 1.0
    return where(group.nodes == 2, gain, 1.0)


def tree_bandwidth(gpu: Gpu, group: Group, inside: Number, across: Number) -> Number:
    """Bus bandwidth of a tree of `group`; where none is taken, no more than a ring's."""
    return _tree_gain(gpu, group) * minimum(inside / 2, across)


def ring_rate(gpu: Gpu, group: Group, reduced: float, gathered: float = 0.0) -> float:
    """What `BusBandwidth.all_reduce` is between nodes, where whole nodes, `group`, measured a bus
    bandwidth of `reduced`: less where that was a tree's, but no less than the ring of their
    all_gather had, `gathered` (a tree may have been held to the bandwidth inside a node).
    """
    return min(reduced, max(reduced / float(_tree_gain(gpu, group)), gathered))
