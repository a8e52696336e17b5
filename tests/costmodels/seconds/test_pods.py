"""What links between pods leave to a group: by hand, and against flows on the graph of links."""

from collections import Counter
from itertools import pairwise, product

import networkx as nx
import numpy as np
import pytest
from links import link

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.seconds.collectives import bus_bandwidth, collective_s, send_s
from meshplan.costmodels.seconds.pods import leaving, uplink_cards
from meshplan.costmodels.seconds.process_groups import Group, axis_group, place
from meshplan.hardware_profiles.files.profile_file import UnknownProfile
from meshplan.hardware_profiles.fingerprint import cluster_hash
from meshplan.hardware_profiles.load import load_cluster, save_cluster
from meshplan.hardware_profiles.network_schema import Pod
from meshplan.hardware_profiles.schema import Cluster

LLAMA = Pod(gpus=3072, oversubscription=7.0)
SMALL = Pod(gpus=8, oversubscription=4.0)
GPUS_PER_NODE = 2


@pytest.mark.parametrize(
    ("size", "stride", "cards"),
    [
        pytest.param(128, 8, np.inf, id="dp 128, 8 apart: 1,024 in a row, 3 of them fill a pod"),
        pytest.param(128, 128, 24 / 7, id="dp 128, 128 apart: 3,072 / (7 x 128) = 3.4 cards"),
        pytest.param(16, 1024, 3 / 7, id="pp 16, 1,024 apart: 3,072 / (7 x 1,024)"),
        pytest.param(5, 1024, 3 / 14, id="5, 1,024 apart: 2 ends, 3,072 / (7 x 2 x 1,024)"),
        pytest.param(4, 3072, 1 / 7, id="4 pods, one rank in each: 3,072 / (7 x 3,072)"),
        pytest.param(1, 3072, np.inf, id="one rank sends nothing"),
    ],
)
def test_uplink_by_hand(size: int, stride: int, cards: float):
    """Links between pods are shared by the groups side by side: P / (o b min(s, P)) of a card."""
    group = place(float(size), float(stride), 8, 16384.0)
    assert uplink_cards(LLAMA, group) == pytest.approx(cards)


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    """2 GPUs a node, 100 a link, a card of 1 each: bandwidths in cards, no latency."""
    network = link(0.0, 1.0)
    whole = {"all_gather": 2.0, "reduce_scatter": 2.0, "all_reduce": 2.0}
    network = network.model_copy(
        update={"bus_bandwidth": network.bus_bandwidth.model_copy(update=whole)}
    )
    return load_cluster("dgx-h100").model_copy(
        update={
            "gpus_per_node": GPUS_PER_NODE,
            "node": link(0.0, 100.0),
            "network": network,
            "pod": SMALL,
        }
    )


def graph(gpus: int) -> nx.DiGraph:
    """GPUs, nodes, pods and a spine; capacities in cards, each way."""
    found = nx.DiGraph()
    for gpu in range(gpus):
        node, pod = ("node", gpu // GPUS_PER_NODE), ("pod", gpu // SMALL.gpus)
        uplink = SMALL.gpus / SMALL.oversubscription
        for low, high, cards in (
            (gpu, node, 100.0),
            (node, pod, GPUS_PER_NODE * 1.0),
            (pod, "spine", uplink),
        ):
            found.add_edge(low, high, cards=cards)
            found.add_edge(high, low, cards=cards)
    return found


def slowest(gpus: int, flows: list[tuple[int, int, float]]) -> float:
    """Seconds until the fullest link has carried all `flows` (from, to, amount)."""
    links, load = graph(gpus), Counter[tuple[object, object]]()
    for here, there, amount in flows:
        for step in pairwise(nx.shortest_path(links, here, there)):
            load[step] += amount
    return max(amount / links.edges[step]["cards"] for step, amount in load.items())


def members(gpus: int, size: int, stride: int) -> list[list[int]]:
    """The groups of `size` ranks that are `stride` apart, all side by side."""
    blocks = range(0, gpus, size * stride)
    return [
        list(range(start + first, start + size * stride, stride))
        for start in blocks
        for first in range(stride)
    ]


SHAPES = [(n, s) for n, s in product((2, 4, 8, 16), (1, 2, 4, 8, 16)) if n * s <= 32]


@pytest.mark.parametrize(("size", "stride"), SHAPES)
def test_rings_as_on_the_graph(cluster: Cluster, size: int, stride: int):
    """Rings of all groups at once get what the fullest link of the graph leaves each."""
    rings = [
        (here, there, 1.0)
        for group in members(32, size, stride)
        for here, there in pairwise([*group, group[0]])
    ]
    rate = bus_bandwidth(cluster, "all_gather", place(float(size), float(stride), GPUS_PER_NODE))
    assert rate == pytest.approx(1 / slowest(32, rings))


@pytest.mark.parametrize(("size", "stride"), SHAPES)
def test_exchanges_as_on_the_graph(cluster: Cluster, size: int, stride: int):
    """Every pair of a group exchanges its part: seconds are those of the fullest link."""
    pairs = [
        (here, there, 1 / size)
        for group in members(32, size, stride)
        for here, there in product(group, group)
        if here != there
    ]
    group = place(float(size), float(stride), GPUS_PER_NODE)
    seconds = collective_s(cluster, "all_to_all", 1.0, group)
    assert seconds == pytest.approx(slowest(32, pairs), rel=1e-6)


@pytest.mark.parametrize(("size", "stride"), [(3, 1), (6, 1), (3, 2), (6, 2), (12, 1), (4, 3)])
def test_uneven_blocks_are_not_too_fast(cluster: Cluster, size: int, stride: int):
    """Blocks that borders of pods cut anywhere get no more than the graph gives the slowest."""
    gpus = 24 * size * stride
    groups = members(gpus, size, stride)
    rings = [(a, b, 1.0) for group in groups for a, b in pairwise([*group, group[0]])]
    pairs = [(a, b, 1 / size) for group in groups for a, b in product(group, group) if a != b]
    group = Group(float(size), 1.0, float(stride))
    cards = uplink_cards(SMALL, group)
    assert 1 / slowest(gpus, rings) >= min(1.0, cards) - 1e-9
    assert leaving(SMALL, group) * SMALL.oversubscription >= _on_uplinks(gpus, pairs) - 1e-9


def _on_uplinks(gpus: int, flows: list[tuple[int, int, float]]) -> float:
    crossing = [flow for flow in flows if flow[0] // SMALL.gpus != flow[1] // SMALL.gpus]
    load = Counter[int]()
    for here, _, amount in crossing:
        load[here // SMALL.gpus] += amount
    return max(load.values()) / (SMALL.gpus / SMALL.oversubscription)


@pytest.mark.parametrize(
    ("size", "stride", "share"),
    [
        pytest.param(4, 1, 0.0, id="two blocks of 4 fill a pod of 8"),
        pytest.param(6, 1, 0.375, id="6 in a row, cut in half at both ends: 2 x 3 x 3/6 of 8"),
        pytest.param(3, 2, 0.375, id="3, 2 apart: the same 6 in a row"),
        pytest.param(4, 4, 0.5, id="4, 4 apart: half of each block is in the other pod"),
    ],
)
def test_share_that_leaves_a_pod_by_hand(size: int, stride: int, share: float):
    """Of an all_to_all's bytes, those to ranks of another pod of 8."""
    assert leaving(SMALL, place(float(size), float(stride), GPUS_PER_NODE)) == pytest.approx(share)


def test_a_hop_between_pods(cluster: Cluster):
    """2 pipeline ranks, 8 GPUs apart: 8 hops share 2 cards, so each takes 4 times as long."""
    pipeline = axis_group(
        Layout(data_parallel=8, pipeline_parallel=2, stages=even_stages(2, 2)),
        "pp", ("tp", "cp", "ep", "dp", "pp"), GPUS_PER_NODE,
    )  # fmt: skip
    cards = uplink_cards(cluster.pod, pipeline)
    assert send_s(cluster, 1.0, across_nodes=True, cards=cards) == pytest.approx(4.0)


def test_pods_of_half_a_node_are_refused(tmp_path):
    """A profile's pod is whole nodes, read back as written; the refusal is one line."""
    good = load_cluster("dgx-h100").model_copy(update={"pod": LLAMA})
    save_cluster(good, tmp_path / "good.toml")
    assert load_cluster(tmp_path / "good.toml").pod == LLAMA
    assert cluster_hash(good) != cluster_hash(good.model_copy(update={"pod": None}))
    text = (tmp_path / "good.toml").read_text().replace("3072", "3071")
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(UnknownProfile, match="3071 GPUs is not whole nodes of 8"):
        load_cluster(tmp_path / "bad.toml")
