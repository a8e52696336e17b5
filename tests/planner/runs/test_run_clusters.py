"""The cluster that a row names: its card, and the network as it measured it."""

import pytest
from rows import ROW

from meshplan.costmodels.seconds.collectives import collective_s
from meshplan.costmodels.seconds.process_groups import Group
from meshplan.hardware_profiles.composed import compose_cluster
from meshplan.hardware_profiles.schema import Cluster
from meshplan.planner.runs.clusters import cluster_of as cluster_of_row
from meshplan.planner.runs.rows import row_of


def cluster_of(cells: dict[str, str]) -> Cluster:
    """The cluster of a row."""
    return cluster_of_row(row_of(cells))


def test_a_card_that_is_not_named_is_that_of_the_same_people() -> None:
    """torchao's H100 of unknown memory is torchtitan's."""
    unknown = ROW | {"note": "H100 memory variant not stated"}
    assert cluster_of(unknown).gpu.name == "h100-96gb-hbm2e-500w"
    assert cluster_of(ROW).gpu.name == "h100-sxm"


def test_efa_names_the_machine_of_the_card() -> None:
    """AWS' network is another machine's for each GPU, and none where no profile has it."""
    efa = {"interconnect": "NVLink5; 16x400Gb/s EFA"}
    assert cluster_of(ROW | efa).name == "aws-p5"
    assert cluster_of(ROW | efa | {"gpu": "b300"}).name == "aws-p6-b300"
    assert cluster_of(ROW | efa | {"gpu": "b200"}).name == "dgx-b200"


def test_slingshot_names_perlmutter_for_its_card_alone() -> None:
    """A100 of 80 GB; GH200 and A100 of 40 GB on Slingshot are other machines'."""
    slingshot = {"interconnect": "NVLink3; 4x200 Gb/s Slingshot", "gpus_per_node": "4"}
    assert cluster_of(ROW | slingshot | {"gpu": "a100-80gb-sxm"}).name == "perlmutter"
    assert cluster_of(ROW | slingshot | {"gpu": "a100-40gb-sxm"}).name == "aws-p4d"
    assert cluster_of(ROW | slingshot | {"gpu": "gh200"}).name == "alps-gh200"


def test_slingshot_of_a_card_without_a_cluster_is_what_flags_say() -> None:
    """Perlmutter's A100 of 40 GB: four cards of 200 Gb/s for four GPUs, as `--gpu a100-40gb-sxm
    --gpus-per-node 4 --network 200Gb/s` has them; not AWS's half node.
    """
    said = {"gpu": "a100-40gb-sxm", "interconnect": "4 x 200 Gb/s Slingshot 11"}
    found = cluster_of(ROW | said | {"gpus_per_node": "4"}).network
    assert found == compose_cluster("a100-40gb-sxm", 4, 25e9).network
    assert found.bus_bandwidth.all_gather > 40e9 > 21e9  # half of aws-p4d's node


def test_a_network_that_the_job_measured_comes_after_its_cards() -> None:
    """Two cards of 25 GB/s a node, of which sockets reach 5.5: 0.85 of 5.5 for the whole node."""
    text = "NVLink3; 2x200 Gb/s Slingshot by TCP sockets; 5.5 GB/s per node measured"
    row = ROW | {"gpu": "a100-40gb-sxm", "gpus_per_node": "4", "interconnect": text}
    assert cluster_of(row).network.bus_bandwidth.all_gather == pytest.approx(0.85 * 5.5e9)


def test_a_stalling_network_is_reproduced() -> None:
    """A job that measured 6.4 GB/s over 512 ranks in all_gather and 13 in all_reduce: 1 GiB takes
    it as long as it said, and the usual network's rates stand beside the stall.
    """
    job = ROW | {"gpus": "512", "dp": "512", "world_allgather_gbs": "6.4"}
    cluster = cluster_of(job | {"world_allreduce_gbs": "13"})
    usual, ranks = cluster_of(ROW).network, Group(512.0, 8.0)
    assert cluster.network.latency_s == usual.latency_s
    gathered_s = collective_s(cluster, "all_gather", 2.0**30, ranks)
    assert gathered_s == pytest.approx(511 / 512 * 2**30 / 6.4e9, rel=1e-9)
    reduced_s = collective_s(cluster, "all_reduce", 2.0**30, ranks)
    assert reduced_s == pytest.approx(2 * 511 / 512 * 2**30 / 13e9, rel=0.15)
    fast = cluster_of(job | {"world_allgather_gbs": "250", "world_allreduce_gbs": "200"}).network
    assert fast.stall_s == 0
    assert fast.bus_bandwidth.all_reduce == 200e9
    for gpus in (16, 12):  # of two nodes, the second whole or half
        cells = {"gpus": str(gpus), "dp": str(gpus), "world_allreduce_gbs": "90"}
        group, moved = Group(float(gpus), 8.0), 2 * (gpus - 1) / gpus * 2**30
        pair = cluster_of(ROW | cells)
        tree_s = collective_s(pair, "all_reduce", 2.0**30, group, one_message=False)
        assert tree_s == pytest.approx(moved / 90e9, rel=0.02)


@pytest.mark.parametrize(("gathered", "reduced"), [(30, 30), (20, 40)])
def test_beside_a_stall_two_nodes_measured_a_tree(gathered: float, reduced: float) -> None:
    """What the stall leaves of an all_reduce sends 1 GiB once; the rate is the ring's, 16 / 30 of
    what it prints.
    """
    measured = {"world_allgather_gbs": str(gathered), "world_allreduce_gbs": str(reduced)}
    network = cluster_of(ROW | {"gpus": "16", "dp": "16"} | measured).network
    usual = cluster_of(ROW).network
    gather_s, wire_s = (
        15 / 16 * 2**30 / rate for rate in (gathered * 1e9, usual.bus_bandwidth.all_gather)
    )
    stalled_s = gather_s - wire_s - 15 * usual.latency_s
    left_s = 2 * 15 / 16 * 2**30 / (reduced * 1e9) - stalled_s
    assert network.bus_bandwidth.all_reduce == pytest.approx(2**30 / left_s)


def test_a_ring_is_no_slower_than_its_all_gather() -> None:
    """Where a tree of two nodes was held to what is inside them: 16 / 30 of 400 GB/s are 213."""
    usual = cluster_of(ROW).network.bus_bandwidth.all_gather
    measured = {"world_allgather_gbs": str(usual / 1e9), "world_allreduce_gbs": "400"}
    network = cluster_of(ROW | {"gpus": "16", "dp": "16"} | measured).network
    assert network.bus_bandwidth.all_reduce == pytest.approx(usual)


def test_a_stall_makes_no_ring_faster_than_usual() -> None:
    """What its all_gathers' stalls leave of an all_reduce would be faster than H100s' network."""
    usual = cluster_of(ROW).network.bus_bandwidth.all_reduce
    measured = {"world_allgather_gbs": "30", "world_allreduce_gbs": "60"}
    network = cluster_of(ROW | {"gpus": "64", "dp": "64"} | measured).network
    assert network.stall_s > 0
    assert network.bus_bandwidth.all_reduce == usual


def test_a_machine_that_is_named_has_the_cards_of_its_maker() -> None:
    """Eight cards of 200 Gb/s = 25e9 bytes/s, of which 0.85 are reached: 170e9 a node."""
    cells = ROW | {"gpu": "a100-40gb-sxm", "gpus": "32", "gpus_per_node": "8"}
    machine = "NVLink3; DGX A100 cluster, network not stated"
    network = cluster_of(cells | {"interconnect": machine}).network
    assert network.bus_bandwidth.all_gather == pytest.approx(8 * 25e9 * 0.85)
    stated = cluster_of(cells | {"interconnect": f"{machine}; 8x400 Gb/s NDR IB"}).network
    assert stated.bus_bandwidth.all_gather > 1.9 * network.bus_bandwidth.all_gather


def test_four_gh200_of_a_node_have_the_links_of_their_board() -> None:
    """Whoever runs it: Isambard-AI has the 4 x 200 Gb/s of Alps beside it too."""
    cells = ROW | {"gpu": "gh200", "gpus": "32", "gpus_per_node": "4"}
    four = cluster_of(cells | {"interconnect": "NVLink; Slingshot: 4x200 Gb/s NICs"})
    alps = cluster_of(cells | {"interconnect": "Slingshot (Alps Clariden)"})
    assert four.node == alps.node
    assert four.network.bus_bandwidth == alps.network.bus_bandwidth
    assert four.gpu == alps.gpu


def test_a_node_of_fewer_gpus_has_fewer_cards() -> None:
    """Four H200 a node have half of what eight share; what a GPU sends alone is its own card's."""
    cells = ROW | {"gpu": "h200", "gpus": "32", "interconnect": "NVLink4; InfiniBand"}
    four = cluster_of(cells | {"gpus_per_node": "4"}).network.bus_bandwidth
    eight = cluster_of(cells | {"gpus_per_node": "8"}).network.bus_bandwidth
    assert (four.all_gather, four.all_reduce) == (eight.all_gather / 2, eight.all_reduce / 2)
    assert four.send == eight.send


@pytest.mark.parametrize(
    ("gpu", "said", "name"),
    [
        pytest.param("h100-sxm", "GCP A3 (h100-80gb-8)", "gcp-a3-high", id="its accelerator"),
        pytest.param("h100-sxm", "NVLink4; GCP A3 Mega (TCPXO)", "gcp-a3-mega", id="Mega"),
        pytest.param("v100-32gb", "NVLink2; Omni-Path (JeanZay)", "jean-zay-v100", id="V100"),
        pytest.param("a100-80gb-sxm", "Omni-Path (JeanZay)", "jean-zay-a100", id="A100"),
    ],
)
def test_a_cluster_that_was_measured_is_found_by_its_words(gpu: str, said: str, name: str) -> None:
    """What nccl-tests reached there, not a fraction of the cards: Jean Zay's V100 have a seventh of
    them, A3 High a half.
    """
    assert cluster_of(ROW | {"gpu": gpu, "gpus": "64", "interconnect": said}).name == name


def test_the_network_of_alps_is_named() -> None:
    """Four GH200 on one NVLink: a node of its own, not Vista's of one."""
    cells = ROW | {"gpu": "gh200", "gpus": "32", "gpus_per_node": "4"}
    alps = cluster_of(cells | {"interconnect": "NVLink; Slingshot (Alps Clariden)"})
    assert (alps.name, alps.gpu.name, alps.gpus_per_node) == ("alps-gh200", "gh200-660w", 4)
    alone = cells | {"gpus_per_node": "1", "interconnect": "InfiniBand"}
    assert cluster_of(alone).name == "gh200-vista"
