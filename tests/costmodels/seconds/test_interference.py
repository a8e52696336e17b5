"""What computing loses beside a collective, by where the collective's ranks are."""

import numpy as np
import pytest

from meshplan.costmodels.seconds.interference import (
    BESIDE_EXPERTS,
    beside_experts,
    exposed_s,
    interference_of,
)
from meshplan.costmodels.seconds.process_groups import place
from meshplan.hardware_profiles.load import load_cluster


def test_a_node_that_states_its_own_keeps_it_to_itself() -> None:
    """Eight ranks of one MI300X node hide a quarter of a message, sixteen of two nodes what the
    engine's constants say, one layout as many.
    """
    cluster, sizes = load_cluster("mi300x-8"), np.array([8.0, 16.0])
    found = interference_of(cluster, 0.1, place(sizes, 1.0, 8))
    assert found == pytest.approx([3.0, 0.1])
    alone = [interference_of(cluster, 0.1, place(size, 1.0, 8)) for size in (8.0, 16.0)]
    assert alone == [3.0, 0.1]
    assert exposed_s(4.0, 1e3, 1.0, 3.0) == pytest.approx(3.0)


def test_a_cluster_that_states_none_has_the_constants_for_all() -> None:
    """Whatever the group, and without looking at it."""
    assert interference_of(load_cluster("dgx-h100"), 0.1, place(np.array([8.0]), 1.0, 8)) == 0.1


def test_the_network_can_state_it_too() -> None:
    """Then a node that states none keeps the constants'."""
    published = load_cluster("dgx-h100")
    network = published.network.model_copy(update={"interference": 1.0})
    cluster = published.model_copy(update={"network": network})
    assert interference_of(cluster, 0.1, place(np.array([8.0, 9.0]), 1.0, 8)) == pytest.approx(
        [0.1, 1.0]
    )


@pytest.mark.parametrize(
    ("cluster", "fitted", "expected"),
    [
        pytest.param("dgx-h100", 0.1, [BESIDE_EXPERTS, 0.1], id="as measured inside a node alone"),
        pytest.param(
            "dgx-h100", 2.0, [2.0, 2.0], id="an engine that loses more keeps its constant"
        ),
        pytest.param("mi300x-8", 0.1, [3.0, 0.1], id="a node that states its own keeps it"),
    ],
)
def test_weights_beside_experts(cluster: str, fitted: float, expected: list[float]) -> None:
    """Eight ranks of one node, and sixteen of two."""
    group = place(np.array([8.0, 16.0]), 1.0, 8)
    assert beside_experts(load_cluster(cluster), fitted, group) == pytest.approx(expected)


def test_what_was_measured_by_hand() -> None:
    """2.08 over 1.18 ms, and 80 % over 47: their mean, and what it shows of a hidden second."""
    assert pytest.approx((2.08 / 1.18 + 80 / 47) / 2 - 1, abs=0.005) == BESIDE_EXPERTS
    assert exposed_s(1.0, 1e3, 1.0, BESIDE_EXPERTS) == pytest.approx(0.73 / 1.73)
