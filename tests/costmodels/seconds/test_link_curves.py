"""Collectives by the curves of a kind of link: by hand, and laws over all clusters with curves."""

import numpy as np
import pytest
from links import COLLECTIVES, four_gpus_a_node

from meshplan.costmodels.layouts import Floats
from meshplan.costmodels.seconds.collectives import collective_s
from meshplan.costmodels.seconds.process_groups import Group
from meshplan.hardware_profiles.built_in import cluster_names
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.network_schema import CollectiveKind, CurveFit
from meshplan.hardware_profiles.schema import Cluster

WITH_CURVES = [name for name in cluster_names() if load_cluster(name).node.collective_fits]
CLOSE = 1 - 1e-12
SIZES = 2.0 ** np.arange(8, 36, 0.25)


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return four_gpus_a_node()


def test_curves_of_a_link_are_of_one_message_inside_a_node(cluster: Cluster) -> None:
    """A pair takes 1 ms + 1 s / GB; many messages together and two nodes keep to the formula, and
    what the cluster measured itself wins.
    """
    known, pair = on_link(cluster, {2: (1e-3, 1e9)}), Group(2.0, 2.0)
    assert collective_s(known, "all_gather", 2e9, pair) == pytest.approx(2.001)
    summed = collective_s(known, "all_gather", 2e9, pair, one_message=False)
    assert summed == collective_s(cluster, "all_gather", 2e9, pair)
    for apart in (Group(2.0, 1.0), Group(4.0, 2.0)):
        seen, formula = (collective_s(c, "all_gather", 2e9, apart) for c in (known, cluster))
        assert seen == formula
    own = known.node.collective_fits[0].model_copy(update={"latency_s": (5e-3,)})
    profiled = known.model_copy(
        update={"collective_fits": (own,), "conditions": {"kind": "measured"}}
    )
    assert collective_s(profiled, "all_gather", 2e9, pair) == pytest.approx(2.005)


def test_groups_that_no_curve_of_a_link_is_of_lie_between_and_beyond(cluster: Cluster) -> None:
    """Pairs take 2.001 s, fours 4.003 s: threes 3.002 s, and eights as much longer than fours as by
    the formula; all at once as one by one.
    """
    known = on_link(cluster, {2: (1e-3, 1e9), 4: (3e-3, 0.5e9)})
    longer = [collective_s(cluster, "all_gather", 2e9, Group(n, n)) for n in (4.0, 8.0)]
    expected = [0.0, 2.001, 3.002, 4.003, 4.003 + longer[1] - longer[0]]
    ranks = np.array([1.0, 2.0, 3.0, 4.0, 8.0])
    assert collective_s(known, "all_gather", 2e9, Group(ranks, ranks)) == pytest.approx(expected)
    each = [collective_s(known, "all_gather", 2e9, Group(n, n)) for n in ranks.tolist()]
    assert each == pytest.approx(expected)


def on_link(cluster: Cluster, curves: dict[int, tuple[float, float]]) -> Cluster:
    """The cluster with curves of all-gather, by ranks: latency_s, bandwidth_bytes_per_s."""
    fits = tuple(
        CurveFit(
            kind="all_gather", ranks_per_node=ranks, nodes=1, latency_s=(latency_s,),
            bandwidth_bytes_per_s=(rate,), residual=0.0,
        )
        for ranks, (latency_s, rate) in curves.items()
    )  # fmt: skip
    node = cluster.node.model_copy(update={"collective_fits": fits})
    return cluster.model_copy(update={"node": node})


@pytest.mark.parametrize(("ranks", "measured_s"), [(2, 160e-6), (4, 190e-6), (8, 209e-6)])
def test_an_all_gather_of_64_mib_takes_h100s_as_long_as_measured(
    ranks: int, measured_s: float
) -> None:
    """nccl-tests 2.27.3: 67,108,864 bytes, out of place."""
    seen = collective_s(load_cluster("dgx-h100"), "all_gather", 2**26, Group(ranks, ranks))
    assert seen == pytest.approx(measured_s, rel=0.03)


def seconds_of(name: str, kind: CollectiveKind, ranks: int) -> Floats:
    """Of each of `SIZES` on so many neighbours inside a node."""
    group = Group(float(ranks), float(ranks))
    return np.asarray(collective_s(load_cluster(name), kind, SIZES, group))


@pytest.mark.parametrize("kind", COLLECTIVES)
@pytest.mark.parametrize("name", WITH_CURVES)
def test_more_bytes_take_longer(name: str, kind: CollectiveKind) -> None:
    """On groups that were measured, between them and beyond."""
    for ranks in range(2, load_cluster(name).gpus_per_node + 1):
        seconds = seconds_of(name, kind, ranks)
        assert (np.diff(seconds) > 0).all(), ranks


@pytest.mark.parametrize("kind", COLLECTIVES)
@pytest.mark.parametrize("name", WITH_CURVES)
def test_groups_that_were_not_measured_keep_the_order(name: str, kind: CollectiveKind) -> None:
    """Between two that were measured none takes longer than both, or less; beyond them time grows
    with the ranks. Of those that were measured it need not: eight H100 sum 512 MiB in 2.11 ms, four
    in 2.31.
    """
    measured = sorted({fit.ranks_per_node for fit in load_cluster(name).node.collective_fits})
    by_ranks = {
        ranks: seconds_of(name, kind, ranks)
        for ranks in range(2, load_cluster(name).gpus_per_node + 1)
    }
    for ranks, seconds in by_ranks.items():
        if ranks > measured[-1]:
            assert (seconds > by_ranks[ranks - 1]).all(), ranks
            continue
        fewer = by_ranks[max(each for each in measured if each <= ranks)]
        more = by_ranks[min(each for each in measured if each >= ranks)]
        assert (seconds >= np.minimum(fewer, more) * CLOSE).all(), ranks
        assert (seconds * CLOSE <= np.maximum(fewer, more)).all(), ranks


def test_of_large_messages_a_larger_group_is_never_much_faster() -> None:
    """From 16 MiB on four and eight take as long as two at least, to 0.2 %, and eight at most
    13.5 % less than four (the all-reduce of H100).
    """
    large = SIZES >= 2**24
    for name in WITH_CURVES:
        for kind in COLLECTIVES:
            two, four, eight = (seconds_of(name, kind, ranks)[large] for ranks in (2, 4, 8))
            assert (np.minimum(four, eight) > two * 0.998).all()
            assert (eight > four * 0.865).all()
