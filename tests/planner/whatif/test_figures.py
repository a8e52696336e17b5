"""Figures of a cluster times a factor: what moves with each, and what does not."""

import pytest

from meshplan.costmodels.seconds.collectives import collective_s, send_s
from meshplan.costmodels.seconds.process_groups import Group
from meshplan.hardware_profiles.curves import curve_seconds
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.network_schema import CurveFit
from meshplan.planner.answer.question import BadQuestion
from meshplan.planner.whatif.changes import parse_factor
from meshplan.planner.whatif.figures import FIGURES

CLUSTER = load_cluster("dgx-h100")


@pytest.mark.parametrize(
    ("text", "factor"),
    [("2x", 2.0), ("0.5x", 0.5), ("+50%", 1.5), ("-20%", 0.8), (" 1.1 x ", 1.1)],
)
def test_factors_by_hand(text: str, factor: float) -> None:
    """`2x` is times, `+50%` is more, `-20%` is less."""
    assert parse_factor("--hbm", text) == pytest.approx(factor)


@pytest.mark.parametrize("text", ["2", "x", "-100%", "0x", "50%", "1e3x", "nanx", "1001x"])
def test_no_factor_is_refused(text: str) -> None:
    """What is no factor, or one out of range, is one line with the option and the forms."""
    with pytest.raises(BadQuestion, match=r"--hbm .* write 2x, 0\.5x, \+50% or -20%"):
        parse_factor("--hbm", text)


def test_network_moves_only_what_crosses_nodes() -> None:
    """Twice the network halves the wire time between nodes; inside a node all is as before."""
    wider = FIGURES["network"].scaled(CLUSTER, 2.0)
    inside, across = Group(8.0, 8.0), Group(16.0, 8.0)
    size = 1e9
    for kind in ("all_gather", "all_to_all", "all_reduce"):
        before, after = (collective_s(c, kind, size, inside) for c in (CLUSTER, wider))
        assert before == after
    slower = [FIGURES["network"].scaled(CLUSTER, factor) for factor in (0.5, 0.25)]
    hops = collective_s(CLUSTER, "all_gather", 0.0, across)
    before, after = (collective_s(c, "all_gather", size, across) for c in slower)
    assert after - hops == pytest.approx(2 * (before - hops))
    sent = [send_s(c, size, across_nodes=True) for c in (CLUSTER, wider)]
    latency = CLUSTER.network.latency_s
    assert sent[0] - latency == pytest.approx(2 * (sent[1] - latency))


def test_measured_curves_stretch_with_their_link() -> None:
    """With 3 x the bandwidth 3 x the bytes take as long; with 3 x the latency all sizes take twice
    the smallest's time longer; a curve of the other tier stays.
    """
    lines = {"latency_s": (1e-5, 4e-6), "bandwidth_bytes_per_s": (1e10, 2e10), "residual": 0.0}
    between = CurveFit(kind="all_gather", ranks_per_node=8, nodes=2, **lines)
    within = CurveFit(kind="all_gather", ranks_per_node=8, nodes=1, **lines)
    cluster = CLUSTER.model_copy(update={"collective_fits": (between, within)})
    wide, same = FIGURES["network"].scaled(cluster, 3.0).collective_fits
    late, also = FIGURES["network_latency"].scaled(cluster, 3.0).collective_fits
    assert same == also == within
    for size in (1e3, 1e5, 1e7):
        assert curve_seconds(wide, 3 * size) == pytest.approx(curve_seconds(between, size))
        assert curve_seconds(late, size) == pytest.approx(curve_seconds(between, size) + 2e-5)


@pytest.mark.parametrize("name", sorted(FIGURES))
def test_no_factor_changes_nothing(name: str) -> None:
    """Times one is the same cluster; back and forth too; twice is another one."""
    scaled = FIGURES[name].scaled
    assert scaled(CLUSTER, 1.0) == CLUSTER
    assert scaled(scaled(CLUSTER, 2.0), 0.5) == CLUSTER
    assert scaled(CLUSTER, 2.0) != CLUSTER
