"""The clusters: links in the right units and order, sources, and curves that fit their points."""

import csv
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from close import close

from meshplan import hardware_profiles
from meshplan.hardware_profiles.built_in import cluster_names, gpu_names, usual_cluster
from meshplan.hardware_profiles.composed import compose_cluster
from meshplan.hardware_profiles.curves import curve_seconds, fit_curves
from meshplan.hardware_profiles.files.profile_file import UnknownProfile
from meshplan.hardware_profiles.files.toml_io import read_toml
from meshplan.hardware_profiles.fingerprint import cluster_hash
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.network_schema import CurveFit, CurvePoint, Interference

PUBLISHED = Path(hardware_profiles.__file__).parent / "published"
LINKS = Path(hardware_profiles.__file__).parent / "links"
RINGS = ("all_reduce", "all_gather", "reduce_scatter")


@pytest.mark.parametrize("name", cluster_names())
def test_every_link_figure_has_a_source(name: str) -> None:
    """Latency and bandwidth of both tiers say where they come from, one by one or as a whole."""
    sources = load_cluster(name).sources
    for tier in ("node", "network"):
        assert f"{tier}.latency_s" in sources
        parts = [f"{tier}.bus_bandwidth.{kind}" for kind in (*RINGS, "all_to_all", "send")]
        assert f"{tier}.bus_bandwidth" in sources or all(part in sources for part in parts)


@pytest.mark.parametrize("name", ["workstation-4x4090", "rtx-5090-8"])
def test_a_ring_without_peer_to_peer_copies_passes_the_hosts_memory(name: str) -> None:
    """Cards that may not copy to each other write what a ring sends to the host and read it."""
    cluster = load_cluster(name)
    passed = 2 * cluster.gpus_per_node * cluster.node.bus_bandwidth.all_reduce
    assert passed <= cluster.host_memory_bytes_per_s


def test_each_gpu_has_a_usual_cluster() -> None:
    """Of the CPU it is this machine."""
    usual = {name: usual_cluster(name) for name in gpu_names()}
    assert all(cluster.gpu.name == name for name, cluster in usual.items() if name != "cpu")
    assert usual["cpu"].gpu.vendor == "cpu"
    assert usual["cpu"].host_memory_bytes == load_cluster("local-cpu").host_memory_bytes


def test_rtx_5090_are_met_in_a_node_of_their_own() -> None:
    """PCIe 5 carries nearly three times what the workstation's PCIe 4 does (28 and 10.4 GB/s)."""
    assert usual_cluster("rtx-5090").node.bus_bandwidth.all_reduce == 2.8e10


@pytest.mark.parametrize("name", [n for n in cluster_names() if n != "local-cpu"])
def test_one_rank_is_not_faster_than_its_node(name: str) -> None:
    """Between nodes, one rank's own card carries no more than the whole node's cards do."""
    network = load_cluster(name).network.bus_bandwidth
    assert network.send <= network.all_gather
    assert network.all_to_all <= network.all_gather


@pytest.mark.parametrize("name", cluster_names())
def test_fits_are_those_of_the_points(name: str) -> None:
    """The fits in a file are what fitting its points gives, so neither was edited alone."""
    cluster = load_cluster(name)
    assert close(cluster.collective_fits, fit_curves(cluster.collective_points))


@pytest.mark.parametrize("path", sorted(LINKS.glob("*.toml")), ids=lambda path: path.stem)
def test_fits_of_links_are_those_of_their_points(path: Path) -> None:
    """Within 4 % of half of their points, as the clusters' own."""
    document = read_toml(path)
    points = [CurvePoint.model_validate(point) for point in document["collective_points"]]
    fits = tuple(CurveFit.model_validate(fit) for fit in document["collective_fits"])
    assert close(fits, fit_curves(points))
    assert max(fit.residual for fit in fits) < 0.04
    assert all(point.nodes == 1 for point in points)


@pytest.mark.parametrize("name", cluster_names())
def test_curves_reach_the_bandwidth_that_the_link_states(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The largest all-reduce over a whole node agrees with the node's bus bandwidth within 15 %."""
    cluster = load_cluster(name)
    if cluster.gpus_per_node == 1:
        return
    for fit in cluster.collective_fits:
        if (fit.kind, fit.nodes, fit.ranks_per_node) == ("all_reduce", 1, cluster.gpus_per_node):
            n, size_bytes = cluster.gpus_per_node, 8 * 2**30
            rate = size_bytes * 2 * (n - 1) / n / float(curve_seconds(fit, size_bytes))
            error = rate / cluster.node.bus_bandwidth.all_reduce - 1
            with capsys.disabled():
                print(f"\n{name}: all_reduce of 8 GiB {rate / 1e9:.0f} GB/s, stated {error:+.1%}")
            assert abs(error) < 0.15


def test_p5_latency_is_the_one_of_its_jobs() -> None:
    """AWS p5: 1 GiB all-gathers on 4-64 healthy nodes grow by 40 us per ring step, to 10 %."""
    with (PUBLISHED / "bandwidth-by-nodes.csv").open(encoding="utf-8") as stream:
        rows = [
            row
            for row in csv.DictReader(stream)
            if row["collective"] == "all_gather"
            and row["scope"] == "world"
            and "<=" in row["subset"]
            and int(row["nodes"]) >= 4
        ]
    ranks = np.array([8 * int(row["nodes"]) for row in rows])
    rate = np.array([float(row["median_gbs"]) for row in rows]) * 1e9
    seconds = (ranks - 1) / ranks * 2**30 / rate
    slope, start = np.polyfit(ranks - 1, seconds, 1)
    link = load_cluster("aws-p5").network
    assert link.latency_s == pytest.approx(slope, rel=0.1)
    assert link.bus_bandwidth.all_gather == pytest.approx(2**30 / start, rel=0.1)


@pytest.mark.parametrize("gpu", ["h100-sxm", "a100", "b200", "mi300x", "h100-pcie"])
def test_composed_clusters_take_the_node_of_their_kind(gpu: str) -> None:
    """`--gpus-per-node 4 --network 25GB/s`: the usual node, 4 cards at the stated fraction."""
    cluster = compose_cluster(gpu, 4, 25e9)
    assert cluster.gpus_per_node == 4
    assert cluster.network.bus_bandwidth.all_reduce == pytest.approx(4 * 25e9 * 0.85)
    assert cluster.network.bus_bandwidth.send == pytest.approx(25e9 * 0.85)
    assert cluster.kernels is not None
    assert cluster.kernels.gpu == cluster.gpu.name


@pytest.mark.parametrize(
    ("typed", "cluster", "board"),
    [
        ("mn5", "marenostrum5", "h100-sxm"),
        ("h100-64gb", "marenostrum5", "h100-sxm"),
        ("leonardo-booster", "leonardo", "a100-80gb-sxm"),
        ("a100-64gb", "leonardo", "a100-80gb-sxm"),
    ],
)
def test_machines_with_cards_of_64_gb(typed: str, cluster: str, board: str) -> None:
    """Found by what their users type; four GPUs on the board that others of their kind sit on."""
    found = load_cluster(typed)
    assert found.name == cluster
    assert found.node == compose_cluster(board, 4, 25e9).node


def test_islands_of_marenostrum_are_half_as_fast_to_each_other() -> None:
    """160 nodes of four GPUs an island, 1:2 between islands; a group within one does not notice."""
    cluster = load_cluster("marenostrum5")
    assert cluster.pod is not None
    assert (cluster.pod.gpus, cluster.pod.oversubscription) == (160 * 4, 2.0)


def test_an_a800_has_eight_of_twelve_links() -> None:
    """NVLink of 400 GB/s for 600; its network and chip are the A100's."""
    cut, whole = load_cluster("a800"), load_cluster("dgx-a100")
    rates, known = (dict(cluster.node.bus_bandwidth) for cluster in (cut, whole))
    assert rates == pytest.approx({kind: rate * 2 / 3 for kind, rate in known.items()}, rel=0.01)
    assert cut.network.bus_bandwidth.all_reduce == whole.network.bus_bandwidth.all_reduce
    assert cut.gpu.peak_flops_per_s == whole.gpu.peak_flops_per_s


def test_a_board_of_four_has_links_that_a_node_of_one_has_not() -> None:
    """Vista's GH200 are alone in their nodes: its links between GPUs are a network's."""
    alone, four = compose_cluster("gh200", 1, 25e9), compose_cluster("gh200", 4, 25e9)
    assert alone.node == load_cluster("gh200-vista").node
    board = load_cluster("alps-gh200")
    assert (four.node, four.gpu, four.kernels) == (board.node, board.gpu, board.kernels)


def test_a_composed_cluster_has_the_host_of_its_kind() -> None:
    """33.17 us for an nn.Linear on Grace, 13.48 on a DGX H100; x86 hosts alike."""
    grace = compose_cluster("gh200", 4, 25e9)
    assert grace.host_slowdown == pytest.approx(33.17 / 13.48, rel=1e-3)
    assert compose_cluster("h100-sxm", 4, 25e9).host_slowdown == 1
    usual = grace.model_copy(update={"host_slowdown": 1.0})
    assert cluster_hash(usual) != cluster_hash(grace)


def test_composed_names_take_a_bandwidth_as_it_is_written_elsewhere() -> None:
    """As `--network` takes it: each GPU's card, or the cards of a node; `/s` makes it no path."""
    assert load_cluster("h100-sxm:8:400Gb/s") == load_cluster("h100-sxm:8:400Gb")
    of_four = compose_cluster("h100-sxm", 4, 12.5e9)
    for network in ("100Gb", "12.5GB/s", "4x100Gb/s", "1x400Gb"):
        assert load_cluster(f"h100-sxm:4:{network}") == of_four
    with pytest.raises(UnknownProfile, match="8x400Gb"):
        load_cluster("h100-sxm:8:400Gb/s/x")


@pytest.mark.parametrize(
    ("gpu", "of_four"),
    [
        pytest.param("a100-80gb-sxm", True, id="HGX A100 4-GPU"),
        pytest.param("a100-40gb-sxm", True, id="and of 40 GB"),
        pytest.param("h100-sxm", True, id="HGX H100 4-GPU"),
        pytest.param("h200", True, id="HGX H200 4-GPU"),
        pytest.param("b200", False, id="no board of four"),
        pytest.param("a100-80gb-pcie", False, id="no NVLink"),
    ],
)
def test_four_in_a_node_are_wired_pair_by_pair(gpu: str, *, of_four: bool):
    """Two of four use one of three links; a node of eight has a switch, and keeps its own links."""
    four, eight = usual_cluster(gpu, 4), usual_cluster(gpu, 8)
    assert (four.node.meshed == 4) == of_four
    assert four.node == eight.node or of_four
    assert eight.node == usual_cluster(gpu).node
    assert four.gpu.name == eight.gpu.name == gpu


def test_two_of_perlmutters_four_reach_what_was_measured():
    """A third of four ranks' all-reduce; the slopes of two were 66 to 81e9 bytes/s."""
    node = load_cluster("perlmutter").node
    assert 66e9 < node.bus_bandwidth.all_reduce / (node.meshed - 1) < 81e9


@pytest.mark.parametrize(
    ("gpus_per_node", "name"), [(1, "gh200-vista"), (2, "alps-gh200"), (4, "alps-gh200")]
)
def test_a_module_that_has_a_node_alone_or_shares_one(gpus_per_node: int, name: str) -> None:
    """With any other on its node it has links to that, and is as it is there."""
    found = usual_cluster("gh200", gpus_per_node)
    assert found.name == name
    assert (found.gpus_per_node > 1) == (gpus_per_node > 1)


@pytest.mark.parametrize(
    ("communication", "compute", "slowdown"),
    [
        pytest.param(1.2, 1.5, 0.4 / 0.6, id="1.2 (1 - 1 / 1.5) = 0.4"),
        pytest.param(1.2, 0.9, 0.0, id="computing that is no slower costs nothing"),
        pytest.param(2.0, 2.0, 0.99 / 0.01, id="all of it, but for a hundredth"),
        pytest.param(3.0, 2.0, 0.99 / 0.01, id="and no more"),
    ],
)
def test_what_is_seen_of_a_message_beside_computing(
    communication: float, compute: float, slowdown: float
) -> None:
    """i of which i / (1 + i) is c (1 - 1 / k)."""
    found = Interference(compute=compute, communication=communication).slowdown
    assert found == pytest.approx(slowdown)


def test_fields_that_profiles_got_later_count_where_they_are_not_the_default() -> None:
    """A profile without pods, meshes and the like has the hash of a file that never names them."""
    cluster = load_cluster("dgx-h100")
    no_kernels = cluster.model_copy(update={"kernels": None, "node": cluster.network})
    link = {"meshed", "interference", "collective_fits"}
    content = no_kernels.model_dump(
        mode="json",
        exclude={
            "plan_memory_bytes": True, "pod": True, "host_slowdown": True,
            "node": link, "network": link, "collective_fits": {"__all__": {"apart"}},
            "collective_points": {"__all__": {"processor_s", "apart"}},
        },
    )  # fmt: skip
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    assert cluster_hash(no_kernels) == hashlib.sha256(text.encode()).hexdigest()[:16]
    meshed = cluster.node.model_copy(update={"meshed": 7})
    assert cluster_hash(cluster.model_copy(update={"node": meshed})) != cluster_hash(cluster)
