"""What computing loses beside a collective, by where the collective's ranks are."""

import numpy as np
import pytest

from meshplan.costmodels.seconds.interference import exposed_s, interference_of
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
