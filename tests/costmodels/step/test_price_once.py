"""What a step takes once, by hand."""

import numpy as np
import pytest

from meshplan.costmodels.prices.once_per_step import Room


def test_the_ends_hide_under_what_the_layers_leave():
    """Four layers of 1 s send 0.5 s each beside it, slowed by a quarter: 2 / 1.25 = 1.6 of 4 s are
    used up, two ranks share the other 2.4, and of an end's 2 s 2 - 1.2 are seen, more than the
    2 x 0.25 / 1.25 that it is slowed by.
    """
    one, two = np.ones(1), np.array([2.0])
    room = Room(np.ones((1, 1, 1)), np.zeros((1, 2)), one, np.array([4.0]), two, one / 4)
    seen = room.exposed(np.array([[0.5]]), np.array([[2.0, 0.0]]), np.zeros(1))
    assert seen.ends_s[0] == pytest.approx([0.8, 0.0])
    assert seen.layers_s[0, 0, 0] == pytest.approx(0.5 - 0.5 / 1.25)


def test_latencies_hide_under_what_the_mean_rank_leaves():
    """Eight layers of 1 s on four ranks, 5 s of latencies: each rank has 2 s for them, so 3 s are
    seen, though the one of five layers would show none.
    """
    one, layers = np.ones(1), np.ones((1, 1, 1))
    room = Room(layers, np.zeros((1, 2)), one, np.array([8.0]), np.array([4.0]), 0 * one)
    nothing = np.zeros((1, 1)), np.zeros((1, 2))
    assert room.exposed(*nothing, np.array([5.0])).latency_s == pytest.approx([3.0])
