"""Trees of two nodes: by hand on nodes of four, and what machines measured."""

from typing import Literal

import pytest
from links import four_gpus_a_node, link

from meshplan.costmodels.seconds.collectives import bus_bandwidth, collective_s
from meshplan.costmodels.seconds.process_groups import Group
from meshplan.costmodels.seconds.trees import ring_rate
from meshplan.hardware_profiles.network_schema import CollectiveKind
from meshplan.hardware_profiles.schema import Cluster


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return four_gpus_a_node()


@pytest.mark.parametrize(
    ("kind", "nodes", "rate", "expected_s"),
    [
        pytest.param("all_reduce", 2, 40e9, 1 / 40, id="up and down a tree of two"),
        pytest.param("all_reduce", 4, 40e9, 2 * 15 / 16 / 40, id="a ring"),
        pytest.param("all_gather", 2, 40e9, 7 / 8 / 40, id="no tree gathers"),
        pytest.param("all_reduce", 2, 80e9, 2 / 100, id="each link inside a node carries 2 GB"),
        pytest.param("all_reduce", 2, 90e9, 2 * 7 / 8 / 90, id="a ring where that is faster"),
        pytest.param("all_reduce", 2, 120e9, 2 * 7 / 8 / 100, id="no faster than inside a node"),
    ],
)
def test_a_tree_of_two_nodes_sends_each_byte_once(
    cluster: Cluster, kind: CollectiveKind, nodes: int, rate: float, expected_s: float
) -> None:
    """1 GB over whole nodes of four, without latencies, 100 GB/s inside."""
    both = {"node": link(0.0, 100e9, 50e9), "network": link(0.0, rate, 25e9)}
    group = Group(4.0 * nodes, 4.0)
    found_s = collective_s(cluster.model_copy(update=both), kind, 1e9, group)
    assert found_s == pytest.approx(expected_s, rel=1e-12)


@pytest.mark.parametrize("vendor", ["amd", "cpu"])
def test_other_libraries_take_rings(cluster: Cluster, vendor: Literal["amd", "cpu"]) -> None:
    """RCCL and gloo on two nodes of four: 2 x 7/8 of 1 GB at 40 GB/s."""
    both = {"node": link(0.0, 100e9, 50e9), "network": link(0.0, 40e9, 25e9)}
    gpu = cluster.gpu.model_copy(update={"vendor": vendor})
    ring = cluster.model_copy(update={**both, "gpu": gpu})
    assert collective_s(ring, "all_reduce", 1e9, Group(8.0, 4.0)) == pytest.approx(2 * 7 / 8 / 40)


@pytest.mark.parametrize(
    ("nodes", "gathered", "expected"),
    [
        pytest.param(2, 0.0, 40e9, id="70 of a tree are 40 of a ring"),
        pytest.param(2, 60e9, 60e9, id="held to what is inside a node: a ring as all_gather's"),
        pytest.param(2, 90e9, 70e9, id="no faster than measured"),
        pytest.param(4, 0.0, 70e9, id="a ring was measured"),
    ],
)
def test_what_two_nodes_measured_is_a_trees(
    cluster: Cluster, nodes: int, gathered: float, expected: float
) -> None:
    """Whole nodes of four: a tree of eight ranks beats their ring 1.75 times."""
    group = Group(4.0 * nodes, 4.0)
    assert ring_rate(cluster.gpu, group, 70e9, gathered) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("inside", "ring", "measured"),
    [
        pytest.param(130e9, 7.5e9, 15.0e9, id="8 V100, one card"),
        pytest.param(231e9, 31.8e9, 57.2e9, id="8 A100, four cards"),
        pytest.param(475e9, 188.5e9, 338.8e9, id="8 H100, a card each"),
        pytest.param(475e9, 320e9, 430e9, id="8 H100 with NVLS, a faster card each"),
        pytest.param(361e9, 320e9, 330e9, id="without NVLS"),
    ],
)
def test_machines_of_few_cards_and_many(
    cluster: Cluster, inside: float, ring: float, measured: float
) -> None:
    """What two nodes of eight measured (`trees`), from their ring and their links inside."""
    machine = cluster.model_copy(
        update={"gpus_per_node": 8, "node": link(0.0, inside), "network": link(0.0, ring)}
    )
    found = bus_bandwidth(machine, "all_reduce", Group(16.0, 8.0))
    assert found == pytest.approx(measured, rel=0.07)
