"""Collectives and the places of their groups, by hand on a cluster of round numbers; laws."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from links import COLLECTIVES, four_gpus_a_node, link

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.operations.kinds import Routing
from meshplan.costmodels.seconds.collectives import (
    collective_s,
    send_s,
    straggler_fraction,
)
from meshplan.costmodels.seconds.process_groups import (
    Group,
    axis_group,
    expert_data_group,
    place,
    shard_group,
)
from meshplan.hardware_profiles.network_schema import CollectiveKind, CurveFit
from meshplan.hardware_profiles.schema import Cluster

ORDER = ("tp", "cp", "ep", "dp", "pp")


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return four_gpus_a_node()


@pytest.mark.parametrize(
    ("kind", "ranks", "expected_s"),
    [
        pytest.param("all_gather", 2, 1 / 2 / 10, id="one link of 10"),
        pytest.param("all_reduce", 4, 2 * 3 / 4 / 30, id="three links of 10"),
        pytest.param("all_to_all", 4, 3 / 4 / 30, id="a quarter over each of three links"),
        pytest.param("all_gather", 8, 7 / 8 / 70, id="all seven"),
    ],
)
def test_a_group_in_a_mesh_has_the_links_between_its_ranks(
    cluster: Cluster, kind: CollectiveKind, ranks: int, expected_s: float
) -> None:
    """Eight accelerators, a link of 10 GB/s from each to each other: 70 GB/s together."""
    node = link(0.0, 70e9, 70e9).model_copy(update={"meshed": 8})
    meshed = cluster.model_copy(update={"gpus_per_node": 8, "node": node})
    group = Group(float(ranks), float(ranks))
    assert collective_s(meshed, kind, 1e9, group) == pytest.approx(expected_s)


@pytest.mark.parametrize(
    ("kind", "group", "size_bytes", "expected_s"),
    [
        pytest.param("all_reduce", Group(1.0, 1.0), 1e9, 0.0, id="one rank is free"),
        pytest.param(
            "all_gather", Group(4.0, 4.0), 1e9, 3e-6 + 7.5e-3, id="3 hops x 1 us + 3/4 1 GB / 100"
        ),
        pytest.param(
            "all_reduce", Group(4.0, 4.0), 1e9, 6e-6 + 15e-3,
            id="tree 2 (1 + log2 4) = ring 2 x 3 hops; 2 x 3/4 1 GB / 100",
        ),
        pytest.param(
            "all_reduce", Group(16.0, 4.0), 0.0, 100e-6, id="empty: tree 2 (1 + 4) x 10 us < 30"
        ),
        pytest.param(
            "reduce_scatter", Group(16.0, 4.0), 1e9, 150e-6 + 15 / 16 / 100,
            id="15 hops x 10 us; whole nodes: 200 GB/s, held to 100 inside",
        ),
        pytest.param(
            "all_gather", Group(4.0, 1.0), 1e9, 30e-6 + 0.75 / 50,
            id="one rank per node gets a quarter of 200 GB/s",
        ),
        pytest.param(
            "all_to_all", Group(8.0, 4.0), 1e9, 15.6e-6 + 0.5 / 25,
            id="10 us (1 + 7 x 0.08); 4/8 of 1 GB / 25 beats 3/8 / 50",
        ),
    ],
)  # fmt: skip
def test_collective_by_hand(
    cluster: Cluster, kind: CollectiveKind, group: Group, size_bytes: float, expected_s: float
):
    """Hops of the slowest link, then the share of the bytes that crosses it."""
    assert collective_s(cluster, kind, size_bytes, group) == pytest.approx(expected_s, rel=1e-12)


@pytest.mark.parametrize(
    ("across", "expected_s"),
    [
        pytest.param(False, 1e-6 + 1 / 50, id="inside: 1 us + 1 GB / 50"),
        pytest.param(True, 10e-6 + 1 / 25, id="across: 10 us + 1 GB / 25"),
    ],
)
def test_send_by_hand(cluster: Cluster, across: bool, expected_s: float):
    """A pipeline hop is one latency and one card's bandwidth."""
    assert send_s(cluster, 1e9, across_nodes=across) == pytest.approx(expected_s, rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "expected_s"),
    [
        pytest.param("all_gather", 15 * 110e-6, id="15 steps of 10 us and 100 us"),
        pytest.param("all_reduce", 100e-6 + 15 * 100e-6, id="tree 10 x 10 us; 15 stalls of 100 us"),
        pytest.param("all_to_all", 110e-6 * (1 + 15 * 0.08), id="as one step, for 15 peers"),
    ],
)
def test_stalls_by_hand(cluster: Cluster, kind: CollectiveKind, expected_s: float):
    """A network that stalls does so in each step of a ring, inside nodes never."""
    network = cluster.network.model_copy(update={"stall_s": 100e-6})
    stalling = cluster.model_copy(update={"network": network})
    group, inside = Group(16.0, 4.0), Group(4.0, 4.0)
    assert collective_s(stalling, kind, 0.0, group) == pytest.approx(expected_s, rel=1e-12)
    assert collective_s(stalling, kind, 1e9, inside) == collective_s(cluster, kind, 1e9, inside)
    hop_s = send_s(stalling, 0.0, across_nodes=True)
    assert hop_s == pytest.approx(110e-6, rel=1e-12)


def test_bytes_move_while_steps_stall(cluster: Cluster):
    """What takes shorter than the stalls takes nothing more; what takes longer hides them."""
    network = cluster.network.model_copy(update={"stall_s": 1e-3})
    stalling, group = cluster.model_copy(update={"network": network}), Group(16.0, 4.0)
    without = collective_s(cluster, "all_gather", 0.0, group)
    small, large = 1e6, 1e10
    bare_s = collective_s(cluster, "all_gather", small, group) - without
    assert bare_s < 15e-3
    stalled_s = collective_s(stalling, "all_gather", small, group)
    assert stalled_s == pytest.approx(without + 15e-3, rel=1e-12)
    assert collective_s(cluster, "all_gather", large, group) - without > 15e-3
    assert collective_s(stalling, "all_gather", large, group) == pytest.approx(
        collective_s(cluster, "all_gather", large, group), rel=1e-12
    )


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        pytest.param(Group(16.0, 4.0), 4 * (1 - 0.75**8) / 8, id="4 nodes: 3.6 of 8 copies"),
        pytest.param(Group(4.0, 4.0), 4 * (1 - 0.75**8) / 8, id="4 ranks of a node: 3.6 of 8"),
    ],
)
def test_one_copy_per_node_and_rank(cluster: Cluster, group: Group, expected: float):
    """8 copies of a token over 4 places meet 4 (1 - 0.75^8) = 3.6 of them: 0.45 of the bytes."""
    plain, once = (
        collective_s(cluster, "all_to_all", 1e9, group, routing)
        - collective_s(cluster, "all_to_all", 0.0, group, routing)
        for routing in (Routing(1), Routing(8))
    )
    assert once / plain == pytest.approx(expected, rel=1e-9)


def test_single_copies_go_on_inside_their_node(cluster: Cluster):
    """On a network faster than the links, 2 nodes of 4: 8 (1 - (7/8)^2) = 1.875 ranks get a copy,
    of which 6 in 8 are not those that it came to.
    """
    fast = cluster.model_copy(update={"network": link(0.0, 1e15), "node": link(0.0, 100e9)})
    seconds = collective_s(fast, "all_to_all", 2e9, Group(8.0, 4.0), Routing(2))
    assert seconds == pytest.approx(1e9 * 1.875 * 6 / 8 / 100e9, rel=1e-3)


@given(
    kind=st.sampled_from(COLLECTIVES),
    size_bytes=st.floats(0, 1e11),
    ranks=st.sampled_from((1, 2, 4, 8, 64, 512)),
    stride=st.sampled_from((1, 2, 8)),
    factor=st.floats(1, 10),
)
def test_more_bandwidth_is_never_slower(cluster, kind, size_bytes, ranks, stride, factor):
    """Scaling every link up, or the array down, never costs time."""
    group = place(float(ranks), float(stride), cluster.gpus_per_node)
    faster = cluster.model_copy(
        update={
            tier: link(
                getattr(cluster, tier).latency_s,
                getattr(cluster, tier).bus_bandwidth.all_reduce * factor,
                getattr(cluster, tier).bus_bandwidth.send * factor,
            )
            for tier in ("node", "network")
        }
    )
    time_s = collective_s(cluster, kind, size_bytes, group)
    assert collective_s(faster, kind, size_bytes, group) <= time_s
    assert collective_s(cluster, kind, size_bytes / factor, group) <= time_s


@given(kind=st.sampled_from(COLLECTIVES), size_bytes=st.floats(0, 1e11))
def test_arrays_are_the_numbers_they_hold(
    cluster: Cluster, kind: CollectiveKind, size_bytes: float
):
    """A formula over many groups gives each what it gives alone."""
    ranks, stride = np.array([1.0, 2.0, 8.0, 64.0]), np.array([1.0, 4.0, 1.0, 2.0])
    together = collective_s(cluster, kind, size_bytes, place(ranks, stride, cluster.gpus_per_node))
    for row, (n, steps) in enumerate(zip(ranks, stride, strict=True)):
        alone = collective_s(
            cluster, kind, size_bytes, place(float(n), float(steps), cluster.gpus_per_node)
        )
        assert np.broadcast_to(together, 4)[row] == pytest.approx(alone, rel=1e-12)


def test_bandwidth_left_at_scale(cluster: Cluster):
    """Half of the network left at 16 nodes: a group of 16 nodes takes twice as long on the wire."""
    worn = cluster.model_copy(update={"bandwidth_by_nodes": {1: 1.0, 16: 0.5}})
    group = Group(16.0, 1.0)
    latency = collective_s(cluster, "all_gather", 0.0, group)
    full, half = (collective_s(c, "all_gather", 1e9, group) - latency for c in (cluster, worn))
    assert half == pytest.approx(2 * full)


LAYOUT = Layout(
    tensor_parallel=4, context_parallel=2, data_parallel=16, pipeline_parallel=4,
    expert_parallel=16, stages=even_stages(8, 4),
)  # fmt: skip


@pytest.mark.parametrize(
    ("axis", "ranks", "on_node"),
    [
        pytest.param("tp", 4, 4, id="tp: 4 neighbours of 8"),
        pytest.param("cp", 2, 2, id="cp: 4 apart, 8 / 4 = 2 on a node"),
        pytest.param("dp", 16, 1, id="dp: 8 apart, alone on its node"),
        pytest.param("pp", 4, 1, id="pp: 128 apart"),
        pytest.param("ep", 16, 8, id="ep runs through tp, cp and dp: 8 of 16 on a node"),
    ],
)
def test_group_of_axis_by_hand(axis, ranks: int, on_node: int):
    """Ranks are numbered innermost axis first, and 8 neighbours share a node."""
    group = axis_group(LAYOUT, axis, ORDER, 8)
    assert (group.size, group.ranks_per_node) == (ranks, on_node)
    assert group.nodes == math.ceil(ranks / on_node)


def test_groups_of_weights_by_hand():
    """Dense weights are shared by dp x cp = 32 ranks 4 apart; experts by 128 / 16 = 8, 16 apart."""
    dense, expert = shard_group(LAYOUT, ORDER, 8), expert_data_group(LAYOUT, 8)
    assert (dense.size, dense.ranks_per_node) == (32, 2)
    assert (expert.size, expert.ranks_per_node) == (8, 1)


@given(size=st.integers(1, 4096), stride=st.sampled_from((1, 2, 3, 8, 64)), gpus=st.integers(1, 72))
def test_group_fits_its_nodes(size: int, stride: int, gpus: int):
    """A group has at most its own size on a node, at least one rank, and nodes enough for all."""
    group = place(float(size), float(stride), gpus)
    assert 1 <= group.ranks_per_node <= min(size, gpus)
    assert (group.nodes - 1) * group.ranks_per_node < size <= group.nodes * group.ranks_per_node


def _pair(kind: CollectiveKind, apart_by: float | None = None) -> CurveFit:
    """What was measured of a pair on a node: 1 ms, and 1 s per GB."""
    return CurveFit(
        kind=kind, ranks_per_node=2, nodes=1, latency_s=(1e-3,), bandwidth_bytes_per_s=(1e9,),
        residual=0.0, apart=apart_by,
    )  # fmt: skip


def _profiled(cluster: Cluster, *fits: CurveFit) -> Cluster:
    """The cluster with these curves, measured on itself."""
    known = {"collective_fits": fits, "conditions": {"kind": "measured"}}
    return cluster.model_copy(update=known)


def test_a_measured_curve_wins_where_its_group_shape_is_asked_for(cluster: Cluster) -> None:
    """A profiled pair takes 1 ms + 1 s / GB as measured; four ranks are priced by the formula."""
    profiled = _profiled(cluster, _pair("all_reduce"))
    assert collective_s(profiled, "all_reduce", 2e9, Group(2.0, 2.0)) == pytest.approx(2.001)
    groups = Group(np.array([1.0, 2.0, 4.0]), np.array([1.0, 2.0, 4.0]))
    formula = np.asarray(collective_s(cluster, "all_reduce", 2e9, groups))
    assert collective_s(profiled, "all_reduce", 2e9, groups) == pytest.approx(
        np.array([0.0, 2.001, formula[2]])
    )
    assert cluster.kernels is not None
    slowdown = cluster.kernels.model_copy(update={"shared_slowdown": {"collectives": 1.5}})
    with_others = profiled.model_copy(update={"kernels": slowdown})
    assert collective_s(with_others, "all_reduce", 2e9, groups) == pytest.approx(
        np.array([0.0, 1.5 * 2.001, formula[2]])
    )
    published = profiled.model_copy(update={"conditions": {"kind": "published"}})
    assert collective_s(published, "all_reduce", 2e9, Group(2.0, 2.0)) == pytest.approx(formula[1])


def test_a_measured_send_wins(cluster: Cluster) -> None:
    """A message inside a node takes what the pair took; between nodes nothing was measured."""
    profiled = _profiled(cluster, _pair("send"))
    assert send_s(profiled, 1e9, across_nodes=False) == pytest.approx(1.001)
    assert send_s(profiled, 1e9, across_nodes=True) == send_s(cluster, 1e9, across_nodes=True)


def test_what_ranks_wait_for_is_measured_or_nothing(cluster: Cluster) -> None:
    """The mean of (2 + 6) / 2 = 4 % for a pair on one node; nothing for other groups, by a profile
    without it, and by what others published.
    """
    fits = (_pair("all_reduce", 0.02), _pair("all_gather", 0.06), _pair("send", None))
    profiled = _profiled(cluster, *fits)
    groups = Group(np.array([1.0, 2.0, 4.0, 2.0]), np.array([1.0, 2.0, 4.0, 1.0]))
    assert straggler_fraction(profiled, groups) == pytest.approx(np.array([0.0, 0.04, 0.0, 0.0]))
    older = profiled.model_copy(update={"collective_fits": (_pair("all_reduce", None),)})
    assert straggler_fraction(older, Group(2.0, 2.0)) == 0.0
    published = profiled.model_copy(update={"conditions": {"kind": "published"}})
    assert straggler_fraction(published, Group(2.0, 2.0)) == 0.0


def test_what_is_known_of_a_groups_links_is_of_one_cluster(cluster: Cluster) -> None:
    """100 GB/s in a node, then 50 and 2 us a hop: the same group, asked by turns."""
    slower = cluster.model_copy(update={"node": link(2e-6, 50e9, 50e9)})
    group = Group(4.0, 4.0)
    for _ in range(2):
        assert collective_s(cluster, "all_gather", 1e9, group) == pytest.approx(3e-6 + 7.5e-3)
        assert collective_s(slower, "all_gather", 1e9, group) == pytest.approx(6e-6 + 15e-3)
